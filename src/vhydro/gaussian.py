"""Gaussians of one mode: densities, draws and the exact update by a linear observation.

A `scale` is the lower-triangular factor of a covariance, (latent, latent, *particles), or the standard deviations of
a diagonal one, (latent, *particles); its particle axes have length one when all particles share it. Factors, never
covariances: nothing is squared, so float32 lasts.
"""

from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float

from vhydro.small import matvec, over, total

LOG_2PI = 1.8378770664093453

Scale = Float[Array, "latent ..."]
Entries = list[list[Float[Array, "particles"]]]  # a small matrix of every particle, entry by entry


class Conditioned(NamedTuple):
    """One mode's law after seeing `o`: evidence `E[g]`, second moment `E[g²]`, and the posterior of z."""

    log_evidence: Float[Array, "*particles"]
    log_square: Float[Array, "*particles"]
    mean: Float[Array, "latent *particles"]
    scale: Scale


def is_diagonal(scale: Scale, vector: Float[Array, "latent *particles"]) -> bool:
    return scale.ndim == vector.ndim


def _shared(scale: Scale) -> Float[Array, "latent latent"] | None:
    """The one factor of all particles, if there is one."""
    return scale.reshape(scale.shape[:2]) if scale[0, 0].size == 1 else None


def _last(axis_length: int) -> int | None:
    return None if axis_length == 1 else -1


def deviations(scale: Float[Array, "modes latent ..."], diagonal: bool) -> Float[Array, "..."]:
    """The standard deviation of every coordinate, whichever form the scale of every mode has."""
    return scale if diagonal else jnp.sqrt(jnp.sum(scale**2, axis=2))


def coloured(scale: Scale, noise: Float[Array, "latent *particles"]) -> Float[Array, "latent *particles"]:
    """Noise with this scale, from standard normal noise."""
    if is_diagonal(scale, noise):
        return scale * noise
    factor = _shared(scale)
    return matvec(factor, noise) if factor is not None else jnp.einsum("ij...,j...->i...", scale, noise)


def log_density(residual: Float[Array, "latent *particles"], scale: Scale) -> Float[Array, "*particles"]:
    """The log density of a residual under a centred Gaussian."""
    if is_diagonal(scale, residual):
        white, log_det = residual / scale, total(jnp.log(scale))
    elif (factor := _shared(scale)) is not None:
        inverse = solve_triangular(factor, jnp.eye(factor.shape[0], dtype=factor.dtype), lower=True)
        white, log_det = matvec(inverse, residual), total(jnp.log(jnp.abs(jnp.diagonal(factor))))
    else:
        return jax.vmap(log_density, in_axes=-1, out_axes=-1)(residual, scale)
    return -0.5 * total(white**2) - log_det - 0.5 * LOG_2PI * residual.shape[0]


def factor_of(deviation: Float[Array, "*modes latent"], lower: Float[Array, "*modes latent latent"]):
    """`L D`, the lower-triangular factor of a covariance: D the deviations, L unit lower triangular."""
    identity = jnp.eye(deviation.shape[-1], dtype=deviation.dtype)
    return (identity + jnp.tril(lower, -1)) * deviation[..., None, :]


def as_factor(scale: Scale) -> Float[Array, "latent latent"]:
    return jnp.diag(scale) if scale.ndim == 1 else scale


def _triangular(stacked: Float[Array, "rows cols"]) -> Float[Array, "cols cols"]:
    """The lower-triangular factor L with `L Lᵀ = stackedᵀ stacked` and a positive diagonal."""
    upper = jnp.linalg.qr(stacked, mode="r")
    sign = jnp.where(jnp.diagonal(upper) < 0, -1.0, 1.0).astype(upper.dtype)
    return (sign[:, None] * upper).T


def conditioned(
    mean: Float[Array, "latent *particles"],
    scale: Scale,
    matrix: Float[Array, "channels latent"],
    noise: Float[Array, "channels ..."],
    residual: Float[Array, "channels *particles"],
    observed: Bool[Array, "channels"],
) -> Conditioned:
    """The update of `N(mean, scale)` by `o = matrix z + noise`, `residual = o − matrix mean`, hidden rows dropped.

    `noise` holds standard deviations, or is the factor of the sensors' covariance, a hidden channel a unit one.
    Square-root form: one QR gives the innovation factor, the gain and the posterior factor. The scale is shared, so
    all of that is done once and each particle costs three small products.
    """
    axes = mean.ndim - 1
    gain = gain_of(as_factor(scale.reshape(scale.shape[: scale.ndim - axes])), matrix, noise, observed)
    residual = over(observed.astype(mean.dtype), axes) * residual
    white = matvec(gain.white, residual)
    log_evidence = -0.5 * total(white**2) - gain.log_constant
    log_square = -0.5 * total(matvec(gain.half_white, residual) ** 2) - gain.log_half_constant
    return Conditioned(log_evidence, log_square, mean + matvec(gain.cross, white), over(gain.scale, axes))


class Gain(NamedTuple):
    """What an update does to every Gaussian with one scale: `white = W (o − C mean)`, `mean + cross white`."""

    white: Float[Array, "channels channels"]
    half_white: Float[Array, "channels channels"]  # the same for g²
    cross: Float[Array, "latent channels"]
    scale: Float[Array, "latent latent"]
    log_constant: Float[Array, ""]
    log_half_constant: Float[Array, ""]


def gain_of(
    factor: Float[Array, "latent latent"],
    matrix: Float[Array, "channels latent"],
    noise: Float[Array, "channels ..."],
    observed: Bool[Array, "channels"],
) -> Gain:
    """The update that all Gaussians with this factor share; residuals of hidden channels must be 0."""
    channels, latent = matrix.shape
    seen = observed.astype(factor.dtype)
    noise = jnp.diag(jnp.where(observed, noise, 1.0)) if noise.ndim == 1 else noise
    # A hidden row becomes an independent unit channel with residual 0: it changes nothing and costs no branch.
    spread = (seen[:, None] * matrix) @ factor
    pre = jnp.block([[noise.T, jnp.zeros((channels, latent), factor.dtype)], [spread.T, factor.T]])
    post = _triangular(pre)
    innovation, cross, after = (
        post[:channels, :channels],
        post[channels:, :channels],
        post[channels:, channels:],
    )
    half = _triangular(jnp.concatenate([(jnp.where(observed, 0.5**0.5, 1.0)[:, None] * noise).T, spread.T]))
    identity = jnp.eye(channels, dtype=factor.dtype)
    count = seen.sum()
    # g² = (4π)^{-k/2} |R|^{-1/2} N(o; Cz, R/2)
    sensor = jnp.log(jnp.diagonal(noise)).sum()
    half_constant = jnp.log(jnp.diagonal(half)).sum() + sensor + (LOG_2PI + 0.5 * float(np.log(2))) * count
    return Gain(
        solve_triangular(innovation, identity, lower=True), solve_triangular(half, identity, lower=True), cross, after,
        jnp.log(jnp.diagonal(innovation)).sum() + 0.5 * LOG_2PI * count, half_constant,
    )  # fmt: skip


def conditioned_axes(
    mean: Float[Array, "latent *particles"],
    scale: Scale,
    axes: tuple[int, ...],
    gain: Float[Array, "channels"],
    noise: Float[Array, "channels ..."],
    residual: Float[Array, "channels *particles"],
    observed: Bool[Array, "channels"],
) -> Conditioned:
    """The same update when channel c reads coordinate `axes[c]` alone: everything is elementwise.

    The noise is one for all particles, or each has its own.
    """
    index, extra = np.asarray(axes), mean.ndim - 1
    gain, observed = over(gain, extra), over(observed, extra)
    noise = noise if noise.ndim == mean.ndim else over(noise, extra)
    prior, error = scale[index] ** 2, noise**2
    spread = gain**2 * prior
    whole, half = spread + error, spread + 0.5 * error
    squared = residual**2
    evidence = -0.5 * (LOG_2PI + jnp.log(whole) + squared / whole)
    square = -0.5 * (2 * LOG_2PI + float(np.log(2)) + jnp.log(error) + jnp.log(half) + squared / half)
    shift = jnp.where(observed, prior * gain * residual / whole, 0.0)
    shrink = jnp.where(observed, jnp.sqrt(error / whole), 1.0)
    # Back to coordinates by a fixed gather, which is cheaper than a scatter; unread ones take the neutral last entry.
    reader = np.full(mean.shape[0], len(axes))
    reader[index] = np.arange(len(axes))
    neutral = jnp.zeros_like(shift[:1]), jnp.ones_like(shrink[:1])
    return Conditioned(
        total(jnp.where(observed, evidence, 0.0)),
        total(jnp.where(observed, square, 0.0)),
        mean + jnp.concatenate([shift, neutral[0]])[reader],
        scale * jnp.concatenate([shrink, neutral[1]])[reader],
    )


def conditioned_one_by_one(
    mean: Float[Array, "latent *particles"],
    scale: Scale,
    rows: Float[Array, "channels latent ..."],
    noise: Float[Array, "channels ..."],
    residual: Float[Array, "channels *particles"],
    observed: Bool[Array, "channels"],
) -> Conditioned:
    """The same update when every particle has its own matrix `rows` or its own noise, one channel after the other.

    Carlson's square-root update (1973): the factor stays triangular and nothing is factorised, so that all of it runs
    along the particles. `log_square` is not worked out; nothing is certified by a guide.
    """
    extra, latent = mean.ndim - 1, mean.shape[0]
    particles = mean.shape[1:]
    identity = jnp.eye(latent, dtype=mean.dtype)
    factor = over(identity, extra) * scale[:, None] if is_diagonal(scale, mean) else scale
    factor = jnp.broadcast_to(factor, (latent, latent, *particles))

    def update(held, channel):
        factor, shift, log_evidence = held
        row, sd, error, seen = channel
        row = jnp.where(seen, row, 0.0)
        error = jnp.where(seen, error - total(row * shift), 0.0)
        across = [total(row * factor[:, j]) for j in range(latent)]
        variance, gain, columns = sd**2, jnp.zeros_like(mean), []
        for j in reversed(range(latent)):  # column j of a lower factor is zero above row j, and so is the gain so far
            before, variance = variance, variance + across[j] ** 2
            columns.append((factor[:, j] * before - gain * across[j]) / jnp.sqrt(before * variance))
            gain = gain + factor[:, j] * across[j]
        density = -0.5 * (LOG_2PI + jnp.log(variance) + error**2 / variance)
        after = jnp.stack(columns[::-1], axis=1), shift + gain * error / variance
        return (*after, log_evidence + jnp.where(seen, density, 0.0)), None

    def each(values):
        return jnp.broadcast_to(values if values.ndim > 1 else over(values, extra), (values.shape[0], *particles))

    rows = rows if rows.ndim > 2 else over(rows, extra)
    start = factor, jnp.zeros_like(mean), jnp.zeros(particles, mean.dtype)
    (factor, shift, log_evidence), _ = jax.lax.scan(update, start, (rows, each(noise), residual, observed))
    return Conditioned(log_evidence, jnp.full_like(log_evidence, jnp.inf), mean + shift, factor)


def log_second_moment_ratio(
    mean: Float[Array, "latent *particles"],
    scale: Scale,
    guide_mean: Float[Array, "latent *particles"],
    guide_scale: Scale,
) -> Float[Array, "*particles"]:
    """`log ∫ N(z; mean, S*)² / N(z; guide_mean, S) dz`, infinite unless `2 S ≻ S*`.

    Equals `log|S| − ½ log|S*| − ½ log|2S − S*| + ½ δᵀ (S − S*/2)⁻¹ δ`.
    """
    delta = guide_mean - mean
    if is_diagonal(scale, mean) and is_diagonal(guide_scale, mean):
        wide = 2 * guide_scale**2 - scale**2
        fits = wide > 0
        safe = jnp.where(fits, wide, 1.0)
        terms = 2 * jnp.log(guide_scale) - jnp.log(scale) - 0.5 * jnp.log(safe) + delta**2 / safe
        return total(jnp.where(fits, terms, jnp.inf))
    if mean.ndim > 1:
        axes = tuple(_last(x.shape[-1]) for x in (scale, guide_scale))
        squeezed = (x if a is not None else x[..., 0] for x, a in zip((scale, guide_scale), axes, strict=True))
        first, second = squeezed
        return jax.vmap(_log_ratio_of_factors, in_axes=(-1, axes[0], axes[1]), out_axes=-1)(delta, first, second)
    return _log_ratio_of_factors(delta, scale, guide_scale)


def _solved(factor: Float[Array, "latent latent"], right: Float[Array, "latent *columns"]) -> Float[Array, "..."]:
    """`factor⁻¹ right` by forward substitution, written out.

    Two batches of `solve_triangular` at a time can deadlock XLA on a CPU (jaxlib 0.10.2, from about 60,000 matrices).
    """
    rows = []
    for i in range(factor.shape[0]):
        rows.append((right[i] - sum(factor[i, j] * rows[j] for j in range(i))) / factor[i, i])
    return jnp.stack(rows)


def _log_ratio_of_factors(delta: Float[Array, "latent"], scale: Scale, guide_scale: Scale) -> Float[Array, ""]:
    target, guide = as_factor(scale), as_factor(guide_scale)
    identity = jnp.eye(delta.shape[0], dtype=delta.dtype)
    # Whitened by the guide: |2I − B Bᵀ| with B = guide⁻¹ target keeps the scales out of the difference.
    ratio = _solved(guide, target)
    wide = 2 * identity - ratio @ ratio.T
    # Looked at first and replaced before it is differentiated: a failed factorisation has no gradient.
    finite = jnp.isfinite(jnp.linalg.cholesky(jax.lax.stop_gradient(wide))).all()
    factor = jnp.linalg.cholesky(jnp.where(finite, wide, identity))
    white = _solved(factor, _solved(guide, delta))
    log_ratio = -jnp.log(jnp.abs(jnp.diagonal(ratio))).sum() - jnp.log(jnp.diagonal(factor)).sum() + white @ white
    return jnp.where(finite, log_ratio, jnp.inf)


def moments(
    log_weight: Float[Array, "particles"], z: Float[Array, "latent particles"]
) -> tuple[Float[Array, "latent"], Float[Array, "latent"]]:
    """The weighted mean and variance of every coordinate; weights are normalised."""
    weight = jnp.exp(log_weight)
    mean = z @ weight
    square = (z - mean[:, None]) ** 2
    return mean, jnp.where(weight > 0, square, 0.0) @ weight  # 0 · ∞ is not a number


# --- a covariance of its own for every particle -----------------------------------------------------------------------


def factored(matrix: Float[Array, "latent latent particles"]) -> Float[Array, "latent latent particles"]:
    """The lower factor; what rounding has made negative becomes nearly nothing, which a proposal may be."""
    rows, zero = factored_rows(matrix), jnp.zeros_like(matrix[0, 0])
    return jnp.stack([jnp.stack(row + [zero] * (matrix.shape[0] - len(row))) for row in rows])


def factored_rows(matrix: Entries | Float[Array, "latent latent particles"]) -> Entries:
    """The entries of the lower factor, row by row up to the diagonal; of the matrix no others are read."""
    size = len(matrix)
    largest = reduce(jnp.maximum, (jnp.abs(matrix[i][i]) for i in range(size)))
    tiny = jnp.finfo(largest.dtype).eps * jnp.maximum(largest, 1e-30)
    rows: list[list] = [[] for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            left = matrix[i][j] - sum(rows[i][k] * rows[j][k] for k in range(j))
            rows[i].append(jnp.sqrt(jnp.maximum(left, tiny)) if i == j else left / rows[j][j])
    return rows


def forward_solved(factor: Float[Array, "latent latent particles"], right) -> list:
    """`factor⁻¹ right`, rows in a list."""
    out: list = []
    for i in range(factor.shape[0]):
        out.append((right[i] - sum(factor[i, j] * out[j] for j in range(i))) / factor[i, i])
    return out


def backward_solved(factor: Float[Array, "latent latent particles"], right: list) -> list:
    """`factor⁻ᵀ right`, rows in a list."""
    size = factor.shape[0]
    out: list = [None] * size
    for i in reversed(range(size)):
        out[i] = (right[i] - sum(factor[j, i] * out[j] for j in range(i + 1, size))) / factor[i, i]
    return out


def gain_back(
    factor: Float[Array, "latent latent particles"], cross: Float[Array, "latent latent particles"]
) -> Float[Array, "latent latent particles"]:
    """`V Fᵀ S⁻¹`, the smoother's gain, from the factor of S and `cross = F V`."""
    columns = range(cross.shape[1])
    return jnp.stack([jnp.stack(backward_solved(factor, forward_solved(factor, cross[:, k]))) for k in columns])


def factored_log_density(residual: Float[Array, "latent particles"], factor) -> Float[Array, "particles"]:
    white = jnp.stack(forward_solved(factor, residual))
    log_det = sum(jnp.log(factor[i, i]) for i in range(factor.shape[0]))
    return -0.5 * total(white**2) - log_det - 0.5 * LOG_2PI * residual.shape[0]
