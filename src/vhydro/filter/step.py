"""One step of the support-safe filter: resample, gate, propose, weigh, normalise.

Paper: Alg. 1 with Thm 1. Differs: λ per particle, stratified component draws, optional look-ahead, exact sums over
modes and marginal z.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vhydro.certificate import Certificate, Mixing, frozen_mixing, mixing, pilot_mixing
from vhydro.emission import Observation
from vhydro.filter.laws import Frame, Laws, Particles, marginal_laws, sampled_laws
from vhydro.filter.moves import carrier_draw, exact_move, marginal_move, redrawn, sampled_move
from vhydro.filter.resampling import resample
from vhydro.filter.settings import FilterSettings, population
from vhydro.gaussian import LOG_2PI, moments
from vhydro.model import HybridModel
from vhydro.particles import Noise, effective_share, pareto_k, strata
from vhydro.proposal import Proposal
from vhydro.small import log_sum, total


class Record(NamedTuple):
    """What a step says about itself."""

    mixing: Float[Array, "*times"]  # mean λ over the particles
    mixing_max: Float[Array, "*times"]
    certificate: Int[Array, "*times"]  # a `Certificate`
    certified: Bool[Array, "*times"]  # the bound is within the tolerance
    bound: Float[Array, "*times"]  # on the relative variance of this step's normaliser, given the ancestors
    ess: Float[Array, "*times"]  # ESS/N of the accumulated weights, which the resampling rule reads
    step_ess: Float[Array, "*times"]  # ESS/N of this step's weights alone
    relative_variance: Float[Array, "*times"]  # of this step's weights
    log_normaliser: Float[Array, "*times"]  # in standardised channels inside the scan, in raw units outside
    resampled: Bool[Array, "*times"]
    redrawn: Bool[Array, "*times"]  # every weight was zero: the step was drawn again from the carrier alone
    pareto_k: Float[Array, "*times"] | None


class Belief(NamedTuple):
    """What is believed after a step."""

    mode: Float[Array, "*times modes"]
    mean: Float[Array, "*times latent"]
    variance: Float[Array, "*times latent"]


def _gate(model, settings: FilterSettings, laws: Laws, log_weight, frame: Frame, noise: Noise) -> Mixing:
    gate = settings.gate
    if gate.closed_form:
        assert laws.terms is not None
        if laws.terms.log_evidence.ndim == 2:  # one branch per mode
            log_weight = log_weight + laws.carrier.log_mode
        return mixing(gate, laws.terms, log_weight, inflation=_inflation(settings, laws.terms.log_rho.size))
    if settings.exact_modes:  # λ for every branch
        log_weight = log_weight + laws.carrier.log_mode
    if gate.certificate == "frozen":
        return frozen_mixing(gate, log_weight, inflation=_inflation(settings, log_weight.size))
    if gate.certificate == "pilot":
        drawn = jax.vmap(lambda u, e: carrier_draw(laws.carrier, u, e)[1])(noise["pilot_mode"], noise["pilot_z"])
        likely = jax.vmap(model.emission.log_likelihood, in_axes=(0, None))(drawn, frame.seen)
        inflation = _inflation(settings, log_weight.shape[0])
        return pilot_mixing(gate, log_weight, likely, _peak(model, frame.seen), inflation=inflation)
    assert gate.fixed is not None  # a gate without certificate has one
    share = jnp.full_like(log_weight, gate.fixed)
    return Mixing(share, jnp.full((), jnp.inf, share.dtype), jnp.zeros((), bool))


def _inflation(settings: FilterSettings, choices: int) -> float:
    """How much more a sum may vary under stratified component draws than under independent ones, at the most."""
    prime = strata(choices)[1]
    return prime / (prime - 1) if settings.draws == "stratified" else 1.0


def _peak(model: HybridModel, seen: Observation) -> Float[Array, ""]:
    """The log of the largest likelihood any state can have."""
    return total(jnp.where(seen.observed, -jnp.log(model.emission.noise) - 0.5 * LOG_2PI, 0.0))


def _normalised(log_weight: Float[Array, "particles"]):
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


def initial(model: HybridModel, settings: FilterSettings) -> Particles:
    """A population of equal weights that the first step replaces."""
    k, d = population(model, settings), model.latent
    covariance = jnp.zeros((d, d, k), model.dtype) if settings.marginal else None
    log_weight = jnp.full(k, -jnp.log(jnp.asarray(k, model.dtype)), model.dtype)
    ess = jnp.ones((), model.dtype)
    return Particles(jnp.zeros(k, jnp.int32), jnp.zeros((d, k), model.dtype), log_weight, ess, covariance)


def _predictive(laws: Laws) -> Float[Array, "particles"]:
    """How likely each particle's carrier makes the observation, in closed form."""
    assert laws.terms is not None
    ahead = laws.terms.log_evidence
    return log_sum(ahead + laws.carrier.log_mode) if ahead.ndim == 2 else ahead


def filter_step(
    model: HybridModel,
    proposal: Proposal | None,
    settings: FilterSettings,
    particles: Particles,
    frame: Frame,
    noise: Noise,
) -> tuple[Particles, Record, Belief]:
    """The population after one more observation, what the step certifies, and what is believed."""

    def laws_of(p: Particles) -> Laws:
        if settings.marginal:
            return marginal_laws(model, settings, p.mode, p.z, p.covariance, frame)
        return sampled_laws(model, proposal, settings, p.mode, p.z, frame)

    # Look ahead and resample.
    allowed = frame.valid & ~frame.first
    if settings.lookahead:
        laws = laws_of(particles)
        ahead = _predictive(laws)
        ess = effective_share(jax.lax.stop_gradient(particles.log_weight + ahead))
        laws, log_weight, resampled = resample(laws, particles.log_weight, ahead, ess, settings, noise, allowed)
    else:
        held = particles._replace(log_weight=None, ess=None)
        held, log_weight, resampled = resample(
            held, particles.log_weight, None, particles.ess, settings, noise, allowed
        )
        laws = laws_of(held)

    # Gate: λ before anything is drawn.
    mixed = _gate(model, settings, laws, log_weight, frame, noise)

    # Propose from Q_λ and weigh by g p / q_λ.
    if settings.marginal:
        moved = marginal_move(settings, laws, mixed, noise)
    else:
        move = exact_move if settings.exact_modes else sampled_move
        moved = move(model, settings, laws, mixed, frame, noise)
    lost = jnp.zeros((), bool)
    if laws.guide is not None and not settings.marginal and not settings.exact_modes:
        lost = ~jnp.any(jnp.isfinite(moved.log_gain + log_weight)) & frame.valid
        moved = redrawn(model, laws.carrier, moved, frame, noise, lost)

    # Normalise; a particle that left the numbers has weight zero.
    z = jnp.where(jnp.isfinite(moved.z), moved.z, 0.0)
    whole = jnp.isfinite(total(moved.z)) & ~jnp.isnan(moved.log_gain)
    covariance = moved.covariance
    if covariance is not None:
        whole = whole & jnp.isfinite(covariance.sum((0, 1)))
        covariance = jnp.where(whole, covariance, 0.0)
    log_gain = jnp.where(whole, moved.log_gain, -jnp.inf)
    repeats = log_gain.shape[0] // log_weight.shape[0]
    log_weight = jnp.tile(log_weight, repeats) + log_gain
    log_weight, log_normaliser, ess = _normalised(log_weight)

    after = Particles(moved.mode, z, log_weight, ess, covariance)
    after = jax.tree.map(lambda new, old: jnp.where(frame.valid, new, old), after, particles)
    step_ess = effective_share(log_gain)
    record = Record(
        mixing=mixed.share.mean(),
        mixing_max=mixed.share.max(),
        certificate=jnp.asarray(_CODES[settings.gate.certificate], jnp.int32),
        certified=mixed.certified,
        bound=mixed.bound,
        ess=after.ess,
        step_ess=step_ess,
        relative_variance=1 / jnp.maximum(step_ess, 1 / log_gain.shape[0]) - 1,
        log_normaliser=jnp.where(frame.valid, log_normaliser, 0.0),
        resampled=resampled,
        redrawn=lost,
        pareto_k=pareto_k(log_weight) if settings.pareto else None,
    )
    return after, record, belief_of(model, after)


_CODES = {
    "none": Certificate.NONE,
    "guide-free": Certificate.GUIDE_FREE,
    "two-sided": Certificate.TWO_SIDED,
    "pilot": Certificate.PILOT,
    "frozen": Certificate.FROZEN,
}


def belief_of(model: HybridModel, particles: Particles) -> Belief:
    """The mode posterior and the moments of z under a weighted population."""
    weight = jnp.exp(particles.log_weight)
    mode = jnp.stack([jnp.where(particles.mode == m, weight, 0.0).sum() for m in range(model.modes)])
    mean, variance = moments(particles.log_weight, particles.z)
    if particles.covariance is not None:
        variance = variance + jnp.einsum("iin,n->i", particles.covariance, weight)
    return Belief(mode, mean, variance)
