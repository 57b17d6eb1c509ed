"""When a population is resampled, by which probabilities, and the weights that keep it unbiased."""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from vhydro.filter.settings import FilterSettings
from vhydro.particles import RESAMPLERS, Noise, columns_at
from vhydro.small import log_sum

Tree = TypeVar("Tree")


def resample(
    tree: Tree,
    log_weight,
    ahead,
    ess,
    settings: FilterSettings,
    noise: Noise,
    allowed,
    power: float | Float[Array, ""] = 1.0,
) -> tuple[Tree, Float[Array, "particles"], Bool[Array, ""], Float[Array, ""]]:
    """The tree and its weights, resampled if `ess`, the ESS/N of the resampling probabilities, asks for it.

    Probabilities v are the weights, times `exp(ahead)` if given. New weights are `w/(N v)`. Where Gaussian branches
    are reduced to the particle count, v is the weights to a power, cut so that none is expected more than once: see
    `cut_to_once`. A branch whose z is a draw may be kept more than once, because each copy draws its own z next. Last
    comes what the cut leaves to chance: the variance it adds to the sum of all weights times a value of each that is at
    most 1.
    """
    n, parents = settings.count, log_weight.shape[0]
    soft, log_n = settings.soft, jnp.log(jnp.asarray(n, log_weight.dtype))
    reduced, fixed = parents != n, settings.gradient == "fixed"
    log_first = log_weight if ahead is None else log_weight + ahead - log_sum(log_weight + ahead)
    chance = jnp.zeros((), log_weight.dtype)
    if reduced and settings.engine == "gaussian":
        log_first, chance = cut_to_once(log_first, n, power)
    log_first = jax.lax.stop_gradient(log_first) if soft == 1 else log_first
    if soft < 1:
        uniform = jnp.log1p(-jnp.asarray(soft, log_first.dtype)) - jnp.log(parents)
        log_first = jnp.logaddexp(jnp.log(soft) + log_first, uniform)
    # A lineage keeps the gradient of its weight, whose value is divided out: with fixed samples only so is the sum over
    # steps Fisher's identity, and where modes are summed only so does the kernel learn from what is to come. Along a
    # drawn path it is dropped, as FIVO does.
    kept = soft < 1 or fixed or reduced

    def resampled(_):
        first = jax.lax.stop_gradient(jnp.exp(log_first))
        ancestors = RESAMPLERS[settings.resampler].ancestors(first, noise["resample"], n)

        weight = None
        if ahead is not None or kept:
            weight = log_weight - log_first
            weight = weight if kept else jax.lax.stop_gradient(weight)
        whole, structure = jax.tree.flatten((tree, weight))
        every = [x.shape[-1] == parents for x in whole]  # others are shared by all particles
        taken = iter(columns_at(tuple(x for x, own in zip(whole, every, strict=True) if own), ancestors))
        some = [next(taken) if own else x for x, own in zip(whole, every, strict=True)]
        after, weight = jax.tree.unflatten(structure, some)
        return after, jnp.full(n, -log_n) if weight is None else weight - log_n

    if reduced:
        tree, log_weight = resampled(None)
        return tree, log_weight, allowed, chance
    if settings.engine == "gaussian" or settings.ess_threshold == 0:  # branches of one mode: nothing to choose among
        return tree, log_weight, jnp.zeros((), bool), chance
    wanted = allowed & ((ess < settings.ess_threshold) | (settings.ess_threshold == 1))
    tree, log_weight = jax.lax.cond(wanted, resampled, lambda _: (tree, log_weight), None)
    return tree, log_weight, wanted, chance


DEEP, SLOW = 20.0, 6.0  # nats below which weights fall as a power, and which
CUTS = 12  # rounds in search of the threshold; any threshold is unbiased, the last few change nothing


def cut_to_once(
    log_weight: Float[Array, "parents"], count: int, power: float | Float[Array, ""] = 1.0
) -> tuple[Float[Array, "parents"], Float[Array, ""]]:
    """Resampling probabilities `v = min(w^power, c)`, about, normalised, with c such that none exceeds `1/count`.

    A branch above c is kept as it is and the others share what is left; with power 1 that is the least variance of all
    unbiased schemes for the sum of the weights (Fearnhead & Clifford 2003). A smaller power keeps more of the light
    ones, some of which will be the heavy ones of later rows. Above all, with systematic resampling nothing is kept
    twice: a Gaussian branch has no noise of its own, so a second copy would be wasted work for ever. Where fewer than
    `count` have any weight, each is kept and the places left go to those without. Found by Michelot's rounds: what
    must be kept is taken off first. Last comes the variance that independent choices would have, `Σ w² (1/(N v) − 1)`.
    """
    log_weight = jax.lax.stop_gradient(log_weight)
    # Far out the weights are flattened: e⁻²⁰⁰⁰ is no number, and such a branch may be the best of those there are.
    depth = -power * log_weight
    log_share = -jnp.where(depth > DEEP, DEEP + SLOW * jnp.log1p(jnp.maximum(depth - DEEP, 0.0) / SLOW), depth)
    log_share = log_share - log_sum(log_share)
    share = jax.lax.optimization_barrier(jnp.exp(log_share))  # once, and not again in every round
    cut = jnp.ones((), share.dtype) / count
    kept = share >= cut
    for _ in range(CUTS):
        rest = jnp.where(kept, 0.0, share).sum()
        room = count - kept.sum()
        lower = rest / jnp.maximum(room, 1)
        # Without room left only rounding has put a rest there; a threshold of 0 would keep the dead.
        cut = jnp.where((room > 0) & (lower > jnp.finfo(share.dtype).tiny), lower, cut)
        kept = share >= cut
    log_chance = jnp.where(kept, jnp.log(cut), log_share)
    log_chance = log_chance - log_sum(log_chance)
    alive = share > 0
    empty = count - alive.sum().astype(share.dtype)
    fill = jnp.where(alive, 1.0, empty / jnp.maximum(alive.shape[0] - alive.sum(), 1)) / count
    log_chance = jnp.where(empty >= 0, jnp.log(fill), log_chance)
    weight, sure = jnp.exp(log_weight), kept | (empty >= 0)
    chance = jnp.where(sure, 0.0, weight * (jnp.exp(log_weight - log_chance) / count - weight)).sum()
    return log_chance, chance
