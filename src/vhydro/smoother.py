"""Whole trajectories given the whole log: backward simulation over a filter's particle history."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from vhydro.episodes import Batch, Episode, pad
from vhydro.filter import Belief, FilterSettings, Frame, Particles, filter_alike, moments_of
from vhydro.filter.branches import move, moved_covariance, transition_covariance
from vhydro.filter.faults import checked
from vhydro.filter.laws import carrier_of
from vhydro.filter.merged import Merged, is_separate, likeliest_path, smoothed_moments
from vhydro.filter.run import Trajectories, batches, frames_of, full, padded_length, refuse_other_channels
from vhydro.filter.settings import prepared
from vhydro.gaussian import factored, factored_log_density, gain_back, log_density
from vhydro.model import HybridModel
from vhydro.progress import tell
from vhydro.proposal import ConditionedProposal, Proposal
from vhydro.small import over, pick, precise, running_sum, times

PARTICLES = TRAJECTORIES = 128


class Point(NamedTuple):
    """A mode and a z for every trajectory."""

    mode: Int[Array, "trajectories"]
    z: Float[Array, "latent trajectories"]


def _chosen(log_weight: Float[Array, "trajectories particles"], key: PRNGKeyArray) -> Int[Array, "trajectories"]:
    """A particle for every trajectory, by its cumulative weights: one random number each, and not one for each pair."""
    weight = jnp.exp(log_weight - log_weight.max(-1, keepdims=True))
    summed = jax.vmap(running_sum)(weight)
    # Less than all there is, however it was rounded; nor may rounding lead to a particle that has no weight.
    point = jax.random.uniform(key, summed[:, -1:].shape, summed.dtype) * summed[:, -1:] * (1 - 1e-6)
    last = weight.shape[-1] - 1
    return jnp.min(jnp.where((summed > point) & (weight > 0), jnp.arange(last + 1), last), axis=-1)


def _drawn_before(model: HybridModel, particles: Particles, frame: Frame, extra, later: Point, moves, key) -> Point:
    """A particle's (mode, z) before the later point of every trajectory; where nothing moves, the filter's own."""
    carriers = carrier_of(model, particles.mode, particles.z, frame, extra)

    def to_one(mode, z):
        log_mode, mean, scale = (pick(x, mode) for x in (carriers.log_mode, carriers.mean, carriers.scale))
        return log_mode + log_density(z[:, None] - mean, scale)

    log_move = jax.vmap(to_one, in_axes=-1)(later.mode, later.z)
    index = _chosen(particles.log_weight + jnp.where(moves, log_move, 0.0), key)
    return Point(particles.mode[index], particles.z[:, index])


def _gaussian_before(model: HybridModel, particles: Particles, frame: Frame, extra, later: Point, moves, key) -> Point:
    """The same for Gaussian branches: which branch it was, then z from its Gaussian given the later point."""
    assert particles.covariance is not None
    ahead = move(model, particles.mode, particles.z, frame)
    count = particles.mode.shape[0]
    matrix = jnp.broadcast_to(ahead.matrix, (*ahead.matrix.shape[:3], count))
    spread = moved_covariance(matrix, particles.covariance) + over(transition_covariance(model, frame.action, extra), 1)
    factor = jax.vmap(factored)(spread)

    def to_one(mode, z):
        return ahead.log_mode[mode] + factored_log_density(z[:, None] - ahead.mean[mode], factor[mode])

    choose, draw = jax.random.split(key)
    log_move = jax.vmap(to_one, in_axes=(0, -1))(later.mode, later.z)
    index = _chosen(particles.log_weight + jnp.where(moves, log_move, 0.0), choose)
    mean, own = particles.z[:, index], particles.covariance[:, :, index]
    root = jnp.moveaxis(factor[later.mode, :, :, index], 0, -1)
    cross = jnp.einsum("nij,jkn->ikn", matrix[later.mode, :, :, index], own)  # F V
    gain = gain_back(root, cross)
    error = later.z - ahead.mean[later.mode, :, index].T
    shift = jnp.where(moves, times(gain, error), 0.0)
    left = own - jnp.where(moves, jnp.einsum("ijn,jkn->ikn", gain, cross), 0.0)
    noise = jax.random.normal(draw, mean.shape, mean.dtype)
    z = mean + shift + times(factored(0.5 * (left + jnp.swapaxes(left, 0, 1))), noise)
    return Point(particles.mode[index], z)


@eqx.filter_jit
@precise
def _backward(model: HybridModel, history: Particles, batch: Batch, trajectories: int, key: PRNGKeyArray):
    return jax.vmap(lambda h, b: _backward_one(model, h, b, trajectories, key))(history, batch)


def _backward_one(model: HybridModel, history: Particles, batch: Batch, trajectories: int, key: PRNGKeyArray):
    frames = frames_of(model, batch)
    rows = batch.valid.shape[0]

    before = _drawn_before if history.covariance is None else _gaussian_before

    def step(later: Point, inputs):
        particles, frame, time = inputs  # frame leads from these particles to the later point
        # The last valid row has no later point, and padding has nothing to say: both fall back to the filter.
        frame, alarm = checked(model, particles.watch, frame, None)  # with what the filter took for faults taken out
        point = before(model, particles, frame, alarm.extra, later, frame.valid, jax.random.fold_in(key, time))
        return point, point

    start = Point(jnp.zeros(trajectories, jnp.int32), jnp.zeros((model.latent, trajectories), model.dtype))
    nexts = jax.tree.map(lambda x: jnp.concatenate([x[1:], x[:1]]), frames)
    nexts = nexts._replace(valid=jnp.concatenate([batch.valid[1:], jnp.zeros(1, bool)]))
    _, points = jax.lax.scan(step, start, (history, nexts, jnp.arange(rows)), reverse=True)
    equal = jnp.full(trajectories, -np.log(trajectories), model.dtype)
    moments = jax.vmap(lambda m, z: moments_of(model, Particles(m, z, equal, jnp.ones((), model.dtype))))(
        points.mode, points.z
    )
    return moments, Trajectories(points.mode, points.z), None


@eqx.filter_jit
@precise
def _merged_backward(model: HybridModel, history: Merged, batch: Batch):
    def one(history: Merged, batch: Batch):
        return smoothed_moments(model, history, frames_of(model, batch)), None, likeliest_path(history)

    return jax.vmap(one)(history, batch)


def smooth(
    model: HybridModel, episode: Episode, belief: Belief, *, key: PRNGKeyArray, trajectories: int = TRAJECTORIES
) -> Belief:
    """The belief with what the whole log says of every row.

    From particles, or from Gaussian branches, linearised where a mode is not linear: trajectories by backward
    simulation (Godsill, Doucet & West 2004). From merged Gaussians: Kim's recursion, and the likeliest path of modes.
    """
    if belief.history is None:
        raise ValueError("the filter kept no history; run it with FilterSettings(history=True).")
    if trajectories < 1:
        raise ValueError(f"trajectories is {trajectories}; expected at least 1.")
    rows, kept = episode.steps + 1, len(belief.moments.mean)
    if kept != rows:
        raise ValueError(f"the history has {kept} rows, the episode {rows}; smooth with the episode that was filtered.")
    return _smoothed(model, [episode], [belief], key, trajectories)[0]


def _smoothed(model: HybridModel, episodes: Sequence[Episode], beliefs: Sequence[Belief], key, trajectories: int):
    """Every belief smoothed, all in one compiled call; the episodes have one padded length and time step."""
    for episode in episodes:
        refuse_other_channels(model, episode)
    length = padded_length(episodes[0].steps + 1)
    batch = pad(episodes, dtype=model.dtype, length=length)
    every = [_padded(belief.history, length) for belief in beliefs]
    history = jax.tree.map(lambda *parts: np.stack(parts), *every)
    if isinstance(history, Merged):
        out = _merged_backward(model, history, batch)
    else:
        engine = "mixture" if history.covariance is None else "gaussian"
        ready = prepared(model, FilterSettings(engine=engine), batch.dt[0])
        out = _backward(ready, history, batch, trajectories, key)
    host = jax.tree.map(np.asarray, out)

    def one(number: int, belief: Belief) -> Belief:
        rows = len(belief.moments.mean)
        moments, paths, likeliest = jax.tree.map(lambda x: x[number, :rows], host)
        return belief._replace(smoothed=moments, trajectories=paths, likeliest=likeliest)

    return [one(i, belief) for i, belief in enumerate(beliefs)]


def _padded(history, length: int):
    """The history of every row of a padded log: its last goes on."""
    rows = len(jax.tree.leaves(history)[0])
    out = jax.tree.map(lambda x: np.concatenate([x, np.broadcast_to(x[-1:], (length - rows, *x.shape[1:]))]), history)
    return _staying(out, rows) if isinstance(out, Merged) else out


def _staying(history: Merged, rows: int) -> Merged:
    """The history with every mode going on in the padding."""
    stays = np.where(np.eye(history.log_mode.shape[-1], dtype=bool), history.log_mode[rows - 1][:, None], -np.inf)
    history.log_branch[rows:] = stays
    return history


def smooth_logs(
    model: HybridModel,
    episodes: Sequence[Episode],
    *,
    key: PRNGKeyArray,
    proposal: Proposal | None = ConditionedProposal(),  # noqa: B008 — immutable
    settings: FilterSettings | None = None,
) -> list[Belief]:
    """Every log filtered and smoothed: by merged Gaussians where the model allows it, else by particles.

    What is found of a log does not depend on the others, but for rounding; those of one padded length go together.
    """
    if settings is None:
        engine = "merged" if is_separate(model) else "auto"
        settings = FilterSettings(particles=PARTICLES, engine=engine)
    first, second = jax.random.split(key)
    first, settings = jax.random.split(first, 1)[0], replace(settings, history=True)
    out: dict[int, Belief] = {}
    for numbers in batches(episodes):
        some = [episodes[i] for i in full(numbers)]
        beliefs = filter_alike(model, some, key=first, proposal=proposal, settings=settings)
        out |= dict(zip(numbers, _smoothed(model, some, beliefs, second, TRAJECTORIES), strict=False))
        if len(numbers) < len(episodes):
            tell("smoothing logs", len(out), len(episodes))
    return [out[i] for i in range(len(episodes))]


def smooth_log(
    model: HybridModel,
    episode: Episode,
    *,
    key: PRNGKeyArray,
    proposal: Proposal | None = ConditionedProposal(),  # noqa: B008
    settings: FilterSettings | None = None,
) -> Belief:
    """One log filtered and smoothed; see `smooth_logs`."""
    return smooth_logs(model, [episode], key=key, proposal=proposal, settings=settings)[0]
