"""Proofs against what is known: total variation in closed form, KL ≈ pH/2n, coverage of bounds, and what is refused."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from planning_models import DT, HORIZON, SMALL, TASK, belief, cost, matrices, moving, plan, switching
from scipy.stats import binom, norm

from vhydro.planning import Plan, Record, Task, certify, conformal, fitted, hybrid_dynamics, known, rollout
from vhydro.planning.shift import Truths, upper_mean, upper_share, variation

KEY, COUNT = jax.random.key(0), 2048


def proof(shift=None, *, model=None, task=TASK, made=None, seed=0, **options):
    asked = {"delta": 0.3, "beta": 0.03, "particles": COUNT} | options
    model = moving() if model is None else model
    return certify(model, belief(), made or plan(), task, key=jax.random.key(seed), shift=shift, **asked)


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_the_upper_bound_on_a_share_covers_as_often_as_it_says():
    for chance in (0.01, 0.2):
        bounds = np.array([upper_share(k, 50, 0.1) for k in range(51)])
        missed = binom.pmf(np.arange(51), 50, chance)[bounds < chance].sum()
        assert missed <= 0.1
    assert upper_share(0, 2048, 0.05) == pytest.approx(1 - 0.05 ** (1 / 2048))
    assert upper_share(50, 50, 0.1) == 1.0


def test_the_upper_bound_on_a_mean_covers_and_adapts_to_the_variance():
    random = np.random.default_rng(0)
    draws = random.beta(0.05, 2.0, size=(400, 200))
    missed = np.mean([upper_mean(x, 0.1) < 0.05 / 2.05 for x in draws])
    assert missed <= 0.1 + 3 * np.sqrt(0.09 / 400)
    steady = upper_mean(np.full(2000, 0.02), 0.05) - 0.02
    assert steady < 0.25 * (upper_mean(random.uniform(size=2000) < 0.5, 0.05) - 0.5 + 0.05)
    assert upper_mean(np.zeros(1), 0.05) == 1.0


# --- total variation --------------------------------------------------------------------------------------------------


def shifted(by: float):
    """The model with another push along w, where nothing else is."""
    inner = switching()
    return moving(eqx.tree_at(lambda m: m.flow.offset, inner, inner.flow.offset + jnp.asarray([0.0, 0.0, by])))


def test_total_variation_is_that_of_two_gaussians():
    """Along w every step is shifted alike: the whole path differs as one Gaussian from another, √H d σ apart."""
    off = 0.04
    apart = np.sqrt(HORIZON) * off / 0.1
    exact = 2 * norm.cdf(apart / 2) - 1
    found = proof(known(shifted(off)), particles=8192)
    args = (moving().population(belief()), np.full((HORIZON, 1), 0.2), KEY, 8192)
    out = rollout(moving(), TASK, *args, truths=Truths(shifted(off), False))
    each = variation(out.gap)
    assert abs(each.mean() - exact) < 4 * each.std() / np.sqrt(8192)
    assert exact < found.shift < exact + 0.05
    np.testing.assert_allclose(found.pinsker, np.sqrt(apart**2 / 2 / 2), rtol=1e-6)  # KL = apart² / 2
    assert found.pinsker > exact


def test_the_same_law_is_no_shift_and_is_certified():
    found = proof(known(moving()))
    assert found.certified, found
    assert found.how == "path law"
    assert found.shift < 0.02
    assert found.bound == pytest.approx(found.risk + found.margin + found.shift)
    assert "open loop" in found.speaks_of
    assert "open loop" in str(found)
    assert found.cost_bound < TASK.bound
    assert proof(known(moving()), replans=50).margin > found.margin


def test_failures_of_the_truth_stay_below_the_bound():
    """The truth pushes further than the model thinks; its own failures are counted."""
    truth = shifted(0.03)
    high = Task(cost, lambda z, mode, a: z["w"] > 0.45, 1.0)
    found = proof(known(truth), task=high, delta=0.9)
    args = (truth.population(belief()), np.full((HORIZON, 1), 0.2), jax.random.key(8), 20_000)
    real = np.asarray(rollout(truth, high, *args).failed).mean()
    own = np.asarray(rollout(moving(), high, *args).failed).mean()
    assert real > own + 4 * np.sqrt(0.25 / 20_000)  # there is something to bound
    assert real < found.bound
    assert found.certified


# --- fitted parameters ------------------------------------------------------------------------------------------------


def regression(count: int, seed: int):
    """Two linear modes told by least squares from so many transitions of a log of them, modes known.

    Gives the model, a draw of its posterior, and states of the log.
    """
    random, true = np.random.default_rng(seed), matrices()
    mode, x, modes, states = 0, np.zeros(3), [], [np.zeros(3)]
    for _ in range(count):
        mode = mode if random.random() < 0.9 else 1 - mode
        x = true[mode] @ x + 0.1 * random.normal(size=3)
        modes.append(mode)
        states.append(x)
    before, after, own = np.array(states[:-1]), np.array(states[1:]), np.array(modes)[:, None] == np.arange(2)
    gram = np.einsum("ns,ni,nj->sij", own, before, before)
    estimate = np.swapaxes(np.linalg.solve(gram, np.einsum("ns,ni,nj->sij", own, before, after)), 1, 2)
    root = jnp.asarray(np.linalg.cholesky(np.linalg.inv(gram)))
    model = moving(switching(estimate))

    def draw(key):
        off = 0.1 * jnp.einsum("sij,skj->ski", root, jax.random.normal(key, (2, 3, 3)))
        return eqx.tree_at(lambda d: d.model.flow.matrix, model, model.model.flow.matrix + off)

    return model, draw, np.array(states[-512:]).T


def test_the_divergence_of_a_fit_is_p_h_over_2n():
    """p = 18 parameters of two linear modes, a plan that starts and goes on as the log did."""
    steps, count, divergences = 16, 5000, []
    for seed in range(4):
        model, _, states = regression(count, seed)
        start = model.population(belief(512)._replace(z=jnp.asarray(states)))
        args = (start, np.zeros((steps, 1)), jax.random.key(seed), COUNT)
        out = rollout(model, TASK, *args, truths=Truths(moving(), False))
        divergences.append(float(out.gap.divergence.mean()))
    # χ² of 18 degrees over 18 has a relative deviation of 1/3; four fits.
    assert abs(np.mean(divergences) / (18 * steps / (2 * count)) - 1) < 4 * (1 / 3) / np.sqrt(4)


def test_epsilon_from_the_spread_of_parameters_falls_with_the_data():
    few, many = (proof(fitted(draw), model=model) for model, draw, _ in (regression(500, 0), regression(20_000, 0)))
    assert many.certified, many
    assert many.how == "parameters"
    assert many.shift < 0.5 * few.shift
    assert 0.5 * many.pinsker**2 * 2 * 0.1 < 18 * HORIZON / (2 * 50_000)  # of the rule's order
    assert any("parameters" in a for a in many.assumes)


# --- a record ---------------------------------------------------------------------------------------------------------


def recorded(count: int, chance: float = 0.02, seed: int = 0) -> Record:
    random = np.random.default_rng(seed)
    risk = random.uniform(0, 0.4, count)
    return Record(risk, random.uniform(size=count) < np.where(risk < 0.2, chance, 0.9), SMALL)


def test_a_record_certifies_what_was_safe_before_and_refuses_what_was_not():
    safe = proof(conformal(recorded(200)), made=replace(plan(), risk=0.1), delta=0.2)
    assert safe.certified, safe
    assert (safe.how, safe.shift) == ("conformal", 0.0)
    assert "episode" in safe.speaks_of
    assert "exchangeable" in safe.assumes[0]
    risky = proof(conformal(recorded(200)), made=replace(plan(), risk=0.39), delta=0.2)
    assert not risky.certified
    assert "200 recorded episodes" in risky.why
    assert not proof(conformal(recorded(5)), made=replace(plan(), risk=0.0), delta=0.2).certified


def test_what_a_record_certifies_fails_as_seldom_as_it_says():
    """Over many records: how often the threshold that a record allows is one at which more than delta fail."""
    delta, beta, wrong = 0.15, 0.1, 0
    for seed in range(200):
        shift = conformal(recorded(100, seed=seed))
        grid = np.linspace(0, 0.4, 81)
        allowed = [r for r in grid if shift.bound(r, SMALL, beta)[1] <= delta]
        top = max(allowed, default=0.0)
        wrong += 0.02 * min(top, 0.2) / 0.4 + 0.9 * max(top - 0.2, 0) / 0.4 > delta
    assert wrong / 200 <= beta + 3 * np.sqrt(beta * (1 - beta) / 200)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_mask_that_the_truth_violates_is_refused():
    """The model cannot leave its first mode, the truth does."""
    stuck = moving(switching(feasible=[[True, False], [True, True]]))
    found = proof(known(moving()), model=stuck)
    assert not found.certified
    assert "rules out changes of mode" in found.why
    assert found.how == "none"
    assert found.shift > 0.3  # and would not have held: 1 − 0.9⁸ of the paths leave


@pytest.mark.parametrize(
    ("shift", "why"),
    [
        (None, "nothing says how far"),
        (conformal(Record(np.zeros(9), np.zeros(9, bool), replace(SMALL, candidates=64))), "another planner"),
        (conformal(Record(np.zeros(9), np.zeros(8, bool), SMALL)), "one finite risk"),
        (known(shifted(0.5)), "mostly by ε"),
    ],
)
def test_what_is_not_proven_says_why(shift, why):
    found = proof(shift)
    assert not found.certified
    assert why in found.why
    assert why in str(found)


def test_a_region_that_is_left_is_refused_with_its_name():
    found = proof(known(moving()), task=Task(cost, None, 1.0, region={"w": (-0.05, 0.05)}))
    assert not found.certified
    assert "region of w" in found.why
    assert found.risk > 0.3


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"made": plan(5.0)}, "action 'push' of step 0 is 5"),
        ({"made": plan(np.nan)}, "action 'push'"),
        ({"made": replace(plan(), actions=np.zeros((0, 1)))}, "shape \\(0, 1\\)"),
        ({"made": replace(plan(), inputs=("pull",))}, "the inputs pull"),
        ({"made": replace(plan(), dt=1.0)}, "steps of 1 s"),
        ({"delta": 0.0}, "delta is 0"),
        ({"beta": 1.0}, "beta is 1"),
        ({"particles": 1}, "particles is 1"),
        ({"task": Task(lambda z, mode, a: 3.0 + 0 * z["x"], None, 1.0)}, "between 3 and 3"),
        ({"shift": known(hybrid_dynamics(switching(), 2 * DT, inputs=("push",)))}, "other units or steps"),
        ({"shift": known("a law")}, "against a str"),
    ],
)
def test_bad_input_is_an_error(options, match):
    with pytest.raises(ValueError, match=match):
        proof(**options)


def test_a_plan_of_another_kind_of_actions_is_an_error():
    with pytest.raises(ValueError, match="expected \\(steps, 1\\)"):
        proof(made=Plan(np.zeros((HORIZON, 2)), 0.0, 0.0))
