"""Fitted models plan: in the log's names and units, from a filtered log or in a loop, with what is certified kept."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vhydro
from known_logs import FRICTION, MASS, STIFFNESS, hand_log, spring_log
from vhydro.episodes import Channel
from vhydro.planning import Controller, Task, fitted, known, mppi
from vhydro.views.contact import contact_view

HORIZON = 12
PLANNER = mppi(HORIZON, 4, 64, 16, first_rounds=4)
GOAL = 0.15


def cost(z, mode, a):
    return jnp.clip(jnp.abs(z["cart.position"] - GOAL), 0, 1)


def far(z, mode, a):
    return jnp.abs(z["cart.position"]) > 1.0


TASK = Task(cost, far, 1.0, {"cart.push": (-2.0, 2.0)})


@pytest.fixture(scope="module")
def cart():
    logs = [spring_log(seed) for seed in range(4)]
    return vhydro.fit(logs[:3], modes=1, validation=logs[3:], refine=False, calibrate=False)


def moved(state, force, dt=0.05, small=50):
    for _ in range(small):
        speed = state[1] + dt / small * (force - STIFFNESS * state[0] - FRICTION * state[1]) / MASS
        state = np.array([state[0] + dt / small * speed, speed])
    return state


def test_a_fitted_model_plans_from_the_end_of_a_log(cart):
    belief = cart.filter(spring_log(5))
    plan = cart.plan(belief, TASK, planner=PLANNER)
    assert plan.inputs == ("cart.push",)
    assert plan.dt == pytest.approx(0.05)
    state = np.asarray(belief.mean)[-1] * [1, 1 / MASS]
    path = []
    for (force,) in plan.actions:
        state = moved(state, force)
        path.append(state[0])
    assert abs(path[-1] - GOAL) < 0.05
    # What it expects is what comes: its particles' cost beside the true path's.
    assert abs(plan.cost - np.abs(np.array(path) - GOAL).mean()) < 0.03


def test_millimetres_and_kilonewtons_are_planned_in(cart):
    """The same model of logs in other units gives the same plan in them."""
    channels = tuple(replace(c, unit="mm") for c in cart.channels)
    inputs = tuple(Channel(c.name, c.group, "kN") for c in cart.inputs)
    other = replace(cart, channels=channels, inputs=inputs)
    task = Task(lambda z, mode, a: jnp.clip(jnp.abs(z["cart.position"] - 1e3 * GOAL) / 1e3, 0, 1),
                None, 1.0, {"cart.push": (-2e-3, 2e-3)})  # fmt: skip
    belief = cart.filter(spring_log(5))
    one, two = cart.plan(belief, TASK, planner=PLANNER), other.plan(belief, task, planner=PLANNER)
    np.testing.assert_allclose(two.actions, 1e-3 * one.actions, rtol=2e-2, atol=2e-5)
    law = other.dynamics(noise=0.05)
    assert float(law.readout(jnp.asarray([0.1, 0.0]))["cart.position"]) == pytest.approx(100.0)


def test_the_loop_reaches_its_goal_with_hidden_observations(cart):
    loop = Controller(cart, TASK, PLANNER)
    state, random = np.array([-0.2, 0.0]), np.random.default_rng(0)
    decision = loop.start(state[:1])
    path = []
    for t in range(25):
        state = moved(state, decision.action[0])
        path.append(state[0])
        seen = {} if 5 <= t < 9 else {"cart.position": state[0] + 2e-4 * random.normal()}
        decision = loop.step(seen)
        assert decision.follows == "plan"
        assert decision.proof is None
    assert np.abs(np.array(path[-8:]) - GOAL).max() < 0.06


def test_a_certified_plan_is_kept_until_another_is_certified(cart):
    law, start = cart.law, np.array([-0.1])
    judged = cart.dynamics(noise=0.1)
    asked = {"delta": 0.3, "beta": 0.1, "certified_on": judged, "replans": 2, "particles": 512}
    loop = Controller(cart, TASK, PLANNER, shift=fitted(law), **asked)
    first = loop.start(start)
    assert first.follows == "certified", first.proof
    assert first.proof.how == "parameters"
    assert first.proof.beta == pytest.approx(0.05)
    second = loop.step(start)
    assert second.follows == "certified"
    third = loop.step(start)
    assert third.follows == "fallback"
    assert third.plan is second.plan
    assert third.step == 1
    np.testing.assert_array_equal(third.action, second.plan.actions[1])
    assert "confidence is spent" in third.refused
    for _ in range(HORIZON - 2):
        last = loop.step(start)
    assert (last.follows, last.step) == ("fallback", HORIZON - 1)
    assert loop.step(start).follows == "uncertified"


def test_without_a_proof_the_loop_says_so(cart):
    loop = Controller(cart, TASK, PLANNER, delta=0.3)
    first = loop.start(np.array([0.0]))
    assert first.follows == "uncertified"
    assert "nothing says how far" in first.refused
    with pytest.raises(ValueError, match="has not started"):
        Controller(cart, TASK, PLANNER).step(np.zeros(1))
    with pytest.raises(ValueError, match="bounds wheel"):
        Controller(cart, Task(cost, None, 1.0, {"wheel": (-1, 1)}), PLANNER)


def test_known_takes_a_law_as_it_is(cart):
    judged = cart.dynamics(noise=0.1)
    belief = cart.filter(spring_log(5))
    plan = cart.plan(belief, TASK, planner=PLANNER)
    proof = vhydro.certify(
        judged, belief, plan, TASK, delta=0.3, beta=0.1, key=jax.random.key(0), shift=known(cart.law), particles=512
    )
    assert proof.certified, proof
    assert proof.pinsker < 1e-5


def test_views_whose_inputs_are_no_commands_cannot_plan(cart):
    hand = replace(cart, view=contact_view([hand_log(0)]))
    with pytest.raises(ValueError, match="inputs that a planner can choose"):
        hand.plan(cart.filter(spring_log(5)), TASK)
    with pytest.raises(ValueError, match="has no law"):
        replace(cart, law=None).dynamics(noise=0.1)
