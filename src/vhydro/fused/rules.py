"""What every primitive does to cells."""

from collections.abc import Callable
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np

from vhydro.fused.cells import (
    Cells,
    Ragged,
    Value,
    alike,
    as_cells,
    constant,
    converted,
    elementwise,
    filled,
    lane_axis,
    mapped,
    select,
    shaped,
)
from vhydro.fused.flat import Op, UnsupportedError

LONGEST = 64  # rounds of a loop that are written out


def broadcast(op: Op, inputs: list[Value], lanes: int) -> Value:
    value, shape, places = inputs[0], op.params["shape"], op.params["broadcast_dimensions"]
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
    shape, along, dtype = op.params["shape"], op.params["dimension"], op.params["dtype"]
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


def concatenated(op: Op, inputs: list[Value], lanes: int) -> Value:
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
    shape = value.shape if isinstance(value, np.ndarray) else list(as_cells(value).values.shape)
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


def padded(op: Op, inputs: list[Value], lanes: int) -> Value:
    value, filler = inputs
    config = [tuple(int(n) for n in c) for c in op.params["padding_config"]]
    if all(c == (0, 0, 0) for c in config):
        return value
    cells, fill = as_cells(value), as_cells(filler).values[()]
    if any(n < 0 for c in config for n in c):
        raise UnsupportedError("padding by less than nothing")
    if cells.axis is not None and config[cells.axis] != (0, 0, 0):
        raise UnsupportedError("particles that are filled up")
    sizes = [low + high + s + max(s - 1, 0) * inner for s, (low, high, inner) in zip(cells.values.shape, config)]  # noqa: B905
    out = np.full(tuple(sizes), fill, object)
    place = tuple(
        slice(low, low + s + (s - 1) * inner, inner + 1) for s, (low, _, inner) in zip(cells.values.shape, config)
    )  # noqa: B905, E501
    out[place] = cells.values
    out = Cells(out, cells.axis, cells.dtype)
    known = constant(out)
    return out if known is None else known


JOINED = {
    "reduce_sum": jnp.add, "reduce_max": jnp.maximum, "reduce_min": jnp.minimum, "reduce_prod": jnp.multiply,
    "reduce_or": jnp.logical_or, "reduce_and": jnp.logical_and,
}  # fmt: skip
FOLDED = {
    "reduce_sum": np.add, "reduce_max": np.maximum, "reduce_min": np.minimum, "reduce_prod": np.multiply,
    "reduce_or": np.logical_or, "reduce_and": np.logical_and,
}  # fmt: skip


def _joined(name: str, entries: list):
    """Entries added, or compared, one after the other."""

    def join(a, b):
        if isinstance(a, np.generic) and isinstance(b, np.generic):
            return FOLDED[name](a, b)
        if name == "reduce_sum" and isinstance(a, np.generic) and a == 0:
            return b
        return JOINED[name](*alike(a, b))

    return reduce(join, entries)


def reduced(op: Op, value: Value, lanes: int, across: Callable) -> Value:
    """A sum, maximum or the like over small axes, over particles, or both."""
    axes = tuple(int(a) for a in op.params["axes"])
    if isinstance(value, np.ndarray):
        return FOLDED[op.name].reduce(value, axis=axes).astype(value.dtype)
    cells = as_cells(value)
    over_particles = cells.axis in axes
    rest = [i for i in range(cells.values.ndim) if i not in axes]
    order = [*rest, *axes]
    values = cells.values.transpose(order)
    shape = values.shape[: len(rest)]
    flat = values.reshape(*shape, -1)

    def one(place):
        entry = _joined(op.name, list(flat[place])) if flat.shape[-1] else _nothing(op.name, cells.dtype)
        return across(op.name, entry) if over_particles else entry

    out = filled(shape, (one(i) for i in np.ndindex(shape)))
    axis = None if over_particles or cells.axis is None else rest.index(cells.axis)
    return Cells(out, axis, cells.dtype)


def _nothing(name: str, dtype):
    if name in ("reduce_sum", "reduce_or"):
        return np.dtype(dtype).type(0)
    if name in ("reduce_prod", "reduce_and"):
        return np.dtype(dtype).type(1)
    raise UnsupportedError("the largest of nothing")


def contracted(op: Op, inputs: list[Value], across: Callable) -> Value:
    """A product summed over the axes that it contracts."""
    (first_axes, second_axes), (first_batch, second_batch) = op.params["dimension_numbers"]
    one, two = (as_cells(v) for v in inputs)

    def arranged(cells: Cells, contract, batch):
        free = [i for i in range(cells.values.ndim) if i not in contract and i not in batch]
        values = cells.values.transpose([*batch, *free, *contract])
        sizes = [cells.values.shape[i] for i in (*batch, *free)]
        role = None if cells.axis is None else "sum" if cells.axis in contract else [*batch, *free].index(cells.axis)
        return values.reshape(*sizes, -1), len(batch), len(free), role

    a, batch, free_a, role_a = arranged(one, first_axes, first_batch)
    b, _, free_b, role_b = arranged(two, second_axes, second_batch)
    if "sum" in (role_a, role_b) and None in (role_a, role_b):
        other = (b, two) if role_b is None else (a, one)
        if other[1].axis is None and other[0].shape[-1] != (a if role_b is None else b).shape[-1]:
            raise UnsupportedError("particles times numbers that are none")
    shape = (*a.shape[: batch + free_a], *b.shape[batch : batch + free_b])

    def entry(place):
        left = a[place[: batch + free_a]]
        right = b[(*place[:batch], *place[batch + free_a :])]
        terms = [_times(x, y) for x, y in zip(left, right, strict=True)]
        value = _joined("reduce_sum", terms) if terms else np.dtype(one.dtype).type(0)
        return across("reduce_sum", value) if "sum" in (role_a, role_b) else value

    out = filled(shape, (entry(i) for i in np.ndindex(shape)))
    axis = None
    if role_a not in (None, "sum"):
        axis = role_a
    elif role_b not in (None, "sum"):
        axis = role_b if role_b < batch else role_b + free_a
    return Cells(out, axis, one.dtype)


def _times(x, y):
    if isinstance(x, np.generic) and isinstance(y, np.generic):
        return x * y
    for a, b in ((x, y), (y, x)):
        if isinstance(a, np.generic) and a in (0, 1):
            return a if a == 0 else b
    return jnp.multiply(*alike(x, y))


def taken(op: Op, inputs: list[Value], lanes: int) -> Value:
    """Entries at indices: known ones are a choice of cells, and of a few numbers each particle may pick its own."""
    operand, where = inputs
    index = constant(where)
    if isinstance(operand, np.ndarray) and index is not None:
        return np.asarray(op.primitive.bind(jnp.asarray(operand), jnp.asarray(index), **op.params))
    cells = as_cells(operand)
    if index is not None:
        sizes = list(op.params["slice_sizes"])
        if cells.axis is not None:
            if cells.axis in op.params["dimension_numbers"].start_index_map:
                raise UnsupportedError("certain particles by number")
            sizes[cells.axis] //= lanes
        chosen = _at_build_time(op, cells.values.shape, index, slice_sizes=tuple(sizes), fill_value=None)
        out = filled(chosen.shape, (cells.values.flat[i] for i in chosen.flat))
        axis = None
        if cells.axis is not None:
            window = [
                i for i in range(cells.values.ndim) if i not in op.params["dimension_numbers"].collapsed_slice_dims
            ]
            axis = op.params["dimension_numbers"].offset_dims[window.index(cells.axis)]
        return Cells(out, axis, cells.dtype)
    numbers = op.params["dimension_numbers"]
    plain = numbers.start_index_map == (0,) and numbers.collapsed_slice_dims == (0,) and cells.values.ndim == 1
    if not plain or numbers.offset_dims or numbers.operand_batching_dims:
        raise UnsupportedError("a choice of entries that differs between particles")
    places = as_cells(where)
    if cells.axis is None and cells.values.size <= LONGEST:  # a few numbers: each particle picks its own
        return _picked(cells, places)
    raise UnsupportedError("entries chosen by numbers that are found on the way")


def _picked(cells: Cells, places: Cells) -> Cells:
    """Of a few entries the one at each place, by comparing."""
    rows = places.values.reshape(places.values.shape[:-1])

    def one(place):
        out = cells.values[0]
        for i, entry in enumerate(cells.values[1:], start=1):
            out = jnp.where(*alike(place == np.int32(i), entry, out))
        return out

    return Cells(mapped(one, [rows], rows.shape), places.axis, cells.dtype)


def _at_build_time(op: Op, shape: tuple[int, ...], index: np.ndarray, **changes) -> np.ndarray:
    """Which entries of an array of this shape an operation on entries takes."""
    with jax.ensure_compile_time_eval(), jax.default_device(jax.local_devices(backend="cpu")[0]):
        numbers = jnp.arange(int(np.prod(shape)), dtype=jnp.int32).reshape(shape)
        return np.asarray(op.primitive.bind(numbers, jnp.asarray(index), **(op.params | changes)))


def scattered(op: Op, inputs: list[Value], lanes: int) -> Value:
    """Entries put, or added, at places that are known."""
    operand, where, updates = inputs
    index = constant(where)
    if index is None:
        raise UnsupportedError("entries put where it is found on the way")
    cells, new = as_cells(operand), as_cells(updates)
    if cells.axis is not None and cells.axis in op.params["dimension_numbers"].scatter_dims_to_operand_dims:
        raise UnsupportedError("certain particles by number")
    with jax.ensure_compile_time_eval(), jax.default_device(jax.local_devices(backend="cpu")[0]):
        nothing = jnp.full(cells.values.shape, -1, jnp.int32)
        numbers = jnp.arange(new.values.size, dtype=jnp.int32).reshape(new.values.shape)
        put = jax.lax.scatter_p.bind(
            nothing, jnp.asarray(index), numbers, **(op.params | {"update_jaxpr": None, "update_consts": ()})
        )
        chosen = np.asarray(put)

    def entry(i):
        if chosen[i] < 0:
            return cells.values[i]
        update = new.values.flat[chosen[i]]
        return update if op.name == "scatter" else _joined("reduce_sum", [cells.values[i], update])

    axis = cells.axis if cells.axis is not None else new.axis
    return Cells(filled(cells.values.shape, (entry(i) for i in np.ndindex(cells.values.shape))), axis, cells.dtype)


def triangular_solution(op: Op, inputs: list[Value]) -> Value:
    """`A⁻¹ b` for small lower-triangular A, by substitution."""
    p = op.params
    if not (p["left_side"] and p["lower"]) or p["transpose_a"] or p["conjugate_a"]:
        raise UnsupportedError("a triangular system of another form")
    a, b = (as_cells(v) for v in inputs)
    batch, size, columns = b.values.shape[:-2], b.values.shape[-2], b.values.shape[-1]
    out = np.empty(b.values.shape, object)
    for i in np.ndindex(*batch, columns):
        *place, column = i
        for row in range(size):
            value = b.values[(*place, row, column)]
            for k in range(row):
                value = _minus(value, _times(a.values[(*place, row, k)], out[(*place, k, column)]))
            if not p["unit_diagonal"]:
                value = _over(value, a.values[(*place, row, row)])
            out[(*place, row, column)] = value
    return Cells(out, None, b.dtype)


def _minus(x, y):
    if isinstance(y, np.generic) and y == 0:
        return x
    return x - y if isinstance(x, np.generic) and isinstance(y, np.generic) else jnp.subtract(*alike(x, y))


def _over(x, y):
    return x / y if isinstance(x, np.generic) and isinstance(y, np.generic) else jnp.divide(*alike(x, y))


def upper_factor(op: Op, value: Value) -> list[Value]:
    """R of small matrices, by Householder's reflections; Q is not worked out."""
    cells = as_cells(value)
    if cells.axis is not None:
        raise UnsupportedError("a factorisation for every particle")
    *batch, rows, columns = cells.values.shape
    size = min(rows, columns)
    out = np.full((*batch, size, columns), np.dtype(cells.dtype).type(0), object)
    for place in np.ndindex(*batch):
        work = cells.values[place].copy()
        for j in range(size):
            _reflect(work, j)
            out[place][j, j:] = work[j, j:]
    return [Cells(np.full((*batch, rows, size), None, object), None, cells.dtype), Cells(out, None, cells.dtype)]


def _reflect(work: np.ndarray, j: int) -> None:
    """Makes column j zero below the diagonal."""
    column = list(work[j:, j])
    square = _joined("reduce_sum", [_times(c, c) for c in column])
    norm = jnp.sqrt(jnp.asarray(square))
    head = jnp.where(jnp.asarray(column[0]) >= 0, -norm, norm)
    first = column[0] - head
    vector = [first, *column[1:]]
    below = _joined("reduce_sum", [_times(v, v) for v in vector])
    scale = jnp.where(below > 0, 2 / jnp.where(below > 0, below, 1.0), 0.0)
    for k in range(j, work.shape[1]):
        along = _joined("reduce_sum", [_times(v, work[j + i, k]) for i, v in enumerate(vector)])
        for i, v in enumerate(vector):
            work[j + i, k] = _minus(work[j + i, k], _times(_times(scale, along), v))
    work[j, j] = head


def lower_factor(value: Value) -> Value:
    """Cholesky's factor of small matrices."""
    cells = as_cells(value)
    if cells.axis is not None:
        raise UnsupportedError("a factorisation for every particle")
    *batch, size, _ = cells.values.shape
    out = np.full(cells.values.shape, np.dtype(cells.dtype).type(0), object)
    for place in np.ndindex(*batch):
        a, low = cells.values[place], out[place]
        for i in range(size):
            for j in range(i + 1):
                left = a[i, j]
                for k in range(j):
                    left = _minus(left, _times(low[i, k], low[j, k]))
                low[i, j] = jnp.sqrt(jnp.asarray(left)) if i == j else _over(left, low[j, j])
    return Cells(out, None, cells.dtype)


def part_at(op: Op, inputs: list[Value], lanes: int) -> Value:
    """A slice that begins where it is told, if that is known by now."""
    value, *starts = inputs
    known = [constant(s) for s in starts]
    if any(k is None for k in known):
        raise UnsupportedError("a part that begins where it is found on the way")
    sizes = op.params["slice_sizes"]
    start = [int(k) for k in known if k is not None]
    return cut(value, start, [a + s for a, s in zip(start, sizes, strict=True)], (1,) * len(start), lanes)


def part_put(inputs: list[Value], lanes: int) -> Value:
    value, update, *starts = inputs
    known = [constant(s) for s in starts]
    if any(k is None for k in known):
        raise UnsupportedError("a part put where it is found on the way")
    cells, new = as_cells(value), as_cells(update)
    axis = cells.axis if cells.axis is not None else new.axis
    out = cells.values.copy()
    place = tuple(
        slice(None) if i == axis else slice(int(k), int(k) + s)
        for i, (k, s) in enumerate(zip((k for k in known if k is not None), new.values.shape, strict=True))
    )
    out[place] = new.values
    return Cells(out, axis, cells.dtype)


def tiled(op: Op, value: Value) -> Value:
    reps = op.params["reps"]
    if isinstance(value, np.ndarray):
        return np.tile(value, reps)
    cells = as_cells(value)
    return cells._replace(values=np.tile(cells.values, reps))


SIMPLE = {
    "add", "sub", "mul", "div", "rem", "max", "min", "neg", "exp", "exp2", "log", "log1p", "expm1", "sqrt", "rsqrt",
    "tanh", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "abs", "sign", "floor", "ceil", "eq",
    "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor", "pow", "integer_pow", "logistic", "erf_inv", "is_finite",
    "square", "clamp", "nextafter", "shift_left", "shift_right_logical", "cbrt", "erf", "round",
}  # fmt: skip


def ruled(op: Op, inputs: list[Value], lanes: int, memory) -> list[Value]:
    """The outputs of one operation; `memory` does what needs all particles at once."""
    name = op.name
    if name in SIMPLE:
        return [elementwise(op, inputs)]
    if name == "select_n":
        return [select(inputs)]
    if name == "convert_element_type":
        return [converted(inputs[0], op.params["new_dtype"])]
    if name == "broadcast_in_dim":
        return [broadcast(op, inputs, lanes)]
    if name == "reshape":
        return [reshaped(inputs[0], op.params["new_sizes"], lanes)]
    if name == "squeeze":
        return [squeezed(inputs[0], tuple(int(a) for a in op.params["dimensions"]))]
    if name == "expand_dims":
        raise UnsupportedError("expand_dims")
    if name == "transpose":
        return [moved(inputs[0], tuple(int(a) for a in op.params["permutation"]))]
    if name == "slice":
        return [sliced(op, inputs[0], lanes)]
    if name == "concatenate":
        return [concatenated(op, inputs, lanes)]
    if name == "stack":
        return [stacked(inputs, op.params["axis"])]
    if name == "unstack":
        return unstacked(inputs[0], op.params["axis"])
    if name == "split":
        return parted(inputs[0], op.params["sizes"], op.params["axis"], lanes)
    if name == "tile":
        return [tiled(op, inputs[0])]
    if name == "pad":
        return [padded(op, inputs, lanes)]
    if name == "iota":
        return [iota(op, lanes, memory.arange)]
    if name in JOINED:
        return [reduced(op, inputs[0], lanes, memory.across)]
    if name == "dot_general":
        return [contracted(op, inputs, memory.across)]
    if name == "gather":
        return [taken(op, inputs, lanes)]
    if name in ("scatter", "scatter-add"):
        return [scattered(op, inputs, lanes)]
    if name == "dynamic_slice":
        return [part_at(op, inputs, lanes)]
    if name == "dynamic_update_slice":
        return [part_put(inputs, lanes)]
    if name == "triangular_solve":
        return [triangular_solution(op, inputs)]
    if name == "qr":
        return upper_factor(op, inputs[0])
    if name == "cholesky":
        return [lower_factor(inputs[0])]
    raise UnsupportedError(f"the operation {name}")


__all__ = ["LONGEST", "ruled"]
