"""When a population is resampled, by which probabilities, and the weights that keep it unbiased."""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from vhydro.filter.settings import FilterSettings
from vhydro.particles import RESAMPLERS, Noise
from vhydro.small import log_sum

Tree = TypeVar("Tree")


def resample(
    tree: Tree, log_weight, ahead, ess, settings: FilterSettings, noise: Noise, allowed
) -> tuple[Tree, Float[Array, "particles"], Bool[Array, ""]]:
    """The tree and its weights, resampled if `ess`, the ESS/N of the resampling probabilities, asks for it.

    Probabilities v are the weights, times `exp(ahead)` if given. New weights are `w/(N v)`. Where Gaussian branches
    are reduced to the particle count, v is cut so that none is expected more than once: see `cut_to_once`. A branch
    whose z is a draw may be kept more than once, because each copy draws its own z next.
    """
    n, parents = settings.particles, log_weight.shape[0]
    soft, log_n = settings.soft, jnp.log(jnp.asarray(n, log_weight.dtype))
    cut, fixed = parents != n and settings.marginal, settings.gradient == "fixed"
    through = cut and not fixed
    log_first = log_weight if ahead is None else log_weight + ahead - log_sum(log_weight + ahead)
    if cut:
        log_first = cut_to_once(log_first, n)
    log_first = jax.lax.stop_gradient(log_first) if soft == 1 and not through else log_first
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

        if ahead is None and soft == 1 and not fixed and not through:
            return jax.tree.map(taken, tree), jnp.full(n, -log_n)
        # With fixed samples a lineage keeps the gradient of its weights (their value is divided out): only so is the
        # sum over steps Fisher's identity. Along the path it is dropped, as FIVO does, except where branches are cut:
        # what is kept for certain is differentiated like any other weight.
        weight = log_weight - log_first
        weight = weight if soft < 1 or fixed or through else jax.lax.stop_gradient(weight)
        return jax.tree.map(taken, tree), taken(weight) - log_n

    if parents != n:
        tree, log_weight = resampled(None)
        return tree, log_weight, allowed
    if settings.ess_threshold == 0:
        return tree, log_weight, jnp.zeros((), bool)
    wanted = allowed & ((ess < settings.ess_threshold) | (settings.ess_threshold == 1))
    tree, log_weight = jax.lax.cond(wanted, resampled, lambda _: (tree, log_weight), None)
    return tree, log_weight, wanted


CUTS = 12  # rounds in search of the threshold; any threshold is unbiased, the last few change nothing


def cut_to_once(log_weight: Float[Array, "parents"], count: int) -> Float[Array, "parents"]:
    """Resampling probabilities `min(w, c)`, normalised, with c such that none exceeds `1/count`.

    A branch above c is kept as it is and the others share what is left, with the least variance of all unbiased
    schemes (Fearnhead & Clifford 2003). Above all, with systematic resampling nothing is kept twice: a Gaussian
    branch has no noise of its own, so a second copy would be wasted work for ever. Found by Michelot's rounds: what
    must be kept is taken off first.
    """
    weight = jnp.exp(jax.lax.stop_gradient(log_weight))
    cut = jnp.ones((), weight.dtype) / count
    kept = weight >= cut
    for _ in range(CUTS):
        rest = jnp.where(kept, 0.0, weight).sum()
        room = count - kept.sum()
        lower = rest / jnp.maximum(room, 1)
        # Without room left only rounding has put a rest there; a threshold of 0 would keep the dead.
        cut = jnp.where((room > 0) & (lower > jnp.finfo(weight.dtype).tiny), lower, cut)
        kept = weight >= cut
    # The threshold again, in logs and from the set just found: the gradient of a tiny sum would overflow.
    room = count - kept.sum()
    left = ~kept & (weight > 0)
    some = jnp.any(left) & (room > 0)
    log_rest = log_sum(jnp.where(left | ~some, jnp.where(some, log_weight, 0.0), -jnp.inf))
    log_cut = jnp.where(some, log_rest - jnp.log(jnp.maximum(room, 1)), jnp.log(cut))
    log_chance = jnp.where(kept, log_cut.astype(log_weight.dtype), log_weight)
    return log_chance - log_sum(log_chance)
