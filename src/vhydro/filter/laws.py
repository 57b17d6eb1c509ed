"""What each particle may do next: its carrier, its guide and the terms of its certificate.

Two ways to hold z: a draw (`sampled_laws`), or a Gaussian given the mode path (`marginal_laws`). Functions of one
particle, mapped over the last axis, so that arrays are (coordinates, particles) and every operation runs along memory.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vhydro.certificate import Terms, branch_terms, mode_moment, particle_terms
from vhydro.emission import LinearEmission, Observation
from vhydro.filter.settings import FilterSettings
from vhydro.flow import LinearFlow
from vhydro.gaussian import LOG_2PI, log_sum
from vhydro.model import Branches, HybridModel
from vhydro.proposal import Proposal


class Frame(NamedTuple):
    """One time step of a log, standardised."""

    action: Float[Array, "inputs"]
    seen: Observation
    dt: Float[Array, ""]
    first: Bool[Array, ""]  # the state's start law applies, no transition
    valid: Bool[Array, ""]


class Particles(NamedTuple):
    """A weighted population. `covariance` is there when z is marginal: z is then the mean of a Gaussian."""

    mode: Int[Array, "particles"]
    z: Float[Array, "latent particles"]
    log_weight: Float[Array, "particles"]
    covariance: Float[Array, "latent latent particles"] | None = None


class Laws(NamedTuple):
    """Per particle, the particle axis last. Scales shared by all particles are kept apart in `Shared`."""

    log_mode: Float[Array, "modes particles"]
    mean: Float[Array, "modes latent particles"]
    guide_log_mode: Float[Array, "modes particles"] | None
    guide_mean: Float[Array, "modes latent particles"] | None
    guide_scale: Float[Array, "modes latent particles"] | Float[Array, "modes latent latent particles"] | None
    terms: Terms | None  # per particle, or per mode and particle when modes are summed
    log_evidence: Float[Array, "modes particles"] | None = None  # every mode's predictive likelihood, exact guides only


class Shared(NamedTuple):
    carrier_scale: Float[Array, "modes latent"]
    guide_scale: Float[Array, "modes latent"] | Float[Array, "modes latent latent"] | None


def _carrier(model: HybridModel, mode, z, frame: Frame) -> Branches:
    start, move = model.start(), model.transition(mode, z, frame.action, frame.dt)
    return jax.tree.map(lambda a, b: jnp.where(frame.first, a, b), start, move)


def sampled_laws(
    model: HybridModel, proposal: Proposal | None, settings: FilterSettings, particles: Particles, frame: Frame
) -> tuple[Laws, Shared]:
    """The laws of particles whose z is a draw."""
    closed = settings.gate.closed_form or settings.lookahead
    exact = proposal is not None and proposal.exact(model)
    fixed = settings.gradient == "fixed"

    def of_one(mode, z):
        carrier = _carrier(model, mode, z, frame)
        after = jax.vmap(model.emission.condition, in_axes=(0, 0, None))(carrier.mean, carrier.scale, frame.seen)
        guide = None
        if proposal is not None:
            # With fixed samples the guide learns by itself: nothing of it may pull on the model.
            given = jax.lax.stop_gradient((model, carrier, after)) if fixed else (model, carrier, after)
            guide = proposal.guide(*given, mode, z, frame.action, frame.seen)
        terms = None
        if closed:
            terms = (
                branch_terms(after, guide, exact=exact)
                if settings.exact_modes
                else particle_terms(carrier, after, guide, exact=exact)
            )
        own = None if guide is None or exact else guide.scale
        common = guide.scale if exact and guide is not None else None
        likely = after.log_evidence if exact else None
        return (
            Laws(carrier.log_mode, carrier.mean, guide and guide.log_mode, guide and guide.mean, own, terms, likely),
            Shared(carrier.scale, common),
        )

    return jax.vmap(of_one, in_axes=-1, out_axes=(-1, None))(particles.mode, particles.z)


def marginal_laws(
    model: HybridModel, settings: FilterSettings, particles: Particles, frame: Frame
) -> tuple[Laws, Float[Array, "modes latent latent particles"]]:
    """The laws of particles whose z is a Gaussian, and the posterior covariance of every mode.

    The emission's noise is independent per channel, so the update runs channel by channel: no factorisation, and a
    hidden channel is one that is skipped.
    """
    flow, emission = model.flow, model.emission
    assert isinstance(flow, LinearFlow) and isinstance(emission, LinearEmission)
    rows, variance = emission.dense(), emission.noise**2
    start = model.start()

    def of_one(mode, z, covariance):
        log_mode = jnp.where(frame.first, start.log_mode, model.kernel.log_probability(mode, z, frame.action))
        mean = jnp.where(frame.first, start.mean, flow.shared_step(z, frame.action))
        moved = jnp.einsum("sij,jk,slk->sil", flow.matrix, covariance, flow.matrix)
        spread = jnp.where(frame.first, jax.vmap(jnp.diag)(start.scale**2), moved + jax.vmap(jnp.diag)(model.noise**2))
        log_evidence = jnp.zeros_like(log_mode)
        for c in range(rows.shape[0]):
            seen = frame.seen.observed[c]
            across = spread @ rows[c]
            total = across @ rows[c] + variance[c]
            error = frame.seen.value[c] - emission.offset[c] - mean @ rows[c]
            likely = -0.5 * (LOG_2PI + jnp.log(total) + error**2 / total)
            log_evidence += jnp.where(seen, likely, 0.0)
            gain = jnp.where(seen, across / total[:, None], 0.0)
            mean = mean + gain * error[:, None]
            spread = spread - gain[:, :, None] * across[:, None, :]
        joint = log_mode + log_evidence
        log_z = log_sum(joint)
        guide = joint - log_z
        zero = jnp.zeros_like(log_mode)
        if settings.exact_modes:
            terms = Terms(log_evidence, zero, zero)  # nothing is drawn: every branch is exact
        else:
            rho = jnp.maximum(log_sum(joint + log_evidence) - 2 * log_z, 0.0)
            terms = Terms(log_z, rho, mode_moment(guide, guide))
        return Laws(log_mode, mean, guide, mean, None, terms, log_evidence), spread

    return jax.vmap(of_one, in_axes=-1, out_axes=-1)(particles.mode, particles.z, particles.covariance)
