"""Whole logs through the filter: one episode or many of different lengths, in one compiled call."""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from vhydro.emission import Observation
from vhydro.episodes import Batch, Episode, pad
from vhydro.filter.laws import Frame, Particles
from vhydro.filter.settings import FilterSettings, noise_layout, refuse_mismatch
from vhydro.filter.step import Belief, Record, filter_step, initial
from vhydro.model import HybridModel
from vhydro.particles import step_noise
from vhydro.proposal import ConditionedProposal, Proposal

# Randomness is drawn for this many steps at a time: long enough to fill the cores, short enough to stay in cache.
CHUNK = 8
SIDE_BY_SIDE, FULL = 2048, 512  # particles; see `_together`


class Filtered(NamedTuple):
    """A filtered log. `history` holds every step's particles when `settings.history` asked for them."""

    record: Record
    belief: Belief
    log_evidence: Float[Array, "*episodes"]
    final: Particles
    history: Particles | None


def frames_of(model: HybridModel, batch: Batch) -> Frame:
    """One episode's rows as standardised frames."""
    value = jnp.where(batch.observed, (batch.observations - model.shift) / model.scale, 0.0)
    rows = batch.valid.shape[0]
    return Frame(
        action=batch.actions / model.action_scale,
        seen=Observation(value, batch.observed),
        dt=jnp.broadcast_to(batch.dt, (rows,)),
        first=jnp.arange(rows) == 0,
        valid=batch.valid,
    )


def log_units(model: HybridModel, observed) -> Float[Array, "*times"]:
    """What turns a log density of standardised channels into one of raw channels."""
    return -jnp.where(observed, jnp.log(model.scale), 0.0).sum(-1)


def filtered(
    model: HybridModel, proposal: Proposal | None, settings: FilterSettings, batch: Batch, key: PRNGKeyArray
) -> Filtered:
    """One episode, filtered; pure, differentiable, to be mapped over episodes and jitted by the caller."""
    frames, layout = frames_of(model, batch), noise_layout(model, proposal, settings)
    rows = batch.valid.shape[0]
    chunks = -(-rows // CHUNK)

    def blocked(x):  # (rows, …) -> (chunks, CHUNK, …), padded with False and 0
        padding = [(0, chunks * CHUNK - rows)] + [(0, 0)] * (x.ndim - 1)
        return jnp.pad(x, padding).reshape(chunks, CHUNK, *x.shape[1:])

    def step(particles: Particles, inputs):
        frame, noise = inputs
        after, record, belief = filter_step(model, proposal, settings, particles, frame, noise)
        return after, (record, belief, after if settings.history else None)

    def chunk(particles: Particles, inputs):
        frame, number = inputs
        noise = jax.vmap(lambda t: step_noise(layout, key, t, model.dtype))(number)
        return jax.lax.scan(step, particles, (frame, noise))

    blocks = jax.tree.map(blocked, (frames, jnp.arange(rows)))
    final, outputs = jax.lax.scan(chunk, initial(model, settings), blocks)
    record, belief, history = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:rows], outputs)
    log_normaliser = record.log_normaliser + log_units(model, batch.observed)
    record = record._replace(log_normaliser=log_normaliser)
    return Filtered(record, belief, log_normaliser.sum(), final, history)


def _together(episodes: int, particles: int) -> int:
    """How many episodes are filtered side by side, the rest in turn.

    An accelerator takes all of them. A CPU core is full with one large population, and one at a time it can skip the
    resampling that is not due; side by side it computes both branches of every choice.
    """
    if jax.default_backend() != "cpu":
        return episodes
    most = SIDE_BY_SIDE // particles if particles < FULL else 1
    return max(g for g in range(1, episodes + 1) if episodes % g == 0 and g <= most)


@eqx.filter_jit
def _filtered_batch(model, proposal, settings: FilterSettings, batch: Batch, keys) -> Filtered:
    def one(inputs) -> Filtered:
        return filtered(model, proposal, settings, *inputs)

    episodes = batch.valid.shape[0]
    together = _together(episodes, settings.particles)
    if together == 1:
        return jax.lax.map(one, (batch, keys))
    grouped = jax.tree.map(lambda x: x.reshape(episodes // together, together, *x.shape[1:]), (batch, keys))
    out = jax.lax.map(jax.vmap(one), grouped)
    return jax.tree.map(lambda x: x.reshape(episodes, *x.shape[2:]), out)


@eqx.filter_jit
def _log_evidence_batch(model, proposal, settings: FilterSettings, batch: Batch, keys):
    return _filtered_batch(model, proposal, settings, batch, keys).log_evidence


def padded_length(rows: int) -> int:
    """The row count a log is padded to, so that logs of similar length share one compiled program."""
    step = 64 if rows <= 1024 else 2 ** int(np.log2(rows - 1)) // 8
    return -(-rows // step) * step


def _prepared(model, proposal, settings, episodes, key):
    if isinstance(episodes, Episode) or not all(isinstance(e, Episode) for e in episodes):
        raise ValueError(
            "`filter` takes one Episode, `filter_episodes` and `log_evidence` several; "
            f"got {type(episodes).__name__ if isinstance(episodes, Episode) else [type(e).__name__ for e in episodes]}."
        )
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise ValueError(f"key is {key!r}; expected a random key such as `jax.random.key(0)`.")
    if not episodes:
        raise ValueError("no episodes given; expected at least one.")
    model.validate()
    refuse_mismatch(model, proposal, settings)
    for e in episodes:
        refuse_other_channels(model, e)
    batch = pad(episodes, dtype=model.dtype, length=padded_length(max(e.steps + 1 for e in episodes)))
    return batch, jax.random.split(key, len(episodes))


def refuse_other_channels(model: HybridModel, episode: Episode) -> None:
    names = tuple(c.name for c in episode.channels)
    if names != model.channels:
        missing = [n for n in model.channels if n not in names]
        remedy = f"It lacks {missing}." if missing else "Pick and order them with `episode.select(model.channels)`."
        raise ValueError(f"the episode has channels {list(names)}, the model expects {list(model.channels)}. {remedy}")
    if episode.actions.shape[1] != model.inputs:
        raise ValueError(f"the episode has {episode.actions.shape[1]} inputs, the model expects {model.inputs}.")


def filter_episodes(
    model: HybridModel,
    episodes: Sequence[Episode],
    *,
    key: PRNGKeyArray,
    proposal: Proposal | None = ConditionedProposal(),  # noqa: B008 — immutable
    settings: FilterSettings = FilterSettings(),  # noqa: B008
) -> list[Filtered]:
    """Every episode filtered, all in one compiled call; episode i uses `jax.random.split(key, len(episodes))[i]`."""
    batch, keys = _prepared(model, proposal, settings, episodes, key)
    return _trimmed(_filtered_batch(model, proposal, settings, batch, keys), episodes)


def filter(
    model: HybridModel,
    episode: Episode,
    *,
    key: PRNGKeyArray,
    proposal: Proposal | None = ConditionedProposal(),  # noqa: B008
    settings: FilterSettings = FilterSettings(),  # noqa: B008
) -> Filtered:
    """One log, filtered, with a certificate for every step."""
    batch, _ = _prepared(model, proposal, settings, [episode], key)
    return _trimmed(_filtered_batch(model, proposal, settings, batch, key[None]), [episode])[0]


def log_evidence(
    model: HybridModel,
    episodes: Sequence[Episode],
    *,
    key: PRNGKeyArray,
    proposal: Proposal | None = ConditionedProposal(),  # noqa: B008
    settings: FilterSettings = FilterSettings(),  # noqa: B008
) -> Float[Array, "episodes"]:
    """The estimated log evidence of every episode and nothing else, which is the fastest call."""
    batch, keys = _prepared(model, proposal, settings, episodes, key)
    return _log_evidence_batch(model, proposal, settings, batch, keys)


def _trimmed(out: Filtered, episodes: Sequence[Episode]) -> list[Filtered]:
    host = jax.tree.map(np.asarray, out)

    def one(i: int, rows: int) -> Filtered:
        def cut(tree):
            return jax.tree.map(lambda x: x[i, :rows], tree)

        return Filtered(
            cut(host.record),
            cut(host.belief),
            host.log_evidence[i],
            jax.tree.map(lambda x: x[i], host.final),
            cut(host.history),
        )

    return [one(i, e.steps + 1) for i, e in enumerate(episodes)]
