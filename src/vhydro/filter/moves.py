"""The draws from `Q_λ` and their weights `g p / q_λ`, modes sampled or summed."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vhydro.certificate import Mixing
from vhydro.filter.frames import Frame
from vhydro.filter.laws import Laws
from vhydro.filter.settings import FilterSettings
from vhydro.gaussian import coloured, is_diagonal, log_density
from vhydro.model import Branches
from vhydro.particles import Noise, categorical, stratified_choice
from vhydro.small import log_sum, pick


class Moved(NamedTuple):
    """Particles after a step's draw, and the log weight each gained."""

    mode: Int[Array, "particles"]
    z: Float[Array, "latent particles"]
    log_gain: Float[Array, "particles"]


def _points(law: Branches, normal: Float[Array, "*modes latent particles"]) -> Float[Array, "modes latent particles"]:
    """A point of every mode's Gaussian, from one noise for all modes or one each."""
    return law.mean + jax.vmap(coloured, in_axes=(0, None if normal.ndim == 2 else 0))(law.scale, normal)


def _densities(law: Branches, points: Float[Array, "_modes latent particles"]) -> Float[Array, "modes particles"]:
    """The log density of every mode's own point under that mode."""
    return jax.vmap(log_density)(points - law.mean, law.scale)


def carrier_draw(carrier: Branches, uniform, normal):
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
        mode, z = carrier_draw(carrier, noise["mode"], noise["z"])
        z = _fixed(settings, z)
        log_p = pick(carrier.log_mode + _densities(carrier, z[None]), mode) if settings.gradient == "fixed" else 0.0
        log_ratio = log_p - jax.lax.stop_gradient(log_p)
        return Moved(mode, z, model.emission.log_likelihood(z, frame.seen) + log_ratio)
    chosen = _from_carrier(settings, share, noise)
    mode = categorical(jnp.where(chosen, carrier.log_mode, guide.log_mode), noise["mode"])
    points = _fixed(settings, jnp.where(chosen, _points(carrier, noise["z"]), _points(guide, noise["z"])))
    z = pick(points, mode)
    log_g = model.emission.log_likelihood(z, frame.seen)
    if laws.log_evidence is not None and settings.gradient == "pathwise":
        # The guide is the conditional, q = p g / Z, so p drops out of g p / q_λ.
        log_z = log_sum(carrier.log_mode + laws.log_evidence)
        return Moved(mode, z, log_g - _log_mixture(share, 0.0, log_g - log_z))
    log_p = pick(carrier.log_mode + _densities(carrier, points), mode)
    log_q = pick(guide.log_mode + _densities(guide, points), mode)
    return Moved(mode, z, log_g + _log_ratio(settings, share, log_p, log_q))


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
    return Moved(mode, jnp.moveaxis(points, 0, 1).reshape(-1, modes * n), log_gain.reshape(-1))


def redrawn(model, settings, laws: Laws, mixed: Mixing, moved: Moved, frame: Frame, noise: Noise, lost) -> Moved:
    """The same step drawn from the carrier alone, where every weight was zero."""

    def again(_):
        alone, fresh = laws._replace(guide=None), noise | {"mode": noise["redraw"]}
        return sampled_move(model, settings, alone, mixed, frame, fresh)

    return jax.lax.cond(lost, again, lambda _: moved, None)
