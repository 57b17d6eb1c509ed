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

from vhydro.emission import LinearEmission, Observation
from vhydro.episodes import Episode, pad
from vhydro.filter import FilterSettings, Frame, filter_episodes
from vhydro.filter.run import frames_of, log_units, padded_length, refuse_other_channels
from vhydro.flow import LinearFlow
from vhydro.gaussian import LOG_2PI
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
    mean: Float[Array, "modes latent"]
    variance: Float[Array, "modes latent"]


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
    value, mean, variance = _updated(model, start.mean, start.scale**2, first.seen)
    log_joint = start.log_mode + value
    begun = Merged(log_joint - jax.nn.logsumexp(log_joint), mean, variance)

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
    scale = jnp.diagonal(model.flow.matrix, axis1=1, axis2=2)
    drift = model.flow.offset + model.flow.port @ frame.action
    mean = now.mean[:, None] * scale + drift
    variance = now.variance[:, None] * scale**2 + model.noise**2
    value, mean, variance = _updated(model, mean, variance, frame.seen)
    move = jax.nn.log_softmax(jnp.where(model.kernel.feasible, model.kernel.logits, -jnp.inf), axis=-1)
    joint = now.log_mode[:, None] + move + value
    increment = jax.nn.logsumexp(joint)
    branch = joint - increment
    log_mode = jax.nn.logsumexp(branch, axis=0)
    share = jnp.exp(branch - jnp.where(jnp.isfinite(log_mode), log_mode, 0.0))[..., None]
    middle = (share * mean).sum(0)
    spread = (share * (variance + (mean - middle) ** 2)).sum(0)
    return Merged(log_mode, middle, spread), branch, increment


def _updated(model: HybridModel, mean, variance, seen: Observation):
    """The log likelihood of what is seen under every Gaussian, and those Gaussians after it."""
    assert isinstance(model.emission, LinearEmission)
    axes = np.asarray(model.emission.axes)
    gain, noise = model.emission.gain, model.emission.noise
    prior, wide = mean[..., axes], variance[..., axes]
    total = gain**2 * wide + noise**2
    error = seen.value - gain * prior - model.emission.offset
    terms = -0.5 * (error**2 / total + jnp.log(total) + LOG_2PI)
    kalman = jnp.where(seen.observed, gain * wide / total, 0.0)
    after = mean.at[..., axes].set(prior + kalman * error)
    narrow = variance.at[..., axes].set(jnp.where(seen.observed, wide * noise**2 / total, wide))  # never cancels
    return jnp.where(seen.observed, terms, 0.0).sum(-1), after, narrow


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
