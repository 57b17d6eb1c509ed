"""The operations of a step, one after the other, on cells: what needs all particles at once goes through `Memory`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vhydro.fused.cells import Cells, Ragged, Value, as_cells, filled
from vhydro.fused.flat import Flat, Op, UnsupportedError, flat_of, pruned
from vhydro.fused.memory import Memory
from vhydro.fused.rules import ruled

LONGEST = 64  # rounds of a loop that are written out


def run(flat: Flat, ops: list[Op], env: dict[int, Value], memory: Memory) -> dict[int, Value]:
    """The values with those of the operations added."""
    env = dict(env)
    for op in ops:
        inputs = [env[a] if isinstance(a, int) else a for a in op.inputs]
        outputs = _done(op, inputs, memory)
        for number, value in zip(op.outputs, outputs, strict=True):
            _refuse_other_form(op, value, flat.avals[number], memory.lanes)
        env.update(zip(op.outputs, outputs, strict=True))
    return env


def _refuse_other_form(op: Op, value: Value, aval, lanes: int) -> None:
    """Raises where a value has not the shape and the type that JAX says: an axis was mistaken for the particles."""
    if isinstance(value, Ragged):
        found = (lanes * value.head.values.size + value.tail.values.size,)
    elif isinstance(value, Cells) and value.axis is not None:
        shape = value.values.shape
        found = (*shape[: value.axis], lanes * shape[value.axis], *shape[value.axis + 1 :])
    else:
        found = (value.values if isinstance(value, Cells) else value).shape
    dtype = value.head.dtype if isinstance(value, Ragged) else value.dtype
    if found != aval.shape or np.dtype(dtype) != np.dtype(aval.dtype):
        raise UnsupportedError(
            f"the operation {op.name}, which gave {np.dtype(dtype)}{list(found)} for {aval.dtype}{list(aval.shape)}"
        )


def _done(op: Op, inputs: list[Value], memory: Memory) -> list[Value]:
    if op.name == "systematic":
        count = op.params["jaxpr"].out_avals[0].shape[0]
        weight, uniform = (as_cells(v) for v in inputs)
        if count % memory.lanes:
            raise UnsupportedError("another number of particles after resampling")
        found = memory.systematic(list(weight.values), uniform.values[()], count)
        return [Cells(filled((len(found),), found), 0, np.dtype(np.int32))]
    if op.name == "columns_at":
        return _columns_at(inputs, memory)
    if op.name == "pairs_at":
        return _pairs_at(inputs, memory)
    if op.name == "cond":
        return _either(op, inputs, memory)
    if op.name == "scan":
        return _written_out(op, inputs, memory)
    return ruled(op, inputs, memory.lanes, memory)


def _columns_at(inputs: list[Value], memory: Memory) -> list[Value]:
    """Of every array the columns at the same indices; an array that has one column for all stays."""
    *given, index = (as_cells(v) for v in inputs)
    if index.values.shape != (1,):
        raise UnsupportedError("another number of particles after resampling")
    many = [c for c in given if c.axis is not None]
    if any(c.axis != c.values.ndim - 1 or c.values.shape[-1] != many[0].values.shape[-1] for c in many):
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
    env = run(flat, pruned(flat, flat.outputs).ops, dict(zip(flat.inputs, inputs, strict=True)), memory)
    return [env[a] if isinstance(a, int) else a for a in flat.outputs]


def _either(op: Op, inputs: list[Value], memory: Memory) -> list[Value]:
    """One of two functions, by a condition that all particles share: only that one is done."""
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
