"""A traced step taken apart: what the parameters decide, what a row decides, and what is left for the kernel."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from vhydro.fused.flat import Division, Flat, Op, UnsupportedError, divided, evaluated, flattened, pruned, settled


class Plan(NamedTuple):
    """A step `(parameters, carry, row, noise) -> (carry, out)`, divided into what is done before the kernel and in it.

    Numbers are those of values in `flat`. The kernel reads the values `fixed_read`, the same for all rows, and
    `row_read`, of every row its own.
    """

    flat: Flat
    fixed: list[Op]  # what the parameters alone decide
    row: Division  # what a row alone decides, given that, and what is left
    fixed_read: list[int]
    row_read: list[int]
    parameters: list[int]
    carry: list[int]
    rows: list[int]
    noise: list[int]
    lanes: int
    returned: Any  # the structure of what the step returns


def planned(step: Callable, parameters, carry, row, noise, lanes: int) -> Plan:
    """The step taken apart for so many particles."""
    for leaf in jax.tree.leaves((parameters, row)):
        if along_particles(leaf, lanes):
            raise UnsupportedError(f"an array of shape {leaf.shape} beside {lanes} particles")
    for leaf in jax.tree.leaves((parameters, carry, row, noise)):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype != jnp.float32:
            raise UnsupportedError(f"numbers of type {leaf.dtype}")

    def stays(op: Op) -> bool:
        return isinstance(op.primitive, str) or any(along_particles(flat.avals[o], lanes) for o in op.outputs)

    flat, returned = flattened(step, parameters, carry, row, noise)
    flat = settled(flat, stays)
    flat = pruned(flat, flat.outputs)
    numbers = iter(flat.inputs)
    parameters_in, carry_in, rows_in, noise_in = (
        [next(numbers) for _ in jax.tree.leaves(tree)] for tree in (parameters, carry, row, noise)
    )
    fixed = divided(flat, set(parameters_in), stays)
    done = set(parameters_in) | {o for op in fixed.before for o in op.outputs}
    by_row = divided(flat._replace(ops=fixed.within), done | set(rows_in), stays)
    fixed_read = [a for a in by_row.read if a in done]
    row_read = [a for a in by_row.read if a not in done]
    given = {"parameters": parameters_in, "carry": carry_in, "rows": rows_in, "noise": noise_in}
    return Plan(flat, fixed.before, by_row, fixed_read, row_read, **given, lanes=lanes, returned=returned)


def along_particles(array, lanes: int) -> bool:
    """Whether an axis of the array could be the particles."""
    return any(size and size % lanes == 0 for size in array.shape)


class Known(NamedTuple):
    """What the kernel reads: values that hold for all rows, and values with one entry for every row."""

    fixed: list[Any]
    rows: list[Any]


def known(plan: Plan, parameters, rows) -> Known:
    """The values that the kernel reads, computed by JAX for all rows at once."""
    env = dict(zip(plan.parameters, jax.tree.leaves(parameters), strict=True))
    env = evaluated(plan.fixed, env)

    def of_row(leaves):
        found = evaluated(plan.row.before, env | dict(zip(plan.rows, leaves, strict=True)))
        return [found[a] for a in plan.row_read]

    own = jax.vmap(of_row)(jax.tree.leaves(rows)) if plan.row_read else []
    return Known([jnp.asarray(env[a]) for a in plan.fixed_read], own)
