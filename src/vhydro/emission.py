"""What a state looks like to the sensors, over the channels that were observed.

`Emission` is the contract of every sensor, one's own included; see docs/howto/sensors.md. `LinearEmission` alone has
closed-form certificates, which is why it is final.
"""

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from vhydro.gaussian import (
    LOG_2PI,
    Conditioned,
    Scale,
    conditioned,
    conditioned_axes,
    factor_of,
    is_diagonal,
    log_density,
)
from vhydro.network import Network
from vhydro.small import matvec, over, total

PEAK_SLACK = 1e-3  # nats of rounding by which a likelihood may pass its peak


class Observation(NamedTuple):
    """One standardised observation; where `observed` is False the value is 0 and means nothing."""

    value: Float[Array, "channels"]
    observed: Bool[Array, "channels"]


class Emission(eqx.Module):
    """A likelihood `g(z)` of one reading. Arrays are (latent, *particles): with no particle axis, one particle.

    To write one: say `latent` and `channels`, and return `log_likelihood` and `log_peak`. The rest is for guides,
    which the weights correct, so that an approximation will do. A field is a parameter; mark it static if not learned.
    """

    if TYPE_CHECKING:  # a property to a type checker; at run time also a field or a plain class attribute

        @property
        def latent(self) -> int: ...

        @property
        def channels(self) -> int: ...

    else:
        latent: eqx.AbstractVar[int]  # coordinates of z
        channels: eqx.AbstractVar[int]  # numbers in a reading
    # Whether readings are taken in units of the log. Where False, the model's shift and scale have standardised them.
    raw_units: ClassVar[bool] = False

    @abstractmethod
    def log_likelihood(self, z: Float[Array, "latent *particles"], seen: Observation) -> Float[Array, "*particles"]:
        """The log density of the observed channels given z; hidden ones count nothing, so nothing observed gives 0."""

    @abstractmethod
    def log_peak(self, seen: Observation) -> Float[Array, ""]:
        """The log of the largest value the likelihood of these observed channels has at any z, or more than that.

        Certificates by pilot draws rest on it: one that is too large loosens them, one too small would make them false.
        """

    def surprise(
        self,
        mean: Float[Array, "latent *particles"],
        scale: Scale,  # noqa: ARG002
        seen: Observation,  # noqa: ARG002
    ) -> Float[Array, "channels *particles"]:
        """How far each reading is from what `N(mean, scale)` predicts, in predicted standard deviations.

        Learned guides read it; 0 says nothing, and is what a sensor without an expected reading says. The scale is
        diagonal, hidden channels may say anything.
        """
        return jnp.zeros((self.channels, *mean.shape[1:]), mean.dtype)

    def condition(
        self,
        mean: Float[Array, "latent *particles"],
        scale: Scale,
        seen: Observation,  # noqa: ARG002
    ) -> Conditioned:
        """`N(mean, scale)` of one mode after the reading, as a guide; unless overridden nothing was learned from it."""
        nothing = jnp.zeros(mean.shape[1:], mean.dtype)
        return Conditioned(nothing, nothing + jnp.inf, mean, scale)


def dtype_of(emission: Emission) -> np.dtype:
    """The type of an emission's parameters; float32 where it has none."""
    found = [x.dtype for x in jax.tree.leaves(eqx.filter(emission, eqx.is_inexact_array))]
    return np.dtype(jnp.result_type(*found) if found else jnp.float32)


def _log_likelihood(
    expected: Float[Array, "channels *particles"], noise: Float[Array, "channels"], seen: Observation
) -> Float[Array, "*particles"]:
    value, observed, noise = (over(x, expected.ndim - 1) for x in (seen.value, seen.observed, noise))
    terms = -0.5 * ((value - expected) / noise) ** 2 - (jnp.log(noise) + 0.5 * LOG_2PI)
    return total(jnp.where(observed, terms, 0.0))


def _log_peak(noise: Float[Array, "channels"], seen: Observation) -> Float[Array, ""]:
    return total(jnp.where(seen.observed, -jnp.log(noise) - 0.5 * LOG_2PI, 0.0))


@final
class LinearEmission(Emission):
    """`o = C z + c + noise` in standardised channels; the noise is independent per channel unless `noise_lower` is set.

    `axes` says that channel c reads coordinate `axes[c]` alone: certificates and updates become elementwise.
    With `noise_lower` the covariance is `R = L D² Lᵀ`, D the `noise` and L unit lower triangular.
    """

    matrix: Float[Array, "channels latent"]
    offset: Float[Array, "channels"]
    log_noise: Float[Array, "channels"]
    noise_floor: float = eqx.field(static=True)
    axes: tuple[int, ...] | None = eqx.field(static=True)
    noise_lower: Float[Array, "channels channels"] | None = None  # entries below the diagonal of L; others unused

    def __init_subclass__(cls, **options):
        raise TypeError(
            f"{cls.__name__} derives from LinearEmission, whose certificates hold for its own likelihood alone; derive "
            "from Emission and keep a LinearEmission as a field."
        )

    @property
    def latent(self) -> int:
        return self.matrix.shape[1]

    @property
    def channels(self) -> int:
        return self.matrix.shape[0]

    @property
    def noise(self) -> Float[Array, "channels"]:
        return self.noise_floor + jnp.exp(self.log_noise)

    @property
    def channel_noise(self) -> Float[Array, "channels"]:
        """The standard deviation of every channel by itself."""
        if self.noise_lower is None:
            return self.noise
        return jnp.sqrt(jnp.sum(factor_of(self.noise, self.noise_lower) ** 2, axis=1))

    def noise_factor(self, observed: Bool[Array, "channels"]) -> Float[Array, "channels channels"]:
        """The lower-triangular factor of R over the observed channels; a hidden one is an independent unit channel."""
        if self.noise_lower is None:
            return jnp.diag(jnp.where(observed, self.noise, 1.0))
        factor = factor_of(self.noise, self.noise_lower)
        both = observed[:, None] & observed[None, :]
        identity = jnp.eye(factor.shape[0], dtype=factor.dtype)
        return jnp.linalg.cholesky(jnp.where(both, factor @ factor.T, identity))

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
        if self.noise_lower is None:
            return _log_likelihood(self.mean(z), self.noise, seen)
        factor = self.noise_factor(seen.observed)
        residual = over(seen.value, z.ndim - 1) - self.mean(z)
        residual = jnp.where(over(seen.observed, z.ndim - 1), residual, 0.0)
        # A hidden channel is a unit one with residual 0: only its constant has to be taken off again.
        return log_density(residual, over(factor, z.ndim - 1)) + 0.5 * LOG_2PI * (~seen.observed).sum()

    def log_peak(self, seen: Observation) -> Float[Array, ""]:
        if self.noise_lower is None:
            return _log_peak(self.noise, seen)
        return _log_peak(jnp.diagonal(self.noise_factor(seen.observed)), seen)

    def predicted_variance(self, scale: Scale, axes: int) -> Float[Array, "channels ..."]:
        """The variance of each reading of a Gaussian z with this scale, which has `axes` particle axes."""
        matrix, noise = self.dense(), over(self.channel_noise**2, axes)
        if scale.ndim - axes == 1:
            return noise + matvec(matrix**2, scale**2)
        return noise + jnp.sum(jnp.tensordot(matrix, scale, axes=1) ** 2, axis=1)

    def surprise(
        self, mean: Float[Array, "latent *particles"], scale: Scale, seen: Observation
    ) -> Float[Array, "channels *particles"]:
        """In standard deviations of the channel's noise and the state's together."""
        axes = mean.ndim - 1
        return (over(seen.value, axes) - self.mean(mean)) / jnp.sqrt(self.predicted_variance(scale, axes))

    def condition(self, mean: Float[Array, "latent *particles"], scale: Scale, seen: Observation) -> Conditioned:
        """The exact update of one mode's Gaussian by what was seen; particles share the scale."""
        residual = over(seen.value, mean.ndim - 1) - self.mean(mean)
        if self.axes is not None and self.noise_lower is None and is_diagonal(scale, mean):
            return conditioned_axes(mean, scale, self.axes, self.gain, self.noise, residual, seen.observed)
        noise = self.noise if self.noise_lower is None else self.noise_factor(seen.observed)
        return conditioned(mean, scale, self.dense(), noise, residual, seen.observed)

    def dense(self) -> Float[Array, "channels latent"]:
        if self.axes is None:
            return self.matrix
        return jnp.zeros_like(self.matrix).at[jnp.arange(len(self.axes)), jnp.asarray(self.axes)].set(self.gain)


@final
class NetworkEmission(Emission):
    """`o = f(z) + noise` with a network f: certificates are then estimated by a pilot, not closed form."""

    network: Network
    log_noise: Float[Array, "channels"]
    noise_floor: float = eqx.field(static=True)

    @property
    def latent(self) -> int:
        return self.network.weights[0].shape[1]

    @property
    def channels(self) -> int:
        return self.log_noise.shape[0]

    @property
    def noise(self) -> Float[Array, "channels"]:
        return self.noise_floor + jnp.exp(self.log_noise)

    def mean(self, z: Float[Array, "latent *particles"]) -> Float[Array, "channels *particles"]:
        """The expected standardised observation."""
        return self.network(z)

    def log_likelihood(self, z: Float[Array, "latent *particles"], seen: Observation) -> Float[Array, "*particles"]:
        return _log_likelihood(self.mean(z), self.noise, seen)

    def log_peak(self, seen: Observation) -> Float[Array, ""]:
        return _log_peak(self.noise, seen)

    def surprise(
        self,
        mean: Float[Array, "latent *particles"],
        scale: Scale,  # noqa: ARG002
        seen: Observation,
    ) -> Float[Array, "channels *particles"]:
        """In standard deviations of the channel's noise alone."""
        axes = mean.ndim - 1
        return (over(seen.value, axes) - self.mean(mean)) / over(self.noise, axes)

    def condition(self, mean: Float[Array, "latent *particles"], scale: Scale, seen: Observation) -> Conditioned:
        """The update of one mode's Gaussian with f linearised at its mean: a guide, not a certificate."""
        if mean.ndim > 1:
            one = jax.vmap(self.condition, in_axes=(-1, None, None), out_axes=-1)
            return one(mean, scale[..., 0], seen)
        residual = seen.value - self.mean(mean)
        return conditioned(mean, scale, jax.jacfwd(self.network)(mean), self.noise, residual, seen.observed)
