"""A traced function as a flat list of operations, divided into what is known beforehand and what is not.

Functions within functions are inlined, so that every operation is a primitive on arrays; those that a kernel does in
its own way keep their name (`NAMED`). What depends on nothing that is carried from step to step is computed outside the
kernel, for all steps at once: the kernel only reads it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend import core

NAMED = ("systematic", "columns_at", "pairs_at")
INLINED = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2")
ALIASES = ("stop_gradient", "optimization_barrier", "copy", "copy_p", "reduce_precision", "sharding_constraint")


class UnsupportedError(Exception):
    """What a kernel cannot do; the message says what, in words for the record."""


Atom = int | np.ndarray  # the number of a value, or a constant


class Op(NamedTuple):
    """One operation on numbered values."""

    primitive: Any  # a primitive, or the name of an operation in `NAMED`
    params: dict[str, Any]
    inputs: tuple[Atom, ...]
    outputs: tuple[int, ...]
    added: tuple[str, ...] = ()  # parameters that are ours

    @property
    def name(self) -> str:
        return self.primitive if isinstance(self.primitive, str) else self.primitive.name


class Flat(NamedTuple):
    """A function: its inputs, its operations in order, its outputs, and the shape and type of every value."""

    inputs: list[int]
    ops: list[Op]
    outputs: list[Atom]
    avals: list[Any]


def flattened(function: Callable, *examples) -> tuple[Flat, Any]:
    """The function on arrays shaped like these, flat, and the structure of what it returns."""
    traced, shape = jax.make_jaxpr(function, return_shape=True)(*examples)
    return flat_of(traced), jax.tree.structure(shape)


def flat_of(closed) -> Flat:
    """A traced function as numbered operations."""
    avals: list[Any] = []
    ops: list[Op] = []
    inputs = [_numbered(v.aval, avals) for v in closed.jaxpr.invars]
    consts = [_constant(c) for c in closed.consts]
    return Flat(inputs, ops, _inline(closed.jaxpr, [*consts, *inputs], ops, avals), avals)


def _numbered(aval, avals: list[Any]) -> int:
    avals.append(aval)
    return len(avals) - 1


def _constant(value) -> np.ndarray:
    if isinstance(value, Tracer):
        raise UnsupportedError("a value of the surrounding program is used without being handed over")
    return np.asarray(value)


def _inner(eqn):
    """The function that an operation calls, if it is to be inlined."""
    name, params = eqn.primitive.name, eqn.params
    if name in INLINED and params.get("name") not in NAMED:
        return next(params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in params)
    if name == "cond" and "branches_platforms" in params:  # one branch for each kind of hardware, the last for any
        return params["branches"][-1]
    return None


def _inline(jaxpr, arguments: Sequence[Atom], ops: list[Op], avals: list[Any]) -> list[Atom]:
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], arguments, strict=True))

    def atom(v) -> Atom:
        return np.asarray(v.val, getattr(v.aval, "dtype", None)) if isinstance(v, core.Literal) else env[v]

    for eqn in jaxpr.eqns:
        given = [atom(v) for v in eqn.invars]
        inner = _inner(eqn)
        if inner is not None:
            closed = inner if hasattr(inner, "consts") else core.ClosedJaxpr(inner, ())
            arguments = given[1:] if eqn.primitive.name == "cond" else given
            out = _inline(closed.jaxpr, [*map(_constant, closed.consts), *arguments], ops, avals)
        elif eqn.primitive.name in ALIASES:
            out = given
        else:
            named = eqn.primitive.name in INLINED
            out = [_numbered(v.aval, avals) for v in eqn.outvars]
            counts = _counted(eqn) if eqn.primitive.name == "scan" else {}
            added = tuple(k for k in counts if k not in eqn.params)
            what = eqn.params["name"] if named else eqn.primitive
            ops.append(Op(what, eqn.params | counts, tuple(given), tuple(out), added))
        env.update(zip(eqn.outvars, out, strict=True))
    return [atom(v) for v in jaxpr.outvars]


def _counted(eqn) -> dict[str, int]:
    """How many of a loop's arguments are constants and how many are carried on, told by their shapes."""
    inner = eqn.params["jaxpr"]
    series = sum(len(v.aval.shape) > len(a.shape) for v, a in zip(eqn.invars, inner.in_avals, strict=True))
    carried = sum(len(v.aval.shape) == len(a.shape) for v, a in zip(eqn.outvars, inner.out_avals, strict=True))
    return {"num_carry": carried, "num_consts": len(eqn.invars) - carried - series}


def pruned(flat: Flat, outputs: Sequence[Atom]) -> Flat:
    """The function that returns these of its values, without what they do not need."""
    wanted = {a for a in outputs if isinstance(a, int)}
    ops = []
    for op in reversed(flat.ops):
        if wanted.intersection(op.outputs):
            ops.append(op)
            wanted.update(a for a in op.inputs if isinstance(a, int))
    return Flat(flat.inputs, ops[::-1], list(outputs), flat.avals)


def settled(flat: Flat, stays: Callable[[Op], bool]) -> Flat:
    """The function with what depends on nothing worked out and put in as constants."""
    values: dict[int, np.ndarray] = {}
    ops = []

    def atom(a: Atom) -> Atom:
        return values.get(a, a) if isinstance(a, int) else a

    with jax.ensure_compile_time_eval(), jax.default_device(jax.local_devices(backend="cpu")[0]):
        for op in flat.ops:
            op = op._replace(inputs=tuple(map(atom, op.inputs)))
            if stays(op) or any(isinstance(a, int) for a in op.inputs):
                ops.append(op)
                continue
            out = op.primitive.bind(*map(jnp.asarray, op.inputs), **_own(op))
            out = out if op.primitive.multiple_results else [out]
            values.update(zip(op.outputs, map(np.asarray, out), strict=True))
    return flat._replace(ops=ops, outputs=list(map(atom, flat.outputs)))


class Division(NamedTuple):
    """A function in two: `before` is known without what is carried, `within` needs it and reads `read` of the other."""

    before: list[Op]
    within: list[Op]
    read: list[int]


def divided(flat: Flat, known: set[int], stays: Callable[[Op], bool]) -> Division:
    """The operations on known values alone, and the others; what `stays` is never done beforehand."""
    known, before, within = set(known), [], []
    for op in flat.ops:
        given = all(a in known for a in op.inputs if isinstance(a, int))
        if given and not stays(op):
            known.update(op.outputs)
            before.append(op)
        else:
            within.append(op)
    used = [a for op in within for a in op.inputs] + list(flat.outputs)
    read = sorted({a for a in used if isinstance(a, int) and a in known})
    return Division(before, within, read)


def _own(op: Op) -> dict[str, Any]:
    """The primitive's own parameters."""
    return {k: v for k, v in op.params.items() if k not in op.added}


def evaluated(ops: Sequence[Op], env: dict[int, Any]) -> dict[int, Any]:
    """The values with those of the operations added, by JAX as it is."""
    env = dict(env)
    for op in ops:
        out = op.primitive.bind(*(env[a] if isinstance(a, int) else a for a in op.inputs), **_own(op))
        env.update(zip(op.outputs, out if op.primitive.multiple_results else [out], strict=True))
    return env
