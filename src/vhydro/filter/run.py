"""Whole logs through the filter: one episode or many of different lengths, in one compiled call."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from vhydro.emission import Observation
from vhydro.episodes import Batch, Episode, pad
from vhydro.filter.branches import Trace, branch_step, corrects
from vhydro.filter.correction import (
    OVERLAP,
    WINDOW,
    Anchor,
    Lineages,
    concluded,
    corrected,
    correction_layout,
    empty_anchor,
    empty_lineages,
)
from vhydro.filter.frames import Frame, Moments, Particles, Record, blocked
from vhydro.filter.merged import Merged, merged_run
from vhydro.filter.path import ISLANDS, PathStatement, path_of
from vhydro.filter.probe import refuse_bad_likelihood
from vhydro.filter.program import Program, filtered_by, in_kernel, kernel_evidence, kernel_run
from vhydro.filter.settings import FilterSettings, engine_of, noise_layout, prepared, refuse_mismatch
from vhydro.filter.step import filter_step, initial
from vhydro.model import HybridModel
from vhydro.particles import Draw, step_noise
from vhydro.progress import tell
from vhydro.proposal import ConditionedProposal, Proposal
from vhydro.small import precise

# Randomness is drawn for this many steps at a time: long enough to fill the cores, short enough to stay in cache.
CHUNK = 8
CORRECTIONS = 2**30  # folded into the key for the draws of corrections
TOGETHER, TOGETHER_ON_ACCELERATOR = 32, 512  # episodes in one call of `filter_alike`
SIDE_BY_SIDE, FULL = 2048, 512  # particles; see `_together`
PART = 64  # episodes that are filtered before the next word about progress
STAGE = "filtering logs"


class Trajectories(NamedTuple):
    """Equally likely trajectories drawn from the smoothing law."""

    mode: Int[Array, "times trajectories"]
    z: Float[Array, "times latent trajectories"]


class Belief(NamedTuple):
    """What is believed of a log, whichever engine filtered or smoothed it, and what every step can certify.

    `mode`, `mean` and `variance` are the smoothed ones where there are any, else the filtered ones, which are always in
    `moments`. `history` is what smoothing needs, kept when `settings.history` asked for it. `statement` says what holds
    for the whole log where islands were asked for; everything else is then the island's whose evidence is the middle.
    `program` is the scan or the kernel that did it, with the reason.
    """

    record: Record
    moments: Moments  # given the log up to each row
    log_evidence: Float[Array, "*episodes"]
    final: Particles | Merged
    history: Particles | Merged | None = None
    statement: PathStatement | None = None
    smoothed: Moments | None = None  # given the whole log
    trajectories: Trajectories | None = None  # of which the smoothed moments are, where it was sampled
    likeliest: Int[Array, "*times"] | None = None  # the mode path, where one was found as a whole
    program: Program | None = None  # what ran

    @property
    def mode(self) -> Float[Array | np.ndarray, "*times modes"]:
        """The probability of every mode in every row."""
        return self._best.mode

    @property
    def mean(self) -> Float[Array | np.ndarray, "*times latent"]:
        """The mean of z in every row, standardised."""
        return self._best.mean

    @property
    def variance(self) -> Float[Array | np.ndarray, "*times latent"]:
        """The variance of every coordinate of z, standardised."""
        return self._best.variance

    @property
    def path(self) -> Int[np.ndarray, "*times"]:
        """The mode of every row: the likeliest path where it is known, else the likeliest mode of each row."""
        best = self._best.mode.argmax(-1) if self.likeliest is None else self.likeliest
        return np.asarray(best, np.int64)

    @property
    def _best(self) -> Moments:
        return self.moments if self.smoothed is None else self.smoothed


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


@precise
def filtered(
    model: HybridModel, proposal: Proposal | None, settings: FilterSettings, batch: Batch, key: PRNGKeyArray
) -> Belief:
    """One episode, filtered; pure, differentiable, to be mapped over episodes and jitted by the caller."""
    settings = engine_of(model, proposal, settings)
    model = prepared(model, settings, batch.dt)
    run = _run_of(model, proposal, settings)
    outputs, final, left = run(model, proposal, settings, frames_of(model, batch), key)
    record, moments, history = jax.tree.map(lambda x: _joined(x)[: batch.valid.shape[0]], outputs)
    log_normaliser = record.log_normaliser + log_units(model, batch.observed)
    record = record._replace(log_normaliser=log_normaliser)
    return Belief(record, moments, log_normaliser.sum() + left, final, history)


def _run_of(model: HybridModel, proposal: Proposal | None, settings: FilterSettings):
    """What filters the rows of one log."""
    if settings.engine == "merged":
        return merged_run
    if corrects(model, settings):
        return _corrected_run
    return kernel_run if in_kernel(model, proposal, settings) else _plain_run


def _joined(x):
    """(blocks, size, …) -> (rows, …)."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _plain_run(model: HybridModel, proposal, settings: FilterSettings, frames: Frame, key):
    """Every row in turn: what each step says, the last particles, and no evidence left over."""
    rows, layout = frames.valid.shape[0], noise_layout(model, proposal, settings)

    def step(particles: Particles, inputs):
        frame, noise = inputs
        after, record, moments = filter_step(model, proposal, settings, particles, frame, noise)
        return after, (record, moments, after if settings.history else None)

    def chunk(particles: Particles, inputs):
        frame, number = inputs
        noise = jax.vmap(lambda t: step_noise(layout, key, t, model.dtype))(number)
        return jax.lax.scan(step, particles, (frame, noise))

    blocks = blocked((frames, jnp.arange(rows)), rows, CHUNK)
    final, outputs = jax.lax.scan(chunk, initial(model, settings), blocks)
    return outputs, final, jnp.zeros((), model.dtype)


class Window(NamedTuple):
    """What linearised branches carry from one window of rows to the next."""

    particles: Particles
    anchor: Anchor | None
    kept: Lineages | None


def first_window(model: HybridModel, settings: FilterSettings, frame: Frame) -> Window:
    """Before the first row; `frame` shows what a row looks like."""
    empty = empty_anchor(model, settings), empty_lineages(model, settings, frame)
    return Window(initial(model, settings), *empty)


@precise
def closed_window(
    model: HybridModel, settings: FilterSettings, window: Window, trace: Trace, number, key: PRNGKeyArray
) -> tuple[Window, Float[Array, ""]]:
    """The next window, once the rows of this one are filtered, and the log of the correction to their evidence."""
    assert window.anchor is not None
    assert window.kept is not None
    noise = step_noise(correction_layout(model, settings), jax.random.fold_in(key, CORRECTIONS), number, model.dtype)
    done = corrected(model, settings, window.particles, window.anchor, window.kept, trace, noise)
    return Window(done.particles, done.anchor, done.kept), done.log_factor


def _corrected_run(model: HybridModel, proposal, settings: FilterSettings, frames: Frame, key):
    """Every row in turn, with a correction after every window; the last rows' correction is what is left over."""
    rows, layout = frames.valid.shape[0], noise_layout(model, proposal, settings)

    def step(particles: Particles, inputs):
        frame, noise = inputs
        after, record, moments, trace = branch_step(model, settings, particles, frame, noise)
        return after, (record, moments, after if settings.history else None, trace)

    def chunk(window: Window, inputs):
        frame, number = inputs
        noise = jax.vmap(lambda t: step_noise(layout, key, t, model.dtype))(number)
        particles, (record, moments, history, trace) = jax.lax.scan(step, window.particles, (frame, noise))
        block = number[0] // WINDOW
        window, log_factor = closed_window(model, settings, window._replace(particles=particles), trace, block, key)
        # Rows past the log's end are cut off: their share of the correction is kept apart.
        shown = jnp.where(frame.valid[-1], log_factor, 0.0)
        record = record._replace(log_normaliser=record.log_normaliser.at[-1].add(shown))
        return window, ((record, moments, history), log_factor - shown)

    blocks = blocked((frames, jnp.arange(rows)), rows, WINDOW)
    start = first_window(model, settings, jax.tree.map(lambda x: x[0], frames))
    window, (outputs, apart) = jax.lax.scan(chunk, start, blocks)
    normal = step_noise(
        (Draw("path", (OVERLAP, model.latent, settings.count), "normal"),),
        jax.random.fold_in(key, CORRECTIONS), jnp.asarray(CORRECTIONS), model.dtype,
    )["path"]  # fmt: skip
    assert window.kept is not None
    left = concluded(model, window.particles, window.kept, normal)
    return outputs, window.particles, apart.sum() + left


def _together(episodes: int, particles: int, traced: bool) -> int:
    """How many episodes are filtered side by side, the rest in turn.

    An accelerator takes all of them. A CPU core is full with one large population, and one at a time it can skip the
    resampling that is not due; side by side it computes both branches of every choice. Where a window's rows are traced
    for its correction, half as many stay in its cache.
    """
    if jax.default_backend() != "cpu":
        return episodes
    most = max(SIDE_BY_SIDE // particles // (1 + traced), 1) if particles < FULL else 1
    return max(g for g in range(1, episodes + 1) if episodes % g == 0 and g <= most)


@eqx.filter_jit
def _filtered_batch(model, proposal, settings: FilterSettings, batch: Batch, keys) -> Belief:
    def one(inputs) -> Belief:
        return filtered(model, proposal, settings, *inputs)

    episodes = batch.valid.shape[0]
    together = _together(episodes, settings.count, corrects(model, settings))
    if together == 1:
        return jax.lax.map(one, (batch, keys))
    grouped = jax.tree.map(lambda x: x.reshape(episodes // together, together, *x.shape[1:]), (batch, keys))
    out = jax.lax.map(jax.vmap(one), grouped)
    return jax.tree.map(lambda x: x.reshape(episodes, *x.shape[2:]), out)


@eqx.filter_jit
def _log_evidence_batch(model, proposal, settings: FilterSettings, batch: Batch, keys):
    if _run_of(model, proposal, settings) is kernel_run:
        return jax.vmap(lambda b, k: _evidence_by_kernel(model, proposal, settings, b, k))(batch, keys)
    return _filtered_batch(model, proposal, settings, batch, keys).log_evidence


@precise
def _evidence_by_kernel(model, proposal, settings: FilterSettings, batch: Batch, key):
    model = prepared(model, settings, batch.dt)
    rows = _joined(kernel_evidence(model, proposal, settings, frames_of(model, batch), key))[: batch.valid.shape[0]]
    return (rows + log_units(model, batch.observed)).sum()


def padded_length(rows: int) -> int:
    """The row count a log is padded to: two for every octave, so that logs of any length share a few programs."""
    octave = 2 ** max(int(np.ceil(np.log2(max(rows, 1)))), 6)
    return 3 * octave // 4 if octave > 64 and rows <= 3 * octave // 4 else octave


def batches(episodes: Sequence[Episode]) -> Iterator[list[int]]:
    """The numbers of episodes that go together: of one padded length and time step, so many at a time."""
    most = TOGETHER if jax.default_backend() == "cpu" else TOGETHER_ON_ACCELERATOR
    alike: dict[tuple[int, float], list[int]] = {}
    for i, e in enumerate(episodes):
        alike.setdefault((padded_length(e.steps + 1), e.dt), []).append(i)
    for numbers in alike.values():
        for first in range(0, len(numbers), most):
            yield numbers[first : first + most]


def full(numbers: Sequence[int]) -> list[int]:
    """The numbers with the last repeated up to the next power of two, so that batches of any size share programs."""
    return [*numbers, *[numbers[-1]] * (2 ** int(np.ceil(np.log2(len(numbers)))) - len(numbers))]


def filter_alike(
    model: HybridModel,
    episodes: Sequence[Episode],
    *,
    key: PRNGKeyArray,
    proposal: Proposal | None = ConditionedProposal(),  # noqa: B008 — immutable
    settings: FilterSettings = FilterSettings(),  # noqa: B008
) -> list[Belief]:
    """Every episode as `filter` with this key would, to rounding; those of one padded length in one call."""
    out: dict[int, Belief] = {}
    for numbers in batches(episodes):
        rows = full(numbers)
        some = [episodes[i] for i in rows]
        keys = jnp.stack([key] * len(rows))
        found = filter_episodes(model, some, key=keys, proposal=proposal, settings=settings)
        out |= dict(zip(numbers, found, strict=False))
        if len(numbers) < len(episodes):
            tell(STAGE, len(out), len(episodes))
    return [out[i] for i in range(len(episodes))]


def _prepared(model, proposal, settings, episodes, key):
    if isinstance(episodes, Episode) or not all(isinstance(e, Episode) for e in episodes):
        raise ValueError(
            "`filter` takes one Episode, `filter_episodes` and `log_evidence` several; "
            f"got {type(episodes).__name__ if isinstance(episodes, Episode) else [type(e).__name__ for e in episodes]}."
        )
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise ValueError(f"key is {key!r}; expected a random key such as `jax.random.key(0)`.")
    if key.ndim and key.shape != (len(episodes),):
        raise ValueError(f"key has the shape {key.shape}; expected one key, or {len(episodes)}, one for each episode.")
    if not episodes:
        raise ValueError("no episodes given; expected at least one.")
    model.validate()
    settings = engine_of(model, proposal, settings)
    refuse_mismatch(model, proposal, settings)
    limits = reach(model)
    for e in episodes:
        refuse_other_channels(model, e)
        refuse_out_of_range(model.channels, limits, e.observations, e.actions)
    refuse_bad_likelihood(model, [e.observations for e in episodes])
    batch = pad(episodes, dtype=model.dtype, length=padded_length(max(e.steps + 1 for e in episodes)))
    return settings, batch, key if key.ndim else jax.random.split(key, len(episodes))


def reach(model: HybridModel) -> tuple[np.ndarray, np.ndarray]:
    """The largest reading of every channel and the largest value of every input that the model has numbers for.

    What is merely absurd is a fault for the filter to find; beyond this it would be none in the model's precision.
    """
    most = float(np.finfo(model.dtype).max) / 100
    scale, inputs = (np.minimum(np.asarray(x, np.float64), 1.0) for x in (model.scale, model.action_scale))
    return most * scale, most * inputs


def refuse_out_of_range(
    channels: Sequence[str], limits: tuple[np.ndarray, np.ndarray], observations: np.ndarray, actions: np.ndarray
) -> None:
    """Raises where a number is beyond the model's `reach`."""
    for values, limit, what in ((observations, limits[0], "channel"), (actions, limits[1], "input")):
        far = np.abs(values) > limit
        if far.any():
            row, column = np.argwhere(far)[0]
            name, value = f"'{channels[column]}'" if what == "channel" else column, values[row, column]
            raise ValueError(
                f"{what} {name} is {value:.3g} at row {row}; expected at most {limit[column]:.3g}, the most that the "
                "model has numbers for. Put NaN where a reading is none."
            )


def refuse_other_channels(model: HybridModel, episode: Episode) -> None:
    names = tuple(c.name for c in episode.channels)
    if names != model.channels:
        missing = [n for n in model.channels if n not in names]
        remedy = f"It lacks {missing}." if missing else "Pick and order them with `episode.select(model.channels)`."
        raise ValueError(f"the episode has channels {list(names)}, the model expects {list(model.channels)}. {remedy}")
    if episode.actions.shape[1] != model.inputs:
        raise ValueError(
            f"the episode has {episode.actions.shape[1]} inputs, the model expects {model.inputs}. Name them."
        )


def filter_episodes(
    model: HybridModel,
    episodes: Sequence[Episode],
    *,
    key: PRNGKeyArray | Key[Array, "episodes"],
    proposal: Proposal | None = ConditionedProposal(),  # noqa: B008 — immutable
    settings: FilterSettings = FilterSettings(),  # noqa: B008
) -> list[Belief]:
    """Every episode filtered, all by one compiled program.

    Episode i uses `jax.random.split(key, len(episodes))[i]`, or `key[i]` where there is a key for each.
    """
    settings, batch, keys = _prepared(model, proposal, settings, episodes, key)
    return _with_path(model, proposal, settings, episodes, batch, keys)


def filter(
    model: HybridModel,
    episode: Episode,
    *,
    key: PRNGKeyArray,
    proposal: Proposal | None = ConditionedProposal(),  # noqa: B008
    settings: FilterSettings = FilterSettings(),  # noqa: B008
) -> Belief:
    """One log, filtered, with a certificate for every step."""
    settings, batch, _ = _prepared(model, proposal, settings, [episode], key)
    return _with_path(model, proposal, settings, [episode], batch, key[None])[0]


def log_evidence(
    model: HybridModel,
    episodes: Sequence[Episode],
    *,
    key: PRNGKeyArray,
    proposal: Proposal | None = ConditionedProposal(),  # noqa: B008
    settings: FilterSettings = FilterSettings(),  # noqa: B008
) -> Float[Array, "episodes"]:
    """The estimated log evidence of every episode and nothing else, which is the fastest call."""
    settings, batch, keys = _prepared(model, proposal, settings, episodes, key)
    if settings.particles == "auto" or settings.islands > 1:
        every = _with_path(model, proposal, settings, episodes, batch, keys)
        return jnp.asarray([out.log_evidence for out in every], model.dtype)
    return filtered_by(_log_evidence_batch, model, proposal, settings, batch, keys)[0]


def _with_path(model, proposal, settings: FilterSettings, episodes, batch: Batch, keys) -> list[Belief]:
    """Every episode filtered; by islands, and with as many particles as it takes, where that was asked for."""
    if settings.particles == "auto":
        return _accurate(model, proposal, settings, episodes, batch, keys)
    if settings.islands == 1:
        return _in_parts(model, proposal, settings, episodes, batch, keys)
    return _by_islands(model, proposal, settings, episodes, batch, keys)


def _in_parts(model, proposal, settings, episodes, batch: Batch, keys) -> list[Belief]:
    """Every episode filtered, `PART` at a time: so many fill a machine, and it can be told how far this is."""
    count, out = len(episodes), []
    if count <= PART or jax.default_backend() != "cpu":  # an accelerator takes all of them
        return _trimmed(filtered_by(_filtered_batch, model, proposal, settings, batch, keys), episodes)
    tell(STAGE, 0, count)
    for first in range(0, count, PART):
        place = np.minimum(np.arange(first, first + PART), count - 1)  # the last part is filled up: one program for all
        some = jax.tree.map(lambda x, place=place: x[place], (batch, keys))
        out += _trimmed(filtered_by(_filtered_batch, model, proposal, settings, *some), episodes[first : first + PART])
        tell(STAGE, len(out), count)
    return out


def _by_islands(model, proposal, settings, episodes, batch: Batch, keys, accuracy=None) -> list[Belief]:
    """Every episode by independent islands, all of them rows of one program."""
    count = settings.islands
    every = jax.vmap(lambda k: jax.random.split(k, count))(keys).reshape(-1)
    repeated = jax.tree.map(lambda x: jnp.repeat(x, count, axis=0), batch)
    alone = replace(settings, islands=1)
    copies = [e for e in episodes for _ in range(count)]
    runs = _trimmed(filtered_by(_filtered_batch, model, proposal, alone, repeated, every), copies)
    wider = corrects(model, settings)
    return [_middle(runs[i * count : (i + 1) * count], settings, accuracy, wider) for i in range(len(episodes))]


def _middle(runs: list[Belief], settings: FilterSettings, accuracy: float | None, corrected: bool) -> Belief:
    values = np.array([run.log_evidence for run in runs])
    modes = np.stack([run.mode for run in runs])
    statement = path_of(values, modes, settings.count, settings.engine, accuracy, corrected)
    middle = int(np.argsort(values)[len(values) // 2])
    return runs[middle]._replace(log_evidence=np.asarray(statement.log_evidence, values.dtype), statement=statement)


def _accurate(model, proposal, settings, episodes, batch: Batch, keys) -> list[Belief]:
    """Every episode with as many particles as its accuracy needs, doubled from few until reached or out of budget."""
    islands = max(settings.islands, ISLANDS)
    count = 8
    if count * islands > settings.budget:
        raise ValueError(
            f"budget is {settings.budget} particles; {islands} islands of {count} need {islands * count}. Raise it."
        )
    best: dict[int, tuple[Belief, PathStatement]] = {}
    left = list(range(len(episodes)))
    while left and count * islands <= settings.budget:
        tried, rows = replace(settings, particles=count, islands=islands), np.asarray(left)
        some = jax.tree.map(lambda x, rows=rows: x[rows], batch)
        # Fresh random numbers for every count: what was seen of one must not choose the next.
        fresh = jax.vmap(lambda k, count=count: jax.random.fold_in(k, count))(keys[rows])
        found = _by_islands(model, proposal, tried, [episodes[i] for i in left], some, fresh, settings.accuracy)
        for i, (one, statement) in zip(left, ((one, one.statement) for one in found), strict=True):
            assert statement is not None
            if i not in best or statement.half_width < best[i][1].half_width:
                best[i] = one, statement
        left = [i for i in left if not best[i][1].reached]
        count *= 2
    return [best[i][0] for i in range(len(episodes))]


def _trimmed(done: tuple[Belief, Program], episodes: Sequence[Episode]) -> list[Belief]:
    """The belief of every episode without the rows that it was padded by, and what ran."""
    out, program = done
    host = jax.tree.map(np.asarray, out)

    def one(i: int, rows: int) -> Belief:
        def cut(tree):
            return jax.tree.map(lambda x: x[i, :rows], tree)

        return Belief(
            cut(host.record),
            cut(host.moments),
            host.log_evidence[i],
            jax.tree.map(lambda x: x[i], host.final),
            cut(host.history),
            program=program,
        )

    return [one(i, e.steps + 1) for i, e in enumerate(episodes)]
