"""Entries taken from an array, or put into it, at places that are known while the kernel is written."""

import jax
import jax.numpy as jnp
import numpy as np

from vhydro.fused.cells import Cells, Value, alike, as_cells, constant, filled, mapped
from vhydro.fused.flat import Op, UnsupportedError
from vhydro.fused.shapes import cut
from vhydro.fused.sums import total

MOST_CHOICES = 64  # numbers among which each particle picks its own by comparing


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
            axis = int(op.params["dimension_numbers"].offset_dims[window.index(cells.axis)])
        return Cells(out, axis, cells.dtype)
    numbers = op.params["dimension_numbers"]
    plain = numbers.start_index_map == (0,) and numbers.collapsed_slice_dims == (0,) and cells.values.ndim == 1
    if not plain or numbers.offset_dims or numbers.operand_batching_dims:
        raise UnsupportedError("a choice of entries that differs between particles")
    places = as_cells(where)
    if cells.axis is None and cells.values.size <= MOST_CHOICES:  # a few numbers: each particle picks its own
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


def scattered(op: Op, inputs: list[Value]) -> Value:
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
    if op.name == "scatter-add" and (chosen >= 0).sum() != new.values.size:
        raise UnsupportedError("several entries added at one place")

    def entry(i):
        if chosen[i] < 0:
            return cells.values[i]
        update = new.values.flat[chosen[i]]
        return update if op.name == "scatter" else total([cells.values[i], update])

    axis = cells.axis if cells.axis is not None else new.axis
    return Cells(filled(cells.values.shape, (entry(i) for i in np.ndindex(cells.values.shape))), axis, cells.dtype)


def part_at(op: Op, inputs: list[Value], lanes: int) -> Value:
    """A slice that begins where it is told, if that is known by now."""
    value, *starts = inputs
    known = [constant(s) for s in starts]
    if any(k is None for k in known):
        raise UnsupportedError("a part that begins where it is found on the way")
    sizes = op.params["slice_sizes"]
    start = [int(k) for k in known if k is not None]
    return cut(value, start, [a + s for a, s in zip(start, sizes, strict=True)], (1,) * len(start), lanes)


def part_put(inputs: list[Value]) -> Value:
    """The value with a part put where it is told, if that is known by now."""
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
