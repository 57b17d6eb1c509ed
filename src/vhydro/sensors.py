"""Sensors that are not linear with Gaussian noise: Student-t noise for outliers, ranges and bearings to beacons.

Each is an `Emission`. Their updates are guides, not certificates: use `Gate(certificate="pilot")` or "frozen".
"""

from collections.abc import Sequence
from typing import ClassVar, final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, i0e
from jaxtyping import Array, Float

from vhydro.emission import Emission, LinearEmission, Observation
from vhydro.gaussian import LOG_2PI, Conditioned, Scale, conditioned_axes, conditioned_one_by_one, is_diagonal
from vhydro.model import linear_emission
from vhydro.small import matvec, over, total

FARTHEST = 1e15  # standard deviations; beyond it a reading counts as this far off, so that float32 can square it
ROUNDS = 6  # of the fixed point for how much a reading is trusted
LINEARISATIONS = 2  # at the predicted state, then where that one leads


@final
class StudentEmission(Emission):
    """`o = C z + c + noise` with independent Student-t noise per channel: an outlier moves nobody far.

    `linear` holds C, c and the noise's scale (its standard deviation if it were Gaussian); fewer degrees of freedom
    mean heavier tails.
    """

    linear: LinearEmission
    log_freedom: Float[Array, "channels"]

    @property
    def latent(self) -> int:
        return self.linear.latent

    @property
    def channels(self) -> int:
        return self.linear.channels

    @property
    def freedom(self) -> Float[Array, "channels"]:
        return jnp.exp(self.log_freedom)

    def mean(self, z: Float[Array, "latent *particles"]) -> Float[Array, "channels *particles"]:
        """The expected standardised observation (the median, where there is no mean)."""
        return self.linear.mean(z)

    def _log_density(self, square: Float[Array, "channels *particles"]) -> Float[Array, "channels *particles"]:
        """Of readings whose squared distance, in squared noise scales, is this."""
        freedom, noise = (over(x, square.ndim - 1) for x in (self.freedom, self.linear.noise))
        constant = gammaln((freedom + 1) / 2) - gammaln(freedom / 2) - 0.5 * jnp.log(jnp.pi * freedom) - jnp.log(noise)
        return constant - (freedom + 1) / 2 * jnp.log1p(square / freedom)

    def _score(self, z: Float[Array, "latent *particles"], seen: Observation) -> Float[Array, "channels *particles"]:
        error = (over(seen.value, z.ndim - 1) - self.mean(z)) / over(self.linear.noise, z.ndim - 1)
        return jnp.clip(error, -FARTHEST, FARTHEST)

    def log_likelihood(self, z: Float[Array, "latent *particles"], seen: Observation) -> Float[Array, "*particles"]:
        return total(jnp.where(over(seen.observed, z.ndim - 1), self._log_density(self._score(z, seen) ** 2), 0.0))

    def log_peak(self, seen: Observation) -> Float[Array, ""]:
        return total(jnp.where(seen.observed, self._log_density(jnp.zeros_like(seen.value)), 0.0))

    def surprise(
        self, mean: Float[Array, "latent *particles"], scale: Scale, seen: Observation
    ) -> Float[Array, "channels *particles"]:
        """In standard deviations as if the noise were Gaussian."""
        return self.linear.surprise(mean, scale, seen)

    def condition(self, mean: Float[Array, "latent *particles"], scale: Scale, seen: Observation) -> Conditioned:
        """The variational update: each particle trusts each reading as its own distance from it says.

        Student-t noise is Gaussian noise of an unknown precision. With the expected precision in its place the update
        is Gaussian and its evidence a lower bound of the true one, for `log g` is convex in the squared residual.
        """
        axes, noise = mean.ndim - 1, self.linear.noise
        score = self._score(mean, seen)
        trust, log_slack = self._trust(score, self._spread(mean, scale))
        eased = over(noise, axes) / jnp.sqrt(trust)
        residual = over(noise, axes) * score
        if self.linear.axes is not None and is_diagonal(scale, mean):
            after = conditioned_axes(mean, scale, self.linear.axes, self.linear.gain, eased, residual, seen.observed)
        else:
            after = conditioned_one_by_one(mean, scale, self.linear.dense(), eased, residual, seen.observed)
        slack = total(jnp.where(over(seen.observed, axes), log_slack, 0.0))
        return after._replace(log_evidence=after.log_evidence + slack, log_square=jnp.full_like(slack, jnp.inf))

    def _spread(self, mean: Float[Array, "latent *particles"], scale: Scale) -> Float[Array, "channels ..."]:
        """The variance of `C z`, in squared noise scales."""
        matrix, axes = self.linear.dense(), mean.ndim - 1
        diagonal = is_diagonal(scale, mean)
        variance = matvec(matrix**2, scale**2) if diagonal else (matvec(matrix, scale) ** 2).sum(1)
        return variance / over(self.linear.noise, axes) ** 2

    def _trust(self, score: Float[Array, "channels *particles"], spread: Float[Array, "channels ..."]):
        """The precision each reading is given, in that of the noise's scale, and what its Gaussian lacks in log g.

        Two fixed points compete where state and reading disagree: the reading is right, or it is an outlier. Each
        channel takes the one with the larger evidence.
        """
        freedom = over(self.freedom, score.ndim - 1)

        def trust_at(square):
            return (freedom + 1) / (freedom + square)

        def settled(trust):
            for _ in range(ROUNDS):
                kept = 1 / (1 + trust * spread)
                trust = trust_at((kept * score) ** 2 + kept * spread)
            return trust

        def log_slack(trust):  # tangent to log g where the squared residual is what this trust stands for
            square = jnp.maximum((freedom + 1) / trust - freedom, 0.0)
            log_noise = jnp.log(over(self.linear.noise, score.ndim - 1))
            return self._log_density(square) + 0.5 * (trust * square + LOG_2PI - jnp.log(trust)) + log_noise

        def log_evidence(trust):
            whole = spread + 1 / trust
            return log_slack(trust) - 0.5 * (jnp.log(whole) + score**2 / whole)

        right, outlier = settled(jnp.ones_like(score)), settled(trust_at(score**2 + spread))
        trust = jnp.where(log_evidence(right) >= log_evidence(outlier), right, outlier)
        return trust, log_slack(trust)


def student_emission(
    matrix,
    *,
    noise,
    freedom=4.0,
    offset=None,
    noise_floor: float = 1e-4,
    axes: Sequence[int] | None = None,
    dtype=jnp.float32,
) -> StudentEmission:
    """A linear emission with Student-t noise, in standardised channels.

    `noise` is the scale of each channel's noise and `freedom` its degrees of freedom, one for all or one each: 4 is a
    usual choice, 1 is Cauchy noise, 30 is nearly Gaussian. The rest is as in `linear_emission`.
    """
    linear = linear_emission(matrix, noise=noise, offset=offset, noise_floor=noise_floor, axes=axes, dtype=dtype)
    return StudentEmission(linear, jnp.asarray(np.log(_positive(freedom, linear.channels, "freedom")), dtype))


def _positive(value, count: int, what: str) -> np.ndarray:
    given = np.asarray(value, np.float64)
    if given.shape not in ((), (1,), (count,)) or not (np.isfinite(given) & (given > 0)).all():
        raise ValueError(f"{what} is {given}; expected one positive number, or {count} of them.")
    return np.broadcast_to(given, (count,))


def wrapped(angle: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The angle in [−π, π], in radians."""
    return angle - 2 * jnp.pi * jnp.round(angle / (2 * jnp.pi))


@final
class RangeBearingEmission(Emission):
    """Ranges and bearings of known beacons from a point in the plane: first all ranges, then all bearings.

    A range has Gaussian noise. A bearing is the direction from the point to the beacon, in radians against the first
    axis, or against the heading where z holds one. Its noise is von Mises with concentration `1/noise²`: normalised
    on one turn, the same for any whole turns added to a reading, and nearly Gaussian when the noise is small.
    """

    beacons: Float[Array, "beacons 2"]
    log_range_noise: Float[Array, "beacons"]
    log_bearing_noise: Float[Array, "beacons"]
    noise_floor: float = eqx.field(static=True)
    coordinates: int = eqx.field(static=True)
    axes: tuple[int, ...] = eqx.field(static=True)
    heading: int | None = eqx.field(static=True)

    raw_units: ClassVar[bool] = True

    def __check_init__(self):
        read = (*self.axes, *(() if self.heading is None else (self.heading,)))
        if len(self.axes) != 2 or len(set(read)) != len(read) or not all(0 <= a < self.coordinates for a in read):
            raise ValueError(
                f"axes are {self.axes} and heading is {self.heading}; expected two coordinates from 0 to "
                f"{self.coordinates - 1} for the place, and None or another one for the heading."
            )

    @property
    def latent(self) -> int:
        return self.coordinates

    @property
    def channels(self) -> int:
        return 2 * self.beacons.shape[0]

    @property
    def noise(self) -> Float[Array, "channels"]:
        """The standard deviations of the ranges; of the bearings in radians, while they are small."""
        return self.noise_floor + jnp.exp(jnp.concatenate([self.log_range_noise, self.log_bearing_noise]))

    def _towards(self, z: Float[Array, "latent *particles"]):
        """The way from each particle to each beacon, along both axes, and its length."""
        across, up = (over(self.beacons[:, i], z.ndim - 1) - z[a] for i, a in enumerate(self.axes))
        square = across**2 + up**2
        # At a beacon the length has no slope; whatever stands there instead must not become a NaN.
        return across, up, jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)

    def mean(self, z: Float[Array, "latent *particles"]) -> Float[Array, "channels *particles"]:
        """The expected observation; bearings are in [−π, π] without a heading."""
        across, up, distance = self._towards(z)
        here = distance > 0
        bearing = jnp.arctan2(jnp.where(here, up, 0.0), jnp.where(here, across, 1.0))
        return jnp.concatenate([distance, bearing if self.heading is None else bearing - z[self.heading]])

    def residual(self, z: Float[Array, "latent *particles"], seen: Observation) -> Float[Array, "channels *particles"]:
        """What was seen less what was expected, bearings wrapped."""
        error = over(seen.value, z.ndim - 1) - self.mean(z)
        count = self.beacons.shape[0]
        return jnp.concatenate([error[:count], wrapped(error[count:])])

    def _log_density(self, residual: Float[Array, "channels *particles"]) -> Float[Array, "channels *particles"]:
        count, noise = self.beacons.shape[0], over(self.noise, residual.ndim - 1)
        ranges = -0.5 * (residual[:count] / noise[:count]) ** 2 - jnp.log(noise[:count]) - 0.5 * LOG_2PI
        # κ (cos r − 1) without the cancellation, and I₀(κ) without the overflow
        concentration = noise[count:] ** -2
        bearings = -2 * concentration * jnp.sin(residual[count:] / 2) ** 2 - LOG_2PI - jnp.log(i0e(concentration))
        return jnp.concatenate([ranges, bearings])

    def log_likelihood(self, z: Float[Array, "latent *particles"], seen: Observation) -> Float[Array, "*particles"]:
        return total(jnp.where(over(seen.observed, z.ndim - 1), self._log_density(self.residual(z, seen)), 0.0))

    def log_peak(self, seen: Observation) -> Float[Array, ""]:
        return total(jnp.where(seen.observed, self._log_density(jnp.zeros_like(seen.value)), 0.0))

    def _slope(self, z: Float[Array, "latent *particles"]) -> Float[Array, "channels latent *particles"]:
        """How the expected observation changes with z; no steeper than it is one range noise off a beacon."""
        across, up, distance = self._towards(z)
        count = self.beacons.shape[0]
        length = jnp.maximum(distance, over(self.noise[:count], z.ndim - 1))
        along = jnp.zeros((2 * count, self.latent, *z.shape[1:]), z.dtype)
        for axis, ranges, bearings in zip(self.axes, (-across, -up), (up, -across), strict=True):
            along = along.at[:, axis].set(jnp.concatenate([ranges / length, bearings / length**2]))
        return along if self.heading is None else along.at[count:, self.heading].set(-1.0)

    def surprise(
        self, mean: Float[Array, "latent *particles"], scale: Scale, seen: Observation
    ) -> Float[Array, "channels *particles"]:
        """In standard deviations of the channel's noise and the state's together, linearised."""
        variance = ((self._slope(mean) * scale) ** 2).sum(1) + over(self.noise, mean.ndim - 1) ** 2
        return self.residual(mean, seen) / jnp.sqrt(variance)

    def condition(self, mean: Float[Array, "latent *particles"], scale: Scale, seen: Observation) -> Conditioned:
        """The update with the sensor linearised at the mean and again where that leads (iterated Kalman update)."""
        point, after = mean, None
        for _ in range(LINEARISATIONS):
            rows = self._slope(point)
            residual = self.residual(point, seen) - (rows * (mean - point)).sum(1)
            after = conditioned_one_by_one(mean, scale, rows, self.noise, residual, seen.observed)
            point = after.mean
        assert after is not None
        return after


def range_bearing_emission(
    latent: int,
    *,
    beacons,
    range_noise,
    bearing_noise,
    axes: Sequence[int] = (0, 1),
    heading: int | None = None,
    noise_floor: float = 1e-4,
    dtype=jnp.float32,
) -> RangeBearingEmission:
    """Ranges and bearings of beacons at known places: channels are all ranges, then all bearings.

    `beacons` is (beacons, 2) in units of the log, `axes` says which coordinates of z are the place in the same units,
    `heading` which one is the direction that bearings count from, in radians, if any. `range_noise` (units of the log)
    and `bearing_noise` (radians) are standard deviations, one for all beacons or one each. Readings come as they are:
    give `hybrid_model` no shift and no scale. NaN hides a range or a bearing that was not measured.
    """
    places = np.asarray(beacons, np.float64)
    if places.ndim != 2 or places.shape[1] != 2 or not len(places) or not np.isfinite(places).all():
        raise ValueError(f"beacons have shape {places.shape}; expected (beacons, 2), every number finite.")
    given = {"range_noise": range_noise, "bearing_noise": bearing_noise}
    noises = [_positive(value, len(places), what) for what, value in given.items()]
    for what, noise in zip(given, noises, strict=True):
        if not (noise > noise_floor).all():
            raise ValueError(f"{what} is {noise.min()}; expected more than the floor {noise_floor}.")
    range_log, bearing_log = (jnp.asarray(np.log(noise - noise_floor), dtype) for noise in noises)
    place = tuple(int(a) for a in axes)
    return RangeBearingEmission(jnp.asarray(places, dtype), range_log, bearing_log, noise_floor, latent, place, heading)
