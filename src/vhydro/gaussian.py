"""Gaussians of one mode: densities, draws and the exact update by a linear observation.

A `scale` is the lower-triangular factor of a covariance, (latent, latent, *particles), or the standard deviations of
a diagonal one, (latent, *particles); its particle axes have length one when all particles share it. Factors, never
covariances: nothing is squared, so float32 lasts.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float

from vhydro.small import matvec, over, total

LOG_2PI = 1.8378770664093453

Scale = Float[Array, "latent ..."]


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
    noise: Float[Array, "channels"],
    residual: Float[Array, "channels *particles"],
    observed: Bool[Array, "channels"],
) -> Conditioned:
    """The update of `N(mean, scale)` by `o = matrix z + noise`, `residual = o − matrix mean`, hidden rows dropped.

    Square-root form: one QR gives the innovation factor, the gain and the posterior factor. The scale is shared, so
    all of that is done once and each particle costs three small products.
    """
    axes = mean.ndim - 1
    factor = as_factor(scale.reshape(scale.shape[: scale.ndim - axes]))
    channels, latent = matrix.shape
    seen = observed.astype(mean.dtype)
    # A hidden row becomes an independent unit channel with residual 0: it changes nothing and costs no branch.
    spread = (seen[:, None] * matrix) @ factor
    noise = jnp.where(observed, noise, 1.0)
    residual = over(seen, axes) * residual
    pre = jnp.block([[jnp.diag(noise), jnp.zeros((channels, latent), mean.dtype)], [spread.T, factor.T]])
    post = _triangular(pre)
    innovation, cross, after = (
        post[:channels, :channels],
        post[channels:, :channels],
        post[channels:, channels:],
    )
    half = _triangular(jnp.concatenate([jnp.diag(jnp.where(observed, noise * 0.5**0.5, 1.0)), spread.T]))
    identity = jnp.eye(channels, dtype=mean.dtype)
    white = matvec(solve_triangular(innovation, identity, lower=True), residual)
    half_white = matvec(solve_triangular(half, identity, lower=True), residual)
    count = seen.sum()
    log_evidence = -0.5 * total(white**2) - jnp.log(jnp.diagonal(innovation)).sum() - 0.5 * LOG_2PI * count
    # g² = (4π)^{-k/2} |R|^{-1/2} N(o; Cz, R/2)
    constant = jnp.log(jnp.diagonal(half)).sum() + jnp.log(noise).sum() + (LOG_2PI + 0.5 * float(np.log(2))) * count
    log_square = -0.5 * total(half_white**2) - constant
    return Conditioned(log_evidence, log_square, mean + matvec(cross, white), over(after, axes))


def conditioned_axes(
    mean: Float[Array, "latent *particles"],
    scale: Scale,
    axes: tuple[int, ...],
    gain: Float[Array, "channels"],
    noise: Float[Array, "channels"],
    residual: Float[Array, "channels *particles"],
    observed: Bool[Array, "channels"],
) -> Conditioned:
    """The same update when channel c reads coordinate `axes[c]` alone: everything is elementwise."""
    index, extra = np.asarray(axes), mean.ndim - 1
    gain, noise, observed = (over(x, extra) for x in (gain, noise, observed))
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
