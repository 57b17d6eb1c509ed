"""Gaussians of one mode: densities, draws and the exact update by a linear observation.

A `scale` is the lower-triangular factor of a covariance, or, one dimension less, the standard deviations of a
diagonal one; every function here takes both. Factors, never covariances: nothing is squared, so float32 lasts.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float

LOG_2PI = 1.8378770664093453

Scale = Float[Array, "latent"] | Float[Array, "latent latent"]


class Conditioned(NamedTuple):
    """One mode's law after seeing `o`: evidence `E[g]`, second moment `E[g²]`, and the posterior of z."""

    log_evidence: Float[Array, ""]
    log_square: Float[Array, ""]
    mean: Float[Array, "latent"]
    scale: Scale


def coloured(scale: Scale, noise: Float[Array, "latent"]) -> Float[Array, "latent"]:
    """Noise with this scale, from standard normal noise."""
    return scale * noise if scale.ndim == 1 else scale @ noise


def log_density(residual: Float[Array, "latent"], scale: Scale) -> Float[Array, ""]:
    """The log density of a residual under a centred Gaussian."""
    if scale.ndim == 1:
        white, log_det = residual / scale, jnp.log(scale).sum()
    else:
        # The inverse is shared by all particles whenever the scale is; a solve per particle would not be.
        inverse = solve_triangular(scale, jnp.eye(scale.shape[0], dtype=scale.dtype), lower=True)
        white, log_det = inverse @ residual, jnp.log(jnp.abs(jnp.diagonal(scale))).sum()
    return -0.5 * (white @ white) - log_det - 0.5 * LOG_2PI * residual.shape[0]


def as_factor(scale: Scale) -> Float[Array, "latent latent"]:
    return jnp.diag(scale) if scale.ndim == 1 else scale


def _triangular(stacked: Float[Array, "rows cols"]) -> Float[Array, "cols cols"]:
    """The lower-triangular factor L with `L Lᵀ = stackedᵀ stacked` and a positive diagonal."""
    upper = jnp.linalg.qr(stacked, mode="r")
    sign = jnp.where(jnp.diagonal(upper) < 0, -1.0, 1.0).astype(upper.dtype)
    return (sign[:, None] * upper).T


def conditioned(
    mean: Float[Array, "latent"],
    scale: Scale,
    matrix: Float[Array, "channels latent"],
    noise: Float[Array, "channels"],
    residual: Float[Array, "channels"],
    observed: Bool[Array, "channels"],
) -> Conditioned:
    """The update of `N(mean, scale)` by `o = matrix z + noise`, `residual = o − matrix mean`, hidden rows dropped.

    Square-root form: one QR gives the innovation factor, the gain and the posterior factor.
    """
    seen = observed.astype(mean.dtype)
    factor, channels = as_factor(scale), matrix.shape[0]
    # A hidden row becomes an independent unit channel with residual 0: it changes nothing and costs no branch.
    spread = (seen[:, None] * matrix) @ factor
    noise = jnp.where(observed, noise, 1.0)
    residual = seen * residual
    pre = jnp.block([[jnp.diag(noise), jnp.zeros((channels, mean.shape[0]), mean.dtype)], [spread.T, factor.T]])
    post = _triangular(pre)
    innovation, cross, after = post[:channels, :channels], post[channels:, :channels], post[channels:, channels:]
    half = _triangular(jnp.concatenate([jnp.diag(jnp.where(observed, noise * 0.5**0.5, 1.0)), spread.T]))
    identity = jnp.eye(channels, dtype=mean.dtype)
    white_map = solve_triangular(innovation, identity, lower=True)
    half_map = solve_triangular(half, identity, lower=True)
    white, half_white = white_map @ residual, half_map @ residual
    count = seen.sum()
    log_evidence = -0.5 * (white @ white) - jnp.log(jnp.diagonal(innovation)).sum() - 0.5 * LOG_2PI * count
    # g² = (4π)^{-k/2} |R|^{-1/2} N(o; Cz, R/2)
    log_square = (
        -0.5 * (half_white @ half_white)
        - jnp.log(jnp.diagonal(half)).sum()
        - jnp.log(noise).sum()
        - (LOG_2PI + 0.5 * jnp.log(2.0).astype(mean.dtype)) * count
    )
    return Conditioned(log_evidence, log_square, mean + cross @ white, after)


def conditioned_axes(
    mean: Float[Array, "latent"],
    scale: Float[Array, "latent"],
    axes: tuple[int, ...],
    gain: Float[Array, "channels"],
    noise: Float[Array, "channels"],
    residual: Float[Array, "channels"],
    observed: Bool[Array, "channels"],
) -> Conditioned:
    """The same update when channel c reads coordinate `axes[c]` alone: everything is elementwise."""
    index = np.asarray(axes)
    prior, error = scale[index] ** 2, noise**2
    spread = gain**2 * prior
    total, half = spread + error, spread + 0.5 * error
    squared = residual**2
    evidence = -0.5 * (LOG_2PI + jnp.log(total) + squared / total)
    log_2 = jnp.log(jnp.asarray(2.0, mean.dtype))
    square = -0.5 * (2 * LOG_2PI + log_2 + jnp.log(error) + jnp.log(half) + squared / half)
    shift = jnp.where(observed, prior * gain * residual / total, 0.0)
    shrink = jnp.where(observed, jnp.sqrt(error / total), 1.0)
    # Back to coordinates by a fixed gather, which is cheaper than a scatter; unread ones take the neutral last entry.
    reader = np.full(mean.shape[0], len(axes))
    reader[list(axes)] = np.arange(len(axes))
    return Conditioned(
        jnp.where(observed, evidence, 0.0).sum(),
        jnp.where(observed, square, 0.0).sum(),
        mean + jnp.append(shift, 0.0)[reader],
        scale * jnp.append(shrink, 1.0)[reader],
    )


def log_second_moment_ratio(
    mean: Float[Array, "latent"],
    scale: Scale,
    guide_mean: Float[Array, "latent"],
    guide_scale: Scale,
) -> Float[Array, ""]:
    """`log ∫ N(z; mean, S*)² / N(z; guide_mean, S) dz`, infinite unless `2 S ≻ S*`.

    Equals `log|S| − ½ log|S*| − ½ log|2S − S*| + ½ δᵀ (S − S*/2)⁻¹ δ`.
    """
    delta = guide_mean - mean
    if scale.ndim == 1 and guide_scale.ndim == 1:
        wide = 2 * guide_scale**2 - scale**2
        safe = jnp.where(wide > 0, wide, 1.0)
        terms = 2 * jnp.log(guide_scale) - jnp.log(scale) - 0.5 * jnp.log(safe) + delta**2 / safe
        return jnp.where((wide > 0).all(), terms.sum(), jnp.inf)
    target, guide = as_factor(scale), as_factor(guide_scale)
    # Whitened by the guide: |2I − B Bᵀ| with B = guide⁻¹ target keeps the scales out of the difference.
    ratio = solve_triangular(guide, target, lower=True)
    wide = 2 * jnp.eye(delta.shape[0], dtype=delta.dtype) - ratio @ ratio.T
    factor = jnp.linalg.cholesky(wide)
    finite = jnp.isfinite(factor).all()
    factor = jnp.where(finite, factor, jnp.eye(delta.shape[0], dtype=delta.dtype))
    white = solve_triangular(factor, solve_triangular(guide, delta, lower=True), lower=True)
    log_ratio = -jnp.log(jnp.abs(jnp.diagonal(ratio))).sum() - jnp.log(jnp.diagonal(factor)).sum() + white @ white
    return jnp.where(finite, log_ratio, jnp.inf)


def moments(
    log_weight: Float[Array, "particles"], z: Float[Array, "latent particles"]
) -> tuple[Float[Array, "latent"], Float[Array, "latent"]]:
    """The weighted mean and variance of every coordinate; weights are normalised."""
    weight = jnp.exp(log_weight)
    mean = z @ weight
    return mean, (z - mean[:, None]) ** 2 @ weight


def log_sum(values: Float[Array, "*shape"], axis=None) -> Float[Array, "..."]:
    """`logsumexp` without its sign and weight handling: fewer operations in the hot path."""
    top = jax.lax.stop_gradient(jnp.max(values, axis=axis, keepdims=True))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    total = jnp.log(jnp.exp(values - top).sum(axis=axis, keepdims=True)) + top
    return total.reshape(()) if axis is None else jnp.squeeze(total, axis)
