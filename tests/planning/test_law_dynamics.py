"""Laws as path models: against the event-exact simulator, densities against each other, sticking, and energy bounds."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vhydro.filter import Particles
from vhydro.laws.as_model import Circumstances, masses
from vhydro.laws.law import Law
from vhydro.planning import Plan, Task, certify, fitted, hybrid_dynamics, known, law_dynamics, rollout
from vhydro.planning.energy import energy_bound, storage, switch_rises
from vhydro.planning.shift import Truths
from vhydro_audits import planning as audit
from vhydro_audits.laws_truth import SYSTEMS, true_law
from vhydro_audits.planning_truth import DT, HORIZON, SETTINGS, belief, dynamics, executed, problem

COUNT = 1000
WAYS = {"block": ((1, 0, 1.0), (2, 0, -1.0))}
BOX = {"puck": SETTINGS["puck"].region, "block": SETTINGS["block"].region, "pushing": SETTINGS["pushing"].region}


@cache
def law(system: str) -> Law:
    """The true law, with what a recording would say of its directions."""
    n = true_law(system).positions
    seen = Circumstances(0.005, *[(0.01,) * n] * 5, WAYS.get(system, ()))
    return replace(true_law(system), circumstances=seen)


def wrong(system: str, by: float) -> Law:
    """A law whose friction and springs are off by so much, masses too."""
    right = law(system)
    return replace(right, theta=right.theta * (1 + by * np.sign(np.sin(np.arange(len(right.theta)) + 1))))


def plan(name: str, value: float = 0.5) -> Plan:
    inputs = law(SETTINGS[name].system).inputs
    high = np.array([SETTINGS[name].actions[i][1] for i in inputs])
    return Plan(np.tile(value * high, (HORIZON, 1)), 0.0, 0.0, None, inputs, DT)


def proof(name: str, model: Law, shift, seed: int = 0, **options):
    p = problem(name, seed, 0)
    asked = {"delta": 0.9, "beta": 0.05, "particles": COUNT} | options
    start = belief(p, model)
    return certify(dynamics(name, model), start, plan(name), p.task, key=jax.random.key(seed), shift=shift, **asked)


# --- paths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["off a wall", "block", "to a stop"])
def test_the_path_model_ends_where_the_exact_simulator_does(name):
    """Through a bounce, through sticking, and through a contact that drags: means and spreads of 0.8 s."""
    system = SETTINGS[name].system
    model, p = dynamics(name, law(system)), problem(name, 0, 0)
    actions = plan(name, 0.3).actions
    out = rollout(model, p.task, model.population(belief(p, law(system))), actions, jax.random.key(0), COUNT)
    exact = executed(name, p, actions, COUNT, 0).states[:, -1]
    mine, spread = np.asarray(out.z), exact.std(1)
    error = np.hypot(spread, mine.std(1)) / np.sqrt(COUNT)
    # Beside chance, half a substep of semi-implicit Euler: 1 ms at the speed and at the acceleration things have.
    step = 1e-3 * np.concatenate([np.abs(exact[len(exact) // 2 :]).max(1) + 1, np.full(len(exact) // 2, 20.0)])
    assert (np.abs(mine.mean(1) - exact.mean(1)) < 4 * error + step).all()
    assert (np.abs(mine.std(1) - spread) < (4 / np.sqrt(2 * COUNT) + 0.1) * spread + step).all()


def test_a_stuck_block_stays_until_it_is_pulled_hard_enough():
    model = dynamics("block", law("block"))
    rest = jnp.zeros((2, 3))
    noise = jax.random.normal(jax.random.key(0), (25, 1, 3))
    held, pulled = (model.step(jnp.zeros(3, int), rest, jnp.asarray([f]), noise) for f in (2.8, 3.2))
    assert held[0].tolist() == [0, 0, 0]
    assert not np.asarray(held[1]).any()
    assert (np.asarray(pulled[1])[0] > 0).all()  # static friction is 2.94 N


# --- total variation --------------------------------------------------------------------------------------------------


def test_epsilon_grows_with_the_error_of_a_law_and_is_nothing_for_the_true_one():
    none, small, large = (proof("puck", wrong("puck", e), known(law("puck"))) for e in (0.0, 0.002, 0.05))
    assert none.shift < 0.02
    assert none.pinsker == 0.0
    assert none.shift < small.shift < large.shift
    assert "same process noise" in none.assumes[0]


def test_the_density_ratio_has_mean_one():
    """E_Q[dP/dQ] = 1, also across a wall that the two laws put at different places."""
    p, other = problem("off a wall", 0, 0), wrong("puck", 5e-5)
    model, truth = dynamics("off a wall", other), dynamics("off a wall", law("puck"))
    args = (model.population(belief(p, other)), plan("off a wall").actions, jax.random.key(2), 4 * COUNT)
    out = rollout(model, p.task, *args, truths=Truths(truth, False))
    ratio = np.exp(np.asarray(out.gap.log_ratio))
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(ratio.size)
    assert ratio.std() > 0.05
    assert np.asarray(out.gap.apart).any()


def test_a_block_whose_sticking_differs_is_split_off():
    """At rest where one spring holds and the other does not: 2.5 N − k q is about what static friction can take."""
    other = wrong("block", 0.05)
    model, truth = dynamics("block", other), dynamics("block", law("block"))
    q = np.linspace(-0.03, -0.015, 100)
    start = Particles(jnp.zeros(100, jnp.int32), jnp.asarray([q, 0 * q]), jnp.zeros(100), jnp.ones(()))
    args = (model.population(start), np.full((1, 1), 2.5), jax.random.key(2), COUNT)
    gap = rollout(model, problem("block", 0, 1).task, *args, truths=Truths(truth, False)).gap
    assert 0.02 < np.asarray(gap.singular).mean() < 0.5
    np.testing.assert_array_equal(gap.singular, gap.apart)


def test_a_task_that_reads_modes_counts_paths_whose_mode_the_laws_dispute():
    """A wall that the law has at 1.02 m and the truth at 1 m: what is between is contact for one of them only."""
    right = law("puck")
    moved = replace(right, theta=right.theta + 0.02 * (np.arange(len(right.theta)) == right.form.places[1]))
    model, truth = dynamics("puck", moved), dynamics("puck", right)
    z = np.tile([[1.01], [0.0]], 100) + [[0.0], [1e-3]] * np.random.default_rng(0).normal(size=(2, 100))
    start = Particles(jnp.zeros(100, jnp.int32), jnp.asarray(z), jnp.zeros(100), jnp.ones(()))
    args = (model.population(start), np.zeros((1, 1)), jax.random.key(0), COUNT)
    blind = Task(lambda z, mode, a: 0.0, None, 1.0)
    reads = Task(lambda z, mode, a: 0.0, lambda z, mode, a: mode == 2, 1.0)
    none, some = (rollout(model, task, *args, truths=Truths(truth, False)).gap for task in (blind, reads))
    assert not np.asarray(none.singular).any()
    assert np.asarray(some.singular).mean() > 0.5


def test_epsilon_from_a_laws_own_errors():
    right = law("puck")
    free = right.support & right.form.free
    spread = [replace(right, covariance=np.diag(np.where(free, (e * right.theta) ** 2, 0.0))) for e in (1e-5, 1e-2)]
    sure, unsure = (proof("puck", one, fitted(one)) for one in spread)
    assert sure.how == "parameters"
    assert sure.shift < 0.05 < unsure.shift
    bare = replace(right, covariance=np.full_like(right.covariance, np.nan))
    assert "no standard errors" in proof("puck", bare, fitted(bare)).why
    doubtful = replace(right, problems=((1, "seen once"),))
    assert "not identified" in proof("puck", doubtful, fitted(doubtful)).why
    assert "not the one" in proof("puck", right, fitted(wrong("puck", 0.1))).why


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: law_dynamics(law("puck"), DT, noise=0.0), "expected a positive deviation"),
        (lambda: law_dynamics(law("puck"), 0.0, noise=0.1), "dt is 0"),
        (lambda: law_dynamics(law("block"), DT, noise=0.1), "static_friction"),
        (lambda: law_dynamics(replace(law("block"), circumstances=None), DT, noise=0.1, static_friction=3.0), "is on"),
        (lambda: law_dynamics(unplain(), DT, noise=0.1), "expected constant masses"),
        (lambda: proof("puck", law("puck"), known(law_dynamics(law("puck"), DT, noise=0.3))), "process noise"),
        (lambda: proof("puck", law("puck"), known(law_dynamics(law("puck"), DT, noise=0.2, substeps=5))), "substeps"),
        (lambda: proof("puck", law("puck"), known(dynamics("pendulum", law("pendulum")))), "other coordinates"),
        (lambda: proof("puck", law("puck"), known("the truth")), "against a str"),
    ],
)
def test_laws_that_cannot_be_compared_are_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def unplain() -> Law:
    right = law("puck")
    odd = [i for i, e in enumerate(right.form.entries) if e.term and e.term.text(("q", "p")) == "q p^2"]
    return replace(right, support=right.support | np.isin(np.arange(len(right.support)), odd))


def test_a_model_without_the_laws_parameters_cannot_use_their_errors():
    right = law("puck")
    model = hybrid_dynamics(right.as_model(), 0.05, inputs=("force",), extra={"q velocity": np.array([0.0, 2.0])})
    start = Particles(jnp.zeros(1, jnp.int32), jnp.zeros((2, 1)), jnp.zeros(1), jnp.ones(()))
    task = Task(lambda z, mode, a: jnp.clip(jnp.abs(z["q velocity"]), 0, 1), None, 1.0, (-3, 3))
    made = Plan(np.zeros((HORIZON, 1)), 0.0, 0.0)
    found = certify(model, start, made, task, delta=0.5, beta=0.1, key=jax.random.key(0), shift=fitted(right))
    assert not found.certified
    assert "law_dynamics" in found.why


# --- energy -----------------------------------------------------------------------------------------------------------


def bounded(system: str, actions, start: float = 1.0, box: dict | None = None, **options):
    noise = options.pop("noise", SETTINGS[system].noise / masses(law(system)))
    return energy_bound(law(system), actions, DT, noise=noise, start=start, region=box or BOX[system], **options)


def test_the_forms_are_those_of_a_mass_with_friction():
    """Puck: f = 0.1 N s/m, m = 0.5 kg, a = 2 N for 0.8 s, σ_p = 0.1: by hand."""
    found = bounded("puck", np.full((16, 1), 2.0))
    heat = 0.8 * 0.1**2 / (2 * 0.5)
    assert found.own_actions == pytest.approx(1 + heat + 0.8 * 4 / 0.4)
    assert found.root == pytest.approx((np.sqrt(1 + heat) + 0.8 * 2 / np.sqrt(1.0)) ** 2)
    assert found.bound == min(found.own_actions, found.root, found.general)
    assert found.theorem == (0.0, np.inf, 0.0)
    assert "r = 0" in found.notes[0]
    assert found.chance_above(100.0) == pytest.approx(found.own_actions / 100)
    assert bounded("puck", np.zeros((16, 1)), noise=0.0).bound <= 1.0


@pytest.mark.parametrize("name", ["off a wall", "block", "to a stop"])
def test_the_energy_bound_holds_in_the_true_system(name):
    system = SETTINGS[name].system
    actions = plan(name, 0.8).actions
    run = executed(name, problem(name, 1, 0), actions, COUNT, 1)
    found = audit.energies(name, law(system), actions, run)
    assert found["energy_holds"]
    assert found["energy_end"] < found["energy_bound"] < 200


def test_energy_is_one_function_for_all_modes():
    """The block: p²/2m + k q²/2, sliding friction left out; a wall's spring counts in the puck."""
    q, v = np.array([[0.2]]), np.array([[1.5]])
    assert storage(law("block"), BOX["block"])(q, v)[0] == pytest.approx(0.5 * 1.5**2 + 10 * 0.2**2, abs=0.02)
    deep = storage(law("puck"), BOX["puck"])(np.array([[1.05]]), np.array([[0.0]]))
    assert deep[0] == pytest.approx(600 * 0.05**2, rel=0.2)


def test_a_switch_that_raises_energy_is_found_and_refused():
    """By the modes' own H: a stuck block has none, and gets (k/2)(q + F/k)² when it slips."""
    rises = {(a, b): joules for a, b, joules in switch_rises(law("block"), BOX["block"])}
    friction = SYSTEMS["block"].kinetic_friction * 9.81
    assert rises["stick", "slip forward"] == pytest.approx(10 * (1 + friction / 20) ** 2, rel=1e-3)
    assert not switch_rises(law("puck"), BOX["puck"])
    with pytest.raises(ValueError, match="raises the modes' own energy"):
        bounded("block", np.zeros((16, 1)), uses="modes' own")
    backwards = replace(
        law("block"), circumstances=law("block").circumstances._replace(directions=((1, 0, -1.0), (2, 0, 1.0)))
    )
    with pytest.raises(ValueError, match="gives energy"):
        storage(backwards, BOX["block"])


def test_inputs_that_move_positions_leave_the_general_form():
    found = bounded("pushing", np.full((16, 2), 0.2))
    assert np.isinf(found.own_actions)
    assert np.isinf(found.root)
    assert np.isfinite(found.general)
    assert any("moves a position" in n for n in found.notes)
    unbounded = bounded("pushing", np.full((16, 2), 0.2), box={"gap": (-0.1, 1.5), "y": (-1.5, 1.5)})
    assert unbounded.general >= found.general
    with pytest.raises(ValueError, match="nothing of y"):
        bounded("pushing", np.zeros((16, 2)), box={"gap": (0.0, 1.0)})
