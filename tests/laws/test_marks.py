"""Marks: a law whose own errors are wide, or that was bent by noise, is not called identified."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from law_logs import coupled_law

from known_tosses import tosses
from vhydro.laws import LagrangeLaw, LawsConfig, Problem, Recording, candidates, recover, toss_law
from vhydro.laws.estimate import Estimate, sorted_by_motion, weak_estimate
from vhydro.laws.held_out import FURTHER_EXCESS, NOT_REFINED, Horizon
from vhydro.laws.lagrange import LagrangeConfig
from vhydro.laws.marks import (
    LEAST_SPREAD,
    UNSURE,
    inherited,
    problems_of,
    uncertain,
    unpredicted,
    without_giving_friction,
)
from vhydro.laws.mechanics import recorded
from vhydro.laws.recording import varying
from vhydro.laws.recover import law_of
from vhydro.laws.tracks import prepared
from vhydro.systems import Puck, simulate
from vhydro.views.mechanics import MechanicsView

WEAK = LawsConfig(estimator="weak")


@pytest.fixture(scope="module")
def puck():
    """Tracks of a puck at 0.1 % noise, the problem, and the weak form's estimate."""
    truth = simulate(Puck(), 6, 400, 0.005, key=jax.random.key(0))
    clean = truth.states[..., :1]
    positions = clean + 0.001 * clean.std() * np.random.default_rng(0).standard_normal(clean.shape)
    problem = Problem(
        ("q", "p"), ("m", "kg m/s"), ("force",), ("free", "left", "right"), candidates(("length",)),
        np.array([np.nan]), np.array([[0.0], [1.0]]),
    )  # fmt: skip
    tracks = prepared(Recording(positions, truth.actions, np.eye(3)[truth.modes], 0.005), problem)
    return tracks, problem, weak_estimate(tracks, problem, 16)


def test_errors_that_leave_the_accelerations_wide_are_a_mark(puck):
    tracks, problem, found = puck
    law = law_of(found, tracks, problem, LawsConfig(estimator="weak", held_out=False))
    mass = next(i for i, e in enumerate(found.form.entries) if e.is_kinetic)
    wide = np.zeros_like(found.covariance)
    for share, marked in ((0.5 * UNSURE, False), (3 * UNSURE, True)):
        wide[mass, mass] = (share * found.theta[mass]) ** 2
        marks = dict(uncertain(law, found._replace(covariance=wide), tracks, []))
        assert (sorted_by_motion(tracks)[1] in marks) is marked


def test_an_acceleration_that_never_changes_is_marked_where_it_is_vague():
    """Of free fall: its spread is 0, and its own size says what its error means."""
    law = toss_law(tosses(9), mass=0.4).flight
    assert isinstance(law, LagrangeLaw)
    weight = next(i for i, e in enumerate(law.form.entries) if law.support[i] and e.kind == "potential")
    recording, problem = recorded(tosses(9), MechanicsView(("cube.z",), masses=(0.4,)))
    tracks, wide = prepared(recording, problem), np.zeros_like(law.covariance)
    for share, marked in ((0.5, False), (2.0, True)):
        wide[weight, weight] = (share * UNSURE * LEAST_SPREAD * law.theta[weight]) ** 2
        found = Estimate(law.form, law.theta, law.support, wide, 1.0)
        assert bool([*uncertain(law, found, tracks, [])]) is marked


def test_without_a_covariance_the_folds_say_how_sure_a_law_is(puck):
    tracks, problem, found = puck
    law = law_of(found, tracks, problem, LawsConfig(estimator="weak", held_out=False))
    none = np.full_like(found.covariance, np.nan)
    alike = found._replace(covariance=none, folds=(found.theta,) * 3)
    assert not dict(uncertain(law, alike, tracks, []))
    apart = alike._replace(folds=tuple(found.theta * s for s in (0.7, 1.0, 1.3)))
    assert dict(uncertain(law, apart, tracks, []))


def test_a_law_that_was_not_fitted_to_positions_has_to_hold_longer(puck):
    _, problem, found = puck
    between = 0.5 * (NOT_REFINED + FURTHER_EXCESS)
    horizons = (Horizon(0.5, 9, 1.0, 0.01, (1.0,) * 3), Horizon(1.0, 9, between, 0.01, (between,) * 3))
    assert len([*unpredicted(found, horizons, [], problem)]) == 3
    assert not [*unpredicted(found._replace(chi_square=1.0), horizons, [], problem)]


def test_a_weak_law_that_noise_has_bent_is_marked_in_every_mode(puck):
    tracks, problem, _ = puck
    noisy = np.random.default_rng(1).normal(scale=0.05 * np.nanstd(tracks.positions), size=tracks.positions.shape)
    recording = Recording(tracks.positions + noisy, tracks.actions, tracks.modes, tracks.dt)
    law = recover(recording, problem, WEAK)
    assert {law.status(mode) for mode in range(3)} == {"unidentified"}


def test_a_vague_base_mass_is_a_mark_of_every_mode_that_adds_to_it(puck):
    tracks, problem, found = puck
    mass = next(i for i, e in enumerate(found.form.entries) if e.is_kinetic)
    wide = found.covariance.copy()
    wide[mass, mass] = (0.8 * found.theta[mass]) ** 2
    doubts = dict(problems_of(found._replace(covariance=wide), tracks, problem, 0, ()))
    assert set(doubts) == {0, 1, 2}
    assert all("a coefficient of its energy" in why for why in doubts.values())


def test_friction_of_lagranges_equations_never_gives_energy():
    """Below 0 within its error it is left out; by more than noise its mode is marked too."""
    law = coupled_law()
    theta, (first, second) = law.theta.copy(), law.form.of("friction")
    theta[[first, second]] = -0.1, -0.5
    spread = np.zeros_like(law.covariance)
    spread[first, first], spread[second, second] = 0.1**2, 0.1**2
    kept, doubts = without_giving_friction(Estimate(law.form, theta, law.support, spread, 1.0))
    assert (kept.theta[[first, second]] == 0).all()
    assert not kept.support[[first, second]].any()
    assert [(mode, "-0.5 ± 0.1, which would give energy" in why) for mode, why in doubts] == [(0, True)]


def test_a_mode_without_anything_of_its_own_shares_the_doubts_of_the_base(puck):
    """A direction of Lagrange's equations is the base's law once more; what rests has none."""
    _, problem, _ = puck
    law = coupled_law()
    form = replace(law.form, resting=(2,))
    found = Estimate(form, law.theta, law.support, law.covariance, 1.0)
    ((mode, why),) = inherited(found, [(0, "its mass is vague")], problem)
    assert mode == 1
    assert "shares parameters with free" in why


def test_an_input_that_only_ends_does_not_vary():
    """Shorter episodes are padded with inputs of 0."""
    actions, modes = np.ones((2, 10, 2)), np.ones((2, 11, 1))
    actions[1, 6:], modes[1, 7:] = 0.0, 0.0
    actions[0, :, 1] = np.arange(10)
    assert varying(actions, modes).tolist() == [False, True]
    assert varying(actions, 0 * modes).tolist() == [False, False]


@pytest.mark.parametrize("masses", [None, np.array([np.nan, 0.6])])
def test_a_position_without_force_or_mass_has_no_scale(masses):
    """Two carts on springs of their own, one of them driven: of the other every number is known up to a factor."""
    random, rows, dt = np.random.default_rng(0), 300, 0.01
    t, waves = np.arange(rows) * dt, random.uniform(1, 6, (4, 3, 1))
    force = 3 * np.sin(waves * t).sum(1)
    q, v, path = 0.3 * random.standard_normal((4, 2)), 0.5 * random.standard_normal((4, 2)), []
    for k in range(rows):
        path.append(q)
        for _ in range(20):
            pushed = np.stack([force[:, k], np.zeros(4)], 1)
            v = v + (pushed - [4.0, 5.0] * q - [0.3, 0.2] * v) / [1.0, 0.6] * dt / 20
            q = q + v * dt / 20
    seen = np.stack(path, 1) + 1e-4 * random.standard_normal((4, rows, 2))
    names = ("x1", "x2", "p1", "p2"), ("m", "m", "kg m/s", "kg m/s"), ("force",), ("all",)
    port = np.array([[0.0], [0.0], [1.0], [0.0]])
    problem = Problem(*names, (), np.full(2, np.nan), port, masses=masses)
    weak = LawsConfig(estimator="lagrange", lagrange=LagrangeConfig(refine=False))
    law = recover(Recording(seen, force[:, :-1, None], np.ones((4, rows, 1)), dt), problem, weak)
    told = [why for _, why in law.problems if why.startswith("nothing fixes the unit of force along x2")]
    assert len(told) == (masses is None)
