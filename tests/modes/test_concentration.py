"""Thm 2 worked by hand, on segments of a switching linear system, and where its law is not the truth."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import binom, norm

from vhydro.modes.theorem import (
    Constants,
    clamped_log_posterior,
    concentration,
    log_increments,
    residual_constants,
    transfer,
)

DELTA = 0.1
PRIOR = np.array([0.2, 0.5, 0.3])
GAINS = np.array([[0.0, 0.0], [1.0, 0.4], [1.0, -0.6]])  # (modes, channels), from input to state


def predicted(seen: np.ndarray, inputs: np.ndarray, process=0.09, noise=0.16) -> tuple[np.ndarray, np.ndarray]:
    """Predictive means and spreads of `z' = z + G_s u + w`, `o = z + v` by one Kalman filter for each clamped mode."""
    state, variance = np.zeros_like(GAINS), np.ones(GAINS.shape[1])
    means, spreads = [], []
    for row, known, control in zip(seen, ~np.isnan(seen), inputs, strict=True):
        state, variance = state + GAINS * control, variance + process
        means.append(state)
        spreads.append(np.sqrt(variance + noise))
        gain = np.where(known, variance / (variance + noise), 0.0)
        state = state + gain * (np.where(known, row, 0.0) - state)
        variance = (1 - gain) * variance
    return np.array(means), np.array(spreads)


def system_segment(rng: np.random.Generator, inputs: np.ndarray, mode: int, hidden=0.2):
    """Predictions and observations of a segment drawn from the system itself, each value hidden with that chance."""
    moves = GAINS[mode] * inputs[:, None] + rng.normal(0, 0.3, (len(inputs), 2))
    seen = rng.normal(size=2) + np.cumsum(moves, axis=0) + rng.normal(0, 0.4, (len(inputs), 2))
    seen[rng.random(seen.shape) < hidden] = np.nan
    return *predicted(seen, inputs), seen


def drawn_segment(rng: np.random.Generator, steps: int, scale=1.0, bias=0.0):
    """A segment of mode 0 of two, two spreads apart in each of two channels, with such standardised residuals."""
    mean = np.zeros((steps, 2, 2))
    mean[:, 1] = -1.0
    sd = np.full((steps, 2), 0.5)
    return mean, sd, 0.5 * (bias + scale * rng.normal(size=(steps, 2)))


def residuals(segments, mode: int) -> list[np.ndarray]:
    return [(seen - mean[:, mode]) / sd for mean, sd, seen in segments]


def many(failures: int, segments: int, share: float = DELTA) -> bool:
    """Whether so many failures would come from failing on that share in fewer than one of 10,000 tries."""
    return bool(binom.sf(failures - 1, segments, share) < 1e-4)


@pytest.mark.parametrize("steps", [1, 8, 60])
def test_on_segments_of_the_model_the_bound_and_its_conditions_fail_on_at_most_delta(steps: int):
    rng = np.random.default_rng(steps)
    found = []
    for k in range(200):
        mode = k % 3
        found.append(concentration(*system_segment(rng, rng.normal(size=steps), mode), mode, PRIOR, DELTA))
    assert not many(sum(not f.holds for f in found), 200)
    separated = [f for f in found if (f.gamma > 0).all()]
    assert len(separated) > 100
    assert not many(sum(not f.conditions_hold for f in separated), len(separated))
    if steps == 60:
        assert np.median([f.bound for f in found]) < 0.01


def test_gamma_and_variance_are_known_before_any_observation():
    inputs = np.sin(np.arange(20.0))
    rng = np.random.default_rng(0)
    first, second = (concentration(*system_segment(rng, inputs, 1, hidden=0.0), 1, PRIOR) for _ in range(2))
    assert_allclose(first.gamma, second.gamma)
    assert_allclose(first.variance, second.variance)
    assert first.realised != second.realised


def test_one_step_of_two_modes_by_hand():
    # a = (1 - 0) / 0.5 = 2 and e = (1.5 - 1) / 0.5 = 1: R = a²/2 + a e = 4, Γ = 2, V = 4, B = log 1/3.
    found = concentration([[[1.0], [0.0]]], [[0.5]], [[1.5]], 0, [0.75, 0.25], math.exp(-2))
    assert_allclose(found.gamma, [2.0])
    assert_allclose(found.variance, [4.0])
    assert_allclose(found.prior_odds, [-math.log(3)])
    odds, limit = math.exp(-4) / 3, math.exp(-2 + 4) / 3  # u = sqrt(2 · 4 · 2) = 4
    assert_allclose([found.realised, found.bound], [odds / (1 + odds), limit / (1 + limit)])
    assert found.holds
    assert found.conditions_hold


def test_constants_lower_gamma_and_raise_the_variance_by_hand():
    found = concentration(
        [[[1.0], [0.0]]], [[0.5]], [[1.5]], 0, [0.5, 0.5], math.exp(-2), Constants(np.array([0.25]), 4.0)
    )
    assert_allclose(found.gamma, [2 - 2 * 0.25])
    assert_allclose(found.variance, [16.0])
    assert_allclose(found.bound, 1 / (1 + math.exp(1.5 - 8)))


def test_increments_are_those_of_the_seen_channels():
    mean = np.array([[[0.0, 1.0], [2.0, 3.0]], [[0.5, 0.5], [1.0, 1.0]]])
    sd = np.array([[1.0, 2.0], [0.5, 3.0]])
    found = log_increments(mean, sd, [[0.3, np.nan], [np.nan, np.nan]])
    assert_allclose(found[0], norm.logpdf(0.3, [0.0, 2.0], 1.0))
    assert not found[1].any()
    posterior = PRIOR[:2] / 0.7 * np.exp(found[0])
    assert_allclose(np.exp(clamped_log_posterior(found, PRIOR[:2] / 0.7)), posterior / posterior.sum())


def test_the_bound_falls_with_the_length_even_beyond_the_smallest_number():
    rng = np.random.default_rng(1)
    found = [concentration(*drawn_segment(rng, steps), 0, [0.5, 0.5], DELTA) for steps in (5, 10, 20, 40, 2000)]
    bounds = [f.bound for f in found]
    assert bounds == sorted(bounds, reverse=True)
    assert len(set(bounds)) == len(bounds)
    assert found[-1].bound == found[-1].realised == 0
    assert all(f.holds for f in found)


def test_where_the_law_is_wrong_validation_constants_restore_what_the_models_own_break():
    rng = np.random.default_rng(2)
    wrong = {"scale": 2.0, "bias": -0.5}
    constants = residual_constants(residuals([drawn_segment(rng, 40, **wrong) for _ in range(100)], 0))
    assert (np.abs(constants.bias - 0.5) < 0.15).all()
    assert 4 <= constants.proxy < 7
    segments = [drawn_segment(rng, 60, **wrong) for _ in range(300)]
    plain = [concentration(*segment, 0, [0.5, 0.5], DELTA) for segment in segments]
    measured = [concentration(*segment, 0, [0.5, 0.5], DELTA, constants) for segment in segments]
    assert many(sum(not f.holds for f in plain), 300)
    assert not any(f.conditions_hold for f in plain)
    assert not many(sum(not f.holds for f in measured), 300)
    assert not many(sum(not f.conditions_hold for f in measured), 300)
    assert max(f.bound for f in measured) < 0.01


def test_constants_of_a_right_model_are_near_its_own():
    rng = np.random.default_rng(3)
    segments = [system_segment(rng, rng.normal(size=30), 1) for _ in range(100)]
    constants = residual_constants(residuals(segments, 1))
    assert 1 <= constants.proxy < 1.6
    assert (constants.bias < 0.1).all()


def test_residuals_that_persist_or_agree_across_channels_raise_the_proxy():
    rng = np.random.default_rng(4)
    white = rng.normal(size=(100, 50, 2))
    level = np.repeat(white[:, ::5], 5, axis=1)  # sums of five equal steps vary five times as much
    shared = np.repeat(white[..., :1], 2, axis=2)  # both channels are one: the worst direction has twice the variance
    assert residual_constants(list(level)).proxy > 4
    assert_allclose(residual_constants(list(shared)).proxy, 2, rtol=0.3)


def test_outliers_raise_the_proxy_or_break_the_conditions_of_their_segment():
    rng = np.random.default_rng(5)
    rows = [*rng.normal(size=(50, 40, 2))]
    rows[7][3, 0] = 30.0
    assert residual_constants(rows).proxy > 20
    trimmed = residual_constants(rows, tail=0.01)
    assert trimmed.proxy < 3
    mean, sd, seen = drawn_segment(rng, 40)
    assert concentration(mean, sd, seen, 0, [0.5, 0.5], DELTA, trimmed).conditions_hold
    seen[3, 0] = 15.0
    assert not concentration(mean, sd, seen, 0, [0.5, 0.5], DELTA, trimmed).conditions_hold


def test_transfer_holds_for_any_posterior_where_the_bound_does():
    rng = np.random.default_rng(6)
    for steps in (1, 4, 16):
        found = concentration(*system_segment(rng, rng.normal(size=steps), 2), 2, PRIOR, 0.01)
        assert found.holds
        assert all(transfer(found, q).holds for q in rng.dirichlet([0.3] * 3, size=100))
        same = transfer(found, np.exp(found.log_posterior))
        assert same.divergence == pytest.approx(0, abs=1e-12)
        assert_allclose([same.realised, same.bound], [found.realised, found.bound], atol=1e-6)


def test_transfer_by_hand():
    # With nothing seen the clamped posterior is the prior: KL(certain of mode 1 ‖ prior) = log 2.
    nothing = concentration(np.zeros((3, 3, 2)), np.ones((3, 2)), np.full((3, 2), np.nan), 0, PRIOR)
    found = transfer(nothing, [0.0, 1.0, 0.0])
    assert_allclose(found.divergence, math.log(2))
    assert (found.realised, found.bound) == (1.0, 1.0)
    gentle = transfer(nothing, [0.25, 0.5, 0.25])
    divergence = 0.25 * math.log(0.25 / 0.2) + 0.25 * math.log(0.25 / 0.3)
    assert_allclose([gentle.realised, gentle.bound], [0.75, 0.8 + math.sqrt(divergence / 2)])


@pytest.mark.parametrize("steps", [0, 4])
def test_without_evidence_the_posterior_is_the_prior_and_no_condition_holds(steps: int):
    mean = np.random.default_rng(7).normal(size=(steps, 3, 2))
    found = concentration(mean, np.ones((steps, 2)), np.full((steps, 2), np.nan), 1, PRIOR)
    assert_allclose(np.exp(found.log_posterior), PRIOR)
    assert_allclose([found.realised, found.bound], 0.5)
    assert not found.gamma.any()
    assert found.holds
    assert not found.conditions_hold


def test_one_mode_cannot_be_wrong():
    found = concentration(np.zeros((4, 1, 2)), np.ones((4, 2)), np.zeros((4, 2)), 0, [1.0])
    assert (found.bound, found.realised, found.gamma.size) == (0.0, 0.0, 0)
    assert found.holds
    assert found.conditions_hold
    assert transfer(found, [1.0]) == (0.0, 0.0, 0.0, True)


BAD = {
    "mean has the shape": {"mean": np.zeros((4, 2))},
    "sd has the shape": {"sd": np.ones((4, 2))},
    "seen has the shape": {"seen": np.zeros((3, 1))},
    "positive finite spreads": {"sd": np.zeros((4, 1))},
    "finite or NaN": {"seen": np.full((4, 1), np.inf)},
    "the segment's mode is 2": {"mode": 2},
    "the segment's mode is -1": {"mode": -1},
    "sum to 1": {"prior": [0.5, 0.6]},
    "one probability for each mode": {"prior": [0.2, 0.3, 0.5]},
    "not a candidate": {"prior": [1.0, 0.0]},
    "delta is 1.0": {"delta": 1.0},
    "the bias is": {"constants": Constants(np.zeros(2), 1.0)},
    "the proxy is": {"constants": Constants(np.zeros(1), 0.0)},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_segments_are_refused(message: str):
    right = {
        "mean": np.zeros((4, 2, 1)),
        "sd": np.ones((4, 1)),
        "seen": np.zeros((4, 1)),
        "mode": 0,
        "prior": [0.5] * 2,
    }
    with pytest.raises(ValueError, match=message):
        concentration(**right | BAD[message])


@pytest.mark.parametrize(
    ("residual", "message"),
    [
        ([np.ones((3, 2)), np.ones((3, 1))], "the same channels"),
        ([], "the same channels"),
        ([np.ones((3, 1))], "2 or more"),
        ([np.ones((3, 1)), np.full((3, 1), np.nan)], "2 or more"),
        ([np.ones((3, 1)), np.full((3, 1), np.inf)], "infinite"),
        ([np.array([[1.0, np.nan]])] * 2, r"channels \[1\] are hidden"),
    ],
)
def test_residuals_that_say_too_little_are_refused(residual: list, message: str):
    with pytest.raises(ValueError, match=message):
        residual_constants(residual)


def test_a_posterior_of_other_modes_is_refused():
    found = concentration(np.zeros((1, 2, 1)), np.ones((1, 1)), np.zeros((1, 1)), 0, [0.5, 0.5])
    with pytest.raises(ValueError, match="q has the shape"):
        transfer(found, [1.0])
