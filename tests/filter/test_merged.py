"""Merged Gaussians against the sum over all mode paths: filtered, smoothed, the evidence, the likeliest path."""

from dataclasses import replace
from itertools import pairwise, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from vhydro.certificate import Certificate
from vhydro.episodes import Episode, episode
from vhydro.filter import FilterSettings, Stream, filter
from vhydro.filter.merged import is_separate
from vhydro.flow import Reset
from vhydro.model import axis_emission, hybrid_model, linear_emission, linear_flow, mode_kernel
from vhydro.network import Network, network
from vhydro.smoother import smooth, smooth_log

GAIN = np.array([[0.0, 0.0], [1.0, 0.5]])
KEY = jax.random.key(0)


def small_model(noise: float = 1.0, sensor: float = 0.1, drive=None):
    return hybrid_model(
        replace(mode_kernel(2, stay=0.8), drive=drive),
        linear_flow(np.broadcast_to(np.eye(2), (2, 2, 2)), port=GAIN[:, :, None] * np.eye(2)),
        axis_emission(2, (0, 1), noise=sensor),
        noise=noise,
        start_mode=[0.7, 0.3],
        channels=["a", "b"],
    )


def small_log(steps: int, hidden: float, seed: int = 0) -> Episode:
    random = np.random.default_rng(seed)
    drive = 3 * random.normal(size=(steps, 2))
    modes = random.integers(0, 2, steps)
    walk = np.concatenate([np.zeros((1, 2)), np.cumsum(GAIN[modes] * drive + random.normal(size=(steps, 2)), 0)])
    walk[random.random(walk.shape) < hidden] = np.nan
    return episode(walk, drive, dt=0.1, channels=["a", "b"], inputs=["ua", "ub"])


def cut(log: Episode, rows: int) -> Episode:
    return replace(log, observations=log.observations[:rows], actions=log.actions[: rows - 1])


def enumerated(log: Episode, weight=0.0, noise: float = 1.0, sensor: float = 0.1):
    """Exact modes, mean of z, evidence and likeliest path from all paths; along one, readings are jointly Gaussian.

    `weight` is what inputs add to the logits of the next modes.
    """
    moves = np.log([[0.8, 0.2], [0.2, 0.8]]) + (log.actions @ np.broadcast_to(weight, (2, 2)).T)[:, None]
    moves -= np.logaddexp.reduce(moves, axis=2, keepdims=True)
    rows, seen = log.steps + 1, log.observed
    weights, means, modes = [], [], list(product((0, 1), repeat=rows))
    walk = 1.0 + noise**2 * np.minimum.outer(np.arange(rows), np.arange(rows))
    for path in modes:
        value = np.log([0.7, 0.3][path[0]]) + sum(m[p] for m, p in zip(moves, pairwise(path), strict=True))
        mean = np.concatenate([np.zeros((1, 2)), np.cumsum(GAIN[list(path[1:])] * log.actions, 0)])
        after = mean.copy()
        for c in range(2):
            on = seen[:, c]
            covariance = (walk + sensor**2 * np.eye(rows))[np.ix_(on, on)]
            if on.any():
                missed = log.observations[on, c] - mean[on, c]
                value += multivariate_normal(cov=covariance).logpdf(missed)
                after[:, c] += walk[:, on] @ np.linalg.solve(covariance, missed)
        weights.append(value)
        means.append(after)
    total = np.logaddexp.reduce(weights)
    chance, table = np.exp(np.array(weights) - total), np.array(modes)
    mode = np.stack([chance @ (table == m) for m in (0, 1)], 1)
    return mode, np.einsum("p,ptc->tc", chance, means), total, table[int(np.argmax(weights))]


def filtered_exactly(log: Episode):
    """Mode and mean of every row given the log up to it."""
    every = [enumerated(cut(log, rows)) for rows in range(1, log.steps + 2)]
    return np.stack([e[0][-1] for e in every]), np.stack([e[1][-1] for e in every])


def test_seen_logs_have_the_exact_posterior():
    log = small_log(6, 0.0)
    got, (mode, mean, evidence, path) = smooth_log(small_model(), log, key=KEY), enumerated(log)
    np.testing.assert_allclose(got.mode, mode, atol=0.01)
    np.testing.assert_allclose(got.mean, mean, atol=0.01)
    assert got.log_evidence == pytest.approx(evidence, abs=0.02)
    np.testing.assert_array_equal(got.path, path)
    before, middle = filtered_exactly(log)
    np.testing.assert_allclose(got.moments.mode, before, atol=0.01)
    np.testing.assert_allclose(got.moments.mean, middle, atol=0.01)
    assert np.abs(mode - before).max() > 0.02  # or smoothing would show nothing


@pytest.mark.parametrize("seed", range(4))
def test_in_the_dark_merging_stays_near_the_exact_posterior(seed):
    log = small_log(7, 0.4, seed)
    got, (mode, mean, evidence, _) = smooth_log(small_model(), log, key=KEY), enumerated(log)
    assert np.abs(got.mode - mode).mean() < 0.08
    assert np.abs(got.mean - mean).mean() < 0.2  # of a step's noise
    before, _ = filtered_exactly(log)
    assert np.abs(got.moments.mode - before).mean() < 0.08
    assert got.log_evidence == pytest.approx(evidence, abs=0.4)
    np.testing.assert_allclose(got.mode.sum(1), 1, atol=1e-5)


def test_with_one_mode_it_is_the_kalman_smoother():
    """Nothing is merged: mean and variance are those of the joint Gaussian of the whole log."""
    log = small_log(9, 0.3)
    one = hybrid_model(
        mode_kernel(1), linear_flow(np.eye(2)[None], port=np.diag(GAIN[1])[None]),
        axis_emission(2, (0, 1), noise=0.1), noise=1.0, channels=["a", "b"],
    )  # fmt: skip
    got = smooth_log(one, log, key=KEY)
    rows = log.steps + 1
    walk = 1.0 + np.minimum.outer(np.arange(rows), np.arange(rows))
    path = np.concatenate([np.zeros((1, 2)), np.cumsum(GAIN[1] * log.actions, 0)])
    for c in range(2):
        on = log.observed[:, c]
        gain = np.linalg.solve(walk[np.ix_(on, on)] + 0.01 * np.eye(on.sum()), walk[on]).T
        np.testing.assert_allclose(
            got.mean[:, c], path[:, c] + gain @ (log.observations[on, c] - path[on, c]), atol=1e-3
        )
        np.testing.assert_allclose(got.variance[:, c], np.diag(walk - gain @ walk[on]), rtol=1e-3, atol=1e-4)


def test_padding_changes_nothing_and_one_row_is_enough():
    """A log of 64 rows has no padding, one of 65 has 63 rows of it; what is hidden at the end says nothing."""
    model, log = small_model(), small_log(63, 0.3)
    longer = replace(
        log,
        observations=np.concatenate([log.observations, np.full((1, 2), np.nan)]),
        actions=np.concatenate([log.actions, np.zeros((1, 2))]),
    )
    short, long = (smooth_log(model, e, key=KEY) for e in (log, longer))
    np.testing.assert_allclose(long.mode[:64], short.mode, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(long.mean[:64], short.mean, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(long.variance[:64], short.variance, rtol=1e-4)
    np.testing.assert_array_equal(long.path[:64], short.path)
    assert long.log_evidence == pytest.approx(float(short.log_evidence), rel=1e-6)
    alone = smooth_log(model, cut(log, 1), key=KEY)
    first = enumerated(cut(log, 1))
    np.testing.assert_allclose(alone.mode, first[0], atol=1e-6)
    assert alone.log_evidence == pytest.approx(first[2], rel=1e-5)
    assert alone.path.shape == (1,)


def test_nothing_is_certified_and_nothing_is_left_to_chance():
    model, log = small_model(), small_log(20, 0.3)
    settings = FilterSettings(engine="merged", history=True)
    one, two = (filter(model, log, key=jax.random.key(k), settings=settings) for k in (0, 1))
    np.testing.assert_array_equal(one.mode, two.mode)
    assert (one.record.certificate == Certificate.NONE).all()
    assert not one.record.certified.any()
    assert np.isinf(one.record.bound).all()
    assert one.record.log_normaliser.sum() == pytest.approx(float(one.log_evidence), rel=1e-6)
    smoothed = smooth(model, log, one, key=KEY)
    assert smoothed.trajectories is None
    assert smoothed.path.shape == (21,)


def test_what_can_be_merged():
    separate = small_model()
    assert is_separate(separate)
    idle = network(4, (), 2, key=KEY, dtype=np.float32, last=0.0)
    assert is_separate(small_model(drive=idle))  # a kernel that reads (z, a) reads the mean of every mode
    coupled = replace(separate, flow=linear_flow(np.broadcast_to([[1.0, 0.1], [0.0, 1.0]], (2, 2, 2)), inputs=2))
    mixed = replace(separate, emission=linear_emission([[1.0, 0.4], [-0.3, 0.9]], noise=0.1))
    resets = replace(separate, reset=Reset(jnp.full((2, 2, 1), -0.5, jnp.float32), (1,)))
    for model in (coupled, mixed, resets):
        assert not is_separate(model)
        with pytest.raises(ValueError, match="merged"):
            filter(model, small_log(5, 0.0), key=KEY, settings=FilterSettings(engine="merged"))


def test_particles_agree_with_the_merged():
    log, model = small_log(30, 0.2), small_model()
    settings = FilterSettings(particles=128, engine="drawn")
    by_particles = smooth_log(model, log, key=jax.random.key(1), settings=settings)
    merged = smooth_log(model, log, key=KEY)
    assert by_particles.trajectories is not None
    assert merged.trajectories is None
    assert np.abs(by_particles.mode - merged.mode).mean() < 0.1
    np.testing.assert_array_equal(by_particles.path, np.asarray(by_particles.mode).argmax(1))


def test_transitions_that_an_input_drives_are_used():
    weight = np.array([[0.0, 0.0], [0.7, -0.4]])  # of the inputs, on the logit of each next mode
    drive = Network((jnp.asarray(np.hstack([np.zeros((2, 2)), weight]), jnp.float32),), (jnp.zeros(2, jnp.float32),))
    log = small_log(6, 0.0)
    got, (mode, _, evidence, path) = smooth_log(small_model(drive=drive), log, key=KEY), enumerated(log, weight)
    np.testing.assert_allclose(got.mode, mode, atol=0.01)
    assert got.log_evidence == pytest.approx(evidence, abs=0.02)
    np.testing.assert_array_equal(got.path, path)
    assert abs(evidence - enumerated(log)[2]) > 0.1  # or the inputs would show nothing


@pytest.mark.parametrize("far", [1e2, 1e6, 1e12, 1e16])
def test_probabilities_add_up_however_far_off_a_reading_is(far):
    """In single precision the log of a likelihood has no digits left for shares, and then no number at all."""
    log = small_log(20, 0.2)
    log.observations[7, 0] = far
    model = small_model()
    belief = smooth_log(model, log, key=KEY, settings=FilterSettings(engine="merged"))
    assert belief.mode.dtype == np.float32
    for found in (belief.mode, belief.moments.mode):
        np.testing.assert_allclose(found.sum(1), 1, atol=20 * np.finfo(np.float32).eps * model.modes)
    assert np.isfinite(belief.moments.mean).all()


@pytest.mark.parametrize("engine", ["merged", "drawn"])
def test_an_absurd_reading_leaves_finite_numbers(engine):
    log = small_log(20, 0.0)
    log.observations[3, 0] = 1e30
    belief = filter(small_model(), log, key=KEY, settings=FilterSettings(engine=engine))
    assert all(np.isfinite(part).all() for part in belief.moments)


@pytest.mark.parametrize("far", [1e300, 1e38])
def test_a_number_that_the_model_has_none_for_is_refused(far):
    log = small_log(20, 0.0)
    log.observations[3, 0] = far
    with pytest.raises(ValueError, match="expected at most .* Put NaN where a reading is none"):
        filter(small_model(), log, key=KEY)
    stream = Stream(small_model(), dt=0.1, key=KEY)
    stream.start(log.observations[0])
    with pytest.raises(ValueError, match="channel 'a' is .* at row 0; expected at most"):
        stream.step(log.actions[2], log.observations[3])
    log.observations[3, 0], log.actions[4, 1] = 0.0, 1e300
    with pytest.raises(ValueError, match="input 1 is 1e\\+300 at row 4"):
        filter(small_model(), log, key=KEY)
