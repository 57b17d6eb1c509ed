"""Hidden Markov chains: probabilities to start from, and what a whole log says of every row."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float


def sticky(modes: int, stay: float) -> Float[np.ndarray, "modes modes"]:
    """Transition probabilities under which a mode goes on with chance `stay`; the others are equally likely next."""
    leave = (1 - stay) / max(modes - 1, 1)
    return np.where(np.eye(modes, dtype=bool), stay if modes > 1 else 1.0, leave)


def chain_posterior(
    likely: Float[Array, "rows modes"], valid: Bool[Array, "rows"], transition, start
) -> tuple[Float[Array, "rows modes"], Float[Array, "modes modes"], Float[Array, ""]]:
    """Mode probabilities of one chain, its expected transitions, and its log likelihood.

    Every row is normalised by itself: sums over a long log would leave no digits for one row.
    """
    log_move = jnp.log(transition)

    def scaled(log_mode):
        total = jax.nn.logsumexp(log_mode)
        return log_mode - total, total

    def ahead(log_mode, row):
        now, total = scaled(row + jax.nn.logsumexp(log_mode[:, None] + log_move, axis=0))
        return now, (now, total)

    def back(log_rest, row):
        return scaled(jax.nn.logsumexp(log_move + row + log_rest, axis=1))[0], log_rest

    first, begun = scaled(jnp.log(start) + likely[0])
    _, (later, totals) = jax.lax.scan(ahead, first, likely[1:])
    forward = jnp.concatenate([first[None], later])
    # Each row's rest is what follows it; the last one's is nothing.
    start_rest, rests = jax.lax.scan(back, jnp.zeros_like(first), likely[1:], reverse=True)
    backward = jnp.concatenate([start_rest[None], rests])
    joint = forward[:-1, :, None] + log_move + (likely + backward)[1:, None]
    pairs = jax.nn.softmax(joint, axis=(1, 2))
    both = (valid[1:] & valid[:-1])[:, None, None]
    return jax.nn.softmax(forward + backward), jnp.where(both, pairs, 0.0).sum(0), begun + totals.sum()
