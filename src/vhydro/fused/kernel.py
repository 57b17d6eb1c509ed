"""A loop over time as one kernel: `jax.lax.scan` of a step of many particles, with all of them in registers.

The step is traced once and written down as vectors along the particles (`cells`); what it needs of a row's own numbers
and of the parameters alone is worked out beforehand for all rows at once (`flat.divided`). Under `jax.vmap` every log
becomes a program of its own.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from vhydro.fused import records
from vhydro.fused.cells import Cells, Ragged, Value, as_cells, constant, filled, lane_axis, shaped
from vhydro.fused.flat import (
    Division,
    Flat,
    Op,
    UnsupportedError,
    divided,
    evaluated,
    flat_of,
    flattened,
    pruned,
    settled,
)
from vhydro.fused.memory import Memory
from vhydro.fused.rules import LONGEST, ruled


def run(ops: list[Op], env: dict[int, Value], memory: Memory) -> dict[int, Value]:
    """The values with those of the operations added."""
    env = dict(env)
    for op in ops:
        inputs = [env[a] if isinstance(a, int) else a for a in op.inputs]
        env.update(zip(op.outputs, _done(op, inputs, memory), strict=True))
    return env


def _done(op: Op, inputs: list[Value], memory: Memory) -> list[Value]:
    if op.name == "systematic":
        count = op.params["jaxpr"].out_avals[0].shape[0]
        weight, uniform = (as_cells(v) for v in inputs)
        if count % memory.lanes:
            raise UnsupportedError("another number of particles after resampling")
        found = memory.systematic(list(weight.values), uniform.values[()], count)
        return [Cells(filled((len(found),), found), 0, np.dtype(np.int32))]
    if op.name == "columns_at":
        return _columns_at(op, inputs, memory)
    if op.name == "pairs_at":
        return _pairs_at(inputs, memory)
    if op.name == "cond":
        return _either(op, inputs, memory)
    if op.name == "scan":
        return _written_out(op, inputs, memory)
    return ruled(op, inputs, memory.lanes, memory)


def _columns_at(op: Op, inputs: list[Value], memory: Memory) -> list[Value]:
    """Of every array the columns at the same indices; an array that has one column for all stays."""
    *given, index = (as_cells(v) for v in inputs)
    if index.values.shape != (1,):
        raise UnsupportedError("another number of particles after resampling")
    many = [c for c in given if c.axis is not None]
    if any(c.axis != c.values.ndim - 1 for c in many):
        raise UnsupportedError("particles that do not come last")
    flat = [c.values.reshape(-1, c.values.shape[-1]) for c in many]
    found = iter(memory.columns_at(flat, [c.dtype for c in many], index.values[0]))
    out: list[Value] = []
    for c in given:
        shape = (*c.values.shape[:-1], 1)
        out.append(c if c.axis is None else c._replace(values=filled(shape, next(found))))
    return out


def _pairs_at(inputs: list[Value], memory: Memory) -> list[Value]:
    """Of (modes, latent, particles) the column of each pair `mode · particles + particle`."""
    values, index = (as_cells(v) for v in inputs)
    if index.values.shape != (1,) or values.axis != 2 or values.values.shape[2] != 1:
        raise UnsupportedError("another number of particles after resampling")
    rows = values.values[:, :, 0].T
    (found,) = memory.columns_at([rows], [values.dtype], index.values[0])
    return [values._replace(values=filled((len(found), 1), found), axis=1)]


def _called(closed, inputs: list[Value], memory: Memory) -> list[Value]:
    flat = flat_of(closed)
    env = run(pruned(flat, flat.outputs).ops, dict(zip(flat.inputs, inputs, strict=True)), memory)
    return [env[a] if isinstance(a, int) else a for a in flat.outputs]


def _either(op: Op, inputs: list[Value], memory: Memory) -> list[Value]:
    """One of two functions; both leave vectors where one of them does."""
    which, given, branches = as_cells(inputs[0]).values[()], inputs[1:], op.params["branches"]
    if isinstance(which, np.generic):
        return _called(branches[int(which)], given, memory)
    if len(branches) != 2:
        raise UnsupportedError("a choice of more than two")
    forms: list[list[Cells]] = []

    def branch(closed):
        def do():
            out = [as_cells(v) for v in _called(closed, given, memory)]
            forms.append(out)
            return [c for cells in out for c in entries(cells, memory.lanes)]

        return do

    flat = jax.lax.cond(which > 0, branch(branches[1]), branch(branches[0]))
    return restored(forms[0], flat)


def entries(cells: Cells, lanes: int) -> list[Any]:
    """The entries as arrays: vectors along the particles, or numbers."""
    shape = () if cells.axis is None else (lanes,)
    return [jnp.broadcast_to(jnp.asarray(v, cells.dtype), shape) for v in cells.values.flat]


def restored(forms: list[Cells], flat: list[Any]) -> list[Value]:
    """Values like these with other entries."""
    out, place = [], 0
    for form in forms:
        size = form.values.size
        out.append(form._replace(values=filled(form.values.shape, flat[place : place + size])))
        place += size
    return out


def _written_out(op: Op, inputs: list[Value], memory: Memory) -> list[Value]:
    """A short loop, round by round."""
    p = op.params
    if p["length"] > LONGEST:
        raise UnsupportedError(f"a loop of {p['length']} rounds within a step")
    consts, carried = inputs[: p["num_consts"]], inputs[p["num_consts"] : p["num_consts"] + p["num_carry"]]
    series = inputs[p["num_consts"] + p["num_carry"] :]
    rounds = range(p["length"])
    every: dict[int, list[Value]] = {}
    for i in reversed(rounds) if p["reverse"] else rounds:
        out = _called(p["jaxpr"], [*consts, *carried, *(_entry(s, i) for s in series)], memory)
        carried, every[i] = out[: p["num_carry"]], out[p["num_carry"] :]
    columns = zip(*(every[i] for i in rounds), strict=True) if p["length"] else ()
    return [*carried, *(_column(list(c)) for c in columns)]


def _entry(value: Value, i: int) -> Value:
    if isinstance(value, np.ndarray):
        return np.asarray(value[i])
    cells = as_cells(value)
    inner = cells.values[i]
    if not isinstance(inner, np.ndarray):
        inner = filled((), [inner])
    return cells._replace(values=inner, axis=None if cells.axis is None else cells.axis - 1)


def _column(values: list[Value]) -> Value:
    cells = [as_cells(v) for v in values]
    out = np.empty((len(cells), *cells[0].values.shape), object)
    for i, c in enumerate(cells):
        out[i] = c.values if c.values.ndim else c.values[()]
    axis = cells[0].axis
    return Cells(out, None if axis is None else axis + 1, cells[0].dtype)


# --- what goes in and out of the kernel -------------------------------------------------------------------------------


def _is_float(dtype) -> bool:
    return np.issubdtype(dtype, np.floating)


class Packed(NamedTuple):
    """Arrays of numbers side by side, floats apart from the others, so that a kernel has few arguments."""

    floats: Any  # (…, entries)
    others: Any


def packed(arrays: list[Any], leading: int) -> Packed:
    """The arrays with their axes after the first `leading` ones joined; at least one entry of either kind."""

    def joined(chosen, dtype):
        parts = [a.reshape(*a.shape[:leading], -1).astype(dtype) for a in chosen]
        lead = arrays[0].shape[:leading] if arrays else ()
        return jnp.concatenate([*parts, jnp.zeros((*lead, 1), dtype)], -1)

    floats = [a for a in arrays if _is_float(a.dtype)]
    return Packed(joined(floats, jnp.float32), joined([a for a in arrays if not _is_float(a.dtype)], jnp.int32))


class Slots:
    """Where each number of packed arrays is."""

    def __init__(self):
        self.next = {True: 0, False: 0}

    def take(self, dtype, size: int) -> range:
        kind = _is_float(dtype)
        first = self.next[kind]
        self.next[kind] += size
        return range(first, first + size)


def _numbers(read, slots: Slots, aval) -> Cells:
    """One array's numbers, read from where they are packed: `read(floats?, place)`."""
    dtype = np.dtype(aval.dtype)
    places = slots.take(dtype, int(np.prod(aval.shape)))
    values = (read(_is_float(dtype), p) for p in places)
    values = (v != 0 if dtype == bool else v.astype(dtype) for v in values)
    return Cells(filled(aval.shape, values), None, dtype)


class Plan(NamedTuple):
    """A step, divided into what is done before the kernel and in it."""

    flat: Flat
    fixed: Division  # what the parameters alone decide
    row: Division  # what a row alone decides, given that
    fixed_read: list[int]
    parameters: list[int]
    carry: list[int]
    rows: list[int]
    noise: list[int]
    lanes: int


def planned(step: Callable, parameters, carry, row, noise, lanes: int, keep: Callable) -> tuple[Plan, Any]:
    """The step taken apart, and the structure of what it returns; `keep` picks of its outputs."""
    for leaf in jax.tree.leaves((parameters, row)):
        if any(s % lanes == 0 and s for s in leaf.shape):
            raise UnsupportedError(f"an array of shape {leaf.shape} beside {lanes} particles")
    for leaf in jax.tree.leaves((parameters, carry, row, noise)):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype != jnp.float32:
            raise UnsupportedError(f"numbers of type {leaf.dtype}")

    def stays(op: Op) -> bool:
        return isinstance(op.primitive, str) or any(_along_particles(flat.avals[o], lanes) for o in op.outputs)

    def kept(*args):
        after, out = step(*args)
        return after, keep(out)

    flat, tree = flattened(kept, parameters, carry, row, noise)
    flat = settled(flat, stays)
    flat = pruned(flat, flat.outputs)
    sizes = [len(jax.tree.leaves(t)) for t in (parameters, carry, row, noise)]
    ends = np.cumsum(sizes)
    given = [flat.inputs[e - s : e] for s, e in zip(sizes, ends, strict=True)]

    fixed = divided(flat, set(given[0]), stays)
    done = set(given[0]) | {o for op in fixed.before for o in op.outputs}
    row_part = divided(flat._replace(ops=fixed.within), done | set(given[2]), stays)
    return Plan(flat, fixed, row_part, [a for a in row_part.read if a in done], *given, lanes), tree


def _along_particles(aval, lanes: int) -> bool:
    return any(s and s % lanes == 0 for s in aval.shape)


class Leaf(NamedTuple):
    """How an array lies in the kernel's memory: vectors along the particles, numbers, or both."""

    aval: Any
    axis: int | None
    vectors: int
    numbers: int

    @property
    def tail(self) -> bool:
        return self.vectors > 0 and self.numbers > 0


def laid_out(aval, lanes: int) -> Leaf:
    shape = aval.shape
    if len(shape) == 1 and shape[0] > lanes and shape[0] % lanes:  # a few numbers after the particles
        if shape[0] >= 2 * lanes:
            raise UnsupportedError(f"an array of {shape[0]} beside {lanes} particles")
        return Leaf(aval, 0, 1, shape[0] - lanes)
    axis = lane_axis(shape, lanes)
    size = int(np.prod(shaped(shape, axis, lanes)))
    return Leaf(aval, axis, 0, size) if axis is None else Leaf(aval, axis, size, 0)


def split(leaf: Leaf, array, lanes: int, leading: int = 0):
    """The vectors (…, vectors, lanes) and the numbers (…, numbers) of an array."""
    lead = array.shape[:leading]
    if leaf.tail:
        return array[..., :lanes].reshape(*lead, 1, lanes), array[..., lanes:]
    if leaf.axis is None:
        return None, array.reshape(*lead, -1)
    if leaf.axis != len(leaf.aval.shape) - 1:
        raise UnsupportedError("particles that do not come last")
    return array.reshape(*lead, leaf.vectors, lanes), None


def joined(leaf: Leaf, vectors, numbers, leading: int = 0):
    """The array again."""
    if leaf.axis is None:
        return numbers.reshape(*numbers.shape[:leading], *leaf.aval.shape).astype(leaf.aval.dtype)
    return vectors.reshape(*vectors.shape[:leading], *leaf.aval.shape).astype(leaf.aval.dtype)


class Kernel(NamedTuple):
    """How a kernel is built."""

    warps: int
    interpret: bool


def scan_in_one_kernel(
    step: Callable, parameters, carry, rows, noise, lanes: int, *, keep: Callable = lambda out: out, kernel: Kernel
):
    """`jax.lax.scan` of `step(parameters, carry, row, noise) -> (carry, out)` over rows and noise, as one kernel.

    `keep` picks of `out` what is asked for. Raises `UnsupportedError` where the step cannot be written so.
    """
    length = jax.tree.leaves(rows)[0].shape[0]
    first = jax.eval_shape(lambda t: jax.tree.map(lambda x: x[0], t), (rows, noise))
    plan, tree = planned(step, parameters, carry, *first, lanes, keep)
    values = _beforehand(plan, parameters, rows, length)
    flow = _Flow(plan, carry, noise, length)
    call = partial(_kernel, plan, flow, kernel)
    shapes = flow.out_shapes(flow.tried()[0])
    out = pl.pallas_call(
        call,
        out_shape=shapes,
        compiler_params=triton.CompilerParams(num_warps=kernel.warps, num_stages=1),
        interpret=kernel.interpret,
        name="scan_in_one_kernel",
    )(*flow.arguments(values, carry, noise))
    return jax.tree.unflatten(tree, flow.results(out))


def operations(step: Callable, parameters, carry, row, noise, lanes: int) -> int:
    """How many operations a row takes in a kernel; raises `UnsupportedError` where there can be none."""
    plan, _ = planned(step, parameters, carry, row, noise, lanes, lambda out: out)
    return _Flow(plan, carry, noise, 1).tried()[1]


def _size(jaxpr) -> int:
    """The operations of a traced function, those of its inner functions included."""
    inner = [v for eqn in jaxpr.eqns for p in eqn.params.values() for v in (p if isinstance(p, tuple) else (p,))]
    closed = [v.jaxpr if hasattr(v, "consts") else v for v in inner if hasattr(v, "eqns") or hasattr(v, "consts")]
    return len(jaxpr.eqns) + sum(_size(j) for j in closed if hasattr(j, "eqns"))


class Known(NamedTuple):
    fixed: list[Any]
    rows: list[Any]


def _beforehand(plan: Plan, parameters, rows, length: int) -> Known:
    """What the kernel reads: values of the parameters alone, and of every row."""
    env = dict(zip(plan.parameters, jax.tree.leaves(parameters), strict=True))
    env = evaluated(plan.fixed.before, env)
    row_read = [a for a in plan.row.read if a not in set(plan.fixed_read)]

    def of_row(leaves):
        found = evaluated(plan.row.before, env | dict(zip(plan.rows, leaves, strict=True)))
        return [found[a] for a in row_read]

    own = jax.vmap(of_row)(jax.tree.leaves(rows)) if row_read else []
    return Known([jnp.asarray(env[a]) for a in plan.fixed_read], own)


class _Flow:
    """What goes into the kernel and comes out of it, and where each part of it lies."""

    def __init__(self, plan: Plan, carry, noise, length: int):
        self.plan, self.length = plan, length
        lanes, avals = plan.lanes, plan.flat.avals
        self.carry = [laid_out(avals[a], lanes) for a in plan.carry]
        self.noise = [laid_out(avals[a], lanes) for a in plan.noise]
        outs = plan.flat.outputs[len(self.carry) :]
        self.out = [laid_out(_aval(a, avals), lanes) for a in outs]
        self.row_read = [a for a in plan.row.read if a not in set(plan.fixed_read)]
        self.constants: dict[tuple[int, int], Any] = {}  # numbers of the output that are always the same

    def tried(self) -> tuple[int, int]:
        """A row without memory: the numbers of memory that particles read each other through, and the operations."""
        memory = Memory(self.plan.lanes, barriers=False)

        def once():
            read = lambda floats, _: jnp.zeros((), jnp.float32 if floats else jnp.int32)  # noqa: E731
            vectors = [jnp.zeros(self.plan.lanes, jnp.float32)] * max(self.noise_columns, self.carry_columns)
            env = self.inside(read, read, vectors) | self.carried(read, vectors)
            env = run(self.plan.row.within, env, memory)
            outputs = [env[a] for a in self.plan.flat.outputs if isinstance(a, int)]
            return [c for value in outputs for c in as_cells(value).values.flat]

        jaxpr = jax.make_jaxpr(once)()
        return memory.used, _size(jaxpr.jaxpr)

    @property
    def noise_columns(self) -> int:
        return sum(leaf.vectors for leaf in self.noise)

    @property
    def carry_columns(self) -> int:
        return sum(leaf.vectors for leaf in self.carry)

    @property
    def out_columns(self) -> int:
        return sum(leaf.vectors for leaf in self.out)

    def arguments(self, known: Known, carry, noise) -> list[Any]:
        lanes, length = self.plan.lanes, self.length
        numbers, vectors = list(known.rows), []
        for leaf, array in zip(self.noise, jax.tree.leaves(noise), strict=True):
            v, n = split(leaf, array, lanes, 1)
            vectors += [] if v is None else [v]
            numbers += [] if n is None else [n]
        fixed = packed(known.fixed, 0)
        row = packed(numbers, 1) if numbers else packed([jnp.zeros((length, 1))], 1)
        noisy = records.laid_out(vectors, 1) if vectors else jnp.zeros((length, 1))
        held = [split(leaf, array, lanes) for leaf, array in zip(self.carry, jax.tree.leaves(carry), strict=True)]
        own = [v for v, _ in held if v is not None]
        few = packed([n for _, n in held if n is not None], 0)
        self.row_width = row.floats.shape[1], row.others.shape[1]
        start = records.laid_out(own, 0) if own else jnp.zeros(1)
        return [*fixed, *(x.reshape(-1) for x in row), noisy.reshape(-1), start, *few]

    def inside(self, fixed, row, noisy: list[Any]) -> dict[int, Value]:
        """The values that one row starts from, by functions that read a number at a place, and its random vectors."""
        avals, slots, rows, vectors = self.plan.flat.avals, Slots(), Slots(), iter(noisy)
        env: dict[int, Value] = {a: _numbers(fixed, slots, avals[a]) for a in self.plan.fixed_read}
        env |= {a: _numbers(row, rows, avals[a]) for a in self.row_read}
        for a, leaf in zip(self.plan.noise, self.noise, strict=True):
            env[a] = self._value(leaf, row, rows, vectors)
        return env

    def carried(self, number, own: list[Any]) -> dict[int, Value]:
        slots, vectors = Slots(), iter(own)
        return {
            a: self._value(leaf, number, slots, vectors) for a, leaf in zip(self.plan.carry, self.carry, strict=True)
        }

    def _value(self, leaf: Leaf, number, numbers: Slots, vectors) -> Value:
        dtype = np.dtype(leaf.aval.dtype)
        floats = _is_float(dtype)

        def typed(v):
            return v != 0 if dtype == bool else v.astype(dtype)

        if leaf.axis is None:
            places = numbers.take(dtype, leaf.numbers)
            return Cells(filled(leaf.aval.shape, (typed(number(floats, p)) for p in places)), None, dtype)
        shape = (1,) if leaf.tail else shaped(leaf.aval.shape, leaf.axis, self.plan.lanes)
        own = (records.from_float(next(vectors), dtype) for _ in range(leaf.vectors))
        head = Cells(filled(shape, own), leaf.axis, dtype)
        if not leaf.tail:
            return head
        places = numbers.take(dtype, leaf.numbers)
        return Ragged(head, Cells(filled((leaf.numbers,), (number(floats, p) for p in places)), None, dtype))

    def out_shapes(self, memory: int):
        lanes, length = self.plan.lanes, self.length

        def numbers(leaves: list[Leaf], floats: bool) -> int:
            return sum(x.numbers for x in leaves if _is_float(x.aval.dtype) == floats) or 1

        def vectors(columns: int) -> int:
            return lanes * records.width_of(columns) if columns else 1

        f, i, shape = jnp.float32, jnp.int32, jax.ShapeDtypeStruct
        return [
            shape((vectors(self.carry_columns),), f),
            shape((numbers(self.carry, True),), f),
            shape((numbers(self.carry, False),), i),
            shape((length * vectors(self.out_columns),), f),
            shape((length * numbers(self.out, True),), f),
            shape((length * numbers(self.out, False),), i),
            shape((memory or 1,), f),
        ]

    def results(self, out: list[Any]) -> list[Any]:
        found = self._taken(self.carry, self.carry_columns, out[:3], 0, {})
        by_row = [x.reshape(self.length, -1) for x in out[3:6]]
        return found + self._taken(self.out, self.out_columns, by_row, 1, self.constants)

    def _taken(self, leaves, columns: int, arrays: list[Any], leading: int, constants: dict) -> list[Any]:
        numbers, out, next_column = Slots(), [], 0
        held = records.columns_of(arrays[0], columns, self.plan.lanes, leading) if columns else None
        for number, leaf in enumerate(leaves):
            n = arrays[1] if _is_float(leaf.aval.dtype) else arrays[2]
            lead = (slice(None),) * leading
            if leaf.axis is None:
                place = numbers.take(leaf.aval.dtype, leaf.numbers)
                own = n[(*lead, slice(place.start, place.stop))]
                for i in range(leaf.numbers):
                    own = own.at[..., i].set(constants[number, i]) if (number, i) in constants else own
                out.append(joined(leaf, None, own, leading))
            else:
                assert held is not None
                own = held[(*lead, slice(next_column, next_column + leaf.vectors))]
                next_column += leaf.vectors
                out.append(joined(leaf, records.from_float(own, leaf.aval.dtype), None, leading))
        return out


def _aval(atom, avals):
    return avals[atom] if isinstance(atom, int) else jax.core.ShapedArray(atom.shape, atom.dtype)


def _kernel(plan: Plan, flow: _Flow, kernel: Kernel, *refs):
    """The whole loop, for one log."""
    fixed_f, fixed_i, row_f, row_i, noisy, held, few_f, few_i = refs[:8]
    end, end_f, end_i, out, out_f, out_i, shared = refs[8:]
    lanes, widths = plan.lanes, flow.row_width
    everyone = jax.lax.iota(jnp.int32, lanes)

    def flatten(values: list[Value]) -> list[Any]:
        return [e for v in values for e in entries(as_cells(v), lanes)]

    own = records.read(held, np.int32(0), flow.carry_columns, everyone) if flow.carry_columns else []
    start = flow.carried(lambda floats, p: (few_f if floats else few_i)[p], own)
    first = [start[a] for a in plan.carry]
    forms = [as_cells(v) for v in first]
    noise_size = lanes * records.width_of(flow.noise_columns)

    def body(t, flat):
        memory = Memory(lanes, shared, barriers=not kernel.interpret)
        drawn = (
            records.read(noisy, t * np.int32(noise_size), flow.noise_columns, everyone) if flow.noise_columns else []
        )
        at = t * np.int32(widths[0]), t * np.int32(widths[1])
        env = flow.inside(
            lambda floats, p: (fixed_f if floats else fixed_i)[p],
            lambda floats, p: row_f[at[0] + np.int32(p)] if floats else row_i[at[1] + np.int32(p)],
            drawn,
        )
        env |= dict(zip(plan.carry, restored(forms, list(flat)), strict=True))
        env = run(plan.row.within, env, memory)
        outputs = [env[a] if isinstance(a, int) else a for a in plan.flat.outputs]
        after, told = outputs[: len(plan.carry)], outputs[len(plan.carry) :]
        _written(flow.out, told, lanes, (out, out_f, out_i), t, flow.constants)
        return tuple(flatten([_like(v, f) for v, f in zip(after, forms, strict=True)]))

    last = jax.lax.fori_loop(0, flow.length, body, tuple(flatten(first)))
    _written(flow.carry, restored(forms, list(last)), lanes, (end, end_f, end_i), jnp.int32(0), {})


def _like(value: Value, form: Cells) -> Cells:
    """The value as what is carried: numbers become vectors where vectors are."""
    cells = as_cells(value)
    return Cells(np.broadcast_to(cells.values, form.values.shape), form.axis, form.dtype)


def _written(leaves: list[Leaf], values: list[Value], lanes: int, refs, t, constants: dict) -> None:
    """Writes the values down as row t; numbers that are constants are kept for later instead."""
    numbers, columns = Slots(), []
    totals = {
        floats: sum(leaf.numbers for leaf in leaves if _is_float(leaf.aval.dtype) == floats) or 1
        for floats in (True, False)
    }
    for number, (leaf, value) in enumerate(zip(leaves, values, strict=True)):
        dtype, cells = leaf.aval.dtype, as_cells(value)
        floats = _is_float(dtype)
        if leaf.axis is None:
            for i, (place, v) in enumerate(zip(numbers.take(dtype, leaf.numbers), cells.values.flat, strict=True)):
                if isinstance(v, jax.core.Tracer):
                    at = t * np.int32(totals[floats]) + np.int32(place)
                    refs[1 if floats else 2][at] = v.astype(jnp.float32 if floats else jnp.int32)
                else:
                    constants[number, i] = v
        else:
            full = np.broadcast_to(cells.values, shaped(leaf.aval.shape, leaf.axis, lanes))
            columns += [jnp.broadcast_to(jnp.asarray(v, dtype), (lanes,)) for v in full.flat]
    if columns:
        size = np.int32(lanes * records.width_of(len(columns)))
        records.written(refs[0], t * size, columns, jax.lax.iota(jnp.int32, lanes))


__all__ = ["Kernel", "UnsupportedError", "constant", "scan_in_one_kernel"]
