"""One step of the support-safe filter: resample, gate, propose, weigh, normalise.

Paper: Alg. 1 with Thm 1. Differs: λ per particle, stratified component draws, optional look-ahead, exact sums over
modes and marginal z.
"""

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vhydro.certificate import Certificate, Mixing, frozen_mixing, mixing, pilot_mixing
from vhydro.emission import Observation
from vhydro.filter.laws import Frame, Laws, Particles, marginal_laws, sampled_laws
from vhydro.filter.settings import FilterSettings, population
from vhydro.gaussian import LOG_2PI, coloured, is_diagonal, log_density, moments
from vhydro.model import Branches, HybridModel
from vhydro.particles import (
    RESAMPLERS,
    Noise,
    categorical,
    effective_share,
    pareto_k,
    strata,
    stratified_choice,
)
from vhydro.proposal import Proposal
from vhydro.small import log_sum, pick, total


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


Tree = TypeVar("Tree")


class Moved(NamedTuple):
    """Particles after a step's draw, and the log weight each gained."""

    mode: Int[Array, "particles"]
    z: Float[Array, "latent particles"]
    covariance: Float[Array, "latent latent particles"] | None
    log_gain: Float[Array, "particles"]


# --- resample ---------------------------------------------------------------------------------------------------------


def _resample(
    tree: Tree, log_weight, ahead, ess, settings: FilterSettings, noise: Noise, allowed
) -> tuple[Tree, Float[Array, "particles"], Bool[Array, ""]]:
    """The tree and its weights, resampled if `ess`, the ESS/N of the resampling probabilities, asks for it.

    Probabilities are the weights, times `exp(ahead)` if given. New weights are `w/(N v)` with v the probability.
    """
    n, parents = settings.particles, log_weight.shape[0]
    soft, log_n = settings.soft, jnp.log(jnp.asarray(n, log_weight.dtype))
    log_first = log_weight if ahead is None else log_weight + ahead - log_sum(log_weight + ahead)
    log_first = jax.lax.stop_gradient(log_first) if soft == 1 else log_first
    if soft < 1:
        uniform = jnp.log1p(-jnp.asarray(soft, log_first.dtype)) - jnp.log(parents)
        log_first = jnp.logaddexp(jnp.log(soft) + log_first, uniform)

    def resampled(_):
        first = jax.lax.stop_gradient(jnp.exp(log_first))
        ancestors = RESAMPLERS[settings.resampler].ancestors(first, noise["resample"], n)

        def taken(x):
            if x.shape[-1] != parents:  # shared by all particles
                return x
            # One flat gather keeps the particles contiguous; a gather of columns would transpose the population.
            rows = jnp.arange(x.size // parents, dtype=ancestors.dtype)[:, None] * parents
            flat = x.reshape(-1).at[(rows + ancestors).reshape(-1)].get(mode="promise_in_bounds")
            return flat.reshape(*x.shape[:-1], n)

        fixed = settings.gradient == "fixed"
        if ahead is None and soft == 1 and not fixed:
            return jax.tree.map(taken, tree), jnp.full(n, -log_n)
        # With fixed samples a lineage keeps the gradient of its weights (their value is divided out): only so is the
        # sum over steps Fisher's identity. Along the path it is dropped, as FIVO does.
        weight = log_weight - log_first if soft < 1 or fixed else jax.lax.stop_gradient(log_weight - log_first)
        return jax.tree.map(taken, tree), taken(weight) - log_n

    if parents != n:
        tree, log_weight = resampled(None)
        return tree, log_weight, allowed
    if settings.ess_threshold == 0:
        return tree, log_weight, jnp.zeros((), bool)
    wanted = allowed & ((ess < settings.ess_threshold) | (settings.ess_threshold == 1))
    tree, log_weight = jax.lax.cond(wanted, resampled, lambda _: (tree, log_weight), None)
    return tree, log_weight, wanted


# --- gate -------------------------------------------------------------------------------------------------------------


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
        drawn = jax.vmap(lambda u, e: _carrier_draw(laws.carrier, u, e)[1])(noise["pilot_mode"], noise["pilot_z"])
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


# --- propose and weigh ------------------------------------------------------------------------------------------------


def _points(law: Branches, normal: Float[Array, "*modes latent particles"]) -> Float[Array, "modes latent particles"]:
    """A point of every mode's Gaussian, from one noise for all modes or one each."""
    return law.mean + jax.vmap(coloured, in_axes=(0, None if normal.ndim == 2 else 0))(law.scale, normal)


def _densities(law: Branches, points: Float[Array, "_modes latent particles"]) -> Float[Array, "modes particles"]:
    """The log density of every mode's own point under that mode."""
    return jax.vmap(log_density)(points - law.mean, law.scale)


def _carrier_draw(carrier: Branches, uniform, normal):
    """A mode and a z for every particle from its carrier."""
    mode = categorical(carrier.log_mode, uniform)
    if is_diagonal(carrier.scale[0], normal):  # one mode's point each, where a factor would need all of them
        return mode, pick(carrier.mean, mode) + pick(carrier.scale, mode) * normal
    return mode, pick(_points(carrier, normal), mode)


def _from_carrier(settings: FilterSettings, share, noise: Noise) -> Bool[Array, "..."]:
    if settings.draws == "stratified":
        return stratified_choice(share, noise["component"])
    return noise["component"].reshape(share.shape) < share


def _log_mixture(share, log_carrier, log_guide):
    """`log((1−λ) q + λ p)`, exact at λ = 0 and 1 and where a density is 0."""
    tiny = jnp.finfo(share.dtype).tiny
    guide = jnp.where(share < 1, jnp.log(jnp.maximum(1 - share, tiny)) + log_guide, -jnp.inf)
    carrier = jnp.where(share > 0, jnp.log(jnp.maximum(share, tiny)) + log_carrier, -jnp.inf)
    return jnp.logaddexp(guide, carrier)


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


def sampled_move(model, settings, laws: Laws, mixed: Mixing, frame: Frame, noise: Noise) -> Moved:
    """Particles drawn from `Q_λ` with their modes, weighted by `g p / q_λ`."""
    carrier, guide, share = laws.carrier, laws.guide, mixed.share
    if guide is None:
        mode, z = _carrier_draw(carrier, noise["mode"], noise["z"])
        z = _fixed(settings, z)
        log_p = pick(carrier.log_mode + _densities(carrier, z[None]), mode) if settings.gradient == "fixed" else 0.0
        log_ratio = log_p - jax.lax.stop_gradient(log_p)
        return Moved(mode, z, None, model.emission.log_likelihood(z, frame.seen) + log_ratio)
    chosen = _from_carrier(settings, share, noise)
    mode = categorical(jnp.where(chosen, carrier.log_mode, guide.log_mode), noise["mode"])
    points = _fixed(settings, jnp.where(chosen, _points(carrier, noise["z"]), _points(guide, noise["z"])))
    z = pick(points, mode)
    log_g = model.emission.log_likelihood(z, frame.seen)
    if laws.log_evidence is not None and settings.gradient == "pathwise":
        # The guide is the conditional, q = p g / Z, so p drops out of g p / q_λ.
        log_z = log_sum(carrier.log_mode + laws.log_evidence)
        return Moved(mode, z, None, log_g - _log_mixture(share, 0.0, log_g - log_z))
    log_p = pick(carrier.log_mode + _densities(carrier, points), mode)
    log_q = pick(guide.log_mode + _densities(guide, points), mode)
    return Moved(mode, z, None, log_g + _log_ratio(settings, share, log_p, log_q))


def exact_move(model, settings, laws: Laws, mixed: Mixing, frame: Frame, noise: Noise) -> Moved:
    """Every particle in every mode: z is drawn within each, modes are weighted and not drawn."""
    carrier, guide = laws.carrier, laws.guide
    modes, n = carrier.log_mode.shape
    points = _points(carrier, noise["z"])
    if guide is not None:
        chosen = _from_carrier(settings, mixed.share, noise)
        points = jnp.where(chosen[:, None], points, _points(guide, noise["z"]))
    points = _fixed(settings, points)
    log_g = jax.vmap(model.emission.log_likelihood, in_axes=(0, None))(points, frame.seen)
    log_gain = carrier.log_mode + log_g
    if guide is not None and laws.log_evidence is not None and settings.gradient == "pathwise":
        log_gain = log_gain - _log_mixture(mixed.share, 0.0, log_g - laws.log_evidence)
    elif guide is not None:
        log_p, log_q = _densities(carrier, points), _densities(guide, points)
        log_gain = log_gain + _log_ratio(settings, mixed.share, log_p, log_q)
    elif settings.gradient == "fixed":
        log_p = _densities(carrier, points)
        log_gain = log_gain + log_p - jax.lax.stop_gradient(log_p)
    mode = jnp.repeat(jnp.arange(modes, dtype=jnp.int32), n)
    return Moved(mode, jnp.moveaxis(points, 0, 1).reshape(-1, modes * n), None, log_gain.reshape(-1))


def marginal_move(settings, laws: Laws, mixed: Mixing, noise: Noise) -> Moved:
    """Gaussian particles: only the mode is drawn, from `(1−λ) κ + λ π`, or none at all."""
    carrier, guide, covariance = laws.carrier, laws.guide, laws.covariance
    assert guide is not None
    assert covariance is not None
    assert laws.log_evidence is not None
    modes, n = carrier.log_mode.shape
    if settings.exact_modes:
        mode = jnp.repeat(jnp.arange(modes, dtype=jnp.int32), n)
        mean = jnp.moveaxis(carrier.mean, 0, 1).reshape(-1, modes * n)
        covariance = jnp.moveaxis(covariance, 0, 2).reshape(*covariance.shape[1:3], modes * n)
        return Moved(mode, mean, covariance, (carrier.log_mode + laws.log_evidence).reshape(-1))
    chosen = _from_carrier(settings, mixed.share, noise)
    mode = categorical(jnp.where(chosen, carrier.log_mode, guide.log_mode), noise["mode"])
    log_p, log_q = pick(carrier.log_mode, mode), pick(guide.log_mode, mode)
    log_gain = log_p + pick(laws.log_evidence, mode) - _log_mixture(mixed.share, log_p, log_q)
    return Moved(mode, pick(carrier.mean, mode), pick(covariance, mode), log_gain)


def _redrawn(model, carrier: Branches, moved: Moved, frame: Frame, noise: Noise, lost) -> Moved:
    """The same step drawn from the carrier alone, where every weight was zero."""

    def again(_):
        mode, z = _carrier_draw(carrier, noise["redraw"], noise["z"])
        return Moved(mode, z, None, model.emission.log_likelihood(z, frame.seen))

    return jax.lax.cond(lost, again, lambda _: moved, None)


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


# --- the step ---------------------------------------------------------------------------------------------------------


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
        laws, log_weight, resampled = _resample(laws, particles.log_weight, ahead, ess, settings, noise, allowed)
    else:
        held = particles._replace(log_weight=None, ess=None)
        held, log_weight, resampled = _resample(
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
        moved = _redrawn(model, laws.carrier, moved, frame, noise, lost)

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
