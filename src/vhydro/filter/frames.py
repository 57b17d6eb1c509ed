"""What a filter step is given, what it carries on and what it reports."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vhydro.emission import Observation
from vhydro.gaussian import moments
from vhydro.model import HybridModel


class Frame(NamedTuple):
    """One time step of a log, standardised."""

    action: Float[Array, "*times inputs"]
    seen: Observation
    dt: Float[Array, "*times"]
    first: Bool[Array, "*times"]  # the state's start law applies, no transition
    valid: Bool[Array, "*times"]


class Watch(NamedTuple):
    """What the filter remembers of faults; see `faults`."""

    missed: Int[Array, "*times channels"]  # readings hidden in a row
    quiet: Int[Array, "*times"]  # steps since the last fault; below 0 after the belief gave way
    level: Float[Array, "*times inputs"]  # mean square of the actions so far, standardised, at least 1


class Particles(NamedTuple):
    """A weighted population. `covariance` is there when z is a Gaussian, of which `z` is then the mean.

    `ancestor` is each particle's number before the step, kept where samples are held fixed.
    """

    mode: Int[Array, "*times particles"]
    z: Float[Array, "*times latent particles"]
    log_weight: Float[Array, "*times particles"]
    ess: Float[Array, "*times"]  # ESS/N of the weights, which the resampling rule reads
    covariance: Float[Array, "*times latent latent particles"] | None = None
    watch: Watch | None = None
    ancestor: Int[Array, "*times particles"] | None = None


class Record(NamedTuple):
    """What a step says about itself."""

    mixing: Float[Array, "*times"]  # mean λ over the particles
    mixing_max: Float[Array, "*times"]
    certificate: Int[Array, "*times"]  # a `Certificate`
    certified: Bool[Array, "*times"]  # the bound is within the tolerance, and nothing was a fault
    bound: Float[Array, "*times"]  # on the relative variance of this step's normaliser, given the ancestors
    ess: Float[Array, "*times"]  # ESS/N of the accumulated weights, which the resampling rule reads
    step_ess: Float[Array, "*times"]  # ESS/N of this step's weights alone
    relative_variance: Float[Array, "*times"]  # of this step's weights
    log_normaliser: Float[Array, "*times"]  # in standardised channels inside the scan, in raw units outside
    resampled: Bool[Array, "*times"]
    redrawn: Bool[Array, "*times"]  # every weight was zero: the step was drawn again from the carrier alone
    pareto_k: Float[Array, "*times"] | None
    surprise: Float[Array, "*times channels"]  # −log₁₀ of the chance of so far-off a reading; −1: unknown
    outliers: Int[Array, "*times"]  # readings hidden as sensor faults
    refused: Bool[Array, "*times"]  # the action was taken for a fault
    cut: Float[Array, "*times"]  # variance that reducing the branches may add, see `resample`


class Moments(NamedTuple):
    """What is believed after a step."""

    mode: Float[Array, "*times modes"]
    mean: Float[Array, "*times latent"]
    variance: Float[Array, "*times latent"]


def moments_of(model: HybridModel, particles: Particles) -> Moments:
    """The mode posterior and the moments of z under a weighted population."""
    weight = jnp.exp(particles.log_weight)
    mode = jnp.stack([jnp.where(particles.mode == m, weight, 0.0).sum() for m in range(model.modes)])
    mean, variance = moments(particles.log_weight, particles.z)
    if particles.covariance is not None:
        variance = variance + particles.covariance.reshape(-1, weight.shape[0])[:: model.latent + 1] @ weight
    return Moments(mode, mean, variance)


def blocked(tree, rows: int, size: int):
    """(rows, …) -> (blocks, size, …), padded with False and 0."""
    blocks = -(-rows // size)

    def one(x):
        padding = [(0, blocks * size - rows)] + [(0, 0)] * (x.ndim - 1)
        return jnp.pad(x, padding).reshape(blocks, size, *x.shape[1:])

    return jax.tree.map(one, tree)
