"""Rollouts: particles of a belief moved through actions, what they cost and whether they fail, in one program."""

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from vhydro.planning.dynamics import Dynamics, Gap, Population, drawn, no_gap
from vhydro.planning.task import Task
from vhydro.small import precise

UNROLLED = 8  # steps
SLACK = 1e-4  # of the bound: rounding by which a cost may pass it


class Faults(NamedTuple):
    """What a task's functions gave that they may not: the least and the largest cost, and costs that are no number.

    On the way every path has its own; in the end there is one for all.
    """

    least: Float[Array, "..."]
    most: Float[Array, "..."]
    undefined: Bool[Array, "..."]


class Outcome(NamedTuple):
    """What became of every path."""

    cost: Float[Array, "..."]  # in [0, bound]
    failed: Bool[Array, "..."]
    mode: Int[Array, "..."]  # at the end
    z: Float[Array, "latent ..."]
    faults: Faults
    gap: Gap | None
    states: Float[Array, "steps latent ..."] | None
    lost: Bool[Array, "..."]  # paths that left the numbers


class _Carry(NamedTuple):
    mode: Int[Array, "..."]
    z: Float[Array, "latent ..."]
    cost: Float[Array, "..."]
    failed: Bool[Array, "..."]
    lost: Bool[Array, "..."]
    faults: Faults
    gap: Gap | None


def roll(
    dynamics: Dynamics,
    task: Task,
    mode: Int[Array, "*particles"],
    z: Float[Array, "latent *particles"],
    actions: Float[Array, "steps inputs ..."],
    noise: Any,
    *,
    truth: Any = None,
    batched: bool = False,
    keep: bool = False,
) -> Outcome:
    """Every particle moved through the actions. With a `truth` the gap between the two path laws is added up."""
    actions, z = (jnp.asarray(x, dynamics.dtype) for x in (actions, z))
    zero = jnp.zeros(mode.shape, z.dtype)
    no = jnp.zeros(mode.shape, bool)
    none = Faults(zero + jnp.inf, zero - jnp.inf, no)

    def step(now: _Carry, given):
        action, random = given
        if truth is None:
            after, there = dynamics.step(now.mode, now.z, action, random)
            gap = None
        else:
            assert now.gap is not None
            after, there, gap = dynamics.compared(truth, batched, now.mode, now.z, action, random, now.gap)
        lost = now.lost | ~jnp.isfinite(there).all(0)
        here = jnp.where(lost, 0.0, there)
        cost, failed = task.step(dynamics.readout(here), after, dynamics.actions(action))
        gap = _told_apart(gap, (cost, failed), lambda m: task.step(dynamics.readout(here), m, dynamics.actions(action)))
        faults = _faults(now.faults, cost, lost)
        cost = jnp.where(lost, task.bound, cost).astype(z.dtype)
        return _Carry(after, here, now.cost + cost, now.failed | failed | lost, lost, faults, gap), (
            here if keep else None
        )

    mode, z = dynamics.settle(mode, z, actions[0])
    start = _Carry(mode, z, zero, no, no, none, None if truth is None else no_gap(zero, mode))
    # A step on an accelerator costs its launches: several are written as one.
    unroll = 1 if jax.default_backend() == "cpu" else UNROLLED
    end, states = jax.lax.scan(step, start, (actions, noise), unroll=unroll)
    final, missed = task.end(dynamics.readout(end.z), end.mode)
    gap = _told_apart(end.gap, (final, missed), lambda m: task.end(dynamics.readout(end.z), m))
    cost, faults = end.cost / actions.shape[0], end.faults
    if final is not None:
        faults = _faults(faults, final, end.lost)
        cost = (cost + task.final_weight * jnp.where(end.lost, task.bound, final)) / (1 + task.final_weight)
    faults = Faults(faults.least.min(), faults.most.max(), faults.undefined.any())
    return Outcome(cost, end.failed | missed, end.mode, end.z, faults, gap, states, end.lost)


def _told_apart(gap: Gap | None, told: tuple, again: Callable) -> Gap | None:
    """The gap, with paths split off that the task judges otherwise in the mode which the second law has there."""
    if gap is None:
        return None
    pairs = [(x, y) for x, y in zip(told, again(gap.mode), strict=True) if x is not None]
    return gap._replace(singular=reduce(or_, (x != y for x, y in pairs), gap.singular))


def _faults(so_far: Faults, cost: Float[Array, "..."], lost: Bool[Array, "..."]) -> Faults:
    cost = cost.astype(so_far.least.dtype)
    known = ~lost & ~jnp.isnan(cost)
    return Faults(
        jnp.minimum(so_far.least, jnp.where(known, cost, jnp.inf)),
        jnp.maximum(so_far.most, jnp.where(known, cost, -jnp.inf)),
        so_far.undefined | (jnp.isnan(cost) & ~lost),
    )


def candidates(
    dynamics: Dynamics,
    task: Task,
    mode: Int[Array, "particles"],
    z: Float[Array, "latent particles"],
    actions: Float[Array, "candidates steps inputs"],
    key: PRNGKeyArray,
) -> Outcome:
    """Every particle moved through every candidate, all under the same random numbers: (candidates, particles)."""
    count, steps, _ = actions.shape
    noise = jax.tree.map(lambda x: jnp.expand_dims(x, -2), dynamics.noise(key, steps, z.shape[1]))
    wide = jnp.moveaxis(actions, 0, -1)[..., None]  # (steps, inputs, candidates, 1)
    shape = (count, z.shape[1])
    start = jnp.broadcast_to(mode, shape), jnp.broadcast_to(z[:, None], (z.shape[0], *shape))
    return roll(dynamics, task, *start, wide, noise)


@eqx.filter_jit
@precise
def rollout(
    dynamics: Dynamics,
    task: Task,
    start: Population,
    actions: Any,
    key: PRNGKeyArray,
    particles: int,
    *,
    truths: Any = None,
    keep: bool = False,
) -> Outcome:
    """Fresh particles of a belief moved through one sequence of actions (steps, inputs).

    They are compared with `truths` where there are any, see `shift`; with `keep` the states they pass are returned.
    """
    at, onward = jax.random.split(key)
    mode, z = drawn(start, at, particles)
    noise = dynamics.noise(onward, len(actions), particles)
    truth, batched = (None, False) if truths is None else truths
    return roll(dynamics, task, mode, z, actions, noise, truth=truth, batched=batched, keep=keep)


def refuse_faults(faults: Faults, task: Task) -> None:
    """Raises if a cost was not a number, or not in [0, bound]."""
    if bool(faults.undefined):
        raise ValueError(
            "the task's cost is not a number for some states; expected one in [0, bound] for every state a rollout may "
            "reach. Guard divisions, roots and logarithms."
        )
    least, most = float(faults.least), float(faults.most)
    if least < -SLACK * task.bound or most > task.bound * (1 + SLACK):
        raise ValueError(
            f"the task's cost is between {least:.4g} and {most:.4g}; expected it in [0, {task.bound:g}]. Raise "
            "`bound`, or clip the cost: a proof needs to know how bad a path can be."
        )


def refuse_actions(actions: np.ndarray, task: Task, inputs: tuple[str, ...]) -> None:
    """Raises if an action is not finite or outside the task's bounds."""
    low, high = task.limits(inputs)
    if actions.ndim != 2 or not len(actions) or actions.shape[1] != len(inputs):
        raise ValueError(
            f"the actions have the shape {actions.shape}; expected (steps, {len(inputs)}) for {', '.join(inputs)}."
        )
    width = high - low
    outside = ~((actions >= low - 1e-5 * width) & (actions <= high + 1e-5 * width))
    if outside.any():
        step, i = np.argwhere(outside)[0]
        raise ValueError(
            f"action {inputs[i]!r} of step {step} is {actions[step, i]:.4g}; expected it between {low[i]:g} and "
            f"{high[i]:g}. Plan with this task, or clip the actions."
        )
