"""Factorisations of small matrices, and systems that a triangular one solves, written out entry by entry."""

import jax.numpy as jnp
import numpy as np

from vhydro.fused.cells import Cells, Value, as_cells, full_of
from vhydro.fused.flat import Op, UnsupportedError
from vhydro.fused.sums import minus, quotient, times, total


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
                value = minus(value, times(a.values[(*place, row, k)], out[(*place, k, column)]))
            if not p["unit_diagonal"]:
                value = quotient(value, a.values[(*place, row, row)])
            out[(*place, row, column)] = value
    return Cells(out, None, b.dtype)


def upper_factor(value: Value) -> list[Value]:
    """R of small matrices, by Householder's reflections; Q is not worked out."""
    cells = as_cells(value)
    if cells.axis is not None:
        raise UnsupportedError("a factorisation for every particle")
    *batch, rows, columns = cells.values.shape
    size = min(rows, columns)
    out = full_of((*batch, size, columns), np.dtype(cells.dtype).type(0))
    for place in np.ndindex(*batch):
        work = cells.values[place].copy()
        for j in range(size):
            _reflect(work, j)
            out[place][j, j:] = work[j, j:]
    return [Cells(full_of((*batch, rows, size), None), None, cells.dtype), Cells(out, None, cells.dtype)]


def _reflect(work: np.ndarray, j: int) -> None:
    """Makes column j zero below the diagonal."""
    column = list(work[j:, j])
    square = total([times(c, c) for c in column])
    norm = jnp.sqrt(jnp.asarray(square))
    head = jnp.where(jnp.asarray(column[0]) >= 0, -norm, norm)
    first = column[0] - head
    vector = [first, *column[1:]]
    below = total([times(v, v) for v in vector])
    scale = jnp.where(below > 0, 2 / jnp.where(below > 0, below, 1.0), 0.0)
    for k in range(j, work.shape[1]):
        along = total([times(v, work[j + i, k]) for i, v in enumerate(vector)])
        for i, v in enumerate(vector):
            work[j + i, k] = minus(work[j + i, k], times(times(scale, along), v))
    work[j, j] = head


def lower_factor(value: Value) -> Value:
    """Cholesky's factor of small matrices."""
    cells = as_cells(value)
    if cells.axis is not None:
        raise UnsupportedError("a factorisation for every particle")
    *batch, size, _ = cells.values.shape
    out = full_of(cells.values.shape, np.dtype(cells.dtype).type(0))
    for place in np.ndindex(*batch):
        a, low = cells.values[place], out[place]
        for i in range(size):
            for j in range(i + 1):
                left = a[i, j]
                for k in range(j):
                    left = minus(left, times(low[i, k], low[j, k]))
                low[i, j] = jnp.sqrt(jnp.asarray(left)) if i == j else quotient(left, low[j, j])
    return Cells(out, None, cells.dtype)
