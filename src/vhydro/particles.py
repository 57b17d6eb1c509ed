"""What a population of weighted particles needs: its randomness, resampling and diagnostics."""

from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray, Shaped

from vhydro.small import running_max, running_sum


class Draw(NamedTuple):
    """One block of a step's randomness.

    Antithetic normals come in pairs that mirror each other: children of one parent lie side by side and balance.
    """

    name: str
    shape: tuple[int, ...]
    kind: Literal["uniform", "normal", "antithetic"]

    @property
    def drawn(self) -> tuple[int, ...]:
        """The shape of the numbers that are drawn."""
        half = self.kind == "antithetic"
        return (*self.shape[:-1], -(-self.shape[-1] // 2)) if half else self.shape


Noise = dict[str, Float[Array, "..."]]


def step_noise(layout: tuple[Draw, ...], key: PRNGKeyArray, step: Int[Array, ""], dtype) -> Noise:
    """Everything random about one step, from the run's key and the step's number alone.

    One call of the generator, both of its output words used: half the work of `jax.random`, the same Threefry.
    """
    sizes = [int(np.prod(d.drawn)) for d in layout]
    count = sum(sizes)
    words = threefry_2x32(
        jax.random.key_data(jax.random.fold_in(key, step)), jnp.arange(count + count % 2, dtype=jnp.uint32)
    )
    ends = np.cumsum(sizes)
    return {
        d.name: _mirrored(d, _from_words(words[end - size : end], d.kind, dtype).reshape(d.drawn))
        for d, size, end in zip(layout, sizes, ends, strict=True)
    }


def _mirrored(draw: Draw, values: Float[Array, "..."]) -> Float[Array, "..."]:
    """The draws, each with its mirror image beside it where they are antithetic."""
    if draw.kind != "antithetic":
        return values
    both = jnp.stack([values, -values], axis=-1)
    return both.reshape(*values.shape[:-1], -1)[..., : draw.shape[-1]]


def _from_words(words, kind: str, dtype) -> Float[Array, "..."]:
    # Strictly inside (0, 1): a 0 could pick a mode of probability 0, a 1 is past every cumulative sum.
    if dtype == jnp.float32:
        uniform = (words >> 9).astype(dtype) * 2.0**-23 + 2.0**-24
    else:
        uniform = words.astype(dtype) * 2.0**-32 + 2.0**-33
    return uniform if kind == "uniform" else np.sqrt(2).astype(dtype) * jax.lax.erf_inv(2 * uniform - 1)


def effective_share(log_weight: Float[Array, "particles"]) -> Float[Array, ""]:
    """ESS/N: `(Σw)² / (N Σw²)`."""
    top = jnp.max(log_weight)
    weight = jnp.exp(log_weight - jnp.where(jnp.isfinite(top), top, 0.0))
    square = jnp.sum(weight**2)
    return jnp.where(square > 0, jnp.sum(weight) ** 2 / (jnp.where(square > 0, square, 1.0) * weight.size), 0.0)


def normalised(log_weight: Float[Array, "particles"]):
    """Weights that sum to one, the log of what they summed to, and their ESS/N; equal ones if all were zero."""
    top = jax.lax.stop_gradient(jnp.max(log_weight))
    alive = jnp.isfinite(top)
    weight = jnp.exp(log_weight - jnp.where(alive, top, 0.0))
    summed = weight.sum()
    still = jax.lax.stop_gradient(weight)
    square = still @ still
    log_summed = jnp.log(jnp.where(alive, summed, 1.0))
    flat = -jnp.log(jnp.asarray(log_weight.shape[0], log_weight.dtype))
    ess = jnp.where(alive, jax.lax.stop_gradient(summed) ** 2 / (jnp.where(alive, square, 1.0) * weight.size), 1.0)
    # The largest is taken off first: next to a huge one the sum's logarithm would be rounded away.
    log_weight = jnp.where(alive, log_weight - jnp.where(alive, top, 0.0) - log_summed, flat)
    return log_weight, jnp.where(alive, top + log_summed, -jnp.inf), ess


# --- resampling -------------------------------------------------------------------------------------------------------
# Each scheme says how many of `count` sorted points lie below each cumulative weight; `_ancestors` turns those numbers
# into indices by scatter and cumulative maximum, which on a CPU beats a search several times over.


def _ancestors(weight: Float[Array, "parents"], below: Int[Array, "parents"], count: int) -> Int[Array, "count"]:
    start = jnp.concatenate([jnp.zeros(1, below.dtype), below[:-1]])
    # However the sums were rounded, a parent without weight has no child: its points go to the one before it.
    start = jnp.where((below > start) & (weight > 0), start, count)
    marks = jnp.zeros(count, below.dtype).at[start].max(jnp.arange(below.shape[0], dtype=below.dtype), mode="drop")
    return jnp.maximum(running_max(marks), jnp.argmax(weight > 0).astype(below.dtype))


def _cumulative(weight: Float[Array, "parents"], count: int) -> Float[Array, "parents"]:
    summed = running_sum(weight)
    return count * (summed / summed[-1])


def _clipped(below: Num[Array, "parents"], count: int) -> Int[Array, "parents"]:
    return jnp.clip(below, 0, count).astype(jnp.int32)


@partial(jax.jit, static_argnames="count")  # by its name a kernel knows it: see `fused`
def systematic(weight: Float[Array, "parents"], uniform: Float[Array, ""], count: int) -> Int[Array, "count"]:
    """Ancestors at equal distances with one random offset."""
    return _ancestors(weight, _clipped(jnp.ceil(_cumulative(weight, count) - uniform), count), count)


def stratified(weight: Float[Array, "parents"], uniform: Float[Array, "count"], count: int) -> Int[Array, "count"]:
    """Ancestors with one random point in each of `count` equal strata."""
    cumulative = _cumulative(weight, count)
    cell = _clipped(jnp.floor(cumulative), count)
    inside = uniform[jnp.minimum(cell, count - 1)] < cumulative - cell
    return _ancestors(weight, _clipped(cell + inside, count), count)


def multinomial(weight: Float[Array, "parents"], uniform: Float[Array, "gaps"], count: int) -> Int[Array, "count"]:
    """Independent ancestors, from `count + 1` uniforms made into sorted points by exponential spacings."""
    gaps = running_sum(-jnp.log(uniform))
    points = gaps[:-1] / gaps[-1]
    below = jnp.searchsorted(points, _cumulative(weight, 1), side="right")
    return _ancestors(weight, below.astype(jnp.int32), count)


def residual(weight: Float[Array, "parents"], uniform: Float[Array, "gaps"], count: int) -> Int[Array, "count"]:
    """`⌊count·w⌋` copies of each parent for certain, the remainder multinomially."""
    share = count * (weight / weight.sum())
    sure = jnp.floor(share)
    left = (count - sure.sum()).astype(jnp.int32)
    rest = share - sure
    # Only the first `left` of the random points count; the others are sent past the end.
    summed = running_sum(rest)
    gaps = running_sum(jnp.where(jnp.arange(count + 1) <= left, -jnp.log(uniform), 0.0))
    points = jnp.where(jnp.arange(count) < left, gaps[:-1] / gaps[-1], 2.0)
    extra = jnp.searchsorted(points, summed / jnp.where(summed[-1] > 0, summed[-1], 1.0), side="right")
    extra = extra.at[-1].set(left)
    return _ancestors(weight, _clipped(running_sum(sure) + extra, count), count)


@jax.jit
def columns_at(arrays: tuple[Shaped[Array, "..."], ...], index: Int[Array, "count"]) -> tuple:
    """Of every array (…, parents) the columns at these indices."""

    def taken(x):
        # One flat gather keeps the particles contiguous; a gather of columns would transpose the population.
        parents = x.shape[-1]
        rows = jnp.arange(x.size // parents, dtype=index.dtype)[:, None] * parents
        flat = x.reshape(-1).at[(rows + index).reshape(-1)].get(mode="promise_in_bounds")
        return flat.reshape(*x.shape[:-1], index.shape[0])

    return tuple(map(taken, arrays))


@jax.jit
def pairs_at(
    values: Float[Array, "modes latent particles"], index: Int[Array, "count"]
) -> Float[Array, "latent count"]:
    """The column of every pair `mode · particles + particle`."""
    _, latent, n = values.shape
    # One flat gather from (modes, latent, particles), without laying it out anew.
    first = (index // n) * (latent * n) + index % n
    rows = jnp.arange(latent, dtype=index.dtype)[:, None] * n
    return values.reshape(-1).at[(rows + first).reshape(-1)].get(mode="promise_in_bounds").reshape(-1, index.shape[0])


class Resampler(NamedTuple):
    """A resampling scheme: how many uniforms it needs and how it uses them."""

    ancestors: Callable
    uniforms: Callable[[int], tuple[int, ...]]


RESAMPLERS: dict[str, Resampler] = {
    "systematic": Resampler(systematic, lambda _: ()),
    "stratified": Resampler(stratified, lambda n: (n,)),
    "multinomial": Resampler(multinomial, lambda n: (n + 1,)),
    "residual": Resampler(residual, lambda n: (n + 1,)),
}


# --- choosing a component and a mode ---------------------------------------------------------------------------------


LARGEST_STRATUM = 2**15  # particles; the products below then fit 32 bits


def _prime_from(n: int) -> int:
    return next(p for p in range(max(n, 2), 2 * n + 3) if all(p % q for q in range(2, int(p**0.5) + 1)))


def strata(count: int) -> tuple[int, int]:
    """How many blocks of particles are stratified, and the prime number of cells each is spread over."""
    size = min(count, LARGEST_STRATUM)
    return -(-count // size), _prime_from(size)


def stratified_uniforms(uniform: Float[Array, "draws"], count: int) -> Float[Array, "count"]:
    """One uniform number per particle, no two of a block in one cell of [0, 1), from `count + 2 blocks` uniforms.

    Particle i lies in cell `(a i + b) mod p` for random a and b: any two particles are in any two cells with equal
    probability. That is all a variance needs, and no sorting. Each number is uniform, so weights stay unbiased. For
    `[u_i < λ_i]` the covariances are `−K_ij/(p − 1)` with K positive semidefinite and `K_ii ≤ λ_i (1 − λ_i)`, so a sum
    varies at most `p/(p − 1)` times as much as with independent draws, whatever its terms, and usually less.
    """
    blocks, prime = strata(count)
    jitter, slope, shift = uniform[:count], uniform[count : count + blocks], uniform[count + blocks :]
    index = jnp.arange(count, dtype=jnp.uint32)
    block, place = index // LARGEST_STRATUM, index % LARGEST_STRATUM
    a = 1 + jnp.floor(slope * (prime - 1)).astype(jnp.uint32)
    b = jnp.floor(shift * prime).astype(jnp.uint32)
    cell = (a[block] * place + b[block]) % jnp.uint32(prime)
    return (cell.astype(jitter.dtype) + jitter) / prime


def stratified_choice(share: Float[Array, "*shape"], uniform: Float[Array, "draws"]) -> Bool[Array, "*shape"]:
    """True for particle i with probability `share_i`, the number of Trues nearly fixed by their sum."""
    # A number just below 1 may be rounded up to it; a share of 1 must be certain all the same.
    return (stratified_uniforms(uniform, share.size).reshape(share.shape) < share) | (share >= 1)


def categorical(
    log_probability: Float[Array, "modes *particles"], uniform: Float[Array, "*particles"]
) -> Int[Array, "*particles"]:
    """The mode at this quantile; a mode of probability 0 is never returned."""
    probability = jnp.exp(log_probability)
    summed = reduce(add, probability)  # one after the other, as below: otherwise rounding could lead past the last mode
    point, below = uniform * summed, jnp.zeros_like(uniform)
    mode = jnp.zeros(uniform.shape, jnp.int32)
    for p in probability[:-1]:
        below = below + p
        mode = mode + (point > below)
    return mode


# --- Pareto k̂ ---------------------------------------------------------------------------------------------------------


def pareto_k(log_weight: Float[Array, "particles"]) -> Float[Array, ""]:
    """The tail index of the weights; above 0.7 their mean is not to be trusted (Vehtari et al. 2024).

    Generalised Pareto fit of Zhang & Stephens (2009) with the weak prior of PSIS, on the largest `min(N/5, 3√N)`.
    """
    n = log_weight.shape[0]
    tail = int(np.ceil(min(0.2 * n, 3 * np.sqrt(n))))
    if tail < 5:
        return jnp.full((), jnp.inf, log_weight.dtype)
    ordered = jnp.sort(log_weight - jnp.max(log_weight))
    cut = jnp.exp(ordered[-tail - 1])
    x = jnp.maximum(jnp.exp(ordered[-tail:]) - cut, jnp.finfo(log_weight.dtype).tiny)
    grid = 30 + int(np.sqrt(tail))
    quartile = x[int(tail / 4 + 0.5) - 1]
    steps = 1 - jnp.sqrt(grid / (jnp.arange(1, grid + 1) - 0.5))
    b = (steps / (3 * quartile) + 1 / x[-1]).astype(x.dtype)
    k = jnp.mean(jnp.log1p(-b[:, None] * x), axis=1)
    log_like = tail * (jnp.log(-b / k) - k - 1)
    log_like = jnp.where(jnp.isfinite(log_like), log_like, -jnp.inf)
    posterior = jnp.sum(jax.nn.softmax(log_like) * b)
    k_hat = jnp.mean(jnp.log1p(-posterior * x))
    k_hat = (tail * k_hat + 5.0) / (tail + 10)
    return jnp.where(jnp.isfinite(k_hat), k_hat, jnp.inf)
