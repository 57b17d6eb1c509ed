"""Densities, exact updates and the small algebra under them, against numpy, scipy and grids."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from oracles import linear
from vhydro.gaussian import (
    as_factor,
    coloured,
    conditioned,
    conditioned_axes,
    log_density,
    log_second_moment_ratio,
    moments,
)
from vhydro.small import UNROLL, all_finite, log_sum, log_sum_modes, matvec, pick, total

CASES = 40


def factors(rng, count, d):
    """Lower-triangular factors with scales over two orders of magnitude."""
    below = np.tril(rng.standard_normal((count, d, d)), -1)
    diagonal = 10 ** rng.uniform(-1, 1, (count, d))
    return below + np.einsum("ni,ij->nij", diagonal, np.eye(d))


def random_update(seed, d, channels):
    """The arguments of `conditioned`, with full factors; the first case sees nothing and the second all."""
    rng = np.random.default_rng(seed)
    mean, scale = rng.standard_normal((CASES, d)), factors(rng, CASES, d)
    matrix, noise = rng.standard_normal((CASES, channels, d)), 10 ** rng.uniform(-2, 1, (CASES, channels))
    residual, observed = rng.standard_normal((CASES, channels)), rng.random((CASES, channels)) < 0.6
    observed[0], observed[1] = False, True
    return mean, scale, matrix, noise, residual, observed


def kalman(mean, cov, matrix, noise, residual, observed):
    """Evidence, posterior mean and covariance by the oracle's textbook update."""
    y = np.where(observed, matrix @ mean + residual, np.nan)
    prior = linear.Belief(mean, cov, np.zeros(()))
    return linear.conditioned(prior, matrix, np.zeros(len(y)), np.diag(noise**2), y)


def log_square(mean, cov, matrix, noise, residual, observed):
    """`log E[g²]` as the evidence of seeing the same observation twice."""
    twice = np.concatenate([matrix, matrix]), np.tile(noise, 2), np.tile(residual, 2), np.tile(observed, 2)
    return kalman(mean, cov, *twice).log_joint


@pytest.mark.parametrize("diagonal", [False, True], ids=["full", "diagonal"])
@pytest.mark.parametrize(("d", "channels"), [(1, 3), (3, 2)])
def test_conditioned_is_the_kalman_update(d, channels, diagonal):
    mean, scale, *sensor = random_update(d, d, channels)
    if diagonal:
        scale = np.abs(np.diagonal(scale, axis1=1, axis2=2))
    out = jax.vmap(conditioned)(mean, scale, *sensor)
    covs = jax.vmap(lambda s: as_factor(s) @ as_factor(s).T)(scale)
    for i, cov in enumerate(np.asarray(covs)):
        case = mean[i], cov, *(each[i] for each in sensor)
        expected = kalman(*case)
        after = np.asarray(out.scale[i])
        np.testing.assert_allclose(out.mean[i], expected.mean, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(after @ after.T, expected.cov, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(out.log_evidence[i], expected.log_joint, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(out.log_square[i], log_square(*case), rtol=1e-7, atol=1e-7)
        np.testing.assert_array_equal(after, np.tril(after))
        assert (np.diagonal(after) > 0).all()


def test_nothing_observed_changes_nothing():
    mean, scale, matrix, noise, residual, _ = random_update(4, 3, 2)
    out = jax.vmap(conditioned)(mean, scale, matrix, noise, residual, np.zeros(residual.shape, bool))
    np.testing.assert_array_equal(out.log_evidence, 0.0)
    np.testing.assert_array_equal(out.log_square, 0.0)
    np.testing.assert_array_equal(out.mean, mean)
    np.testing.assert_allclose(
        out.scale @ np.swapaxes(out.scale, 1, 2), scale @ np.swapaxes(scale, 1, 2), rtol=1e-12
    )


def test_axis_aligned_update_is_the_general_one():
    d, axes = 3, (2, 0)
    mean, scale, _, noise, residual, observed = random_update(5, d, len(axes))
    scale = np.abs(np.diagonal(scale, axis1=1, axis2=2))
    gain = np.random.default_rng(6).standard_normal(noise.shape)
    matrix = np.zeros((CASES, len(axes), d))
    matrix[:, np.arange(len(axes)), axes] = gain
    general = jax.vmap(conditioned)(mean, scale, matrix, noise, residual, observed)
    fast = jax.vmap(lambda m, s, g, n, r, o: conditioned_axes(m, s, axes, g, n, r, o))(
        mean, scale, gain, noise, residual, observed
    )
    np.testing.assert_allclose(fast.log_evidence, general.log_evidence, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(fast.log_square, general.log_square, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(fast.mean, general.mean, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(jax.vmap(jnp.diag)(fast.scale), general.scale, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("log_condition", [8, 10, 12])
def test_a_near_singular_prior_keeps_its_posterior(log_condition):
    """A sensor of noise 1 on each rotated axis of an ellipse: every axis is then updated on its own."""
    rng = np.random.default_rng(log_condition)
    turn, _ = np.linalg.qr(rng.standard_normal((3, 3)))
    axes = 10.0 ** -np.array([0, 1, log_condition / 2])
    factor = np.linalg.qr((turn * axes).T, mode="r").T
    out = conditioned(
        *map(jnp.asarray, (np.zeros(3), factor, turn.T, np.ones(3), np.ones(3), np.ones(3, bool)))
    )
    total = axes**2 + 1
    assert out.log_evidence == pytest.approx(-0.5 * (np.log(2 * np.pi * total) + 1 / total).sum(), rel=1e-12)
    after = np.asarray(out.scale)
    narrow = np.sqrt((axes**2 / total).min())
    assert np.linalg.norm(after.T @ turn[:, 2]) == pytest.approx(narrow, rel=1e-16 * 10**log_condition + 1e-9)


@pytest.mark.parametrize("d", [1, 3])
def test_log_density_is_scipys(d):
    rng = np.random.default_rng(d)
    residual, full = rng.standard_normal((CASES, d)), factors(rng, CASES, d)
    for scale in (full, np.abs(np.diagonal(full, axis1=1, axis2=2))):
        ours = jax.vmap(log_density)(residual, scale)
        root = np.asarray(jax.vmap(as_factor)(scale))
        theirs = [multivariate_normal(cov=s @ s.T).logpdf(r) for r, s in zip(residual, root, strict=True)]
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_coloured_noise_has_its_scale():
    rng = np.random.default_rng(0)
    full, axes = jnp.asarray(factors(rng, 1, 3)[0]), jnp.asarray(rng.random(3))
    np.testing.assert_allclose(jax.vmap(coloured, (None, 0), 1)(full, jnp.eye(3)), full)
    np.testing.assert_allclose(jax.vmap(coloured, (None, 0), 1)(axes, jnp.eye(3)), jnp.diag(axes))


def test_moments_are_the_weighted_ones():
    rng = np.random.default_rng(0)
    weight, z = rng.dirichlet(np.ones(7)), rng.standard_normal((2, 7))
    mean, variance = moments(jnp.log(weight), jnp.asarray(z))
    np.testing.assert_allclose(mean, np.average(z, axis=1, weights=weight))
    np.testing.assert_allclose(variance, np.diag(np.cov(z, aweights=weight, bias=True)))


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_log_sum_is_scipys(axis):
    values = 300 * np.random.default_rng(0).standard_normal((4, 5))
    values[0] = -np.inf
    values[1, 2], values[2, 3] = -np.inf, 900.0
    np.testing.assert_allclose(
        log_sum(jnp.asarray(values), axis=axis), logsumexp(values, axis=axis), rtol=1e-14
    )


@pytest.mark.parametrize("function", [log_sum, log_sum_modes])
def test_log_sum_of_little_nothing_and_everything(function):
    values = jnp.array([-jnp.inf, -900.0, -901.0])
    assert float(function(values)) == pytest.approx(float(logsumexp(values)), rel=1e-14)
    assert function(jnp.full(3, -jnp.inf)) == -jnp.inf
    assert function(jnp.array([0.0, jnp.inf])) == jnp.inf


@pytest.mark.parametrize("columns", [0, 1, 3, UNROLL + 1])
def test_unrolled_algebra_is_algebra(columns):
    """On both sides of the size at which it is no longer unrolled, and for a vector of no entries."""
    rng = np.random.default_rng(columns)
    matrix, vector = rng.standard_normal((2, 4, columns)), rng.standard_normal(columns)
    np.testing.assert_allclose(matvec(jnp.asarray(matrix), jnp.asarray(vector)), matrix @ vector, atol=1e-13)
    np.testing.assert_allclose(total(jnp.asarray(vector)), vector.sum(), atol=1e-13)


def test_entries_are_picked_and_checked_by_row():
    values = jnp.asarray(np.random.default_rng(0).standard_normal((3, 2)))
    for mode in range(3):
        np.testing.assert_array_equal(pick(values, jnp.asarray(mode)), values[mode])
        np.testing.assert_array_equal(pick(values > 0, jnp.asarray(mode)), values[mode] > 0)
    broken = values.at[1, 0].set(jnp.nan).at[2, 0].set(jnp.inf)
    np.testing.assert_array_equal(all_finite(broken), [False, True])


def ratio_on_a_grid(mean, root, guide_mean, guide_root):
    """`∫ N(mean)² / N(guide)` by a sum over an even grid that follows the integrand's own Gaussian."""
    target, guide = np.linalg.inv(root @ root.T), np.linalg.inv(guide_root @ guide_root.T)
    precision = 2 * target - guide
    centre = np.linalg.solve(precision, 2 * target @ mean - guide @ guide_mean)
    frame = np.linalg.inv(np.linalg.cholesky(precision)).T
    x = np.linspace(-9, 9, 181)
    grid = np.stack(np.meshgrid(*[x] * len(mean)), -1).reshape(-1, len(mean))
    z = centre + grid @ frame.T
    log_values = 2 * multivariate_normal(mean, root @ root.T).logpdf(z)
    log_values = log_values - multivariate_normal(guide_mean, guide_root @ guide_root.T).logpdf(z)
    return logsumexp(log_values) + len(mean) * np.log(x[1] - x[0]) + np.linalg.slogdet(frame)[1]


SHAPES = [(False, False), (False, True), (True, False), (True, True)]


def target_and_guide(seed, d, diagonal):
    """A target and a guide between 0.8 and 2 times as wide, each diagonal or full."""
    rng = np.random.default_rng(seed)
    root = np.tril(0.4 * rng.standard_normal((d, d)), -1) + np.diag(rng.uniform(0.5, 2, d))
    root = np.diag(np.diag(root)) if diagonal[0] else root
    guide = np.linalg.cholesky(root @ np.diag(rng.uniform(0.8, 2, d)) ** 2 @ root.T)
    guide = np.diag(1.3 * np.sqrt(np.diag(root @ root.T))) if diagonal[1] else guide
    return rng.standard_normal(d), root, rng.standard_normal(d), guide


def as_scale(root, diagonal):
    return jnp.asarray(np.diag(root) if diagonal else root)


@pytest.mark.parametrize("diagonal", SHAPES)
@pytest.mark.parametrize("d", [1, 2])
def test_second_moment_ratio_is_the_integral(d, diagonal):
    compared = 0
    for seed in range(8):
        mean, root, guide_mean, guide = target_and_guide(seed, d, diagonal)
        ours = log_second_moment_ratio(
            jnp.asarray(mean),
            as_scale(root, diagonal[0]),
            jnp.asarray(guide_mean),
            as_scale(guide, diagonal[1]),
        )
        wide = np.linalg.eigvalsh(2 * guide @ guide.T - root @ root.T).min() > 0
        assert np.isfinite(ours) == wide
        if wide:
            assert ours == pytest.approx(ratio_on_a_grid(mean, root, guide_mean, guide), rel=1e-8)
            compared += 1
    assert compared >= 4


@pytest.mark.parametrize("diagonal", SHAPES)
def test_a_guide_too_narrow_has_an_infinite_ratio(diagonal):
    """One axis below 1/√2 of the target is enough, however wide the other; just above it is not."""
    target, where = as_scale(np.eye(2), diagonal[0]), jnp.zeros(2)
    for width, finite in ((0.7, False), (0.71, True), (0.1, False)):
        guide = as_scale(np.diag([3.0, width]), diagonal[1])
        assert np.isfinite(log_second_moment_ratio(where, target, where, guide)) == finite


@pytest.mark.parametrize("diagonal", SHAPES)
def test_a_law_is_its_own_perfect_guide(diagonal):
    root = np.diag([1e-4, 1.0, 1e4])
    where = jnp.asarray([1.0, 2.0, 3.0])
    ratio = log_second_moment_ratio(where, as_scale(root, diagonal[0]), where, as_scale(root, diagonal[1]))
    assert abs(ratio) < 1e-12


# --- gradients ----------------------------------------------------------------------------------------------


def finite(tree):
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("seen", [[True, True], [True, False], [False, False]])
def test_the_gradient_of_an_update_matches_finite_differences(seen):
    mean, scale, matrix, noise, residual, _ = (each[2] for each in random_update(7, 2, 2))
    weights = np.random.default_rng(8).standard_normal(6)

    def value(mean, scale, matrix, noise, residual):
        out = conditioned(mean, scale, matrix, noise, residual, jnp.asarray(seen))
        parts = [out.log_evidence[None], out.log_square[None], out.mean, jnp.diagonal(out.scale)]
        return jnp.concatenate(parts) @ weights

    at = tuple(map(jnp.asarray, (mean, scale, matrix, noise, residual)))
    gradient = jax.grad(value, tuple(range(5)))(*at)
    assert finite(gradient)
    rng = np.random.default_rng(9)
    along = tuple(rng.standard_normal(each.shape) for each in at)
    along = (along[0], np.tril(along[1]), *along[2:])
    step = 1e-6
    ahead, behind = (value(*(a + s * b for a, b in zip(at, along, strict=True))) for s in (step, -step))
    slope = sum((g * b).sum() for g, b in zip(gradient, along, strict=True))
    assert float(slope) == pytest.approx(float(ahead - behind) / (2 * step), rel=1e-5)


@pytest.mark.parametrize("diagonal", SHAPES)
@pytest.mark.parametrize("width", [1.2, 0.3], ids=["wide enough", "too narrow"])
def test_the_gradient_of_the_ratio_is_finite(diagonal, width):
    at = jnp.zeros(2), as_scale(np.eye(2), diagonal[0]), jnp.ones(2), as_scale(width * np.eye(2), diagonal[1])
    assert finite(jax.grad(log_second_moment_ratio, (0, 1, 2, 3))(*at))


@pytest.mark.parametrize("function", [log_sum, log_sum_modes])
def test_the_gradient_of_log_sum_is_the_softmax(function):
    values = jnp.array([-jnp.inf, 0.0, 1.0, 800.0])
    np.testing.assert_allclose(jax.grad(function)(values), jax.nn.softmax(values), atol=1e-15)
