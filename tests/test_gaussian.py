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
from vhydro.small import BLOCK, UNROLL, log_softmax, log_sum, matvec, over, pick, running_sum, total

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
    out = jax.jit(jax.vmap(conditioned))(mean, scale, *sensor)
    roots = scale[..., None] * np.eye(d) if diagonal else scale
    for i, cov in enumerate(roots @ np.swapaxes(roots, 1, 2)):
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
    nothing = np.zeros(residual.shape, bool)
    out = jax.jit(jax.vmap(conditioned))(mean, scale, matrix, noise, residual, nothing)
    np.testing.assert_array_equal(out.log_evidence, 0.0)
    np.testing.assert_array_equal(out.log_square, 0.0)
    np.testing.assert_array_equal(out.mean, mean)
    np.testing.assert_allclose(out.scale @ np.swapaxes(out.scale, 1, 2), scale @ np.swapaxes(scale, 1, 2), rtol=1e-12)


def test_axis_aligned_update_is_the_general_one():
    d, axes = 3, (2, 0)
    mean, scale, _, noise, residual, observed = random_update(5, d, len(axes))
    scale = np.abs(np.diagonal(scale, axis1=1, axis2=2))
    gain = np.random.default_rng(6).standard_normal(noise.shape)
    matrix = np.zeros((CASES, len(axes), d))
    matrix[:, np.arange(len(axes)), axes] = gain
    general = jax.jit(jax.vmap(conditioned))(mean, scale, matrix, noise, residual, observed)
    fast = jax.jit(jax.vmap(lambda m, s, g, n, r, o: conditioned_axes(m, s, axes, g, n, r, o)))(
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
    out = jax.jit(conditioned)(np.zeros(3), factor, turn.T, np.ones(3), np.ones(3), np.ones(3, bool))
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
        ours = jax.jit(jax.vmap(log_density))(residual, scale)
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


# --- one particle and many ----------------------------------------------------------------------------------


def one_by_one(function, *arguments):
    """The function of single particles, mapped along the last axis; axes of length one are shared."""
    shared = [x.shape[-1] == 1 for x in arguments]
    mapped = jax.vmap(function, in_axes=[None if s else -1 for s in shared], out_axes=-1)
    return jax.jit(mapped)(*(x[..., 0] if s else x for x, s in zip(arguments, shared, strict=True)))


def particles(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]


@pytest.mark.parametrize("kind", ["diagonal, shared", "diagonal, own", "full, shared", "full, own"])
def test_many_particles_are_one_after_another(kind):
    """Densities, draws and ratios along a last axis, with scales of their own or one for all."""
    d, n = 3, 5
    residual, guide_mean = particles(0, (d, n), (d, n))
    scale = jnp.moveaxis(jnp.asarray(factors(np.random.default_rng(1), n, d)), 0, -1)
    scale = scale if kind.startswith("full") else jnp.abs(jnp.diagonal(scale).T)
    scale = scale if kind.endswith("own") else scale[..., :1]
    for function in (log_density, lambda r, s: coloured(s, r)):
        np.testing.assert_allclose(function(residual, scale), one_by_one(function, residual, scale), rtol=1e-10)
    for target in (scale, scale[..., :1]):
        at = residual, target, guide_mean, 1.5 * scale
        alone = one_by_one(log_second_moment_ratio, *at)
        np.testing.assert_allclose(ratio(*at), alone, rtol=1e-10)
        assert np.isfinite(alone).any()


def test_many_updates_are_one_after_another():
    """The scale is shared by all particles, as a carrier's is."""
    d, axes, n = 3, (2, 0), 5
    mean, residual = particles(2, (d, n), (2, n))
    (matrix, gain), noise, seen = particles(3, (2, d), (2,)), jnp.array([0.3, 0.4]), jnp.array([True, False])
    for scale in (jnp.array([0.5, 1.0, 2.0]), jnp.asarray(factors(np.random.default_rng(4), 1, d)[0])):
        updates = [lambda m, s, r: conditioned(m, s, matrix, noise, r, seen)]
        if scale.ndim == 1:
            updates.append(lambda m, s, r: conditioned_axes(m, s, axes, gain, noise, r, seen))
        for update in updates:
            many = jax.jit(update)(mean, over(scale, 1), residual)
            alone = one_by_one(update, mean, over(scale, 1), residual)
            for a, b in zip(many, alone, strict=True):
                np.testing.assert_allclose(jnp.broadcast_to(a, b.shape), b, rtol=1e-10, atol=1e-12)


# --- small algebra ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [4, UNROLL + 1])
def test_log_sum_is_scipys(rows):
    values = 300 * np.random.default_rng(0).standard_normal((rows, 5))
    values[:, 0] = -np.inf
    values[1, 2], values[2, 3] = -np.inf, 900.0
    np.testing.assert_allclose(log_sum(jnp.asarray(values)), logsumexp(values, axis=0), rtol=1e-14)
    np.testing.assert_allclose(log_sum(jnp.asarray(values[:, 3])), logsumexp(values[:, 3]), rtol=1e-14)
    np.testing.assert_allclose(
        log_softmax(jnp.asarray(values[:, 1:])), values[:, 1:] - logsumexp(values[:, 1:], axis=0), rtol=1e-13
    )


def test_log_sum_of_nothing_and_of_everything():
    assert log_sum(jnp.full(3, -jnp.inf)) == -jnp.inf
    assert log_sum(jnp.array([0.0, jnp.inf])) == jnp.inf


@pytest.mark.parametrize("columns", [0, 1, 3, UNROLL + 1])
def test_small_products_and_sums_take_any_number_of_particles(columns):
    rng = np.random.default_rng(columns)
    matrix, vectors = rng.standard_normal((2, 4, columns)), rng.standard_normal((columns, 6))
    for vector in (vectors, vectors[:, 0]):
        expected = np.tensordot(matrix, vector, 1)
        np.testing.assert_allclose(matvec(jnp.asarray(matrix), jnp.asarray(vector)), expected, atol=1e-12)
        np.testing.assert_allclose(total(jnp.asarray(vector)), vector.sum(0), atol=1e-12)


@pytest.mark.parametrize("length", [1, BLOCK, BLOCK + 1, BLOCK**2 + 7])
def test_the_running_sum_is_the_cumulative_one(length):
    values = np.random.default_rng(length).standard_normal(length)
    np.testing.assert_allclose(running_sum(jnp.asarray(values)), np.cumsum(values), atol=1e-12)
    marks = jnp.asarray(np.random.default_rng(1).integers(0, 3, length), jnp.float32)
    np.testing.assert_array_equal(running_sum(marks), np.cumsum(marks))  # whole numbers, exactly


def test_every_particle_picks_its_own_mode():
    values = jnp.asarray(np.random.default_rng(0).standard_normal((3, 2, 5)))
    mode = jnp.array([2, 0, 1, 1, 2])
    expected = np.stack([values[m, :, i] for i, m in enumerate(mode)], axis=-1)
    np.testing.assert_array_equal(pick(values, mode), expected)
    np.testing.assert_array_equal(pick(values > 0, mode), expected > 0)
    np.testing.assert_array_equal(pick(values[..., 0], mode[0]), values[2, :, 0])
    assert over(values, 2).shape == (3, 2, 5, 1, 1)


# --- the second moment of a guide ---------------------------------------------------------------------------


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


ratio = jax.jit(log_second_moment_ratio)
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
        ours = ratio(mean, as_scale(root, diagonal[0]), guide_mean, as_scale(guide, diagonal[1]))
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
        assert np.isfinite(ratio(where, target, where, guide)) == finite


@pytest.mark.parametrize("diagonal", SHAPES)
def test_a_law_is_its_own_perfect_guide(diagonal):
    root = np.diag([1e-4, 1.0, 1e4])
    where = jnp.asarray([1.0, 2.0, 3.0])
    assert abs(ratio(where, as_scale(root, diagonal[0]), where, as_scale(root, diagonal[1]))) < 1e-12


# --- gradients ----------------------------------------------------------------------------------------------


def finite(tree):
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


def test_the_gradient_of_an_update_matches_finite_differences():
    """With all channels, one or none seen."""
    *at, _ = (jnp.asarray(each[2]) for each in random_update(7, 2, 2))
    weights = np.random.default_rng(8).standard_normal(6)

    @jax.jit
    def value(at, seen):
        out = conditioned(*at, seen)
        parts = [out.log_evidence[None], out.log_square[None], out.mean, jnp.diagonal(out.scale)]
        return jnp.concatenate(parts) @ weights

    rng, step = np.random.default_rng(9), 1e-6
    along = [rng.standard_normal(each.shape) for each in at]
    along[1] = np.tril(along[1])
    for seen in ([True, True], [True, False], [False, False]):
        gradient = jax.jit(jax.grad(value))(at, jnp.array(seen))
        assert finite(gradient)
        ahead, behind = (
            value([a + s * b for a, b in zip(at, along, strict=True)], jnp.array(seen)) for s in (step, -step)
        )
        slope = sum(float((g * b).sum()) for g, b in zip(gradient, along, strict=True))
        assert slope == pytest.approx(float(ahead - behind) / (2 * step), rel=1e-5)


@pytest.mark.parametrize("diagonal", SHAPES)
@pytest.mark.parametrize("width", [1.2, 0.3], ids=["wide enough", "too narrow"])
def test_the_gradient_of_the_ratio_is_finite(diagonal, width):
    at = jnp.zeros(2), as_scale(np.eye(2), diagonal[0]), jnp.ones(2), as_scale(width * np.eye(2), diagonal[1])
    assert finite(jax.jit(jax.grad(log_second_moment_ratio, (0, 1, 2, 3)))(*at))


def test_the_gradient_of_log_sum_is_the_softmax():
    values = jnp.array([-jnp.inf, 0.0, 1.0, 800.0])
    np.testing.assert_allclose(jax.grad(log_sum)(values), jax.nn.softmax(values), atol=1e-15)
