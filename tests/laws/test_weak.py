"""The weak form on a motion that is exact, and the units its parameters come in."""

from dataclasses import replace

import numpy as np
import pytest
from law_logs import CUBE, KINETIC, LINE, SQUARE, puck, swing_problem, swinging

from oracles.oscillator import FRICTION, MASS, STIFFNESS
from vhydro.laws import weak
from vhydro.laws.estimate import base_mode, weak_law
from vhydro.laws.form import form_of
from vhydro.laws.problem import Problem, candidates
from vhydro.laws.recording import Recording
from vhydro.laws.recover import LawsConfig, recover
from vhydro.laws.support import solutions
from vhydro.laws.tracks import prepared
from vhydro.library import Cosine, Monomial, Penetration, Sine
from vhydro_audits.laws_truth import problem_of, true_law

WEAK = LawsConfig(estimator="weak")


def test_a_bump_integrates_by_parts():
    dt = 0.01
    phi = weak.bumps(20, dt)
    t = np.arange(41) * dt
    assert phi.held.sum() == pytest.approx(phi.value.sum() * dt, rel=1e-8)
    parabola = (1.5 * t**2 + 7 * t + 3)[None]
    assert weak.bent(parabola, phi).item() * dt == pytest.approx(3 * phi.held.sum(), rel=1e-6)
    assert t @ phi.first * dt == pytest.approx(-phi.held.sum(), rel=1e-6)


def test_the_exact_motion_gives_the_exact_law():
    recording, problem = swinging(), swing_problem()
    form, tracks = form_of(problem, 0, {}, ()), prepared(recording, problem)
    shape = recording.positions.shape[:2]
    m = weak.rows(form, tracks, np.zeros((*shape, 0)), np.ones(shape), np.zeros(len(form.entries)), 16)
    used = np.array([not e.is_kinetic for e in form.entries])
    theta = solutions(m.gram, m.cross, used[None])[0]
    # p², q, q², q³, friction, port in units of mass 1
    expected = [0, 0, 0.5 * STIFFNESS / MASS, 0, FRICTION / MASS, 1 / MASS]
    np.testing.assert_allclose(theta, expected, atol=1e-4)
    law = [0.5 / MASS, 0, 0.5 * STIFFNESS, 0, FRICTION, 1]
    np.testing.assert_allclose(weak.in_units_of_force(form, theta), law, atol=1e-3)


def test_hidden_samples_take_their_bumps_with_them():
    recording, problem = swinging(1e-3), swing_problem()
    recording.positions[0] = np.nan
    recording.positions[1, 150:] = np.nan
    form, tracks = form_of(problem, 0, {}, ()), prepared(recording, problem)
    shape = recording.positions.shape[:2]
    m = weak.rows(form, tracks, np.zeros((*shape, 0)), np.ones(shape), np.zeros(len(form.entries)), 16)
    whole = len(range(0, 401 - 32, 8))
    assert 2 * whole < m.number < 3 * whole
    assert np.isfinite(m.gram).all()
    assert np.isfinite(m.cross).all()


def test_parameters_in_units_of_force():
    problem = Problem(
        ("x", "y", "px", "py"), ("m", "m", "kg m/s", "kg m/s"), ("f", "g"), ("only",),
        (Monomial((0, 0, 2, 0)), Monomial((0, 0, 0, 2)), Monomial((0, 2, 0, 0)), Monomial((1, 0, 2, 0)), Sine(1)),
        np.array([np.nan, 3.0]), np.array([[0.0, 0.0], [0.0, 0.0], [1.0, np.nan], [0.0, 0.0]]),
    )  # fmt: skip
    form = form_of(problem, 0, {}, ())
    # A mass of 2 along x from the known port, of 4 along y from the known friction.
    theta = np.array([0, 0, 5.0, 7.0, 1.5, 0.25, 0.75, 0.5, 0.1, 0, 0])
    np.testing.assert_allclose(weak.masses(form, theta), [2, 4])
    expected = [0.25, 0.125, 20.0, 3.5, 6.0, 0.5, 3.0, 1.0, 0.2, 0, 0]
    np.testing.assert_allclose(weak.in_units_of_force(form, theta), expected)


def test_what_an_input_carries_is_taken_out():
    """`q̇ = v + a`: the ground's frame moves with v alone."""
    t = np.arange(200) * 0.01
    actions = np.where(t[:-1] < 1, 2.0, -1.0)[None, :, None]
    carried = np.concatenate([[0], np.cumsum(actions[0, :, 0]) * 0.01])
    ground = 0.3 * np.sin(4 * t)
    recording = Recording((ground + carried)[None, :, None], actions, np.ones((1, 200, 1)), 0.01)
    problem = Problem(
        ("q", "p"), ("m", "kg m/s"), ("speed",), ("only",), (KINETIC,), np.array([1.0]), np.array([[1.0], [np.nan]])
    )
    tracks = prepared(recording, problem)
    np.testing.assert_allclose(tracks.filled[0, :, 0], ground, atol=1e-12)
    np.testing.assert_allclose(tracks.states[0, 0], recording.positions[0, :, 0], atol=1e-4)
    np.testing.assert_allclose(tracks.states[1, 0, 10:-10], 1.2 * np.cos(4 * t[10:-10]), atol=1e-2)


def test_candidates_are_typed_by_coordinate():
    assert candidates(("length",))[:4] == (KINETIC, LINE, SQUARE, CUBE)
    assert {Sine(0), Cosine(0)} < set(candidates(("angle",)))
    plane = candidates(("length", "angle"))
    assert {Sine(1), Monomial((1, 1, 0, 0))} < set(plane)
    assert Monomial((0, 0, 1, 1)) not in plane  # coupled inertia is the Lagrangian estimator's
    assert not {Sine(0), Cosine(0)} & set(plane)


def test_the_weak_form_finds_the_law_of_a_puck():
    law, truth = recover(puck().recording, problem_of("puck"), WEAK), true_law("puck")
    assert law.form == truth.form
    for mode in range(3):
        found, true = law.energy(mode), truth.energy(mode)
        assert [(type(t), getattr(t, "power", 0)) for t in found] == [(type(t), getattr(t, "power", 0)) for t in true]
        np.testing.assert_allclose([c.value for c in found.values()], [c.value for c in true.values()], rtol=0.05)
    places = {t.at for m in (1, 2) for t in law.energy(m) if isinstance(t, Penetration)}
    np.testing.assert_allclose(sorted(places), [-1, 1], atol=2e-3)


def test_the_base_is_the_mode_that_moves_longest():
    tracks = prepared(puck().recording, problem_of("puck"))
    assert base_mode(tracks, ()) == 0
    assert base_mode(tracks, (0,)) == 1


def test_the_score_prefers_the_true_modes():
    tracks, problem = prepared(puck().recording, problem_of("puck")), problem_of("puck")
    true = weak_law(tracks, problem, 16)
    one = tracks.modes.sum(-1, keepdims=True)
    merged = weak_law(tracks._replace(modes=one), replace(problem, modes=("all",)), 16)
    shifted = weak_law(tracks._replace(modes=np.roll(tracks.modes, 5, 1)), problem, 16)
    assert true.rows.number == merged.rows.number == shifted.rows.number
    assert true.score < shifted.score
    assert true.score < merged.score
