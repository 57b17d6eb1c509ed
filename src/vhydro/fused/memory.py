"""What needs all particles at once, inside a kernel: sums, resampling, and reading what other particles hold."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vhydro.fused import records, shared
from vhydro.fused.flat import UnsupportedError
from vhydro.fused.shared import Threads

UNITS = 2.0**30  # of weight: as whole numbers they add up without rounding, in any order


class Memory:
    """One program's particles, which read each other through its shared memory; where there is none, as JAX does."""

    def __init__(self, lanes: int, threads: Threads | None = None):
        self.lanes, self.threads = lanes, threads
        self.used = 0  # bytes of shared memory, at most at a time

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

    def columns_at(self, arrays: list[np.ndarray], dtypes: list[Any], index) -> list[list[Any]]:
        """The rows of every array (rows, blocks) at one index for each particle."""
        blocks = arrays[0].shape[1]
        own = [[records.as_float(self.full(a[r, b])) for a in arrays for r in range(a.shape[0])] for b in range(blocks)]
        got = [self._taken(list(column), index) for column in zip(*own, strict=True)]
        found = iter(got)
        return [
            [records.from_float(next(found), dtype) for _ in range(a.shape[0])]
            for a, dtype in zip(arrays, dtypes, strict=True)
        ]

    def _taken(self, column: list[Any], index):
        """What a column, in blocks, has at every particle's index."""
        self._use(len(column))
        return jnp.concatenate(column)[index] if self.threads is None else shared.taken(self.threads, column, index)

    def _use(self, blocks: int) -> None:
        self.used = max(self.used, 4 * blocks * self.lanes)

    def systematic(self, weights: list, uniform, count: int) -> list:
        """Ancestors at equal distances with one random offset, as `particles.systematic`.

        Differs: weights are summed as whole numbers, so that one of nothing never adds anything, whatever the order.
        """
        lanes = self.lanes
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
        most = before.astype(jnp.float32)
        out = []
        for block in range(count // lanes):
            point = (self.arange(jnp.float32, block) + uniform) * (most / count)
            out.append(self._first_above(sums, jnp.minimum(point, most * np.float32(1 - 2.0**-23))))
        return out

    def _first_above(self, sums: list[Any], point):
        """The first entry above each point, of sums that never fall; the last one is."""
        self._use(len(sums))
        if self.threads is not None:
            return shared.first_above(self.threads, sums, point)
        every = jnp.concatenate(sums)
        return jnp.minimum((every <= point[:, None]).sum(1, dtype=jnp.int32), np.int32(len(every) - 1))
