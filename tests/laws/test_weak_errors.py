"""The covariance of the weak form against repeated noise, where least squares' own is wrong."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.signal import lfilter

from vhydro.laws import weak
from vhydro.laws.form import form_of
from vhydro.laws.problem import Problem
from vhydro.laws.recording import Recording
from vhydro.laws.tracks import prepared
from vhydro.laws.weak import Rows, rows
from vhydro.laws.weak_errors import covariance_in_units_of_force, robust_covariance, sensor_covariance
from vhydro.library import Monomial

DT, HALF_WIDTH, NOISE = 0.01, 16, 1e-3
PROBLEM = Problem(
    coordinates=("q", "p"),
    units=("m", "kg m/s"),
    inputs=("force",),
    modes=("moves",),
    library=(Monomial((0, 2)), Monomial((1, 0))),
    dissipation=np.array([0.0]),
    port=np.array([[0.0], [1.0]]),
)
FORM = form_of(PROBLEM, 0, {}, ())
FALL = np.array([e.term == Monomial((1, 0)) for e in FORM.entries])


def falling(episodes: int, times: int, seed: int) -> Recording:
    """A mass that falls at −3 m/s², seen with noise."""
    t = np.arange(times) * DT
    noise = NOISE * np.random.default_rng(seed).standard_normal((episodes, times))
    actions = np.zeros((episodes, times - 1, 1))
    return Recording((-1.5 * t**2 + noise)[..., None], actions, np.ones((episodes, times, 1)), DT)


def weak_rows(recording: Recording) -> Rows:
    tracks = prepared(recording, PROBLEM)._replace(noise=np.array([NOISE]))
    shape = recording.positions.shape[:2]
    return rows(FORM, tracks, np.zeros((*shape, 0)), np.ones(shape), np.zeros(len(FORM.entries)), HALF_WIDTH)


def test_a_bump_over_hidden_samples_leaves_a_row_of_zeros():
    recording = falling(3, 200, seed=1)
    recording.positions[1, 60:110] = np.nan  # wider than any smoothing
    found = weak_rows(recording)
    assert found.seen[[0, 2]].all()
    assert 0 < found.seen[1].sum() < found.seen.shape[1]
    assert found.number == found.seen.sum()
    assert not found.design[~found.seen].any()
    assert not found.left[~found.seen].any()


def test_a_bump_must_fit_into_an_episode():
    with pytest.raises(ValueError, match="narrower bumps"):
        weak_rows(falling(1, 2 * HALF_WIDTH, seed=0))


def test_sensor_covariance_is_that_of_repeated_noise():
    repeats = 800
    found = weak_rows(falling(repeats, 161, seed=2))
    one = [replace(found, design=found.design[[i]], left=found.left[[i]], seen=found.seen[[i]]) for i in range(repeats)]
    estimates = np.array([r.solution(FALL)[FALL][0] for r in one])
    stated = sensor_covariance(one[0], FALL)[FALL][:, FALL].item()
    naive = 1 / np.sum(one[0].design[..., FALL] ** 2)
    relative_error = np.sqrt(2 / (repeats - 1))
    assert abs(estimates.var(ddof=1) / stated - 1) < 4 * relative_error
    assert abs(estimates.var(ddof=1) / naive - 1) > 8 * relative_error
    assert abs(estimates.mean() - 3) < 4 * np.sqrt(stated / repeats)


def disturbed(repeats: int, bumps: int, seed: int) -> list[Rows]:
    """Rows of one varying column and a constant one, both 1, whose errors fade by 0.7 from each to the next."""
    rng = np.random.default_rng(seed)
    wave = np.sin(0.02 * np.arange(bumps))
    design = np.stack([wave, np.ones(bumps)], -1)[None]
    errors = lfilter([1.0], [1.0, -0.7], rng.standard_normal((repeats, bumps + 100)), axis=1)[:, 100:]
    seen = np.ones((1, bumps), bool)
    return [Rows(design, design.sum(-1) + e, seen, np.ones(1), np.ones(1), 1, 1) for e in errors]


def test_robust_covariance_knows_disturbances_that_last():
    both = np.array([True, True])
    found = disturbed(repeats=400, bumps=2000, seed=3)
    estimates = np.array([r.solution(both) for r in found])
    stated = np.mean([np.diag(robust_covariance(r, both)) for r in found], 0)
    residual = np.mean([np.mean(r.residuals(r.solution(both)) ** 2) for r in found])
    naive = np.diag(np.linalg.inv(found[0].gram)) * residual
    true = estimates.var(0, ddof=1)
    assert (naive < true / 3).all()
    # Bartlett's weights leave out a little of what lasts longest; the rest of the gap is repetition.
    assert (np.abs(stated / true - 1) < 0.1 + 4 * np.sqrt(2 / 399)).all()


def test_a_mass_has_the_error_of_its_port():
    theta = np.array([0.0, 6.0, 0.0, 0.5])  # in units of mass 1: the known port 1 stands for a mass of 2
    covariance = np.diag([0.0, 0.04, 0.0, 0.01])
    found = covariance_in_units_of_force(FORM, theta, covariance)
    push, port, kinetic = 1, 3, 0
    assert weak.in_units_of_force(FORM, theta)[[kinetic, push]].tolist() == [0.25, 12.0]
    np.testing.assert_allclose(found[kinetic, kinetic], 0.5**2 * 0.01, rtol=1e-6)
    np.testing.assert_allclose(found[push, push], 2**2 * 0.04 + 24**2 * 0.01, rtol=1e-6)
    assert found[port].tolist() == [0, 0, 0, 0]
