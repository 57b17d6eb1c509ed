"""Hidden Markov chains: the forward–backward recursion, with transitions that may change from row to row."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float


class ChainPosterior(NamedTuple):
    """What a whole log says of the modes of one chain."""

    mode: Float[Array, "rows modes"]  # probability of every mode in every row
    pairs: Float[Array, "steps modes modes"]  # of every (from, to), 0 where either row is padding
    log_likelihood: Float[Array, ""]


def sticky(modes: int, stay: float) -> Float[np.ndarray, "modes modes"]:
    """Transition probabilities under which a mode goes on with chance `stay`; the others are equally likely next."""
    leave = (1 - stay) / max(modes - 1, 1)
    return np.where(np.eye(modes, dtype=bool), stay if modes > 1 else 1.0, leave)


def forward_backward(
    log_density: Float[Array, "rows modes"],
    valid: Bool[Array, "rows"],
    log_transition: Float[Array, "*steps modes modes"],
    log_start: Float[Array, "modes"],
) -> ChainPosterior:
    """The posterior of one chain from how likely each row is in every mode; padding has a log density of 0.

    `log_transition` is one matrix, or one for each step (row t to row t + 1). Every row is scaled by itself (Rabiner
    1989): sums over a long log would leave no digits for one row.
    """
    peak = log_density.max(-1, keepdims=True)
    likely, move = jnp.exp(log_density - peak), jnp.exp(log_transition)
    each = move.ndim == 3  # a matrix for every step
    moves = move if each else jnp.zeros((len(likely) - 1, 0), move.dtype)

    def scaled(weight):
        total = weight.sum()
        return weight / total, total

    def ahead(mode, inputs):
        row, own = inputs
        now, total = scaled((mode @ (own if each else move)) * row)
        return now, (now, total)

    def back(rest, inputs):
        row, own = inputs
        return scaled((own if each else move) @ (row * rest))[0], rest

    first, begun = scaled(jnp.exp(log_start) * likely[0])
    _, (later, totals) = jax.lax.scan(ahead, first, (likely[1:], moves))
    forward = jnp.concatenate([first[None], later])
    # Each row's rest is what follows it; the last one's is nothing.
    start_rest, rests = jax.lax.scan(back, jnp.ones_like(first), (likely[1:], moves), reverse=True)
    backward = jnp.concatenate([start_rest[None], rests])
    both = (valid[1:] & valid[:-1])[:, None, None]
    pairs = _shares(forward[:-1, :, None] * move * (likely * backward)[1:, None], (1, 2))
    log_likelihood = jnp.log(begun) + jnp.log(totals).sum() + peak.sum()
    return ChainPosterior(_shares(forward * backward, -1), jnp.where(both, pairs, 0.0), log_likelihood)


def _shares(weight: Float[Array, "..."], axis: int | tuple[int, ...]) -> Float[Array, "..."]:
    return weight / weight.sum(axis, keepdims=True)
