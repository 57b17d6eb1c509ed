"""Planners: sampled sequences of actions, rolled out and improved round by round, by MPPI or cross-entropy."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from vhydro.planning.dynamics import Dynamics, Population, drawn
from vhydro.planning.rollout import Faults, candidates, refuse_actions, refuse_faults
from vhydro.planning.task import Task
from vhydro.small import precise

LEAST_SPREAD = 0.02  # of half the range of an action, below which the cross-entropy method does not shrink
NARROWING = 0.8  # of the spread from one round of MPPI to the next


@dataclass(frozen=True)
class Planner:
    """Settings of a sampling planner; called with a model, a belief and a task it gives a `Plan`."""

    method: Literal["mppi", "cem"]
    horizon: int  # steps
    knots: int  # actions that are chosen, each held for an equal part of the horizon
    candidates: int
    particles: int
    rounds: int  # of a warm start …
    first_rounds: int  # … and of a cold one
    spread: float  # standard deviation of the knots at first, relative to half the range of an action
    temperature: float  # of MPPI, relative to how far the mean cost is above the least
    elites: int  # of the cross-entropy method

    def __post_init__(self):
        least = {"horizon": 1, "knots": 1, "candidates": 2, "particles": 1, "rounds": 1, "first_rounds": 1, "elites": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least {low}.")
        if self.knots > self.horizon:
            raise ValueError(f"{self.knots} knots in a horizon of {self.horizon}; expected at most one for each step.")
        if self.elites >= self.candidates:
            raise ValueError(f"{self.elites} elites of {self.candidates} candidates; expected fewer.")
        for name in ("spread", "temperature"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a positive number.")

    def __call__(
        self, model: Any, belief: Any, task: Task, *, key: PRNGKeyArray, warm: "Plan | None" = None, elapsed: int = 1
    ) -> "Plan":
        """The best plan found; `warm` is an earlier one, `elapsed` steps of which are over."""
        dynamics = dynamics_of(model)
        low, high = task.limits(dynamics.inputs)
        start = dynamics.population(belief)
        if warm is not None:
            refuse_actions(warm.actions, task, dynamics.inputs)
        middle, half = (jnp.asarray(x, dynamics.dtype) for x in ((high + low) / 2, (high - low) / 2))
        before = self._knots(warm, elapsed, (low + high) / 2, (high - low) / 2)
        rounds = self.first_rounds if warm is None else self.rounds
        given = jnp.asarray(before, dynamics.dtype), jnp.asarray(rounds, jnp.int32)
        found = _optimised(dynamics, task, self, start, middle, half, *given, key)
        faults, cost, risk, actions = jax.tree.map(np.asarray, found)
        refuse_faults(faults, task)
        actions = np.clip(np.asarray(actions, np.float64), low, high)  # single precision may have rounded past them
        return Plan(actions, float(cost), float(risk), self, dynamics.inputs, dynamics.seconds)

    def _knots(self, warm: "Plan | None", elapsed: int, middle: np.ndarray, half: np.ndarray) -> np.ndarray:
        """The knots of an earlier plan moved on, its last action held; of a cold start, the middle of the range."""
        if warm is None:
            return np.zeros((self.knots, len(middle)))
        rows = np.minimum(np.arange(self.horizon) + elapsed, len(warm.actions) - 1)
        whole = (warm.actions[rows] - middle) / half
        which = np.arange(self.horizon) * self.knots // self.horizon
        return np.stack([whole[which == k].mean(0) for k in range(self.knots)])


def mppi(
    horizon: int = 16,
    knots: int = 4,
    candidates: int = 256,
    particles: int = 64,
    *,
    rounds: int = 1,
    first_rounds: int = 5,
    spread: float = 0.5,
    temperature: float = 0.1,
) -> Planner:
    """Model predictive path integral control: candidates averaged with weights that fall exponentially in their cost.

    >>> plan = mppi(horizon=16)(model, belief, task, key=jax.random.key(0))
    """
    return Planner("mppi", horizon, knots, candidates, particles, rounds, first_rounds, spread, temperature, 1)


def cem(
    horizon: int = 16,
    knots: int = 4,
    candidates: int = 128,
    particles: int = 16,
    *,
    rounds: int = 2,
    first_rounds: int = 5,
    spread: float = 0.5,
    elites: int = 12,
) -> Planner:
    """The cross-entropy method: a Gaussian of the knots fitted to the best candidates of every round."""
    return Planner("cem", horizon, knots, candidates, particles, rounds, first_rounds, spread, 0.1, elites)


@dataclass(frozen=True)
class Plan:
    """Actions in the log's units, one row for each step, with what the model expects of them.

    `cost` and `risk` are those of the planner's own particles, by which it was chosen: look at them, and rely on
    `certify`, which draws fresh ones.
    """

    actions: np.ndarray  # (steps, inputs)
    cost: float
    risk: float  # share of paths that fail
    planner: Planner | None = None
    inputs: tuple[str, ...] = ()
    dt: float = field(default=0.0)  # seconds a step lasts


def dynamics_of(model: Any) -> Dynamics:
    """The dynamics of a fitted model, or the given ones."""
    if hasattr(model, "dynamics"):
        return model.dynamics()
    if not hasattr(model, "compared"):
        raise ValueError(
            f"a {type(model).__name__} was given to plan with; expected a fitted model or what `hybrid_dynamics` gives."
        )
    return model


class _Search(NamedTuple):
    """The Gaussian that knots are drawn from, the best of them so far this round, and what was wrong with the task."""

    mean: Float[Array, "knots inputs"]
    spread: Float[Array, "knots inputs"]
    best: Float[Array, "knots inputs"]
    faults: Faults


@eqx.filter_jit
@precise
def _optimised(dynamics, task, planner: Planner, start: Population, middle, half, warm, rounds: Int[Array, ""], key):
    search_key, last_key = jax.random.split(key)
    held = jnp.arange(planner.horizon) * planner.knots // planner.horizon

    def acted(knots: Float[Array, "... knots inputs"]) -> Float[Array, "... steps inputs"]:
        return middle + half * knots[..., held, :]

    def judged(knots, key):
        here, onward = jax.random.split(key)
        mode, z = drawn(start, here, planner.particles)
        out = candidates(dynamics, task, mode, z, acted(knots), onward)
        return out.cost.mean(-1), out.failed.mean(-1, dtype=out.cost.dtype), out.faults

    def one_round(i, now: _Search) -> _Search:
        draw, luck = jax.random.split(jax.random.fold_in(search_key, i))
        normal = jax.random.normal(draw, (planner.candidates, *warm.shape), warm.dtype)
        knots = jnp.clip(now.mean + now.spread * normal.at[0].set(0.0), -1.0, 1.0)
        cost, risk, faults = judged(knots, luck)
        score = cost + task.bound * risk  # a path that fails has cost the bound on top
        mean, spread = _improved(planner, now.spread, knots, score)
        return _Search(mean, spread, knots[jnp.argmin(score)], _joined(now.faults, faults))

    none = Faults(jnp.asarray(jnp.inf, warm.dtype), jnp.asarray(-jnp.inf, warm.dtype), jnp.zeros((), bool))
    begun = _Search(warm, jnp.full_like(warm, planner.spread), warm, none)
    end = jax.lax.fori_loop(0, rounds, one_round, begun)
    # Averages of good plans may be bad ones, and the best of many was lucky: new luck decides.
    finalists = jnp.stack([end.mean, end.best, warm])
    cost, risk, faults = judged(finalists, last_key)
    chosen = jnp.argmin(cost + task.bound * risk)
    return _joined(end.faults, faults), cost[chosen], risk[chosen], acted(finalists[chosen])


def _improved(planner: Planner, spread, knots, score):
    """The mean and the spread of the next round."""
    if planner.method == "mppi":
        above = score - score.min()
        weight = jax.nn.softmax(-above / (planner.temperature * above.mean() + 1e-12))
        return jnp.tensordot(weight, knots, axes=1), NARROWING * spread
    elites = knots[jnp.argsort(score)[: planner.elites]]
    return elites.mean(0), jnp.maximum(elites.std(0), LEAST_SPREAD)


def _joined(one: Faults, two: Faults) -> Faults:
    return Faults(jnp.minimum(one.least, two.least), jnp.maximum(one.most, two.most), one.undefined | two.undefined)
