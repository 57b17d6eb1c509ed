"""What each particle may do next: its carrier, its guide and the terms of its certificate.

Two ways to hold z: a draw (`sampled_laws`), or a Gaussian given the mode path (`marginal_laws`).
"""

from functools import reduce
from operator import add
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vhydro.certificate import Terms, branch_terms, mode_moment, particle_terms
from vhydro.emission import LinearEmission, Observation
from vhydro.filter.settings import FilterSettings
from vhydro.flow import LinearFlow
from vhydro.gaussian import LOG_2PI
from vhydro.model import Branches, HybridModel
from vhydro.proposal import Proposal
from vhydro.small import UNROLL, log_softmax, log_sum, matvec, over


class Frame(NamedTuple):
    """One time step of a log, standardised."""

    action: Float[Array, "*times inputs"]
    seen: Observation
    dt: Float[Array, "*times"]
    first: Bool[Array, "*times"]  # the state's start law applies, no transition
    valid: Bool[Array, "*times"]


class Particles(NamedTuple):
    """A weighted population. `covariance` is there when z is marginal: z is then the mean of a Gaussian."""

    mode: Int[Array, "*times particles"]
    z: Float[Array, "*times latent particles"]
    log_weight: Float[Array, "*times particles"]
    ess: Float[Array, "*times"]  # ESS/N of the weights, which the resampling rule reads
    covariance: Float[Array, "*times latent latent particles"] | None = None


class Laws(NamedTuple):
    """What every particle may do next."""

    carrier: Branches
    guide: Branches | None
    terms: Terms | None  # per particle, or per mode and particle when modes are summed
    log_evidence: Float[Array, "modes particles"] | None  # every mode's predictive likelihood, if the guide is exact
    covariance: Float[Array, "modes latent latent particles"] | None = None  # of each mode's posterior, if marginal


def _carrier(model: HybridModel, mode, z, frame: Frame) -> Branches:
    move = model.transition(mode, z, frame.action, frame.dt)
    start = jax.tree.map(lambda x: over(x, 1), model.start())
    return jax.tree.map(lambda a, b: jnp.where(frame.first, a, b), start, move)


def _or_nothing(log_value: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.where(jnp.isnan(log_value), -jnp.inf, log_value)


def sampled_laws(
    model: HybridModel, proposal: Proposal | None, settings: FilterSettings, mode, z, frame: Frame
) -> Laws:
    """The laws of particles whose z is a draw."""
    exact = proposal is not None and proposal.exact(model)
    carrier = _carrier(model, mode, z, frame)
    after = jax.vmap(model.emission.condition, in_axes=(0, 0, None))(carrier.mean, carrier.scale, frame.seen)
    # A mode that left the numbers explains nothing, and says so without spoiling the others.
    after = after._replace(log_evidence=_or_nothing(after.log_evidence), log_square=_or_nothing(after.log_square))
    guide = None
    if proposal is not None:
        # With fixed samples the guide learns by itself: nothing of it may pull on the model.
        fixed = settings.gradient == "fixed"
        given = jax.lax.stop_gradient((model, carrier, after)) if fixed else (model, carrier, after)
        guide = proposal.guide(*given, mode, z, frame.action, frame.seen)
    terms = None
    if settings.gate.closed_form or settings.lookahead:
        terms = (
            branch_terms(after, guide, exact=exact)
            if settings.exact_modes
            else particle_terms(carrier, after, guide, exact=exact)
        )
    return Laws(carrier, guide, terms, after.log_evidence if exact else None)


def _spread_moved(matrix: Float[Array, "modes latent latent"], covariance: Float[Array, "latent latent particles"]):
    """`F_s V F_sᵀ` of every mode and particle."""
    half = matvec(matrix, covariance)  # (modes, latent, latent, particles)
    latent = covariance.shape[0]
    if latent**2 > UNROLL:
        return jnp.einsum("sikn,slk->siln", half, matrix)
    return reduce(add, (half[:, :, None, k] * matrix[:, None, :, k, None] for k in range(latent)))


def marginal_laws(model: HybridModel, settings: FilterSettings, mode, z, covariance, frame: Frame) -> Laws:
    """The laws of particles whose z is a Gaussian, with every mode's exact posterior.

    The emission's noise is independent per channel, so the update runs channel by channel: no factorisation, and a
    hidden channel is one that is skipped.
    """
    flow, emission = model.flow, model.emission
    assert isinstance(flow, LinearFlow)
    assert isinstance(emission, LinearEmission)
    start = model.start()
    log_mode = jnp.where(frame.first, over(start.log_mode, 1), model.kernel.log_probability(mode, z, frame.action))
    mean = jnp.where(frame.first, over(start.mean, 1), flow.shared_step(z, frame.action))
    identity = jnp.eye(model.latent, dtype=model.dtype)
    noise = over(jnp.where(frame.first, start.scale, model.noise)[:, :, None] ** 2 * identity, 1)
    spread = jnp.where(frame.first, 0.0, _spread_moved(flow.matrix, covariance)) + noise

    log_evidence = jnp.zeros_like(log_mode)
    for row, offset, sd, value, seen in zip(
        emission.dense(), emission.offset, emission.noise, frame.seen.value, frame.seen.observed, strict=True
    ):
        across = reduce(add, (spread[:, :, j] * row[j] for j in range(model.latent)))
        whole = reduce(add, (across[:, j] * row[j] for j in range(model.latent))) + sd**2
        error = value - offset - reduce(add, (mean[:, j] * row[j] for j in range(model.latent)))
        log_evidence = log_evidence - jnp.where(seen, 0.5 * (LOG_2PI + jnp.log(whole) + error**2 / whole), 0.0)
        gain = jnp.where(seen, across / whole[:, None], 0.0)
        mean = mean + gain * error[:, None]
        spread = spread - gain[:, :, None] * across[:, None]
    log_evidence = _or_nothing(log_evidence)
    joint = log_mode + log_evidence
    guide = log_softmax(joint)
    if settings.exact_modes:
        zero = jnp.zeros_like(log_mode)
        terms = Terms(log_evidence, zero, zero)  # nothing is drawn: every branch is exact
    else:
        log_z = log_sum(joint)
        terms = Terms(log_z, jnp.maximum(log_sum(joint + log_evidence) - 2 * log_z, 0.0), mode_moment(guide, guide))
    shared = jnp.zeros((model.modes, model.latent, 1), model.dtype)  # no draw of z is ever coloured
    return Laws(Branches(log_mode, mean, shared), Branches(guide, mean, shared), terms, log_evidence, spread)
