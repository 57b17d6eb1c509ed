"""What each particle may do next: its carrier, its guide and the terms of its certificate."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vhydro.certificate import Terms, branch_terms, particle_terms
from vhydro.emission import LinearEmission
from vhydro.filter.faults import Alarm, Verdict, surprises
from vhydro.filter.frames import Frame, Particles
from vhydro.filter.settings import FilterSettings
from vhydro.gaussian import deviations
from vhydro.model import Branches, HybridModel
from vhydro.proposal import Proposal
from vhydro.small import over


class Laws(NamedTuple):
    """What every particle may do next."""

    carrier: Branches
    guide: Branches | None
    terms: Terms | None  # per particle, or per mode and particle when modes are summed
    log_evidence: Float[Array, "modes particles"] | None  # every mode's predictive likelihood, if the guide is exact


def carrier_of(model: HybridModel, mode, z, frame: Frame, extra: Float[Array, "modes latent"] | None) -> Branches:
    """The carrier of every particle: the start law in the first row, else the transition, widened by a fault."""
    move = model.transition(mode, z, frame.action, frame.dt)
    start = jax.tree.map(lambda x: over(x, 1), model.start())
    carrier = jax.tree.map(lambda a, b: jnp.where(frame.first, a, b), start, move)
    if extra is None:
        return carrier
    return Branches(carrier.log_mode, carrier.mean, over(widened(carrier.scale[..., 0], extra), 1))


def widened(scale: Float[Array, "modes latent ..."], extra: Float[Array, "modes latent"]) -> Float[Array, "..."]:
    """The scales with this variance added to every coordinate; of a factor, whose rows are stretched, at least that."""
    if scale.ndim == 2:
        return jnp.sqrt(scale**2 + extra)
    return scale * jnp.sqrt(1 + extra / deviations(scale, False) ** 2)[:, :, None]


def _or_nothing(log_value: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.where(jnp.isnan(log_value), -jnp.inf, log_value)


def surprise_of(model: HybridModel, carrier: Branches, log_weight, frame: Frame) -> Float[Array, "channels"]:
    """How surprising every reading is to the whole population; −1, not known, where the sensors are not linear."""
    emission = model.emission
    if not isinstance(emission, LinearEmission):
        return jnp.full(len(model.channels), -1.0, model.dtype)
    carrier, log_weight = jax.lax.stop_gradient((carrier, log_weight))
    variance = jax.vmap(lambda scale: emission.predicted_variance(scale, 1))(carrier.scale)
    expected = jax.vmap(emission.mean)(carrier.mean)
    return surprises(expected, variance, log_weight + carrier.log_mode, frame.seen)


def sampled_laws(
    model: HybridModel, proposal: Proposal | None, settings: FilterSettings, particles: Particles, log_weight,
    frame: Frame, alarm: Alarm,
) -> tuple[Laws, Verdict]:  # fmt: skip
    """The laws of particles whose z is a draw, and what the step makes of its readings."""
    mode, z = particles.mode, particles.z
    exact = proposal is not None and proposal.exact(model)
    carrier = carrier_of(model, mode, z, frame, alarm.extra)
    verdict = alarm.verdict(model, frame, None if proposal is None else surprise_of(model, carrier, log_weight, frame))
    frame = frame._replace(seen=verdict.seen)
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
    return Laws(carrier, guide, terms, after.log_evidence if exact else None), verdict
