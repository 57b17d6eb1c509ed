"""What a state looks like to the sensors, over the channels that were observed."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from vhydro.gaussian import LOG_2PI, Conditioned, Scale, conditioned, conditioned_axes, is_diagonal
from vhydro.network import Network
from vhydro.small import matvec, over, total


class Observation(NamedTuple):
    """One standardised observation; where `observed` is False the value is 0 and means nothing."""

    value: Float[Array, "channels"]
    observed: Bool[Array, "channels"]


def _log_likelihood(
    expected: Float[Array, "channels *particles"], noise: Float[Array, "channels"], seen: Observation
) -> Float[Array, "*particles"]:
    value, observed, noise = (over(x, expected.ndim - 1) for x in (seen.value, seen.observed, noise))
    terms = -0.5 * ((value - expected) / noise) ** 2 - (jnp.log(noise) + 0.5 * LOG_2PI)
    return total(jnp.where(observed, terms, 0.0))


class LinearEmission(eqx.Module):
    """`o = C z + c + noise`, independent noise per channel, in standardised channels.

    `axes` says that channel c reads coordinate `axes[c]` alone: certificates and updates become elementwise.
    """

    matrix: Float[Array, "channels latent"]
    offset: Float[Array, "channels"]
    log_noise: Float[Array, "channels"]
    noise_floor: float = eqx.field(static=True)
    axes: tuple[int, ...] | None = eqx.field(static=True)

    @property
    def noise(self) -> Float[Array, "channels"]:
        return self.noise_floor + jnp.exp(self.log_noise)

    @property
    def gain(self) -> Float[Array, "channels"]:
        assert self.axes is not None
        return self.matrix[jnp.arange(len(self.axes)), jnp.asarray(self.axes)]

    def mean(self, z: Float[Array, "latent *particles"]) -> Float[Array, "channels *particles"]:
        """The expected standardised observation."""
        if self.axes is not None:
            return over(self.gain, z.ndim - 1) * z[np.asarray(self.axes)] + over(self.offset, z.ndim - 1)
        return matvec(self.matrix, z) + over(self.offset, z.ndim - 1)

    def log_likelihood(self, z: Float[Array, "latent *particles"], seen: Observation) -> Float[Array, "*particles"]:
        return _log_likelihood(self.mean(z), self.noise, seen)

    def condition(self, mean: Float[Array, "latent *particles"], scale: Scale, seen: Observation) -> Conditioned:
        """The exact update of one mode's Gaussian by what was seen; particles share the scale."""
        residual = over(seen.value, mean.ndim - 1) - self.mean(mean)
        if self.axes is not None and is_diagonal(scale, mean):
            return conditioned_axes(mean, scale, self.axes, self.gain, self.noise, residual, seen.observed)
        return conditioned(mean, scale, self.dense(), self.noise, residual, seen.observed)

    def dense(self) -> Float[Array, "channels latent"]:
        if self.axes is None:
            return self.matrix
        return jnp.zeros_like(self.matrix).at[jnp.arange(len(self.axes)), jnp.asarray(self.axes)].set(self.gain)


class NetworkEmission(eqx.Module):
    """`o = f(z) + noise` with a network f: certificates are then estimated by a pilot, not closed form."""

    network: Network
    log_noise: Float[Array, "channels"]
    noise_floor: float = eqx.field(static=True)

    @property
    def noise(self) -> Float[Array, "channels"]:
        return self.noise_floor + jnp.exp(self.log_noise)

    def mean(self, z: Float[Array, "latent *particles"]) -> Float[Array, "channels *particles"]:
        """The expected standardised observation."""
        return self.network(z)

    def log_likelihood(self, z: Float[Array, "latent *particles"], seen: Observation) -> Float[Array, "*particles"]:
        return _log_likelihood(self.mean(z), self.noise, seen)

    def condition(self, mean: Float[Array, "latent *particles"], scale: Scale, seen: Observation) -> Conditioned:
        """The update of one mode's Gaussian with f linearised at its mean: a guide, not a certificate."""
        if mean.ndim > 1:
            one = jax.vmap(self.condition, in_axes=(-1, None, None), out_axes=-1)
            return one(mean, scale[..., 0], seen)
        residual = seen.value - self.mean(mean)
        return conditioned(mean, scale, jax.jacfwd(self.network)(mean), self.noise, residual, seen.observed)


Emission = LinearEmission | NetworkEmission
