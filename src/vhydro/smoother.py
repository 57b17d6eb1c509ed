"""Whole trajectories given the whole log: backward simulation over a filter's particle history."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from vhydro.episodes import Batch, Episode, pad
from vhydro.filter import Belief, Filtered, Frame, Particles, belief_of
from vhydro.filter.run import frames_of, padded_length, refuse_other_channels
from vhydro.gaussian import log_density
from vhydro.model import HybridModel
from vhydro.small import pick


class Smoothed(NamedTuple):
    """Equally likely trajectories drawn from the smoothing law, and their summary per step."""

    mode: Int[Array, "times trajectories"]
    z: Float[Array, "times latent trajectories"]
    belief: Belief


def _log_transitions(
    model: HybridModel, particles: Particles, frame: Frame, mode, z
) -> Float[Array, "trajectories particles"]:
    """How likely each particle is to move to each of the points (mode, z)."""
    carriers = model.transition(particles.mode, particles.z, frame.action, frame.dt)

    def to_one(mode, z):
        log_mode, mean, scale = (pick(x, mode) for x in (carriers.log_mode, carriers.mean, carriers.scale))
        return log_mode + log_density(z[:, None] - mean, scale)

    return jax.vmap(to_one, in_axes=-1)(mode, z)


@eqx.filter_jit
def _backward(model: HybridModel, history: Particles, batch: Batch, trajectories: int, key: PRNGKeyArray):
    frames = frames_of(model, batch)
    rows = batch.valid.shape[0]

    def chosen(key, logits) -> Int[Array, "trajectories"]:
        return jax.random.categorical(key, logits, axis=-1)

    class Point(NamedTuple):
        mode: Int[Array, "trajectories"]
        z: Float[Array, "latent trajectories"]

    def taken(particles: Particles, index) -> Point:
        return Point(particles.mode[index], particles.z[:, index])

    def step(later: Point, inputs):
        particles, frame, time = inputs  # frame leads from these particles to the later point
        log_move = _log_transitions(model, particles, frame, later.mode, later.z)
        # The last valid row has no later point, and padding has nothing to say: both fall back to the filter.
        logits = particles.log_weight + jnp.where(frame.valid, log_move, 0.0)
        point = taken(particles, chosen(jax.random.fold_in(key, time), logits))
        return point, point

    last = jax.tree.map(lambda x: x[-1], history)
    start = taken(last, jnp.zeros(trajectories, jnp.int32))
    nexts = jax.tree.map(lambda x: jnp.concatenate([x[1:], x[:1]]), frames)
    nexts = nexts._replace(valid=jnp.concatenate([batch.valid[1:], jnp.zeros(1, bool)]))
    _, points = jax.lax.scan(step, start, (history, nexts, jnp.arange(rows)), reverse=True)
    equal = jnp.full(trajectories, -np.log(trajectories), model.dtype)
    belief = jax.vmap(lambda m, z: belief_of(model, Particles(m, z, equal, jnp.ones((), model.dtype))))(
        points.mode, points.z
    )
    return Smoothed(points.mode, points.z, belief)


def smooth(
    model: HybridModel, episode: Episode, filtered: Filtered, *, key: PRNGKeyArray, trajectories: int = 128
) -> Smoothed:
    """Trajectories of (mode, z) given the whole log (Godsill, Doucet & West 2004)."""
    if filtered.history is None:
        raise ValueError("the filter kept no history; run it with FilterSettings(history=True).")
    if filtered.history.covariance is not None:
        raise ValueError("backward simulation needs draws of z; run the filter with marginal=False.")
    if trajectories < 1:
        raise ValueError(f"trajectories is {trajectories}; expected at least 1.")
    refuse_other_channels(model, episode)
    rows = episode.steps + 1
    if filtered.history.mode.shape[0] != rows:
        raise ValueError(
            f"the history has {filtered.history.mode.shape[0]} rows, the episode {rows}; "
            "smooth with the episode that was filtered."
        )
    length = padded_length(rows)
    batch = jax.tree.map(lambda x: x[0], pad([episode], dtype=model.dtype, length=length))
    history = jax.tree.map(
        lambda x: np.concatenate([x, np.broadcast_to(x[-1:], (length - rows, *x.shape[1:]))]),
        filtered.history,
    )
    out = _backward(model, history, batch, trajectories, key)
    return jax.tree.map(lambda x: np.asarray(x)[:rows], out)
