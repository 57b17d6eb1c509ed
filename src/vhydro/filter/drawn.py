"""Drawn z with modes summed first: every particle is weighed in every next mode before anything is drawn.

With a linear emission the evidence of each (particle, mode) is known in closed form, so the step's normaliser is a sum
over all of them and not an estimate. N pairs are then chosen in proportion to `w π Z_s`, spread evenly over particles
and modes, and z is drawn for those alone, from its exact conditional, in antithetic pairs. The guide is the conditional
itself (A = 1), so mixing the carrier in (λ > 0) would have nothing to protect.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vhydro.certificate import Certificate
from vhydro.emission import LinearEmission
from vhydro.filter.faults import Alarm, checked, surprises
from vhydro.filter.frames import Frame, Moments, Particles, Record
from vhydro.filter.laws import carrier_of, surprise_of, widened
from vhydro.filter.settings import FilterSettings
from vhydro.flow import LinearFlow
from vhydro.gaussian import Conditioned, as_factor, deviations, gain_of
from vhydro.model import HybridModel
from vhydro.particles import RESAMPLERS, Noise, columns_at, effective_share, pairs_at
from vhydro.small import matvec, over, pick


def _general_prediction(model: HybridModel, particles: Particles, frame: Frame, alarm: Alarm):
    """The log probability of every next mode, the verdict on the readings, and every mode's law after them."""
    carrier = carrier_of(model, particles.mode, particles.z, frame, alarm.extra)
    verdict = alarm.verdict(model, frame, surprise_of(model, carrier, particles.log_weight, frame))
    after = jax.vmap(model.emission.condition, in_axes=(0, 0, None))(carrier.mean, carrier.scale, verdict.seen)
    return carrier.log_mode, verdict, after


def _linear_prediction(model: HybridModel, particles: Particles, frame: Frame, alarm: Alarm):
    """The same where every mode is linear: move and update are affine in z, so one product does both for all modes."""
    flow, emission, start = model.flow, model.emission, model.start()
    assert isinstance(flow, LinearFlow)
    assert isinstance(emission, LinearEmission)
    log_mode = model.kernel.log_probability(particles.mode, particles.z, frame.action)
    log_mode = jnp.where(frame.first, over(start.log_mode, 1), log_mode)
    move = jnp.where(frame.first, 0.0, flow.matrix)
    offset = jnp.where(frame.first, start.mean, flow.offset + flow.port @ frame.action)
    scale = jnp.where(frame.first, start.scale, model.noise_under(frame.action))
    scale = scale if alarm.extra is None else widened(scale, alarm.extra)
    rows, sensed = emission.dense(), emission.offset

    expected = matvec(rows @ move, particles.z) + over(offset @ rows.T + sensed, 1)
    variance = jax.vmap(lambda one: emission.predicted_variance(one, 0))(scale)
    seen_as = jax.lax.stop_gradient((expected, over(variance, 1), particles.log_weight + log_mode))
    verdict = alarm.verdict(model, frame, surprises(*seen_as, frame.seen))
    seen = verdict.seen

    factor = jax.vmap(as_factor)(scale)
    noise = emission.noise if emission.noise_lower is None else emission.noise_factor(seen.observed)
    gain = jax.vmap(gain_of, in_axes=(0, None, None, None))(factor, rows, noise, seen.observed)
    shown = seen.observed.astype(model.dtype)
    masked = gain.white * shown  # a hidden residual is 0
    to_white = -masked @ (rows @ move)
    first_white = jnp.einsum("scd,sd->sc", masked, seen.value - sensed - offset @ rows.T)
    to_mean = move + gain.cross @ to_white
    first_mean = offset + jnp.einsum("sdc,sc->sd", gain.cross, first_white)
    both = matvec(jnp.concatenate([to_mean, to_white], axis=1), particles.z)
    both = both + over(jnp.concatenate([first_mean, first_white], axis=1), 1)
    mean, white = both[:, : model.latent], both[:, model.latent :]
    log_evidence = -0.5 * (white**2).sum(1) - over(gain.log_constant, 1)
    nothing = jnp.zeros((model.modes, 1), model.dtype)
    return log_mode, verdict, Conditioned(log_evidence, nothing, mean, over(gain.scale, 1))


def drawn_step(
    model: HybridModel, settings: FilterSettings, particles: Particles, frame: Frame, noise: Noise
) -> tuple[Particles, Record, Moments]:
    """The population after one more reading, what the step certifies, and what is believed."""
    n = settings.count
    frame, alarm = checked(model, particles.watch, frame, settings.outliers)

    # Weigh every particle in every mode.
    linear = isinstance(model.flow, LinearFlow) and model.reset is None
    predicted = _linear_prediction if linear else _general_prediction
    log_mode, verdict, after = predicted(model, particles, frame, alarm)
    log_prior = particles.log_weight + log_mode
    log_joint = jnp.where(jnp.isnan(after.log_evidence), -jnp.inf, log_prior + after.log_evidence)
    top = jax.lax.stop_gradient(jnp.max(log_joint))
    alive = jnp.isfinite(top)
    top = jnp.where(alive, top, 0.0)
    joint = jnp.exp(log_joint - top)
    total = joint.sum()
    log_normaliser = jnp.where(alive, top + jnp.log(jnp.where(alive, total, 1.0)), -jnp.inf)

    # Choose pairs; a lineage keeps the gradient of its weight, whose value is divided out.
    chance = jax.lax.stop_gradient(jnp.where(alive, joint, jnp.exp(log_prior))).reshape(-1)
    index = RESAMPLERS[settings.resampler].ancestors(chance, noise["resample"], n)
    log_weight = jnp.full(n, -jnp.log(jnp.asarray(n, model.dtype)), model.dtype)
    if settings.gradient == "pathwise":
        chosen = jnp.where(alive, columns_at((log_joint.reshape(-1),), index)[0] - log_normaliser, 0.0)
        log_weight = log_weight + chosen - jax.lax.stop_gradient(chosen)

    # Draw z of those.
    mode = index // n
    mean = pairs_at(after.mean, index)
    normal = noise["z"]
    if after.scale.ndim == after.mean.ndim:
        z = mean + pick(after.scale, mode) * normal
    else:  # coloured by every mode's factor in one product: a factor for each particle would be far slower
        z = mean + pick(matvec(after.scale[..., 0], normal), mode)
    z = jnp.where(jnp.isfinite(z), z, 0.0)

    new = Particles(mode.astype(jnp.int32), z, log_weight, jnp.ones((), model.dtype), None, verdict.watch)
    new = jax.tree.map(lambda x, old: jnp.where(frame.valid, x, old), new, particles)
    ess = effective_share(jax.lax.stop_gradient(log_joint.reshape(-1)))
    zero = jnp.zeros((), model.dtype)
    record = Record(
        mixing=zero,
        mixing_max=zero,
        certificate=jnp.asarray(Certificate.SUMMED, jnp.int32),
        certified=verdict.trusted & alive,
        bound=jnp.where(alive, 0.0, jnp.inf).astype(model.dtype),
        ess=new.ess,
        step_ess=ess,
        relative_variance=1 / jnp.maximum(ess, 1 / log_joint.size) - 1,
        log_normaliser=jnp.where(frame.valid, log_normaliser, 0.0),
        resampled=frame.valid & ~frame.first,
        redrawn=jnp.zeros((), bool),
        pareto_k=None,
        surprise=jnp.where(frame.valid, verdict.surprise, 0.0),
        outliers=jnp.where(frame.valid, verdict.outliers, 0),
        refused=verdict.refused & frame.valid,
        cut=zero,
    )
    return new, record, _belief(jnp.where(alive, joint / total, jnp.exp(log_prior)), after)


def _belief(share: Float[Array, "modes particles"], after: Conditioned) -> Moments:
    """The belief before z is drawn: what the draws would only blur."""
    mean = jnp.einsum("sn,sdn->d", share, after.mean)
    off = (after.mean - mean[:, None]) ** 2
    diagonal = after.scale.ndim == after.mean.ndim
    variance = jnp.einsum("sn,sdn->d", share, off + deviations(after.scale, diagonal) ** 2)
    return Moments(share.sum(1), mean, variance)
