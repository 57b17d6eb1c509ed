"""A law as a model: one vector field for what is printed, simulated and filtered with; where logs may begin."""

import json
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from law_logs import puck

from vhydro.laws import load_law
from vhydro.laws.as_model import Circumstances, masses, surfaces
from vhydro.laws.chain import ChainConfig, episodes_of, evidence_per_value, smoothed
from vhydro.laws.form import Guard
from vhydro.laws.guards import directions
from vhydro.laws.law import Law
from vhydro.laws.recover import LawsConfig, recover
from vhydro_audits.laws_truth import SYSTEMS, problem_of, trial, true_law

DT, WEAK = 0.005, LawsConfig(estimator="weak")
WAYS = {"block": ((1, 0, 1.0), (2, 0, -1.0))}


@cache
def measured(task: str) -> Law:
    """The true law of a system with the circumstances of a log of it."""
    truth, law = trial(task, 0, 0.01, 0.0, 0.0, episodes=4, steps=400, dt=DT).truth, true_law(task)
    n = law.positions
    q, v = truth.states[..., :n], truth.states[..., n:] / masses(law)
    size = [tuple(map(float, x)) for x in (0.01 * q.std((0, 1)), 0.1 * v.std((0, 1)), q.mean((0, 1)))]
    spreads = tuple(map(float, q.std((0, 1)))), tuple(map(float, v.std((0, 1))))
    return replace(law, circumstances=Circumstances(DT, *size, *spreads, WAYS.get(task, ())))


def states(law: Law, mode: int, count: int) -> np.ndarray:
    """States of a mode, in contact as deep as no step of a sample leaves it."""
    rng, seen = np.random.default_rng(mode), law.circumstances
    spread = np.concatenate([seen.position_spread, masses(law) * np.array(seen.velocity_spread)])
    z = 0.3 * spread * rng.standard_normal((count, 2 * law.positions))
    for m, axis, sign, place in surfaces(law):
        if m == mode:
            z[:, axis] = place + sign * (0.2 + np.abs(z[:, axis]))
        elif mode == law.form.base:
            z[:, axis] = place - sign * (0.2 + np.abs(z[:, axis])) if len(surfaces(law)) == 1 else 0.2 * z[:, axis]
    return z


# --- one vector field ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", SYSTEMS)
def test_the_flow_is_what_the_law_simulates_in_every_mode(task):
    law = measured(task)
    model = law.as_model()
    action = np.random.default_rng(9).standard_normal(len(law.inputs))
    exact, single = law.flow(substeps=model.flow.substeps, dtype=jnp.float64), model.flow
    for mode in range(len(law.modes)):
        z = states(law, mode, 4)
        one = [law.simulate(start, action[None], DT, mode, substeps=single.substeps)[1] for start in z]
        expected, starts = np.array(one), np.broadcast_to(z.T, (model.modes, *z.T.shape))
        found = [
            np.asarray(flow.step(*(jnp.asarray(x, dtype) for x in (starts, action, DT)))[mode]).T
            for flow, dtype in ((exact, jnp.float64), (single, jnp.float32))
        ]
        np.testing.assert_allclose(found[0], expected, rtol=1e-9, atol=1e-12)
        # Single precision loses its last places of every force that a step adds up, multiplied out as they are.
        rounding = 4e-6 * (np.abs(expected) + DT * np.abs(law.theta).max())
        assert (np.abs(found[1] - expected) < rounding).all()


@pytest.mark.parametrize("task", SYSTEMS)
def test_the_flow_accelerates_as_the_law_says(task):
    law, n = measured(task), measured(task).positions
    flow = law.flow(dtype=jnp.float64)
    for mode in range(len(law.modes)):
        z = states(law, mode, 5)
        actions = np.random.default_rng(1).standard_normal((5, len(law.inputs)))
        for one, action in zip(z, actions, strict=True):
            starts = jnp.broadcast_to(jnp.asarray(one)[None], (len(law.modes), 2 * n))
            rate = np.asarray(flow.velocity(starts, flow.port @ jnp.asarray(action)))[mode]
            expected = law.acceleration(mode, one[None, :n], one[None, n:] / masses(law), action[None])[0]
            np.testing.assert_allclose(rate[n:] / masses(law), expected, rtol=1e-9, atol=1e-12)
            carried = action @ np.array([[g.value for g in row] for row in law.port(mode)])[:n].T
            moving = mode not in law.form.resting
            np.testing.assert_allclose(rate[:n], moving * (one[n:] / masses(law)) + carried, rtol=1e-9, atol=1e-12)


def test_a_linear_law_has_a_linear_flow_and_a_pendulum_has_not():
    assert measured("puck").as_model().flow.affine
    assert measured("puck").as_model().flow.library == measured("block").as_model().flow.library
    assert not measured("pendulum").as_model().flow.affine


def test_what_comes_to_rest_has_no_momentum_left():
    model = measured("block").as_model()
    z = jnp.array([0.1, 0.8], jnp.float32)
    ends = model.next_means(jnp.asarray(1), z, jnp.zeros(1, jnp.float32), jnp.asarray(DT, jnp.float32))
    np.testing.assert_allclose(ends[0], [0.1, 0.0], atol=1e-7)
    assert ends[1, 1] != 0


# --- what a model cannot be made of -------------------------------------------------------------------------


def test_a_law_that_is_not_mechanical_is_no_model():
    law = measured("puck")
    with pytest.raises(ValueError, match="does not say how it was measured"):
        replace(law, circumstances=None).as_model()
    kinetic = np.array([e.is_kinetic for e in law.form.entries])
    with pytest.raises(ValueError, match="has a mass of -0.5 along q; expected a positive one"):
        replace(law, theta=np.where(kinetic, -law.theta, law.theta)).as_model()
    drag = np.array([e.kind == "dissipation" for e in law.form.entries])
    with pytest.raises(ValueError, match="friction of -11.*gives energy"):
        replace(law, theta=np.where(drag, -2 * law.theta, law.theta)).as_model()


def test_friction_below_zero_is_put_to_zero_and_said_where_it_is_more_than_noise():
    """A force that pushes along with the velocity: energy out of nothing, which no friction gives."""
    recording = puck().recording
    pushed = recording._replace(positions=recording.positions * np.exp(0.8 * np.arange(401) * DT)[:, None])
    law = recover(pushed, problem_of("puck"), WEAK)
    assert all(r.value >= 0 for mode in range(3) for r in law.dissipation(mode))
    assert any("would give energy" in why for _, why in law.problems)
    assert not any("energy" in why for _, why in recover(recording, problem_of("puck"), WEAK).problems)


# --- noise and floor ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_a_model_is_the_same_in_any_unit_and_with_any_encoder(unit):
    """An encoder that reads to 1e-8 of its range is taken as good as single precision is, and never refused."""
    recording = puck().recording
    fine = recording._replace(positions=unit * (puck().truth.states[..., :1] + 1e-8), actions=unit * recording.actions)
    model = recover(fine, problem_of("puck"), WEAK).as_model()
    noise = float(model.emission.noise[0]) / (unit * puck().truth.states[..., 0].std())
    assert noise == pytest.approx(1e-4, rel=0.05)
    assert model.noise_floor < 0.02 * float(model.noise.min())
    values = evidence_per_value(
        model, episodes_of(fine.only([0]), problem_of("puck")), ChainConfig(particles=4), seed=0
    )
    assert np.isfinite(values)


# --- in a file ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["puck", "block"])
def test_circumstances_are_kept_in_the_file(task, tmp_path):
    law = measured(task)
    law.save(tmp_path / "law.json")
    again = load_law(tmp_path / "law.json")
    assert again.circumstances == law.circumstances
    for mine, its in zip(jax.tree.leaves(law.as_model()), jax.tree.leaves(again.as_model()), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_a_law_of_an_older_file_loads_and_is_no_model(tmp_path):
    measured("puck").save(tmp_path / "law.json")
    document = json.loads((tmp_path / "law.json").read_text("utf-8"))
    del document["circumstances"]
    (tmp_path / "law.json").write_text(json.dumps(document), "utf-8")
    old = load_law(tmp_path / "law.json")
    assert old.circumstances is None
    with pytest.raises(ValueError, match="as laws of older files"):
        old.as_model()


# --- directions and starts ----------------------------------------------------------------------------------


def test_the_base_has_a_direction_where_it_goes_the_other_way():
    velocity = np.concatenate([np.full(50, 1.0), np.full(30, -1.0)])[None, :, None]
    modes = np.eye(2)[(velocity[..., 0] < 0).astype(int)]
    assert directions(modes, velocity, (1,), 0) == [(1, 0, -1.0), (0, 0, 1.0)]
    assert directions(modes, velocity, (), 0) == []


def begins_at(position: float) -> np.ndarray:
    """The smoothed modes of a log of the puck that begins at a place, slowly."""
    law = measured("puck")
    path = law.simulate(np.array([position, 0.05]), np.zeros((100, 1)), DT)
    rng = np.random.default_rng(0)
    recording = puck().recording._replace(
        positions=path[None, :, :1] + law.circumstances.noise[0] * rng.standard_normal((1, 101, 1)),
        actions=np.zeros((1, 100, 1)),
    )
    (belief,) = smoothed(law.as_model(), episodes_of(recording, problem_of("puck")), ChainConfig(), seed=0)
    return belief.path


@pytest.mark.parametrize("gap", [0.17, 0.06])
def test_a_start_outside_the_wall_is_no_contact(gap):
    assert (begins_at(1 - gap)[:3] == 0).all()
    assert (begins_at(-1 + gap)[:3] == 0).all()


def test_a_start_in_the_wall_is_a_contact():
    assert begins_at(1.03)[0] == 2
    assert begins_at(-1.03)[0] == 1


def test_no_log_of_a_walled_system_begins_with_a_contact_far_from_the_wall():
    for task in ("puck", "pushing"):
        law, log = measured(task), trial(task, 5, 0.01, 0.0, 0.0, episodes=10, steps=60, dt=DT)
        beliefs = smoothed(law.as_model(), episodes_of(log.recording, problem_of(task)), ChainConfig(), seed=0)
        guards = {b.mode: (b.guard, law.theta[law.form.places[i]]) for i, b in enumerate(law.form.blocks)}
        for belief, positions in zip(beliefs, log.recording.positions, strict=True):
            guard, place = guards.get(int(belief.path[0]), (Guard(0, "above"), -np.inf))
            outside = guard.sign * (place - positions[0, guard.axis])
            assert outside < 5 * law.circumstances.noise[guard.axis]
