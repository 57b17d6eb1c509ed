"""What operations on shapes do to cells: which entries there are, and which axis runs along the particles."""

from collections.abc import Callable

import numpy as np

from vhydro.fused.cells import Cells, Ragged, Value, as_cells, constant, filled, full_of, lane_axis, shaped
from vhydro.fused.flat import Op, UnsupportedError


def broadcast(op: Op, inputs: list[Value], lanes: int) -> Value:
    value = inputs[0]
    shape, places = (tuple(map(int, op.params[name])) for name in ("shape", "broadcast_dimensions"))
    known = isinstance(value, np.ndarray)
    cells = Cells(value, None, value.dtype) if isinstance(value, np.ndarray) else as_cells(value)
    if cells.axis is None:  # an axis that was there before is none of particles
        there = {p for i, p in enumerate(places) if cells.values.shape[i] == shape[p] != 1}
        axis = lane_axis(tuple(1 if i in there else s for i, s in enumerate(shape)), lanes)
    else:
        axis = places[cells.axis]
    if known and axis is not None:
        cells = as_cells(value)
    stretched = [1] * len(shape)
    for i, p in enumerate(places):
        stretched[p] = cells.values.shape[i]
    out = np.broadcast_to(cells.values.reshape(stretched), shaped(shape, axis, lanes))
    return out if out.dtype != object else Cells(out, axis, cells.dtype)


def iota(op: Op, lanes: int, arange: Callable) -> Value:
    shape, along, dtype = tuple(map(int, op.params["shape"])), op.params["dimension"], op.params["dtype"]
    axis = lane_axis(shape, lanes)
    if axis is None:
        index = np.arange(shape[along], dtype=dtype).reshape([-1 if i == along else 1 for i in range(len(shape))])
        return np.broadcast_to(index, shape)
    if axis != along:
        raise UnsupportedError("numbers across the particles")
    blocks = filled((shape[axis] // lanes,), (arange(dtype, b) for b in range(shape[axis] // lanes)))
    blocks = blocks.reshape([-1 if i == along else 1 for i in range(len(shape))])
    return Cells(np.broadcast_to(blocks, shaped(shape, axis, lanes)), axis, np.dtype(dtype))


def reshaped(value: Value, shape: tuple[int, ...], lanes: int) -> Value:
    if isinstance(value, np.ndarray):
        return value.reshape(shape)
    cells = as_cells(value)
    if cells.axis is None:
        return cells._replace(values=cells.values.reshape(shape))
    before = cells.values.shape
    after = [s for s in shape if s != 1]
    if cells.axis == len(before) - 1 or all(s == 1 for s in before[cells.axis + 1 :]):
        axis = max(i for i, s in enumerate(shape) if s != 1)
        if shape[axis] % lanes:
            raise UnsupportedError(f"particles spread over an axis of {shape[axis]}")
    else:
        kept = [(s, i == cells.axis) for i, s in enumerate(before) if s != 1 or i == cells.axis]
        if len(kept) != len(after):
            raise UnsupportedError("particles in the middle of an array that changes its shape")
        place = [on for _, on in kept].index(True)
        axis = [i for i, s in enumerate(shape) if s != 1][place]
    return cells._replace(values=cells.values.reshape(shaped(shape, axis, lanes)), axis=axis)


def moved(value: Value, order: tuple[int, ...]) -> Value:
    if isinstance(value, np.ndarray):
        return value.transpose(order)
    cells = as_cells(value)
    axis = None if cells.axis is None else order.index(cells.axis)
    return cells._replace(values=cells.values.transpose(order), axis=axis)


def squeezed(value: Value, axes: tuple[int, ...]) -> Value:
    if isinstance(value, np.ndarray):
        return value.squeeze(axes)
    cells = as_cells(value)
    axis = None if cells.axis is None else cells.axis - sum(a < cells.axis for a in axes)
    return cells._replace(values=cells.values.squeeze(axes), axis=axis)


def sliced(op: Op, value: Value, lanes: int) -> Value:
    start, stop = op.params["start_indices"], op.params["limit_indices"]
    strides = op.params["strides"] or (1,) * len(start)
    return cut(value, start, stop, strides, lanes)


def cut(value: Value, start, stop, strides, lanes: int) -> Value:
    """A part of the value; along the particles by whole blocks."""
    if isinstance(value, Ragged):
        if (start[0], stop[0]) == (0, lanes):
            return value.head
        if start[0] < lanes:
            raise UnsupportedError("a part of the particles")
        tail = value.tail
        return tail._replace(values=tail.values[start[0] - lanes : stop[0] - lanes])
    values = value if isinstance(value, np.ndarray) else value.values
    index = []
    for i, (a, b, s) in enumerate(zip(start, stop, strides, strict=True)):
        if not isinstance(value, np.ndarray) and i == value.axis:
            if a % lanes or b % lanes or s != 1:
                raise UnsupportedError(f"entries {a} to {b} of the particles")
            a, b = a // lanes, b // lanes
        index.append(slice(a, b, s))
    out = values[tuple(index)]
    return out if isinstance(value, np.ndarray) else value._replace(values=out)


def concatenated(op: Op, inputs: list[Value]) -> Value:
    along = op.params["dimension"]
    if all(isinstance(v, np.ndarray) for v in inputs):
        return np.concatenate([np.asarray(v) for v in inputs], along)
    cells = [as_cells(v) for v in inputs]
    axis = next((c.axis for c in cells if c.axis is not None), None)
    if axis == along and any(c.axis is None for c in cells):
        if len(cells) != 2 or cells[0].axis is None or cells[0].values.shape != (1,):
            raise UnsupportedError("numbers between particles, on one axis")
        return Ragged(*cells)
    return Cells(np.concatenate([c.values for c in cells], along), axis, cells[0].dtype)


def stacked(inputs: list[Value], along: int) -> Value:
    if all(isinstance(v, np.ndarray) for v in inputs):
        return np.stack([np.asarray(v) for v in inputs], along)
    cells = [as_cells(v) for v in inputs]
    axis = next((c.axis for c in cells if c.axis is not None), None)
    shape = np.broadcast_shapes(*(c.values.shape for c in cells))
    axis = axis if axis is None else axis + (along <= axis)
    return Cells(np.stack([np.broadcast_to(c.values, shape) for c in cells], along), axis, cells[0].dtype)


def unstacked(value: Value, along: int) -> list[Value]:
    """The entries along one axis."""
    if isinstance(value, np.ndarray):
        return list(np.moveaxis(value, along, 0))
    cells = as_cells(value)
    if cells.axis == along:
        raise UnsupportedError("every particle by itself")
    axis = cells.axis if cells.axis is None else cells.axis - (along < cells.axis)
    rows = np.moveaxis(cells.values, along, 0)
    return [cells._replace(values=row if isinstance(row, np.ndarray) else filled((), [row]), axis=axis) for row in rows]


def parted(value: Value, sizes: tuple[int, ...], along: int, lanes: int) -> list[Value]:
    """The value in parts of these sizes along one axis."""
    shape = list(value.shape if isinstance(value, np.ndarray) else as_cells(value).values.shape)
    if isinstance(value, Cells) and value.axis == along:
        shape[along] *= lanes
    out, begin = [], 0
    for size in sizes:
        start = [begin if i == along else 0 for i in range(len(shape))]
        stop = [
            begin + size if i == along else s * (lanes if isinstance(value, Cells) and i == value.axis else 1)
            for i, s in enumerate(shape)
        ]
        out.append(cut(value, start, stop, (1,) * len(shape), lanes))
        begin += size
    return out


def padded(op: Op, inputs: list[Value]) -> Value:
    """The value with a filler around and between its entries."""
    value, filler = inputs
    config = [tuple(int(n) for n in c) for c in op.params["padding_config"]]
    if all(c == (0, 0, 0) for c in config):
        return value
    cells, fill = as_cells(value), as_cells(filler).values[()]
    if any(n < 0 for c in config for n in c):
        raise UnsupportedError("padding by less than nothing")
    if cells.axis is not None and config[cells.axis] != (0, 0, 0):
        raise UnsupportedError("particles that are filled up")
    each = list(zip(cells.values.shape, config, strict=True))
    sizes = [low + high + s + max(s - 1, 0) * inner for s, (low, high, inner) in each]
    out = full_of(tuple(sizes), fill)
    place = tuple(slice(low, low + s + (s - 1) * inner, inner + 1) for s, (low, _, inner) in each)
    out[place] = cells.values
    out = Cells(out, cells.axis, cells.dtype)
    known = constant(out)
    return out if known is None else known


def tiled(op: Op, value: Value) -> Value:
    reps = op.params["reps"]
    if isinstance(value, np.ndarray):
        return np.tile(value, reps)
    cells = as_cells(value)
    return cells._replace(values=np.tile(cells.values, reps))
