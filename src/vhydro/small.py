"""Algebra on a handful of numbers for many particles at once.

Arrays are (small axes, *particles): whatever the small axes are, particles come last, and a function that is given
no particle axis works on a single one. Along the particles memory is contiguous, so sums over a few modes or
coordinates are unrolled into one fused loop; as general reductions or gathers they would be several times slower.
"""

from collections.abc import Callable, Sequence
from functools import reduce, wraps
from operator import add
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

UNROLL = 64  # rows
BLOCK = 32  # entries of a running sum

Given = ParamSpec("Given")
Result = TypeVar("Result")


def precise(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """The function with products of matrices as precise as their numbers are: untold, a GPU rounds to ten bits."""

    @wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return called


def over(values: Shaped[Array, "*small"], axes: int) -> Shaped[Array, "..."]:
    """The values with `axes` particle axes of length one, to broadcast over particles."""
    return values.reshape(values.shape + (1,) * axes)


def beside(values: Shaped[Array, "rows ..."], axes: int) -> Shaped[Array, "..."]:
    """The values of one input for all particles, or of some along their first axes, to broadcast over particles."""
    return over(values, axes + 1 - values.ndim)


def pick(values: Shaped[Array, "modes ..."], mode: Int[Array, "*particles"]) -> Shaped[Array, "..."]:
    """The entry of each particle's mode, by selection."""
    return reduce(lambda out, m: jnp.where(mode == m, values[m], out), range(1, values.shape[0]), values[0])


def matvec(matrix: Float[Array, "*rows columns"], vector: Float[Array, "columns *particles"]) -> Float[Array, "..."]:
    """`matrix @ vector` with one matrix for all particles."""
    return jnp.tensordot(matrix, vector, axes=1)


def times(matrix: Float[Array, "rows columns ..."], vector: Float[Array, "columns *particles"]):
    """Every particle's own matrix, or one for all, with its own vector."""
    return reduce(add, (matrix[:, k] * vector[k] for k in range(matrix.shape[1])))


def product(
    first: Float[Array, "*more rows inner _particles"], second: Float[Array, "... inner columns _particles"]
) -> Float[Array, "..."]:
    """Every particle's own matrix with another of its own; axes before these broadcast."""
    inner = range(first.shape[-2])
    return reduce(add, (first[..., :, k, None, :] * second[..., None, k, :, :] for k in inner))


def stacked(parts: Sequence[Float[Array, "..."]]) -> Float[Array, "parts ..."]:
    """The parts along a new first axis, each written in a loop of its own.

    `jnp.stack` becomes one loop that asks of every entry which part it is of, and is not vectorised if parts are still
    to be computed.
    """
    out = jnp.zeros((len(parts), *parts[0].shape), parts[0].dtype)
    for i, part in enumerate(parts):
        out = jax.lax.dynamic_update_index_in_dim(out, part, i, 0)
    return out


def total(values: Float[Array, "rows *particles"]) -> Float[Array, "*particles"]:
    """The sum over the first axis; of numbers alone, which may be one for each particle, by the compiler."""
    few = values.ndim > 1 and 0 < values.shape[0] <= UNROLL
    return reduce(add, values) if few else values.sum(0)


def running_sum(values: Float[Array, "entries"]) -> Float[Array, "entries"]:
    """The cumulative sum, by blocks: a triangular product within each, the same again over their ends.

    On a CPU twice as fast as `jnp.cumsum`, and rounding grows with the logarithm of the length.
    """
    return _running(values, _block_sums, jnp.add)


def running_max(values: Int[Array, "entries"]) -> Int[Array, "entries"]:
    """The cumulative maximum of numbers from 0 on, by blocks as well; two to three times as fast as `lax.cummax`."""
    return _running(values, _block_maxima, jnp.maximum)


def _running(values: Shaped[Array, "entries"], within: Callable, joined: Callable) -> Shaped[Array, "entries"]:
    length = values.shape[0]
    if length <= BLOCK:
        return within(values[None])[0]
    blocks = within(jnp.pad(values, (0, -length % BLOCK)).reshape(-1, BLOCK))
    before = jnp.pad(_running(blocks[:, -1], within, joined)[:-1], (1, 0))
    return joined(blocks, before[:, None]).reshape(-1)[:length]


def _block_sums(rows: Float[Array, "blocks entries"]) -> Float[Array, "blocks entries"]:
    triangle = jnp.triu(jnp.ones((rows.shape[1], rows.shape[1]), rows.dtype))
    return jnp.matmul(rows, triangle, precision="highest")


def _block_maxima(rows: Int[Array, "blocks entries"]) -> Int[Array, "blocks entries"]:
    triangle = jnp.triu(jnp.ones((rows.shape[1], rows.shape[1]), bool))
    return jnp.where(triangle[:, None], rows.T[..., None], 0).max(0)


def log_sum(values: Float[Array, "rows *particles"]) -> Float[Array, "*particles"]:
    """`logsumexp` over the first axis; −∞ for nothing but −∞."""
    few = values.ndim > 1 and values.shape[0] <= UNROLL
    top = jax.lax.stop_gradient(reduce(jnp.maximum, values) if few else values.max(0))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    return jnp.log(total(jnp.exp(values - top))) + top


def log_softmax(values: Float[Array, "modes *particles"]) -> Float[Array, "modes *particles"]:
    """Log probabilities of the modes; −∞ stays −∞."""
    return values - log_sum(values)
