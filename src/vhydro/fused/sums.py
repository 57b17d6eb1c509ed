"""Sums, maxima and products of matrices, over small axes entry by entry and over particles all at once."""

from collections.abc import Callable
from functools import reduce

import jax.numpy as jnp
import numpy as np

from vhydro.fused.cells import Cells, Value, alike, as_cells, filled
from vhydro.fused.flat import Op, UnsupportedError

JOINED = {
    "reduce_sum": jnp.add, "reduce_max": jnp.maximum, "reduce_min": jnp.minimum, "reduce_prod": jnp.multiply,
    "reduce_or": jnp.logical_or, "reduce_and": jnp.logical_and,
}  # fmt: skip


FOLDED = {
    "reduce_sum": np.add, "reduce_max": np.maximum, "reduce_min": np.minimum, "reduce_prod": np.multiply,
    "reduce_or": np.logical_or, "reduce_and": np.logical_and,
}  # fmt: skip


def joined(name: str, entries: list):
    """The entries added, or compared, one after the other."""

    def join(a, b):
        if isinstance(a, np.generic) and isinstance(b, np.generic):
            return FOLDED[name](a, b)
        if name == "reduce_sum" and isinstance(a, np.generic) and a == 0:
            return b
        return JOINED[name](*alike(a, b))

    return reduce(join, entries)


def total(entries: list):
    """The sum of entries."""
    return joined("reduce_sum", entries)


def reduced(op: Op, value: Value, across: Callable) -> Value:
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
        entry = joined(op.name, list(flat[place])) if flat.shape[-1] else _nothing(op.name, cells.dtype)
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
        terms = [times(x, y) for x, y in zip(left, right, strict=True)]
        value = total(terms) if terms else np.dtype(one.dtype).type(0)
        return across("reduce_sum", value) if "sum" in (role_a, role_b) else value

    out = filled(shape, (entry(i) for i in np.ndindex(shape)))
    axis = None
    if role_a not in (None, "sum"):
        axis = role_a
    elif role_b not in (None, "sum"):
        axis = role_b if role_b < batch else role_b + free_a
    return Cells(out, axis, one.dtype)


def times(x, y):
    """The product of two entries; one that is 0 while the kernel is written makes it 0, whatever the other is."""
    if isinstance(x, np.generic) and isinstance(y, np.generic):
        return np.multiply(x, y)
    for a, b in ((x, y), (y, x)):
        if isinstance(a, np.generic) and a in (0, 1):
            return a if a == 0 else b
    return jnp.multiply(*alike(x, y))


def minus(x, y):
    """The difference of two entries."""
    if isinstance(y, np.generic) and y == 0:
        return x
    return np.subtract(x, y) if isinstance(x, np.generic) and isinstance(y, np.generic) else jnp.subtract(*alike(x, y))


def quotient(x, y):
    """The quotient of two entries."""
    return np.divide(x, y) if isinstance(x, np.generic) and isinstance(y, np.generic) else jnp.divide(*alike(x, y))
