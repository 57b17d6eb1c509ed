"""What needs all particles at once, inside a kernel: sums, resampling, and reading what other particles hold."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import triton

from vhydro.fused import records
from vhydro.fused.flat import UnsupportedError

UNITS = 2.0**30  # of weight: as whole numbers they add up without rounding, in any order


class Memory:
    """One program's particles, and the memory through which they read each other.

    Places are handed out as they are asked for; a first pass without memory finds out how many are needed.
    """

    def __init__(self, lanes: int, ref: Any = None, *, barriers: bool = True):
        self.lanes, self.barriers = lanes, barriers
        self.ref, self.used = ref, 0

    def arange(self, dtype, block: int):
        """The numbers of the particles of one block."""
        return (jax.lax.iota(jnp.int32, self.lanes) + np.int32(block * self.lanes)).astype(dtype)

    def across(self, name: str, entry):
        """The sum, the maximum or the like of one entry over all particles."""
        if getattr(entry, "shape", ()) == ():  # one number for all of them
            return entry * np.asarray(self.lanes, entry.dtype) if name == "reduce_sum" else entry
        if name == "reduce_sum":
            return jnp.sum(entry, dtype=entry.dtype)
        if name == "reduce_max":
            return jnp.max(entry)
        if name == "reduce_min":
            return jnp.min(entry)
        if name == "reduce_or":
            return jnp.max(entry.astype(jnp.int32)) > 0
        if name == "reduce_and":
            return jnp.min(entry.astype(jnp.int32)) > 0
        raise UnsupportedError(f"{name} over particles")

    def full(self, entry):
        """The entry as a vector."""
        return jnp.broadcast_to(jnp.asarray(entry), (self.lanes,))

    def _barrier(self) -> None:
        if self.barriers:
            triton.debug_barrier()

    def _kept(self, columns: list[Any]) -> int:
        """Where one record of these columns for each particle now begins."""
        first = self.used
        self.used += self.lanes * records.width_of(len(columns))
        if self.ref is not None:
            self._barrier()  # nobody still reads what was here
            records.written(self.ref, np.int32(first), columns, self.arange(jnp.int32, 0))
            self._barrier()
        return first

    def _read(self, first: int, count: int, index) -> list[Any]:
        if self.ref is None:
            return [jnp.zeros(self.lanes, jnp.float32) + 0 * index.astype(jnp.float32)] * count
        return records.read(self.ref, np.int32(first), count, index)

    def _divided(self, index, blocks: int):
        """The particle and the block of an index into blocks of particles."""
        if blocks == 1:
            return index, None
        shift, mask = self.lanes.bit_length() - 1, self.lanes - 1
        return index & np.int32(mask), index >> np.int32(shift)

    def columns_at(self, arrays: list[np.ndarray], dtypes: list[Any], index) -> list[list[Any]]:
        """The rows of every array (rows, blocks) at one index for each particle, all from one record.

        A record holds the rows of one block; where there are several, those of all blocks lie one after the other.
        """
        blocks = arrays[0].shape[1]
        rows = [self.full(a[r, b]) for b in range(blocks) for a in arrays for r in range(a.shape[0])]
        count = sum(a.shape[0] for a in arrays)
        width = records.width_of(count)
        padded = [rows[b * count : (b + 1) * count] + [rows[0]] * (width - count) for b in range(blocks)]
        many = records.width_of(blocks)
        first = self._kept([c for part in padded for c in part] + [rows[0]] * ((many - blocks) * width))
        particle, block = self._divided(index, blocks)
        place = particle if block is None else particle * np.int32(many) + block
        found = self._read(first, width, place)
        out, next_row = [], 0
        for a, dtype in zip(arrays, dtypes, strict=True):
            out.append([records.from_float(found[next_row + r], dtype) for r in range(a.shape[0])])
            next_row += a.shape[0]
        return out

    def systematic(self, weights: list, uniform, count: int) -> list:
        """Ancestors at equal distances with one random offset, as `particles.systematic`.

        Differs: weights are summed as whole numbers, so that one of nothing never adds anything, whatever the order.
        """
        lanes, blocks = self.lanes, len(weights)
        weights = [self.full(w) for w in weights]
        summed = weights[0]
        for w in weights[1:]:
            summed = summed + w
        scale = UNITS / jnp.sum(summed)
        units = [jnp.floor(w * scale + 0.5).astype(jnp.int32) for w in weights]
        before, sums = jnp.int32(0), []
        for u in units:
            sums.append((jnp.cumsum(u, dtype=jnp.int32) + before).astype(jnp.float32))
            before = before + jnp.sum(u, dtype=jnp.int32)
        many = records.width_of(blocks)
        first = self._kept(sums + [sums[-1]] * (many - blocks))
        most = before.astype(jnp.float32)
        out = []
        for block in range(count // lanes):
            point = (self.arange(jnp.float32, block) + uniform) * (most / count)
            point = jnp.minimum(point, most * np.float32(1 - 2.0**-23))
            out.append(self._first_above(first, point, blocks))
        return out

    def _first_above(self, first: int, point, blocks: int):
        """The first entry above each point, of sums that never fall; the last one is."""
        entries, many = blocks * self.lanes, records.width_of(blocks)
        rounds = np.int32(np.ceil(np.log2(entries)))

        def halved(i, low):
            step = np.int32(1) << (rounds - np.int32(1) - i)
            at = jnp.minimum(low + (step - 1), np.int32(entries - 1))
            particle, block = self._divided(at, blocks)
            place = particle if block is None else particle * np.int32(many) + block
            (value,) = self._read(first, 1, place)
            return jnp.where(value <= point, low + step, low)

        low = jax.lax.fori_loop(np.int32(0), rounds, halved, jnp.zeros(self.lanes, jnp.int32))
        return jnp.minimum(low, np.int32(entries - 1))
