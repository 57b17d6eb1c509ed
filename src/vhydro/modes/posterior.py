"""Which mode a log was in, row by row: filtered, smoothed, and the likeliest path.

Where a model is linear, coordinate by coordinate, modes are summed over and not sampled: every mode keeps one Gaussian,
every step has a branch for each pair of modes, and branches that end in one mode are merged (Blom & Bar-Shalom 1988).
No branch is deleted, whatever its weight. The backward pass is Kim's (1994), with the weights of the branches in place
of the transitions, so that a reading that comes back from the dark speaks of the step that led to it. Other models are
filtered with particles and smoothed by backward simulation.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from vhydro.emission import LinearEmission
from vhydro.episodes import Episode, pad
from vhydro.filter import FilterSettings, Frame, filter_episodes
from vhydro.filter.run import frames_of, log_units, padded_length, refuse_other_channels
from vhydro.flow import LinearFlow
from vhydro.model import HybridModel
from vhydro.smoother import smooth

PARTICLES, TRAJECTORIES = 128, 128


class ModePosterior(NamedTuple):
    """The modes of one log."""

    filtered: Float[np.ndarray, "rows modes"]  # given the log up to the row
    smoothed: Float[np.ndarray, "rows modes"]  # given all of it
    path: Int[np.ndarray, "rows"]
    log_evidence: float


class Merged(NamedTuple):
    """One Gaussian for each mode, and its weight."""

    log_mode: Float[Array, "modes"]
    mean: Float[Array, "latent modes"]
    variance: Float[Array, "latent modes"]


def mode_posterior(model: HybridModel, episode: Episode, *, key: PRNGKeyArray | None = None) -> ModePosterior:
    """The modes of a log with the model's channels; `key` is for models that need particles."""
    refuse_other_channels(model.validate(), episode)
    if not is_separate(model):
        return _sampled(model, episode, jax.random.key(0) if key is None else key)
    rows = episode.steps + 1
    batch = jax.tree.map(lambda x: x[0], pad([episode], dtype=model.dtype, length=padded_length(rows)))
    filtered, smoothed, path, evidence = _merged_posterior(model, batch)
    return ModePosterior(
        np.asarray(filtered)[:rows], np.asarray(smoothed)[:rows], np.asarray(path, np.int64)[:rows], float(evidence)
    )


def is_separate(model: HybridModel) -> bool:
    """Whether every coordinate moves by itself and is read by at most one channel."""
    if not isinstance(model.flow, LinearFlow) or not isinstance(model.emission, LinearEmission):
        return False
    matrix = np.asarray(model.flow.matrix)
    alone = (matrix == matrix * np.eye(model.latent)).all()
    return bool(alone and model.emission.axes is not None and model.reset is None and model.kernel.drive is None)


@eqx.filter_jit
def _merged_posterior(model: HybridModel, batch):
    frames = frames_of(model, batch)
    start = model.start()
    first = jax.tree.map(lambda x: x[0], frames)
    seen = model.emission.condition(start.mean.T, start.scale.T, first.seen)
    log_joint = start.log_mode + seen.log_evidence
    begun = Merged(log_joint - jax.nn.logsumexp(log_joint), seen.mean, seen.scale**2)

    def step(now: Merged, frame: Frame):
        after, branch, increment = _advanced(model, now, frame)
        kept = jax.tree.map(lambda new, old: jnp.where(frame.valid, new, old), after, now)
        stays = jnp.where(jnp.eye(model.modes, dtype=bool), now.log_mode[:, None], -jnp.inf)
        branch = jnp.where(frame.valid, branch, stays)  # padding: every mode goes on
        return kept, (kept.log_mode, branch, jnp.where(frame.valid, increment, 0.0))

    _, (log_mode, branch, increment) = jax.lax.scan(step, begun, jax.tree.map(lambda x: x[1:], frames))
    log_mode = jnp.concatenate([begun.log_mode[None], log_mode])
    evidence = jax.nn.logsumexp(log_joint) + increment.sum()
    evidence = evidence + jnp.where(batch.valid, log_units(model, batch.observed), 0.0).sum()
    return jnp.exp(log_mode), _backward(log_mode, branch), _likeliest(log_mode, branch), evidence


def _advanced(model: HybridModel, now: Merged, frame: Frame):
    """The modes after a step, the log weight of every branch (from, to), and the step's log evidence."""
    assert isinstance(model.flow, LinearFlow)
    # The modes that were are the particles of the carrier: its axes are to, latent, from.
    carrier = model.transition(jnp.arange(model.modes), now.mean, frame.action, frame.dt)
    stretch = jnp.diagonal(model.flow.matrix, axis1=1, axis2=2)[..., None]
    scale = jnp.sqrt(now.variance * stretch**2 + carrier.scale**2)
    seen = jax.vmap(lambda mean, scale: model.emission.condition(mean, scale, frame.seen))(carrier.mean, scale)
    joint = now.log_mode + carrier.log_mode + seen.log_evidence
    increment = jax.nn.logsumexp(joint)
    log_mode = jax.nn.logsumexp(joint - increment, axis=1)
    share = jnp.exp(joint - increment - jnp.where(jnp.isfinite(log_mode), log_mode, 0.0)[:, None])[:, None]
    middle = (share * seen.mean).sum(-1)
    spread = (share * (seen.scale**2 + (seen.mean - middle[..., None]) ** 2)).sum(-1)
    return Merged(log_mode, middle.T, spread.T), (joint - increment).T, increment


def _backward(log_mode, branch) -> Float[Array, "rows modes"]:
    """The modes given the whole log."""

    def step(later, inputs):
        log_to, joint = inputs  # of the later row, and of the branches that lead to it
        share = jnp.exp(joint - jnp.where(jnp.isfinite(log_to), log_to, 0.0))
        now = share @ later
        return now, now

    last = jnp.exp(log_mode[-1])
    _, earlier = jax.lax.scan(step, last, (log_mode[1:], branch), reverse=True)
    return jnp.concatenate([earlier, last[None]])


def _likeliest(log_mode, branch) -> Int[Array, "rows"]:
    """The path whose branches are likeliest together."""

    def ahead(value, inputs):
        log_from, joint = inputs
        total = value[:, None] + joint - jnp.where(jnp.isfinite(log_from), log_from, 0.0)[:, None]
        return total.max(0), total.argmax(0)

    last, back = jax.lax.scan(ahead, log_mode[0], (log_mode[:-1], branch))

    def behind(mode, choice):
        return choice[mode], choice[mode]

    end = jnp.argmax(last)
    _, path = jax.lax.scan(behind, end, back, reverse=True)
    return jnp.append(path, end)


def _sampled(model: HybridModel, episode: Episode, key: PRNGKeyArray) -> ModePosterior:
    """The same by particles; the path is of the likeliest mode of each row."""
    first, second = jax.random.split(key)
    settings = FilterSettings(particles=PARTICLES, history=True)
    out = filter_episodes(model, [episode], key=first, settings=settings)[0]
    smoothed = np.asarray(smooth(model, episode, out, key=second, trajectories=TRAJECTORIES).belief.mode)
    filtered = np.asarray(out.belief.mode)
    return ModePosterior(filtered, smoothed, smoothed.argmax(1).astype(np.int64), float(out.log_evidence))
