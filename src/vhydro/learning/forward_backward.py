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

    `log_transition` is one matrix, or one for each step (row t to row t + 1). Every row is normalised by itself: sums
    over a long log would leave no digits for one row.
    """
    steps = log_density.shape[0] - 1
    log_move = jnp.broadcast_to(log_transition, (steps, *log_transition.shape[-2:]))

    def scaled(log_mode):
        total = jax.nn.logsumexp(log_mode)
        return log_mode - total, total

    def ahead(log_mode, inputs):
        row, move = inputs
        now, total = scaled(row + jax.nn.logsumexp(log_mode[:, None] + move, axis=0))
        return now, (now, total)

    def back(log_rest, inputs):
        row, move = inputs
        return scaled(jax.nn.logsumexp(move + row + log_rest, axis=1))[0], log_rest

    first, begun = scaled(log_start + log_density[0])
    _, (later, totals) = jax.lax.scan(ahead, first, (log_density[1:], log_move))
    forward = jnp.concatenate([first[None], later])
    # Each row's rest is what follows it; the last one's is nothing.
    start_rest, rests = jax.lax.scan(back, jnp.zeros_like(first), (log_density[1:], log_move), reverse=True)
    backward = jnp.concatenate([start_rest[None], rests])
    joint = forward[:-1, :, None] + log_move + (log_density + backward)[1:, None]
    both = (valid[1:] & valid[:-1])[:, None, None]
    pairs = jnp.where(both, jax.nn.softmax(joint, axis=(1, 2)), 0.0)
    return ChainPosterior(jax.nn.softmax(forward + backward), pairs, begun + totals.sum())
