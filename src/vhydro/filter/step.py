"""One step of the support-safe filter: resample, gate, propose, weigh, normalise.

Paper: Alg. 1 with Thm 1. Differs: λ per particle, stratified component draws, optional look-ahead, exact sums over
modes and marginal z.
"""

from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vhydro.certificate import Certificate, Mixing, frozen_mixing, mixing, pilot_mixing
from vhydro.emission import Observation
from vhydro.filter.laws import Frame, Laws, Particles, Shared, marginal_laws, sampled_laws
from vhydro.filter.settings import FilterSettings, population
from vhydro.gaussian import LOG_2PI, coloured, log_density, log_sum, moments
from vhydro.model import HybridModel
from vhydro.particles import RESAMPLERS, Noise, categorical, effective_share, pareto_k, stratified_choice
from vhydro.proposal import Proposal


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


class Moved(NamedTuple):
    """Particles after a step's draw, and the log weight each gained."""

    mode: Int[Array, "particles"]
    z: Float[Array, "latent particles"]
    covariance: Float[Array, "latent latent particles"] | None
    log_gain: Float[Array, "particles"]


def pick(values: Float[Array, "modes *rest"], mode: Int[Array, ""]) -> Float[Array, "*rest"]:
    """The entry of one mode, by selection: a gather per particle would be far slower."""
    return reduce(lambda out, m: jnp.where(mode == m, values[m], out), range(1, values.shape[0]), values[0])


# --- resample ---------------------------------------------------------------------------------------------------------


def _resample(tree, log_weight, log_first, settings: FilterSettings, noise: Noise, allowed):
    """The tree and its weights, resampled with probabilities `exp(log_first)` if their ESS asks for it.

    Weights after resampling are `w/(N v)` with v the first-stage probabilities: 1/N when v = w.
    """
    n, parents = settings.particles, log_weight.shape[0]
    log_first = jax.lax.stop_gradient(log_first) if settings.soft == 1 else log_first
    if settings.soft < 1:
        uniform = jnp.log1p(-jnp.asarray(settings.soft, log_first.dtype)) - jnp.log(parents)
        log_first = jnp.logaddexp(jnp.log(settings.soft) + log_first, uniform)

    def resampled(_):
        ancestors = RESAMPLERS[settings.resampler].ancestors(
            jax.lax.stop_gradient(jnp.exp(log_first)), noise["resample"], n
        )
        weight = log_weight - log_first if settings.soft < 1 else jax.lax.stop_gradient(log_weight - log_first)
        taken = jax.tree.map(lambda x: jnp.take(x, ancestors, axis=-1), (tree, weight))
        return taken[0], taken[1] - jnp.log(jnp.asarray(n, weight.dtype))

    if parents != n:
        return *resampled(None), allowed
    wanted = allowed & (effective_share(jax.lax.stop_gradient(log_first)) < settings.ess_threshold)
    if settings.ess_threshold == 0:
        return tree, log_weight, jnp.zeros_like(wanted)
    return *jax.lax.cond(wanted, resampled, lambda _: (tree, log_weight), None), wanted


# --- gate -------------------------------------------------------------------------------------------------------------


def _gate(model, settings: FilterSettings, laws: Laws, shared, log_weight, frame: Frame, noise: Noise) -> Mixing:
    gate = settings.gate
    if gate.closed_form:
        assert laws.terms is not None
        if laws.terms.log_evidence.ndim == 2:  # one branch per mode
            log_weight = log_weight + laws.log_mode
        return mixing(gate, laws.terms, log_weight)
    if gate.certificate == "frozen":
        return frozen_mixing(gate, log_weight)
    if gate.certificate == "pilot":
        drawn = jax.vmap(lambda u, e: _carrier_draw(laws, shared, u, e)[1])(noise["pilot_mode"], noise["pilot_z"])
        return pilot_mixing(gate, log_weight, jax.vmap(_log_g, (None, 0, None))(model, drawn, frame.seen), _peak(model, frame.seen))
    share = jnp.full_like(log_weight, gate.fixed)
    return Mixing(share, jnp.full((), jnp.inf, share.dtype), jnp.zeros((), bool))


def _peak(model: HybridModel, seen: Observation) -> Float[Array, ""]:
    terms = -jnp.log(model.emission.noise) - 0.5 * LOG_2PI
    return jnp.where(seen.observed, terms, 0.0).sum()


def _log_g(model: HybridModel, z: Float[Array, "latent particles"], seen: Observation) -> Float[Array, "particles"]:
    return jax.vmap(model.emission.log_likelihood, in_axes=(-1, None))(z, seen)


# --- propose and weigh ------------------------------------------------------------------------------------------------


def _carrier_draw(laws: Laws, shared: Shared, uniform, normal):
    """A mode and a z for every particle from its carrier."""

    def of_one(log_mode, mean, u, e):
        mode = categorical(log_mode, u)
        return mode, pick(mean + jax.vmap(coloured, (0, None))(shared.carrier_scale, e), mode)

    return jax.vmap(of_one, in_axes=-1, out_axes=-1)(laws.log_mode, laws.mean, uniform, normal)


def _from_carrier(settings: FilterSettings, share, noise: Noise) -> Bool[Array, "..."]:
    if settings.draws == "stratified":
        return stratified_choice(share, noise["component"])
    return noise["component"] < share


def _log_mixture(share, log_carrier, log_guide):
    """`log((1−λ) q + λ p)`, exact at λ = 0 and 1 and where a density is 0."""
    tiny = jnp.finfo(share.dtype).tiny
    guide = jnp.where(share < 1, jnp.log(jnp.maximum(1 - share, tiny)) + log_guide, -jnp.inf)
    carrier = jnp.where(share > 0, jnp.log(jnp.maximum(share, tiny)) + log_carrier, -jnp.inf)
    return jnp.logaddexp(guide, carrier)


def _densities(mean, scale, points) -> Float[Array, "modes"]:
    return jax.vmap(log_density)(points - mean, scale)


def _log_ratio(settings: FilterSettings, share, log_p, log_q) -> Float[Array, "..."]:
    """`log p/q_λ` at the drawn points, with the gradient `settings.gradient` asks for."""
    mixture = _log_mixture(share, log_p, log_q)
    if settings.gradient == "pathwise":
        return log_p - mixture
    # Zero in value: pulls the guide towards the points by their weights (inclusive KL).
    pull = jnp.where(jnp.isfinite(log_q), log_q - jax.lax.stop_gradient(log_q), 0.0)
    return log_p - jax.lax.stop_gradient(mixture) + pull


def _fixed(settings: FilterSettings, points):
    return points if settings.gradient == "pathwise" else jax.lax.stop_gradient(points)


def sampled_move(model, settings, laws: Laws, shared: Shared, mixed: Mixing, frame: Frame, noise: Noise) -> Moved:
    """Particles drawn from `Q_λ` with their modes, weighted by `g p / q_λ`."""
    if laws.guide_mean is None:
        mode, z = _carrier_draw(laws, shared, noise["mode"], noise["z"])
        return Moved(mode, z, None, _log_g(model, z, frame.seen))
    chosen = _from_carrier(settings, mixed.share, noise)
    shortcut = laws.log_evidence is not None and settings.gradient == "pathwise"

    def of_one(law: Laws, carry, share, u, e):
        guide_scale = law.guide_scale if shared.guide_scale is None else shared.guide_scale
        mode = categorical(jnp.where(carry, law.log_mode, law.guide_log_mode), u)
        colour = jax.vmap(coloured, (0, None))
        points = jnp.where(carry, law.mean + colour(shared.carrier_scale, e), law.guide_mean + colour(guide_scale, e))
        points = _fixed(settings, points)
        z = pick(points, mode)
        log_g = model.emission.log_likelihood(z, frame.seen)
        if shortcut:  # q = p g / Z, so p drops out of g p / q_λ
            return mode, z, log_g - _log_mixture(share, 0.0, log_g - log_sum(law.log_mode + law.log_evidence))
        log_p = pick(law.log_mode + _densities(law.mean, shared.carrier_scale, points), mode)
        log_q = pick(law.guide_log_mode + _densities(law.guide_mean, guide_scale, points), mode)
        return mode, z, log_g + _log_ratio(settings, share, log_p, log_q)

    law = laws._replace(terms=None)
    mode, z, log_gain = jax.vmap(of_one, in_axes=-1, out_axes=-1)(law, chosen, mixed.share, noise["mode"], noise["z"])
    return Moved(mode, z, None, log_gain)


def exact_move(model, settings, laws: Laws, shared: Shared, mixed: Mixing, frame: Frame, noise: Noise) -> Moved:
    """Every particle in every mode: z is drawn within each, modes are weighted and not drawn."""
    modes, n = laws.log_mode.shape
    chosen = None if laws.guide_mean is None else _from_carrier(settings, mixed.share, noise)
    shortcut = laws.log_evidence is not None and settings.gradient == "pathwise"

    def of_one(law: Laws, carry, share, e):
        points = law.mean + jax.vmap(coloured)(shared.carrier_scale, e)
        guide_scale = law.guide_scale if shared.guide_scale is None else shared.guide_scale
        if carry is not None:
            points = jnp.where(carry[:, None], points, law.guide_mean + jax.vmap(coloured)(guide_scale, e))
        points = _fixed(settings, points)
        log_g = jax.vmap(model.emission.log_likelihood, (0, None))(points, frame.seen)
        if carry is None:
            return points, law.log_mode + log_g
        if shortcut:
            return points, law.log_mode + log_g - _log_mixture(share, 0.0, log_g - law.log_evidence)
        log_p = _densities(law.mean, shared.carrier_scale, points)
        log_q = _densities(law.guide_mean, guide_scale, points)
        return points, law.log_mode + log_g + _log_ratio(settings, share, log_p, log_q)

    law = laws._replace(terms=None)
    points, log_gain = jax.vmap(of_one, in_axes=-1, out_axes=-1)(law, chosen, mixed.share, noise["z"])
    mode = jnp.repeat(jnp.arange(modes, dtype=jnp.int32), n)
    return Moved(mode, jnp.moveaxis(points, 0, 1).reshape(-1, modes * n), None, log_gain.reshape(-1))


def marginal_move(settings, laws: Laws, spread, mixed: Mixing, noise: Noise) -> Moved:
    """Gaussian particles: only the mode is drawn, from `(1−λ) κ + λ π`, or none at all."""
    modes, n = laws.log_mode.shape
    if settings.exact_modes:
        mode = jnp.repeat(jnp.arange(modes, dtype=jnp.int32), n)
        mean = jnp.moveaxis(laws.mean, 0, 1).reshape(-1, modes * n)
        covariance = jnp.moveaxis(spread, 0, 2).reshape(*spread.shape[1:3], modes * n)
        return Moved(mode, mean, covariance, (laws.log_mode + laws.log_evidence).reshape(-1))
    chosen = _from_carrier(settings, mixed.share, noise)

    def of_one(law: Laws, cov, carry, share, u):
        mode = categorical(jnp.where(carry, law.log_mode, law.guide_log_mode), u)
        log_p, log_q = pick(law.log_mode, mode), pick(law.guide_log_mode, mode)
        gain = log_p + pick(law.log_evidence, mode) - _log_mixture(share, log_p, log_q)
        return Moved(mode, pick(law.mean, mode), pick(cov, mode), gain)

    law = laws._replace(terms=None)
    return jax.vmap(of_one, in_axes=-1, out_axes=-1)(law, spread, chosen, mixed.share, noise["mode"])


def _redrawn(model, laws: Laws, shared: Shared, moved: Moved, frame: Frame, noise: Noise, lost) -> Moved:
    """The same step drawn from the carrier alone, where every weight was zero."""

    def again(_):
        mode, z = _carrier_draw(laws, shared, noise["redraw"], noise["z"])
        return Moved(mode, z, None, _log_g(model, z, frame.seen))

    return jax.lax.cond(lost, again, lambda _: moved, None)


# --- the step ---------------------------------------------------------------------------------------------------------


def initial(model: HybridModel, settings: FilterSettings) -> Particles:
    """A population of equal weights that the first step replaces."""
    k, d = population(model, settings), model.latent
    covariance = jnp.zeros((d, d, k), model.dtype) if settings.marginal else None
    log_weight = jnp.full(k, -jnp.log(jnp.asarray(k, model.dtype)), model.dtype)
    return Particles(jnp.zeros(k, jnp.int32), jnp.zeros((d, k), model.dtype), log_weight, covariance)


def filter_step(
    model: HybridModel,
    proposal: Proposal | None,
    settings: FilterSettings,
    particles: Particles,
    frame: Frame,
    noise: Noise,
) -> tuple[Particles, Record, Belief]:
    """The population after one more observation, what the step certifies, and what is believed."""

    def laws_of(p: Particles):
        return (
            marginal_laws(model, settings, p, frame)
            if settings.marginal
            else sampled_laws(model, proposal, settings, p, frame)
        )

    before = particles
    # Look ahead and resample.
    allowed = frame.valid & ~frame.first
    if settings.lookahead:
        laws, shared = laws_of(particles)
        held = (laws, shared) if settings.marginal else laws
        assert laws.terms is not None
        ahead = laws.terms.log_evidence
        ahead = log_sum(ahead + laws.log_mode, axis=0) if ahead.ndim == 2 else ahead
        first = particles.log_weight + ahead
        held, log_weight, resampled = _resample(
            held, particles.log_weight, first - log_sum(first), settings, noise, allowed
        )
        laws, shared = held if settings.marginal else (held, shared)
    else:
        particles, log_weight, resampled = _resample(
            particles, particles.log_weight, particles.log_weight, settings, noise, allowed
        )
        laws, shared = laws_of(particles)

    # Gate: λ before anything is drawn.
    mixed = _gate(model, settings, laws, shared, log_weight, frame, noise)

    # Propose from Q_λ and weigh by g p / q_λ.
    if settings.marginal:
        moved = marginal_move(settings, laws, shared, mixed, noise)
    else:
        move = exact_move if settings.exact_modes else sampled_move
        moved = move(model, settings, laws, shared, mixed, frame, noise)
    lost = jnp.zeros((), bool)
    if laws.guide_mean is not None and not settings.marginal and not settings.exact_modes:
        lost = ~jnp.any(jnp.isfinite(moved.log_gain + log_weight)) & frame.valid
        moved = _redrawn(model, laws, shared, moved, frame, noise, lost)

    # Normalise; a particle that left the numbers has weight zero.
    kept = jnp.isfinite(moved.z).all(0) & ~jnp.isnan(moved.log_gain)
    z = jnp.where(kept, moved.z, 0.0)
    log_gain = jnp.where(kept, moved.log_gain, -jnp.inf)
    repeats = log_gain.shape[0] // log_weight.shape[0]
    log_weight = jnp.tile(log_weight, repeats) + log_gain
    log_normaliser = log_sum(log_weight)
    alive = jnp.isfinite(log_normaliser)
    flat = -jnp.log(jnp.asarray(log_weight.shape[0], log_weight.dtype))
    log_weight = jnp.where(alive, log_weight - log_normaliser, flat)

    after = Particles(moved.mode, z, log_weight, moved.covariance)
    after = jax.tree.map(lambda new, old: jnp.where(frame.valid, new, old), after, before)
    step_ess = effective_share(log_gain)
    record = Record(
        mixing=mixed.share.mean(),
        mixing_max=mixed.share.max(),
        certificate=jnp.asarray(_CODES[settings.gate.certificate], jnp.int32),
        certified=mixed.certified,
        bound=mixed.bound,
        ess=effective_share(log_weight),
        step_ess=step_ess,
        relative_variance=1 / jnp.maximum(step_ess, 1 / log_gain.shape[0]) - 1,
        log_normaliser=jnp.where(frame.valid, jnp.where(alive, log_normaliser, -jnp.inf), 0.0),
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
