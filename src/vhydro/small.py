"""Algebra on a handful of numbers for many particles at once.

Arrays are (small axes, *particles): whatever the small axes are, particles come last, and a function that is given
no particle axis works on a single one. Along the particles memory is contiguous, so sums over a few modes or
coordinates are unrolled into one fused loop; as general reductions or gathers they would be several times slower.
"""

from functools import reduce
from operator import add

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

UNROLL = 64  # rows
BLOCK = 32  # entries of a running sum


def over(values: Shaped[Array, "*small"], axes: int) -> Shaped[Array, "..."]:
    """The values with `axes` particle axes of length one, to broadcast over particles."""
    return values.reshape(values.shape + (1,) * axes)


def pick(values: Shaped[Array, "modes ..."], mode: Int[Array, "*particles"]) -> Shaped[Array, "..."]:
    """The entry of each particle's mode, by selection."""
    return reduce(lambda out, m: jnp.where(mode == m, values[m], out), range(1, values.shape[0]), values[0])


def matvec(matrix: Float[Array, "*rows columns"], vector: Float[Array, "columns *particles"]) -> Float[Array, "..."]:
    """`matrix @ vector` with one matrix for all particles."""
    return jnp.tensordot(matrix, vector, axes=1)


def times(matrix: Float[Array, "rows columns *more"], other: Float[Array, "columns ..."]) -> Float[Array, "..."]:
    """The product with a vector or a matrix of every particle."""
    columns = range(matrix.shape[1])
    if other.ndim == matrix.ndim:
        return reduce(add, (matrix[:, k, None] * other[None, k] for k in columns))
    return reduce(add, (matrix[:, k] * other[k] for k in columns))


def total(values: Float[Array, "rows *particles"]) -> Float[Array, "*particles"]:
    """The sum over the first axis."""
    return reduce(add, values) if 0 < values.shape[0] <= UNROLL else values.sum(0)


def running_sum(values: Float[Array, "entries"]) -> Float[Array, "entries"]:
    """The cumulative sum, by blocks: a triangular product within each, the same again over their ends.

    On a CPU twice as fast as `jnp.cumsum`, and rounding grows with the logarithm of the length.
    """
    length = values.shape[0]
    if length <= BLOCK:
        return _block_sums(values[None])[0]
    padded = jnp.pad(values, (0, -length % BLOCK)).reshape(-1, BLOCK)
    within = _block_sums(padded)
    before = jnp.pad(running_sum(within[:, -1])[:-1], (1, 0))
    return (within + before[:, None]).reshape(-1)[:length]


def _block_sums(rows: Float[Array, "blocks entries"]) -> Float[Array, "blocks entries"]:
    triangle = jnp.triu(jnp.ones((rows.shape[1], rows.shape[1]), rows.dtype))
    return jnp.matmul(rows, triangle, precision="highest")


def log_sum(values: Float[Array, "rows *particles"]) -> Float[Array, "*particles"]:
    """`logsumexp` over the first axis; −∞ for nothing but −∞."""
    few = values.shape[0] <= UNROLL
    top = jax.lax.stop_gradient(reduce(jnp.maximum, values) if few else values.max(0))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    return jnp.log(total(jnp.exp(values - top))) + top


def log_softmax(values: Float[Array, "modes *particles"]) -> Float[Array, "modes *particles"]:
    """Log probabilities of the modes; −∞ stays −∞."""
    return values - log_sum(values)
