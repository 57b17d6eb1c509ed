"""Vectors along the particles in memory outside of a kernel: as columns, or as records.

A column is one number of every particle, a record all numbers of one particle, padded to a power of two. Columns are
quick to read and write. A record is read or written by a single instruction however many numbers it holds: a kernel's
compiler looks at every one together with all other operations, so that what is done once, at its beginning and its end,
is done with records. Whole numbers and truths are kept bit by bit in the place of a float.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def width_of(columns: int) -> int:
    """The numbers of a record with so many columns; none where there are none."""
    return 1 << (columns - 1).bit_length() if columns else 0


def as_float(column):
    """The column as floats, whole numbers and truths bit by bit."""
    if column.dtype == bool:
        column = column.astype(jnp.int32)
    if column.dtype == jnp.float32:
        return column
    return jax.lax.bitcast_convert_type(column.astype(jnp.int32), jnp.float32)


def from_float(column, dtype):
    """What `as_float` made it from."""
    if np.dtype(dtype) == np.float32:
        return column
    whole = jax.lax.bitcast_convert_type(column, jnp.int32)
    return whole != 0 if np.dtype(dtype) == bool else whole.astype(dtype)


def _woven(columns: list[Any]):
    """The columns, a power of two of them, as one array (entries, 2, 2, …)."""
    if len(columns) == 1:
        return columns[0]
    return jnp.stack([_woven(columns[0::2]), _woven(columns[1::2])], axis=-1)


def _unwoven(array) -> list[Any]:
    if array.ndim == 1:
        return [array]
    even, odd = (_unwoven(half) for half in jnp.unstack(array, axis=array.ndim - 1))
    return [c for pair in zip(even, odd, strict=True) for c in pair]


def _places(index, width: int):
    """Where in memory the numbers of the records at these indices are, as (entries, 2, 2, …)."""
    levels = width.bit_length() - 1
    shape = (index.shape[0], *(2,) * levels)
    place = jnp.broadcast_to((index * np.int32(width)).reshape(-1, *(1,) * levels), shape)
    for level in range(levels):
        weight = np.int32(2 ** (levels - 1 - level))
        place = place + jax.lax.broadcasted_iota(jnp.int32, shape, level + 1) * weight
    return place


def written(ref, first, columns: list[Any], index) -> None:
    """Writes one record at each index; `first` is where records begin in the memory."""
    width = width_of(len(columns))
    full = [as_float(c) for c in columns]
    full += [full[0]] * (width - len(full))
    ref[_places(index, width) + first] = _woven(full)


def read(ref, first, count: int, index) -> list[Any]:
    """The `count` columns of the records at these indices, as floats."""
    if not count:
        return []
    return _unwoven(ref[_places(index, width_of(count)) + first])[:count]


def laid_out(arrays: list[Any]):
    """Arrays (columns, entries) as the memory that `read` reads, (entries · width,)."""
    columns = jnp.concatenate([as_float(a) for a in arrays])
    return jnp.pad(columns, [(0, width_of(len(columns)) - len(columns)), (0, 0)]).T.reshape(-1)


def columns_of(memory, count: int, entries: int):
    """The columns (count, entries) of memory that `written` wrote."""
    return memory.reshape(entries, -1).T[:count] if count else jnp.zeros((0, entries))


def columns_read(ref, first, count: int, index) -> list[Any]:
    """The vectors of `count` columns, of as many entries as there are indices, as floats."""
    return [ref[index + (first + np.int32(c * index.shape[0]))] for c in range(count)]


def columns_written(ref, first, columns: list[Any], index) -> None:
    """Writes vectors as columns; `first` is where they begin in the memory."""
    for c, column in enumerate(columns):
        ref[index + (first + np.int32(c * index.shape[0]))] = as_float(column)
