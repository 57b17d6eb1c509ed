"""A loop over time as one kernel: `jax.lax.scan` of a step of many particles, with all of them in registers.

The step is traced once and written down as vectors along the particles (`cells`); what it needs of a row's own numbers
and of the parameters alone is worked out beforehand for all rows at once (`plan`). Under `jax.vmap` every log becomes a
program of its own.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray, Tracer
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from vhydro.fused import records
from vhydro.fused.cells import Cells, Value, as_cells, shaped
from vhydro.fused.flat import UnsupportedError
from vhydro.fused.layout import Leaf, Slots, divided, is_float, leaf_of, packed, whole
from vhydro.fused.memory import Memory
from vhydro.fused.plan import Known, Plan, known, planned
from vhydro.fused.shared import Threads
from vhydro.fused.steps import entries, restored, run


class Kernel(NamedTuple):
    """How a kernel is built: by how many warps of a GPU a log is filtered, or interpreted on any machine."""

    warps: int
    interpret: bool


def scan_in_one_kernel(step: Callable, parameters, carry, rows, noise, lanes: int, *, kernel: Kernel):
    """`jax.lax.scan` of `step(parameters, carry, row, noise) -> (carry, out)` over rows and noise, as one kernel.

    Raises `UnsupportedError` where the step cannot be written so.
    """
    length = jax.tree.leaves(rows)[0].shape[0]
    plan = planned(step, parameters, carry, jax.tree.map(_first, rows), jax.tree.map(_first, noise), lanes)
    loop = _Loop(plan, length, kernel)
    arguments = loop.arguments(known(plan, parameters, rows), carry, noise)
    out = pl.pallas_call(
        partial(_loop_body, loop),
        out_shape=loop.out_shapes(),
        compiler_params=triton.CompilerParams(num_warps=kernel.warps, num_stages=1),
        interpret=kernel.interpret,
        name="scan_in_one_kernel",
    )(*arguments)
    return jax.tree.unflatten(plan.returned, loop.results(out))


def _first(x):
    return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)


class Trial(NamedTuple):
    """What a row needs in a kernel: bytes of shared memory, and operations."""

    memory: int
    operations: int


def tried(step: Callable, parameters, carry, row, noise, lanes: int) -> Trial:
    """What a row needs in a kernel, without computing it; raises `UnsupportedError` where there can be none."""
    return _tried(_Loop(planned(step, parameters, carry, row, noise, lanes), 1, Kernel(1, interpret=True)))


def _tried(loop: "_Loop") -> Trial:
    memory = Memory(loop.plan.lanes)

    def zero(floats: bool, _: int):
        return jnp.zeros((), jnp.float32 if floats else jnp.int32)

    def row():
        vector = jnp.zeros(loop.plan.lanes, jnp.float32)
        env = loop.given(zero, zero, [vector] * loop.noise_columns) | loop.carried(zero, [vector] * loop.carry_columns)
        env = run(loop.plan.flat, loop.plan.row.within, env, memory)
        outputs = [env[a] for a in loop.plan.flat.outputs if isinstance(a, int)]
        return [jnp.asarray(c) for value in outputs for c in as_cells(value).values.flat]

    count = _size(jax.make_jaxpr(row)().jaxpr)  # which uses the memory
    return Trial(memory.used, count)


def _size(jaxpr) -> int:
    """The operations of a traced function, those of its inner functions included."""
    inner = [v for eqn in jaxpr.eqns for p in eqn.params.values() for v in (p if isinstance(p, tuple) else (p,))]
    traced = [v.jaxpr if hasattr(v, "consts") else v for v in inner if hasattr(v, "eqns") or hasattr(v, "consts")]
    return len(jaxpr.eqns) + sum(_size(j) for j in traced if hasattr(j, "eqns"))


class _Loop:
    """A plan over so many rows: what goes into the kernel and comes out of it, and where each part of it lies."""

    def __init__(self, plan: Plan, length: int, kernel: Kernel):
        self.plan, self.length, self.kernel = plan, length, kernel
        avals = plan.flat.avals
        self.carry = [leaf_of(avals[a], plan.lanes) for a in plan.carry]
        self.noise = [leaf_of(avals[a], plan.lanes) for a in plan.noise]
        self.out = [leaf_of(_aval(a, avals), plan.lanes) for a in plan.flat.outputs[len(self.carry) :]]
        self.carry_columns, self.noise_columns, self.out_columns = map(_columns, (self.carry, self.noise, self.out))
        rows = [Leaf(avals[a], plan.lanes, None, 0, int(np.prod(avals[a].shape))) for a in plan.row_read]
        self.row_widths = tuple(_numbers([*rows, *self.noise], floats) + 1 for floats in (True, False))
        self.constants: dict[tuple[int, int], Any] = {}  # numbers of the output that are the same in every row

    def arguments(self, values: Known, carry, noise) -> list[Any]:
        """What the kernel is called with."""
        lead = (self.length,)
        numbers, vectors = list(values.rows), []
        for leaf, array in zip(self.noise, jax.tree.leaves(noise), strict=True):
            v, n = divided(leaf, array, lead)
            vectors += [] if v is None else [v]
            numbers += [] if n is None else [n]
        drawn = jnp.concatenate(list(map(records.as_float, vectors)), 1) if vectors else jnp.zeros((self.length, 1))
        held = [divided(leaf, x, ()) for leaf, x in zip(self.carry, jax.tree.leaves(carry), strict=True)]
        own = [v for v, _ in held if v is not None]
        start = records.laid_out(own) if own else jnp.zeros(1)
        few = packed([n for _, n in held if n is not None], ())
        by_row = (x.reshape(-1) for x in (*packed(numbers, lead), drawn))
        return [*packed(values.fixed, ()), *by_row, start, *few]

    def given(self, fixed, row, drawn: list[Any]) -> dict[int, Value]:
        """The values that a row starts from, by functions that read a number at a place, and its random vectors."""
        avals, slots, rows, vectors = self.plan.flat.avals, Slots(), Slots(), iter(drawn)
        env: dict[int, Value] = {a: slots.read(fixed, avals[a].shape, avals[a].dtype) for a in self.plan.fixed_read}
        env |= {a: rows.read(row, avals[a].shape, avals[a].dtype) for a in self.plan.row_read}
        return env | {a: x.value(row, rows, vectors) for a, x in zip(self.plan.noise, self.noise, strict=True)}

    def carried(self, number, own: list[Any]) -> dict[int, Value]:
        """What is carried from row to row, by a function that reads a number at a place, and the vectors."""
        slots, vectors = Slots(), iter(own)
        return {a: x.value(number, slots, vectors) for a, x in zip(self.plan.carry, self.carry, strict=True)}

    def out_shapes(self) -> list[Any]:
        """The arrays that the kernel writes: the last carry, and every row's output."""
        f, i, shape = jnp.float32, jnp.int32, jax.ShapeDtypeStruct
        return [
            shape((self.plan.lanes * records.width_of(self.carry_columns) or 1,), f),
            shape((_numbers(self.carry, True) or 1,), f),
            shape((_numbers(self.carry, False) or 1,), i),
            shape((self.length * self.plan.lanes * self.out_columns or 1,), f),
            shape((self.length * (_numbers(self.out, True) or 1),), f),
            shape((self.length * (_numbers(self.out, False) or 1),), i),
        ]

    def results(self, out: Sequence[Any]) -> list[Any]:
        """The leaves of what a scan returns, from what the kernel wrote."""
        held = records.columns_of(out[0], self.carry_columns, self.plan.lanes)
        size = self.length * self.plan.lanes * self.out_columns
        vectors = out[3][:size].reshape(self.length, self.out_columns, self.plan.lanes)
        numbers = [x.reshape(self.length, -1) for x in out[4:6]]
        carry = self._leaves(self.carry, held, out[1:3], (), {})
        return carry + self._leaves(self.out, vectors, numbers, (self.length,), self.constants)

    def _leaves(self, leaves: list[Leaf], vectors, numbers, lead: tuple[int, ...], constants: dict) -> list[Any]:
        slots, out, taken, rows = Slots(), [], 0, (slice(None),) * len(lead)
        for number, leaf in enumerate(leaves):
            if leaf.axis is None:
                place = slots.take(leaf.aval.dtype, leaf.numbers)
                own = numbers[0 if is_float(leaf.aval.dtype) else 1][(*rows, slice(place.start, place.stop))]
                for i in range(leaf.numbers):
                    own = own.at[..., i].set(constants[number, i]) if (number, i) in constants else own
            else:
                own = records.from_float(vectors[(*rows, slice(taken, taken + leaf.vectors))], leaf.aval.dtype)
                taken += leaf.vectors
            out.append(whole(leaf, own, lead))
        return out


def _aval(atom, avals):
    return avals[atom] if isinstance(atom, int) else ShapedArray(atom.shape, atom.dtype)


def _columns(leaves: list[Leaf]) -> int:
    return sum(leaf.vectors for leaf in leaves)


def _numbers(leaves: list[Leaf], floats: bool) -> int:
    return sum(leaf.numbers for leaf in leaves if is_float(leaf.aval.dtype) == floats)


def _loop_body(loop: _Loop, *refs) -> None:
    """The kernel: the whole loop, for one log."""
    fixed_f, fixed_i, row_f, row_i, drawn, held, few_f, few_i = refs[:8]
    end, rows = refs[8:11], refs[11:14]
    plan, lanes = loop.plan, loop.plan.lanes
    # A number that is 0, which the compiler does not know: else every thread would hold neighbours where memory is read
    # in order, and other particles elsewhere; `shared` needs them spread in one way, and moving values costs time.
    everyone = jax.lax.iota(jnp.int32, lanes) + fixed_i[fixed_i.shape[0] - 1]
    first = loop.carried(
        lambda floats, p: (few_f if floats else few_i)[p],
        records.read(held, np.int32(0), loop.carry_columns, everyone),
    )
    forms = [as_cells(first[a]) for a in plan.carry]
    threads = None if loop.kernel.interpret else Threads.of(everyone, loop.kernel.warps, _tried(loop).memory)

    def row(t, flat):
        memory = Memory(lanes, threads)
        at = [t * np.int32(width) for width in loop.row_widths]
        record = t * np.int32(lanes * loop.noise_columns)
        env = loop.given(
            lambda floats, p: (fixed_f if floats else fixed_i)[p],
            lambda floats, p: row_f[at[0] + np.int32(p)] if floats else row_i[at[1] + np.int32(p)],
            records.columns_read(drawn, record, loop.noise_columns, everyone),
        )
        env |= dict(zip(plan.carry, restored(forms, list(flat)), strict=True))
        env = run(plan.flat, plan.row.within, env, memory)
        outputs = [env[a] if isinstance(a, int) else a for a in plan.flat.outputs]
        columns = _write(loop.out, outputs[len(forms) :], lanes, rows, t, loop.constants)
        records.columns_written(rows[0], t * np.int32(lanes * len(columns)), columns, everyone)
        return _flat([_like(v, f) for v, f in zip(outputs, forms, strict=False)], lanes)

    last = jax.lax.fori_loop(np.int32(0), np.int32(loop.length), row, _flat(forms, lanes))
    columns = _write(loop.carry, restored(forms, list(last)), lanes, end, np.int32(0), {})
    if columns:
        records.written(end[0], np.int32(0), columns, everyone)


def _flat(values: list[Cells], lanes: int) -> tuple[Any, ...]:
    return tuple(e for v in values for e in entries(v, lanes))


def _like(value: Value, form: Cells) -> Cells:
    """The value as what is carried: numbers become vectors where vectors are."""
    return Cells(np.broadcast_to(as_cells(value).values, form.values.shape), form.axis, form.dtype)


def _write(leaves: list[Leaf], values: list[Value], lanes: int, refs, t, constants: dict) -> list[Any]:
    """Writes the numbers down as row t, and returns the vectors; numbers that are constants are kept for later."""
    slots, columns = Slots(), []
    for number, (leaf, value) in enumerate(zip(leaves, values, strict=True)):
        dtype, cells = leaf.aval.dtype, as_cells(value)
        if leaf.axis is not None:
            full = np.broadcast_to(cells.values, shaped(leaf.aval.shape, leaf.axis, lanes))
            columns += [jnp.broadcast_to(jnp.asarray(v, dtype), (lanes,)) for v in full.flat]
            continue
        kind = is_float(dtype)
        for i, (place, v) in enumerate(zip(slots.take(dtype, leaf.numbers), cells.values.flat, strict=True)):
            if isinstance(v, Tracer):
                at = t * np.int32(_numbers(leaves, kind)) + np.int32(place)
                refs[1 if kind else 2][at] = v.astype(jnp.float32 if kind else jnp.int32)
            else:
                constants[number, i] = v
    return columns


__all__ = ["Kernel", "Trial", "UnsupportedError", "scan_in_one_kernel", "tried"]
