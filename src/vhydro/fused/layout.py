"""How arrays lie in a kernel's memory: vectors along the particles apart from all other numbers."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from vhydro.fused import records
from vhydro.fused.cells import Cells, Ragged, Value, filled, lane_axis, shaped
from vhydro.fused.flat import UnsupportedError

Read = Callable[[bool, int], Any]  # the number at a place, among the floats or among the others


def is_float(dtype) -> bool:
    """Whether numbers of this type are kept among the floats."""
    return bool(np.issubdtype(dtype, np.floating))


class Packed(NamedTuple):
    """Arrays of numbers side by side, floats apart from the others, so that a kernel has few arguments."""

    floats: Any  # (…, entries)
    others: Any


def packed(arrays: list[Any], lead: tuple[int, ...]) -> Packed:
    """The arrays (*lead, …) with their other axes joined; at least one entry of either kind."""

    def side_by_side(chosen, dtype):
        parts = [a.reshape(*lead, -1).astype(dtype) for a in chosen]
        return jnp.concatenate([*parts, jnp.zeros((*lead, 1), dtype)], -1)

    floats = [a for a in arrays if is_float(a.dtype)]
    return Packed(
        side_by_side(floats, jnp.float32), side_by_side([a for a in arrays if not is_float(a.dtype)], jnp.int32)
    )


class Slots:
    """Where each number of packed arrays is, handed out in their order."""

    def __init__(self):
        self.next = {True: 0, False: 0}

    def take(self, dtype, size: int) -> range:
        """The next so many places for numbers of this type."""
        kind = is_float(dtype)
        first = self.next[kind]
        self.next[kind] += size
        return range(first, first + size)

    def read(self, number: Read, shape: tuple[int, ...], dtype) -> Cells:
        """An array of numbers, from the next places."""
        dtype = np.dtype(dtype)
        found = (number(is_float(dtype), p) for p in self.take(dtype, int(np.prod(shape))))
        return Cells(filled(shape, (v != 0 if dtype.kind == "b" else v.astype(dtype) for v in found)), None, dtype)


class Leaf(NamedTuple):
    """How an array lies in the kernel's memory: vectors along the particles, numbers, or both."""

    aval: Any
    lanes: int
    axis: int | None
    vectors: int
    numbers: int

    @property
    def has_tail(self) -> bool:
        """Whether a few numbers come after the particles."""
        return self.vectors > 0 and self.numbers > 0

    def value(self, number: Read, slots: Slots, vectors: Iterator) -> Value:
        """The array, from the next places among the numbers and the next vectors."""
        dtype = np.dtype(self.aval.dtype)
        if self.axis is None:
            return slots.read(number, self.aval.shape, dtype)
        shape = (1,) if self.has_tail else shaped(self.aval.shape, self.axis, self.lanes)
        own = (records.from_float(next(vectors), dtype) for _ in range(self.vectors))
        head = Cells(filled(shape, own), self.axis, dtype)
        return Ragged(head, slots.read(number, (self.numbers,), dtype)) if self.has_tail else head


def leaf_of(aval, lanes: int) -> Leaf:
    """How an array of this shape lies."""
    shape = aval.shape
    if len(shape) == 1 and shape[0] > lanes and shape[0] % lanes:  # a few numbers after the particles
        if shape[0] >= 2 * lanes:
            raise UnsupportedError(f"an array of {shape[0]} beside {lanes} particles")
        return Leaf(aval, lanes, 0, 1, shape[0] - lanes)
    axis = lane_axis(shape, lanes)
    size = int(np.prod(shaped(shape, axis, lanes)))
    if axis is None:
        return Leaf(aval, lanes, axis, 0, size)
    if axis != len(shape) - 1:
        raise UnsupportedError(f"an array of shape {shape}: the {lanes} particles are not its last axis")
    return Leaf(aval, lanes, axis, size, 0)


def divided(leaf: Leaf, array, lead: tuple[int, ...]):
    """The vectors (*lead, vectors, lanes) and the numbers (*lead, numbers) of an array."""
    if leaf.has_tail:
        return array[..., : leaf.lanes].reshape(*lead, 1, leaf.lanes), array[..., leaf.lanes :]
    if leaf.axis is None:
        return None, array.reshape(*lead, -1)
    return array.reshape(*lead, leaf.vectors, leaf.lanes), None


def whole(leaf: Leaf, parts, lead: tuple[int, ...]):
    """The array again, from its vectors or its numbers."""
    return parts.reshape(*lead, *leaf.aval.shape).astype(leaf.aval.dtype)
