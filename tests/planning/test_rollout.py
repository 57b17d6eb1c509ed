"""Rollouts against what the model says in closed form, planners against the best there is, and what they refuse."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from planning_models import DT, HORIZON, MODES, PORT, SMALL, TASK, belief, cost, matrices, moving, plan, switching

from vhydro.flow import Reset
from vhydro.library import polynomial
from vhydro.model import axis_emission, hybrid_model, linear_flow, mode_kernel, port_hamiltonian
from vhydro.planning import Task, cem, hybrid_dynamics, mppi, rollout
from vhydro.planning.dynamics import drawn_mode
from vhydro.planning.rollout import candidates

MANY = 4000


def ended(dynamics, actions, task=TASK, count=MANY, seed=0):
    return rollout(dynamics, task, dynamics.population(belief()), jnp.asarray(actions), jax.random.key(seed), count)


# --- rollouts ---------------------------------------------------------------------------------------------------------


def test_modes_and_states_have_the_moments_of_the_model():
    actions = np.full((HORIZON, 1), 0.3)
    out = ended(moving(), actions)
    chance, matrix = np.array([[0.9, 0.1], [0.1, 0.9]]), matrices()
    start = np.asarray(belief().z)
    share, mean = np.array([1.0, 0.0]), np.array([start.mean(1), np.zeros(3)])  # mass and E[z 1{mode}]
    for a in actions:
        moved = [sum(chance[i, j] * (matrix[j] @ mean[i] + share[i] * PORT[j] @ a) for i in range(2)) for j in range(2)]
        share, mean = share @ chance, np.array(moved)
    found = np.asarray(out.mode)
    assert abs((found == 1).mean() - share[1]) < 4 * np.sqrt(share[1] * share[0] / MANY)
    z = np.asarray(out.z)
    assert (np.abs(z.mean(1) - mean.sum(0)) < 4 * z.std(1) / np.sqrt(MANY)).all()


def test_candidates_share_their_luck_and_are_rolled_out_alone_as_together():
    dynamics = moving()
    z, mode = belief(64).z, belief(64).mode
    many = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (5, HORIZON, 1)))
    key = jax.random.key(3)
    together = candidates(dynamics, TASK, mode, z, many, key)
    for i in range(5):
        alone = candidates(dynamics, TASK, mode, z, many[i : i + 1], key)
        np.testing.assert_allclose(together.cost[i], alone.cost[0], rtol=1e-12)
        np.testing.assert_array_equal(together.failed[i], alone.failed[0])


def test_a_mode_of_probability_zero_is_never_drawn():
    uniform = jnp.asarray([1e-12, 0.3, 0.7, 1 - 1e-12])
    log = jnp.log(jnp.asarray([0.0, 0.5, 0.5, 0.0]))[:, None] + jnp.zeros(4)
    assert drawn_mode(log, uniform).tolist() == [1, 1, 2, 2]


def test_a_reset_and_a_port_hamiltonian_flow_are_followed():
    """A mass without noise or energy of its own that loses half its momentum when the mode changes."""
    reset = Reset(jnp.full((2, 2, 1), np.arctanh(0.5)), (1,))
    flow = port_hamiltonian(2, 2, 1, polynomial(2, 2), coefficients=[[0, 0, 0, 0, 0.5]] * 2, port=[[[0.0], [1.0]]] * 2,
                            dtype=jnp.float64)  # fmt: skip
    kernel = mode_kernel(2, feasible=[[False, True], [True, False]], dtype=jnp.float64)
    emission = axis_emission(2, [0], noise=0.1, dtype=jnp.float64)
    model = hybrid_model(kernel, flow, emission, noise=1e-6, noise_floor=1e-7, reset=reset, channels=("q",))
    dynamics = hybrid_dynamics(model, DT, extra={"p": np.array([0.0, 1.0])})
    task = Task(lambda z, mode, a: jnp.abs(z["q"]), lambda z, mode, a: z["p"] > 5, 9.0, (-9, 9))
    start = belief(latent=2)
    out = rollout(dynamics, task, dynamics.population(start), jnp.ones((3, 1)), jax.random.key(0), 32)
    q, p = np.asarray(start.z)
    for _ in range(3):
        p = 0.5 * p
        q, p = q + DT * p + DT**2 / 2, p + DT
    ends = np.sort(np.unique(np.round(np.asarray(out.z[0]), 4)))
    assert np.abs(ends[:, None] - q).min(1).max() < 2e-4


def test_units_and_names_are_those_of_the_log():
    """A channel in millimetres that the model standardises, and an input in kilonewtons."""
    inner = switching()
    model = eqx.tree_at(lambda m: (m.shift, m.scale), inner, (jnp.asarray([5.0, 0, 0]), jnp.asarray([2.0, 1, 1])))
    dynamics = hybrid_dynamics(model, DT, inputs=("push",), channel_units=np.array([1e-3, 1, 1]), input_units=1e3)
    z = jnp.asarray([0.25, 1.0, -1.0])
    assert float(dynamics.readout(z)["x"]) == pytest.approx((0.25 * 2 + 5) / 1e-3)
    _, moved = dynamics.step(jnp.zeros((), int), z, jnp.asarray([2e-3]), _quiet())
    _, same = moving().step(jnp.zeros((), int), z, jnp.asarray([2.0]), _quiet())
    np.testing.assert_allclose(moved, same)
    with pytest.raises(ValueError, match="expected one of x, y, w"):
        dynamics.readout(z)["height"]


def _quiet():
    return {"mode": jnp.asarray(0.5), "z": jnp.zeros(3)}


# --- planners ---------------------------------------------------------------------------------------------------------


def driven(dynamics=None):
    """One mode in effect, no state noise to speak of: the best plan is known."""
    still = np.stack([np.eye(3)] * 2)
    model = hybrid_model(
        mode_kernel(MODES, feasible=np.eye(2, dtype=bool), dtype=jnp.float64),
        linear_flow(still, port=PORT, dtype=jnp.float64),
        axis_emission(3, range(3), noise=0.1, dtype=jnp.float64), noise=1e-3, channels=("x", "y", "w"),
    )  # fmt: skip
    return moving(model)


REACH = Task(
    lambda z, mode, a: 0.0, None, 9.0, {"push": (-0.5, 0.3)},
    final=lambda z, mode: jnp.minimum((z["x"] - 1.6) ** 2, 9.0),
)  # fmt: skip


@pytest.mark.parametrize("planner", [SMALL, cem(HORIZON, 4, 64, 16, first_rounds=8, elites=12)], ids=["mppi", "cem"])
def test_planners_find_what_there_is_to_find(planner):
    """x sums the pushes: 8 steps of at most 0.3 reach 1.6 at 0.2 on average."""
    found = planner(driven(), belief(), REACH, key=jax.random.key(0))
    assert found.actions.shape == (HORIZON, 1)
    assert (found.actions >= -0.5).all()
    assert (found.actions <= 0.3).all()
    x = np.asarray(belief().z)[0]
    assert abs(found.actions.sum() + x.mean() - 1.6) < 4 * x.std() / np.sqrt(planner.particles)
    assert (np.ptp(found.actions.reshape(4, 2), axis=1) == 0).all()  # held between knots
    warm = planner(driven(), belief(), REACH, key=jax.random.key(1), warm=found)
    assert warm.cost <= found.cost + 0.01


def test_failures_are_avoided_where_that_costs():
    """The way to 1.6 is closed beyond 1: the plan stops before."""
    closed = eqx.tree_at(lambda t: t.failure, REACH, lambda z, mode, a: z["x"] > 1.0, is_leaf=lambda x: x is None)
    found = SMALL(driven(), belief(), closed, key=jax.random.key(0))
    assert found.risk < 0.3
    assert found.actions.sum() < 1.0


def test_a_plan_is_the_same_for_the_same_key():
    one, two = (SMALL(moving(), belief(), TASK, key=jax.random.key(5)) for _ in range(2))
    np.testing.assert_array_equal(one.actions, two.actions)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: mppi(horizon=0), "horizon is 0"),
        (lambda: mppi(candidates=0), "candidates is 0"),
        (lambda: mppi(particles=0), "particles is 0"),
        (lambda: mppi(horizon=4, knots=5), "5 knots"),
        (lambda: cem(elites=200), "200 elites"),
        (lambda: mppi(spread=0.0), "spread"),
        (lambda: Task(cost, bound=np.inf), "bound"),
        (lambda: Task(cost, region={"x": (1, -1)}), "lower end first"),
        (lambda: Task(cost, actions=(1, -1)).limits(("push",)), "lower first"),
        (lambda: Task(cost, actions={"pull": (-1, 1)}).limits(("push",)), "bounds pull"),
        (lambda: Task(cost, actions=([-1, -1], [1, 1])).limits(("push",)), "1 numbers each"),
        (lambda: hybrid_dynamics(switching(), 0.0), "dt is 0"),
        (lambda: hybrid_dynamics(switching(), DT, inputs=("a", "b")), "2 names for 1 inputs"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()


@pytest.mark.parametrize(
    ("task", "match"),
    [
        (Task(lambda z, mode, a: jnp.sqrt(z["x"] - 100), None, 1.0), "not a number"),
        (Task(lambda z, mode, a: 2.0 + 0 * z["x"], None, 1.0), "between 2 and 2"),
        (Task(lambda z, mode, a: -1.0 + 0 * z["x"], None, 1.0), "between -1"),
        (Task(lambda z, mode, a: z["height"], None, 1.0), "'height'"),
        (Task(lambda z, mode, a: jnp.ones(7), None, 1.0), "one value each"),
    ],
)
def test_a_cost_that_breaks_its_word_is_refused(task, match):
    with pytest.raises(ValueError, match=match):
        SMALL(moving(), belief(), task, key=jax.random.key(0))


@pytest.mark.parametrize(
    ("believed", "match"),
    [
        (belief(latent=2), "of another model"),
        (belief(mode=5), "mode 5"),
        (belief()._replace(z=belief().z.at[0, 0].set(jnp.nan)), "not finite"),
        (belief()._replace(log_weight=jnp.full(8, -jnp.inf)), "no weight"),
        ("a belief", "expected a `Belief`"),
    ],
)
def test_a_belief_of_something_else_is_refused(believed, match):
    with pytest.raises(ValueError, match=match):
        SMALL(moving(), believed, TASK, key=jax.random.key(0))


def test_a_warm_plan_outside_the_bounds_is_refused():
    with pytest.raises(ValueError, match="action 'push' of step 0 is 3"):
        SMALL(moving(), belief(), TASK, key=jax.random.key(0), warm=plan(3.0))
    with pytest.raises(ValueError, match="expected a fitted model"):
        SMALL(switching(), belief(), TASK, key=jax.random.key(0))


def test_what_leaves_the_numbers_has_failed():
    grows = moving(switching(1e200 * np.stack([np.eye(3)] * 2)))
    out = ended(grows, np.ones((HORIZON, 1)), replace_failure(), count=32)
    assert bool(out.failed.all())
    assert bool(out.lost.all())
    np.testing.assert_allclose(out.cost, 1.0, atol=0.5)


def replace_failure():
    return Task(lambda z, mode, a: jnp.minimum(jnp.abs(z["x"]), 1.0), None, 1.0)


def test_leaving_the_region_is_a_failure():
    inside = Task(cost, None, 1.0, region={"w": (-1e9, 1e9)})
    outside = Task(cost, None, 1.0, region={"w": (50.0, 60.0)})
    assert not bool(ended(moving(), np.zeros((HORIZON, 1)), inside, 32).failed.any())
    assert bool(ended(moving(), np.zeros((HORIZON, 1)), outside, 32).failed.all())


def test_planner_settings_are_part_of_its_identity():
    assert replace(SMALL) == SMALL
    assert replace(SMALL, candidates=33) != SMALL
