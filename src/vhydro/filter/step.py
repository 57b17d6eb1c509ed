"""One step of the support-safe filter that draws: resample, gate, propose, weigh, normalise.

Paper: Alg. 1 with Thm 1. Differs: λ per particle, stratified component draws, optional look-ahead and exact sums over
modes. For the step that draws nothing see `branches`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vhydro.certificate import Certificate, Mixing, frozen_mixing, mixing, pilot_mixing
from vhydro.emission import PEAK_SLACK, Observation
from vhydro.filter.branches import branch_step, initial_branches
from vhydro.filter.drawn import drawn_step
from vhydro.filter.faults import checked, fresh_watch
from vhydro.filter.frames import Frame, Moments, Particles, Record, moments_of
from vhydro.filter.laws import Laws, sampled_laws
from vhydro.filter.moves import carrier_draw, exact_move, redrawn, sampled_move
from vhydro.filter.resampling import resample
from vhydro.filter.settings import FilterSettings, population
from vhydro.model import HybridModel
from vhydro.particles import Noise, effective_share, normalised, pareto_k, strata
from vhydro.proposal import Proposal
from vhydro.small import log_sum, precise, total


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
        return pilot_mixing(gate, log_weight, *_below_peak(model, likely, frame.seen), inflation=inflation)
    assert gate.fixed is not None  # a gate without certificate has one
    share = jnp.full_like(log_weight, gate.fixed)
    return Mixing(share, jnp.full((), jnp.inf, share.dtype), jnp.zeros((), bool))


def _inflation(settings: FilterSettings, choices: int) -> float:
    """How much more a sum may vary under stratified component draws than under independent ones, at the most."""
    prime = strata(choices)[1]
    return prime / (prime - 1) if settings.draws == "stratified" else 1.0


def _below_peak(model: HybridModel, log_likelihood: Float[Array, "..."], seen: Observation):
    """Likelihoods with 0 for what is no number, and their stated peak: infinite, which certifies nothing, if broken."""
    peak = model.emission.log_peak(seen)
    broken = jnp.any(log_likelihood > peak + PEAK_SLACK)
    return jnp.where(log_likelihood < jnp.inf, log_likelihood, -jnp.inf), jnp.where(broken, jnp.inf, peak)


def keeps_ancestors(settings: FilterSettings) -> bool:
    """Whether particles know where they come from: samples are held fixed, and each has one ancestor."""
    return settings.engine == "mixture" and settings.gradient == "fixed" and not settings.exact_modes


def initial(model: HybridModel, settings: FilterSettings) -> Particles:
    """A population of equal weights that the first step replaces."""
    if settings.engine == "gaussian":
        return initial_branches(model, settings)
    k, d = population(model, settings), model.latent
    log_weight = jnp.full(k, -jnp.log(jnp.asarray(k, model.dtype)), model.dtype)
    watch = None if settings.outliers is None else fresh_watch(model)
    ess = jnp.ones((), model.dtype)
    ancestor = jnp.arange(k) if keeps_ancestors(settings) else None
    return Particles(jnp.zeros(k, jnp.int32), jnp.zeros((d, k), model.dtype), log_weight, ess, None, watch, ancestor)


def _predictive(laws: Laws) -> Float[Array, "particles"]:
    """How likely each particle's carrier makes the observation, in closed form."""
    assert laws.terms is not None
    ahead = laws.terms.log_evidence
    return log_sum(ahead + laws.carrier.log_mode) if ahead.ndim == 2 else ahead


@precise
def filter_step(
    model: HybridModel,
    proposal: Proposal | None,
    settings: FilterSettings,
    particles: Particles,
    frame: Frame,
    noise: Noise,
) -> tuple[Particles, Record, Moments]:
    """The population after one more observation, what the step certifies, and what is believed."""

    if settings.engine == "gaussian":
        return branch_step(model, settings, particles, frame, noise)[:3]
    if settings.engine == "drawn":
        return drawn_step(model, settings, particles, frame, noise)
    frame, alarm = checked(model, particles.watch, frame, settings.outliers)

    # Look ahead and resample.
    allowed = frame.valid & ~frame.first
    here = None if particles.ancestor is None else jnp.arange(particles.ancestor.size)
    particles = particles._replace(ancestor=here)
    held = particles._replace(log_weight=None, ess=None, watch=None, ancestor=None)
    if settings.lookahead:
        laws, verdict = sampled_laws(model, proposal, settings, held, particles.log_weight, frame, alarm)
        ahead = _predictive(laws)
        ess = effective_share(jax.lax.stop_gradient(particles.log_weight + ahead))
        (laws, ancestor), log_weight, resampled, _ = resample(
            (laws, here), particles.log_weight, ahead, ess, settings, noise, allowed
        )
    else:
        (held, ancestor), log_weight, resampled, _ = resample(
            (held, here), particles.log_weight, None, particles.ess, settings, noise, allowed
        )
        laws, verdict = sampled_laws(model, proposal, settings, held, log_weight, frame, alarm)
    frame = frame._replace(seen=verdict.seen)

    # Gate: λ before anything is drawn.
    mixed = _gate(model, settings, laws, log_weight, frame, noise)

    # Propose from Q_λ and weigh by g p / q_λ.
    move = exact_move if settings.exact_modes else sampled_move
    moved = move(model, settings, laws, mixed, frame, noise)
    lost = jnp.zeros((), bool)
    if laws.guide is not None and not settings.exact_modes:
        lost = ~jnp.any(jnp.isfinite(moved.log_gain + log_weight)) & frame.valid
        moved = redrawn(model, settings, laws, mixed, moved, frame, noise, lost)

    # Normalise; a particle that left the numbers has weight zero.
    z = jnp.where(jnp.isfinite(moved.z), moved.z, 0.0)
    whole = jnp.isfinite(total(moved.z)) & ~jnp.isnan(moved.log_gain)
    log_gain = jnp.where(whole, moved.log_gain, -jnp.inf)
    repeats = log_gain.shape[0] // log_weight.shape[0]
    log_weight = jnp.tile(log_weight, repeats) + log_gain
    log_weight, log_normaliser, ess = normalised(log_weight)
    # The draws' own estimate was zero: what was drawn instead serves the belief, and counts as no evidence.
    log_normaliser = jnp.where(lost, -jnp.inf, log_normaliser)

    after = Particles(moved.mode, z, log_weight, ess, None, verdict.watch, ancestor)
    after = jax.tree.map(lambda new, old: jnp.where(frame.valid, new, old), after, particles)
    step_ess = effective_share(log_gain)
    record = Record(
        mixing=mixed.share.mean(),
        mixing_max=mixed.share.max(),
        certificate=jnp.asarray(_CODES[settings.gate.certificate], jnp.int32),
        certified=mixed.certified & verdict.trusted & jnp.isfinite(log_normaliser),
        bound=mixed.bound,
        ess=after.ess,
        step_ess=step_ess,
        relative_variance=1 / jnp.maximum(step_ess, 1 / log_gain.shape[0]) - 1,
        log_normaliser=jnp.where(frame.valid, log_normaliser, 0.0),
        resampled=resampled,
        redrawn=lost,
        pareto_k=pareto_k(log_weight) if settings.pareto else None,
        surprise=jnp.where(frame.valid, verdict.surprise, 0.0),
        outliers=jnp.where(frame.valid, verdict.outliers, 0),
        refused=verdict.refused & frame.valid,
        cut=jnp.zeros((), model.dtype),
    )
    return after, record, moments_of(model, after)


_CODES = {
    "none": Certificate.NONE,
    "guide-free": Certificate.GUIDE_FREE,
    "two-sided": Certificate.TWO_SIDED,
    "pilot": Certificate.PILOT,
    "frozen": Certificate.FROZEN,
}
