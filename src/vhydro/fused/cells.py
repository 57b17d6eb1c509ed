"""Arrays as cells: each entry over the small axes is one vector along the particles, or one number for all of them.

Inside a kernel there are no small axes: what a traced step does along modes, coordinates and channels is unrolled, and
only the particles stay a vector, of a length that is a power of two. An axis of `k · lanes` particles, such as modes
times particles, is k vectors.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vhydro.fused.flat import UnsupportedError


class Cells(NamedTuple):
    """An array of values: numbers and vectors, and which of its axes runs along the particles (by blocks of them)."""

    values: np.ndarray  # of objects
    axis: int | None
    dtype: Any


class Ragged(NamedTuple):
    """A vector along the particles with numbers after it."""

    head: Cells
    tail: Cells


Value = Cells | Ragged | np.ndarray  # an array without objects is a constant


def lane_axis(shape: tuple[int, ...], lanes: int) -> int | None:
    """The axis that runs along the particles, by its length."""
    found = [i for i, size in enumerate(shape) if size and size % lanes == 0]
    if len(found) > 1:
        raise UnsupportedError(f"an array of shape {shape}: two of its axes could be the {lanes} particles")
    return found[0] if found else None


def shaped(shape: tuple[int, ...], axis: int | None, lanes: int) -> tuple[int, ...]:
    """The shape of the cells of an array."""
    return shape if axis is None else (*shape[:axis], shape[axis] // lanes, *shape[axis + 1 :])


def as_cells(value: Value) -> Cells:
    """The value as cells, whatever it is."""
    if isinstance(value, Cells):
        return value
    if isinstance(value, Ragged):
        raise UnsupportedError("numbers beside the particles, on one axis")
    out = np.empty(value.shape, object)
    for i in np.ndindex(value.shape):
        out[i] = value[i]
    return Cells(out, None, value.dtype)


def constant(value: Value) -> np.ndarray | None:
    """The value as an array of numbers, if all of them are known while the kernel is written."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, Ragged) or value.axis is not None:
        return None
    if not all(isinstance(c, np.generic) for c in value.values.flat):
        return None
    return np.array([*value.values.flat], value.dtype).reshape(value.values.shape)


def full_of(shape: tuple[int, ...], entry) -> np.ndarray:
    """Cells that all hold this entry; `np.full` would make a Python number of it, of another type."""
    return filled(shape, [entry] * int(np.prod(shape)))


def filled(shape: tuple[int, ...], entries: Iterable[Any]) -> np.ndarray:
    """Cells that hold these entries."""
    out = np.empty(shape, object)
    for i, entry in zip(np.ndindex(shape), entries, strict=True):
        out[i] = entry
    return out


def mapped(function: Callable, cells: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """The function of every entry; arrays broadcast."""
    full = [np.broadcast_to(c, shape) for c in cells]
    return filled(shape, (function(*(c[i] for c in full)) for i in np.ndindex(shape)))


def alike(*values):
    """Entries as vectors where one of them is; numbers otherwise."""
    size = next((v.shape for v in values if getattr(v, "shape", ()) != ()), None)
    if size is None:
        return values
    return tuple(v if getattr(v, "shape", ()) else jax.lax.broadcast(v, size) for v in values)


NUMPY = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "neg": np.negative, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "abs": np.abs, "sign": np.sign,
    "floor": np.floor, "ceil": np.ceil, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or, "not": np.invert,
    "is_finite": np.isfinite, "log1p": np.log1p, "expm1": np.expm1, "tanh": np.tanh,
}  # fmt: skip


def folded(name: str, params: dict, values: tuple) -> Any:
    """The result where all entries are constants, or None."""
    if not all(isinstance(v, np.generic) for v in values):
        return None
    with np.errstate(all="ignore"):
        if name in NUMPY:
            return NUMPY[name](*values)
        if name == "integer_pow":
            return values[0] ** values[0].dtype.type(params["y"])
        if name == "div":
            whole = np.issubdtype(values[0].dtype, np.integer)
            return values[0].dtype.type(int(values[0] / values[1])) if whole else values[0] / values[1]
        if name == "rem":
            return np.fmod(*values)
    return None


def common_axis(cells: list[Cells]) -> int | None:
    """The axis that runs along the particles in all of them, or in those that have one."""
    found = {c.axis for c in cells if c.axis is not None}
    if len(found) > 1:
        raise UnsupportedError("particles along two axes of one array")
    return int(found.pop()) if found else None


def elementwise(op, inputs: list[Value]) -> Cells:
    """One primitive, entry by entry."""
    name = op.name
    cells = [as_cells(v) for v in inputs]
    shape = np.broadcast_shapes(*(c.values.shape for c in cells))
    axis = common_axis(cells)

    def apply(*values):
        known = folded(name, op.params, values)
        if known is not None:
            return known
        simple = _simplified(name, values)
        if simple is not None:
            return simple
        if name == "is_finite":  # no number compares as less
            return jnp.abs(values[0]) < jnp.asarray(np.inf, values[0].dtype)
        if name == "add_any":
            return jnp.add(*alike(*values))
        return op.primitive.bind(*map(jnp.asarray, alike(*values)), **op.params)

    out = mapped(apply, [c.values for c in cells], shape)
    return Cells(out, axis, np.dtype(bool) if name in TRUTHS else cells[0].dtype)


TRUTHS = {"eq", "ne", "lt", "le", "gt", "ge", "is_finite"}


def _is(value, number: int) -> bool:
    return isinstance(value, np.generic) and bool(value == number)


def _simplified(name: str, values: tuple) -> Any:
    """A sum with 0 and a product with 1 are what is left of them; None where there is no such thing."""
    if name == "mul":
        return values[1] if _is(values[0], 1) else values[0] if _is(values[1], 1) else None
    if name in ("add", "add_any"):
        return values[1] if _is(values[0], 0) else values[0] if _is(values[1], 0) else None
    if name in ("sub", "div"):
        return values[0] if _is(values[1], 0 if name == "sub" else 1) else None
    return None


def select(inputs: list[Value]) -> Cells:
    """The entry that a condition, or a number, chooses."""
    which, *cases = (as_cells(v) for v in inputs)
    shape = np.broadcast_shapes(which.values.shape, *(c.values.shape for c in cases))
    axis = common_axis([which, *cases])

    def apply(chosen, *options):
        if isinstance(chosen, np.generic):
            return options[int(chosen)]
        if all(o is options[0] for o in options[1:]):
            return options[0]
        out = options[0]
        for i, option in enumerate(options[1:], start=1):
            on = chosen if chosen.dtype == bool else chosen == i
            full, one, other = alike(on, option, out)
            out = jax.lax.select(full, jnp.asarray(one), jnp.asarray(other))
        return out

    out = mapped(apply, [which.values, *(c.values for c in cases)], shape)
    return Cells(out, axis, cases[0].dtype)


def converted(value: Value, dtype) -> Value:
    """The value in another type."""
    if isinstance(value, np.ndarray):
        return value.astype(dtype)
    cells = as_cells(value)

    def apply(v):
        if isinstance(v, np.generic):
            return np.dtype(dtype).type(v)
        if v.dtype == bool and np.issubdtype(dtype, np.floating):
            return jnp.where(v, jnp.ones((), dtype), jnp.zeros((), dtype))
        return jax.lax.convert_element_type(v, dtype)

    return Cells(mapped(apply, [cells.values], cells.values.shape), cells.axis, np.dtype(dtype))
