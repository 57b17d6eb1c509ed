"""Fitting a model and its guide to partly hidden logs; seeds are one axis of one program."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from vhydro.episodes import Batch, Episode, pad
from vhydro.filter import FilterSettings
from vhydro.filter.probe import refuse_bad_likelihood
from vhydro.filter.run import refuse_other_channels
from vhydro.filter.settings import refuse_mismatch
from vhydro.model import HybridModel
from vhydro.objective import (
    Estimator,
    episode_log_evidences,
    estimator_of,
    estimator_settings,
    mean_log_evidence,
)
from vhydro.occlusion import channel_groups, visible
from vhydro.progress import on_terminal, tell
from vhydro.proposal import Proposal
from vhydro.small import precise
from vhydro.storage import load_notes, load_tree, save_tree

# Units of the log and what is declared impossible are never learned.
ALWAYS_FROZEN = ("model.shift", "model.scale", "model.action_scale", "model.calibration", "model.kernel.drive.geometry")
STRIDE = 10  # steps between two words about progress
STAGE = "training steps"


@dataclass(frozen=True)
class TrainingConfig:
    """How a fit runs; saved with every checkpoint."""

    steps: int = 1000
    batch: int = 16
    window: int | None = None  # rows per training crop; None takes whole episodes
    learning_rate: float = 3e-3
    final_rate: float = 0.1  # the rate falls to this share by a cosine
    clip: float = 1.0
    estimator: Estimator = "auto"  # see `objective`
    occlusion: tuple[float, ...] = (0.0, 0.25, 0.5)  # a level is drawn for every batch; also for validation
    burst: int = 8
    validate_every: int = 50
    validation_particles: int = 256  # enough to rank models: the training's would prefer a wrong one that is easy
    seeds: int = 1
    candidates: int = 1  # starts drawn for every seed; the one that explains the training episodes best is learned from
    frozen: tuple[str, ...] = ()  # parameter names that stay, e.g. "model.emission.matrix"
    settings: FilterSettings = field(default_factory=lambda: FilterSettings(particles=32))

    def __post_init__(self):
        for name in ("steps", "batch", "validate_every", "validation_particles", "seeds", "candidates", "burst"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1.")
        if not self.occlusion or not all(0 <= level < 1 for level in self.occlusion):
            raise ValueError(f"occlusion is {self.occlusion}; expected one or more shares in [0, 1).")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate is {self.learning_rate}; expected a positive number.")
        if self.window is not None and self.window < 2:
            raise ValueError(f"window is {self.window}; expected at least 2 rows, or None for whole episodes.")


class DivergedError(FloatingPointError):
    """Every seed's loss left the numbers; `last_good` holds the best parameters before that, if any."""

    def __init__(self, message: str, last_good: "Fit | None"):
        super().__init__(message)
        self.last_good = last_good


class Parts(NamedTuple):
    """What is learned."""

    model: HybridModel
    proposal: Proposal | None


class Fit(NamedTuple):
    """The best seed by validation, every seed, and how the fits went."""

    model: HybridModel
    proposal: Proposal | None
    seed: int
    every: list[Parts]
    score: np.ndarray  # (seeds,) best validation log evidence per observed value
    validation: np.ndarray  # (checks, seeds)
    training: np.ndarray  # (checks, seeds)
    diverged: np.ndarray  # (seeds,)


class State(NamedTuple):
    """Everything a killed run needs to go on exactly where it was; leaves have a leading seed axis."""

    weights: Any
    optimiser: Any
    best: Any
    best_score: Float[Array, "seeds"]
    best_episodes: Float[Array, "seeds episodes"]  # what every validation episode adds to the score
    diverged: Bool[Array, "seeds"]
    step: Float[Array, ""]
    validation: Float[Array, "checks seeds"]
    training: Float[Array, "checks seeds"]


def _name(path) -> str:
    return "".join(jax.tree_util.keystr((p,)) for p in path).lstrip(".")


def _trainable(parts: Parts, frozen: Sequence[str]):
    """A tree of booleans: which leaves are learned."""
    names = [_name(p) for p, _ in jax.tree_util.tree_leaves_with_path(parts)]
    unknown = [f for f in frozen if not any(n == f or n.startswith((f + ".", f + "[")) for n in names)]
    if unknown:
        raise ValueError(f"frozen names {unknown} match no parameter; the parameters are {sorted(names)}.")

    def learned(path, leaf):
        name = _name(path)
        stays = any(name == f or name.startswith((f + ".", f + "[")) for f in (*ALWAYS_FROZEN, *frozen))
        return eqx.is_inexact_array(leaf) and not stays

    return jax.tree_util.tree_map_with_path(learned, parts)


class Rest(NamedTuple):
    """What is not learned: every seed's arrays stacked, and what is the same for all."""

    arrays: Any
    fixed: Any

    def whole(self, weights, arrays) -> Parts:
        """One seed's parts from its learned leaves and its arrays."""
        return eqx.combine(weights, arrays, self.fixed)


def _stacked(starts: Sequence[Parts], trainable) -> tuple[Any, Rest]:
    """Every seed's learned leaves stacked, and the rest."""
    split = [eqx.partition(s, trainable) for s in starts]
    others = [eqx.partition(rest, eqx.is_array) for _, rest in split]

    def stacked(trees):
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)

    return stacked([w for w, _ in split]), Rest(stacked([a for a, _ in others]), others[0][1])


class _Program:
    """The compiled halves of a fit: a block of training steps and a validation, for all seeds at once."""

    def __init__(
        self, config: TrainingConfig, weights, rest: Rest, train: Batch, validation: Batch, groups: np.ndarray
    ):
        self.config, self.rest, self.groups = config, rest, groups
        self.train, self.validation_batch = train, validation
        own = 0 if train.valid.ndim == 3 else None  # whether each seed has episodes of its own
        parts = rest.whole(*jax.tree.map(lambda x: x[0], (weights, rest.arrays)))
        self.settings = training_settings(parts, config)
        self.ranking = ranking_settings(self.settings, config)
        schedule = optax.cosine_decay_schedule(config.learning_rate, config.steps, config.final_rate)
        self.optimiser = optax.chain(optax.clip_by_global_norm(config.clip), optax.adam(schedule))
        # An argument and not a constant: fits that differ in it alone share a compiled program.
        levels = jnp.asarray(config.occlusion, train.dt.dtype)
        self._every_seed = jax.vmap(self._one_seed, in_axes=(0, 0, own, None, 0, 0, 0, None, None))
        validated = jax.jit(jax.vmap(precise(self._validate), in_axes=(0, 0, own, None, None)))
        self.validate = lambda weights, key: validated(weights, rest.arrays, validation, levels, key)
        block = jax.jit(precise(self._block), static_argnames="count")
        self.block = lambda *state, count: block(rest.arrays, train, levels, *state, count=count)

    def _hidden(self, batch: Batch, level, key) -> Batch:
        shown = visible(batch.valid, level, groups=self.groups, burst=self.config.burst, key=key)
        observed = batch.observed & shown
        return batch._replace(observed=observed, observations=jnp.where(observed, batch.observations, 0.0))

    def _minibatch(self, train: Batch, levels, key) -> Batch:
        pick, cut, level, hide = jax.random.split(key, 4)
        total = train.valid.shape[0]
        index = jax.random.choice(pick, total, (min(self.config.batch, total),), replace=False)
        batch = jax.tree.map(lambda x: x[index], train)
        if self.config.window is not None and self.config.window < batch.valid.shape[1]:
            batch = self._cropped(batch, cut)
        return self._hidden(batch, jax.random.choice(level, levels), hide)

    def _cropped(self, batch: Batch, key) -> Batch:
        width = self.config.window
        assert width is not None
        room = jnp.maximum(batch.valid.sum(1) - width, 0)
        start = jax.random.randint(key, room.shape, 0, room + 1)

        def cut(x):
            return jax.vmap(lambda row, s: jax.lax.dynamic_slice_in_dim(row, s, width))(x, start)

        return Batch(cut(batch.observations), cut(batch.observed), cut(batch.actions), cut(batch.valid), batch.dt)

    def _loss(self, weights, arrays, batch: Batch, key):
        parts = self.rest.whole(weights, arrays)
        return -mean_log_evidence(parts.model, parts.proposal, self.settings, batch, key)

    def _step(self, arrays, train: Batch, levels, carry, key):
        weights, optimiser, diverged = carry
        data, filtering = jax.random.split(key)
        batch = self._minibatch(train, levels, data)
        loss, gradient = jax.value_and_grad(self._loss)(weights, arrays, batch, filtering)
        updates, after = self.optimiser.update(gradient, optimiser, weights)
        moved = optax.apply_updates(weights, updates)
        finite = jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(gradient))
        diverged = diverged | ~finite
        kept = jax.tree.map(lambda new, old: jnp.where(diverged, old, new), (moved, after), (weights, optimiser))
        return (*kept, diverged), -loss

    def _block(self, arrays, train: Batch, levels, weights, optimiser, diverged, step, key, count: int):
        """`count` training steps of every seed; a seed that diverged keeps its last parameters."""
        seeds = jax.vmap(lambda seed: jax.random.fold_in(key, seed))(jnp.arange(self.config.seeds))
        return self._every_seed(weights, arrays, train, levels, optimiser, diverged, seeds, step, jnp.arange(count))

    def _one_seed(self, weights, arrays, train: Batch, levels, optimiser, diverged, key, step, numbers):
        keys = jax.vmap(lambda i: jax.random.fold_in(key, step + i))(numbers)
        advance = partial(self._step, arrays, train, levels)
        carry, value = jax.lax.scan(advance, (weights, optimiser, diverged), keys)
        return (*carry, value.mean())

    def _validate(self, weights, arrays, validation: Batch, levels, key) -> Float[Array, "episodes"]:
        """What every episode adds to the validation score, always with the same draws.

        The score, their sum, is the log evidence per observed value, averaged over the occlusion levels.
        """
        parts = self.rest.whole(weights, arrays)
        keys = jax.random.split(key, len(self.config.occlusion))

        def at(level, key):
            hide, filtering = jax.random.split(key)
            batch = self._hidden(validation, level, hide)
            every = episode_log_evidences(parts.model, parts.proposal, self.ranking, batch, filtering)
            return every / jnp.maximum((batch.observed & batch.valid[..., None]).sum(), 1)

        return jax.lax.map(lambda pair: at(*pair), (levels, keys)).mean(0)


def training_settings(parts: Parts, config: TrainingConfig) -> FilterSettings:
    """The filter settings of the training steps."""
    chosen = config.estimator
    if chosen == "auto":
        chosen = estimator_of(parts.model, parts.proposal, config.settings)
    return estimator_settings(config.settings, chosen)


def ranking_settings(settings: FilterSettings, config: TrainingConfig) -> FilterSettings:
    """The filter settings that checkpoints are ranked by: the same for every estimator but for what it cannot have."""
    particles = max(config.validation_particles, settings.count)
    if settings.engine == "merged":
        return settings
    if settings.engine == "gaussian":  # a few branches say as much as many particles
        return replace(settings, particles=max(particles // 4, settings.count), corrected=True)
    return replace(settings, particles=particles, exact_modes=False, gradient="pathwise")


def fit(
    start: Parts | Sequence[Parts] | Callable[[PRNGKeyArray], Parts],
    train: Sequence[Episode] | Sequence[Sequence[Episode]],
    validation: Sequence[Episode] | Sequence[Sequence[Episode]],
    *,
    key: PRNGKeyArray,
    config: TrainingConfig = TrainingConfig(),
    checkpoint: str | Path | None = None,
    length: int | None = None,
    progress: bool = False,
) -> Fit:
    """The fitted model and guide with the best validation score over `config.seeds` restarts.

    `start` makes the parameters of one seed from a key, or is a list of them. Episodes are those of all seeds, or a
    list for every seed. They are padded to `length` rows, by default the longest's; with it, what a seed draws does not
    depend on the episodes of other seeds. With `checkpoint`, the run is saved at every validation and, called again
    with the same arguments, goes on where it was stopped. With `progress`, a bar is shown on a terminal.
    """
    starts = _starts(start, config.seeds * config.candidates, key)
    first = _refuse_unfit(starts[0], train, validation, config)
    if config.candidates > 1:
        starts = _best_starts(starts, config, train, key)
    weights, rest = _stacked(starts, _trainable(starts[0], config.frozen))
    dtype = starts[0].model.dtype
    batches = _padded(train, dtype, length), _padded(validation, dtype, length)
    program = _Program(config, weights, rest, *batches, channel_groups(first))
    state = _fresh(program, weights, program.validate(weights, _validation_key(key)))
    path = None if checkpoint is None else Path(checkpoint)
    notes = {"config": _plain(config), "data": _fingerprint(program, weights, key)}
    before = weights, state.best_episodes
    if path is not None and path.exists():
        state = _resumed(path, state, notes)
    with on_terminal() if progress else nullcontext():
        state = _run(program, state, key, path, notes)
    return _result(_unless_worth_it(state, *before), rest)


def _validation_key(key: PRNGKeyArray) -> PRNGKeyArray:
    return jax.random.fold_in(key, 2**31 - 2)


def _starts(start, seeds: int, key: PRNGKeyArray) -> list[Parts]:
    if isinstance(start, Parts):
        if seeds > 1:
            raise ValueError(f"{seeds} seeds from one start would be {seeds} equal fits; pass a function of a key.")
        return [start]
    if isinstance(start, Sequence):
        if len(start) != seeds:
            raise ValueError(f"{len(start)} starts for {seeds} seeds; give one for each, or a function of a key.")
        return list(start)
    return [start(k) for k in jax.random.split(jax.random.fold_in(key, 2**31 - 1), seeds)]


def _best_starts(starts: Sequence[Parts], config: TrainingConfig, train, key: PRNGKeyArray) -> list[Parts]:
    """For every seed the one of its candidates with the highest evidence of (at most 32) training episodes."""
    stacked, rest = _stacked(starts, _trainable(starts[0], config.frozen))
    settings = training_settings(starts[0], config)
    lists = _own(train, config.seeds)
    batches = [pad(episodes[:32], dtype=starts[0].model.dtype) for episodes in lists]

    @jax.jit
    def scores(batch, some):
        def one(pair):
            parts = rest.whole(*pair)
            return mean_log_evidence(parts.model, parts.proposal, settings, batch, _validation_key(key))

        return jax.lax.map(one, some, batch_size=8)

    best = []
    for seed in range(config.seeds):
        its = slice(seed * config.candidates, (seed + 1) * config.candidates)
        some = jax.tree.map(lambda x: x[its], (stacked, rest.arrays))  # noqa: B023
        found = np.asarray(scores(batches[seed if len(batches) > 1 else 0], some))
        best.append(starts[its.start + int(np.argmax(np.nan_to_num(found, nan=-np.inf)))])
    return best


def _refuse_unfit(parts: Parts, train, validation, config: TrainingConfig) -> Episode:
    """The first episode, after every one was found to fit the model."""
    if not train or not validation:
        raise ValueError(f"{len(train)} training and {len(validation)} validation episodes; each needs at least one.")
    every = [_own(episodes, config.seeds) for episodes in (train, validation)]
    for e in (e for lists in every for episodes in lists for e in episodes):
        refuse_other_channels(parts.model, e)
    parts.model.validate()
    refuse_mismatch(parts.model, parts.proposal, training_settings(parts, config))
    refuse_bad_likelihood(parts.model, [e.observations for e in every[0][0]])
    return every[0][0][0]


def _own(episodes, seeds: int) -> list[Sequence[Episode]]:
    """The lists of episodes: one for all seeds, or one for each."""
    if isinstance(episodes[0], Episode):
        return [episodes]
    counts = {len(own) for own in episodes}
    if len(episodes) != seeds or len(counts) != 1 or 0 in counts:
        raise ValueError(
            f"{len(episodes)} lists of {sorted(counts)} episodes for {seeds} seeds; expected a list for every seed, "
            "all of one length, or one list for all."
        )
    return list(episodes)


def _padded(episodes, dtype, length: int | None) -> Batch:
    """The episodes as arrays, with an axis of seeds in front where each has its own."""
    if isinstance(episodes[0], Episode):
        return pad(episodes, dtype=dtype, length=length)
    length = length or max(e.steps + 1 for own in episodes for e in own)
    batches = [pad(own, dtype=dtype, length=length) for own in episodes]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)


WORTH = 2.0  # standard errors of a small gain
SMALL = 0.1  # nats per observed value; a larger gain needs no proof


def _unless_worth_it(state: State, weights, episodes: Float[Array, "seeds episodes"]) -> State:
    """The state with every seed back at its start whose gain is small and within the chance of its validation episodes.

    Of many checkpoints one always looks a little better than a start that is as good as the data allow.
    """
    gains = np.asarray(state.best_episodes - episodes, np.float64)
    error = gains.std(1, ddof=1) * np.sqrt(gains.shape[1]) if gains.shape[1] > 1 else np.zeros(len(gains))
    gain = np.nan_to_num(gains.sum(1), nan=np.inf)
    back = (gain < WORTH * np.nan_to_num(error)) & (gain < SMALL)

    def kept(best, first):
        return jnp.where(back.reshape(-1, *(1,) * (best.ndim - 1)), first, best)

    best = jax.tree.map(kept, state.best, weights)
    each = kept(state.best_episodes, episodes)
    return state._replace(best=best, best_episodes=each, best_score=kept(state.best_score, episodes.sum(1)))


def _fresh(program: _Program, weights, episodes: Float[Array, "seeds episodes"]) -> State:
    seeds, checks = program.config.seeds, -(-program.config.steps // program.config.validate_every)
    dtype = program.train.dt.dtype
    return State(
        weights=weights,
        optimiser=jax.vmap(program.optimiser.init)(weights),
        best=weights,
        best_score=jnp.nan_to_num(episodes.sum(1), nan=-jnp.inf),  # the start counts: a fit never returns less
        best_episodes=episodes,
        diverged=jnp.zeros(seeds, bool),
        step=jnp.zeros((), jnp.int32),
        validation=jnp.full((checks, seeds), jnp.nan, dtype),
        training=jnp.full((checks, seeds), jnp.nan, dtype),
    )


def _resumed(path: Path, like: State, notes: dict) -> State:
    found = load_notes(path)
    before, now = found.get("config", {}), notes["config"]
    changed = sorted(k for k, v in now.items() if before.get(k) != v)
    if changed:
        raise ValueError(
            f"{path} belongs to a run with other settings ({', '.join(changed)} differ). "
            "Give this run another checkpoint file, or the settings of that one."
        )
    if found.get("data") != notes["data"]:
        raise ValueError(
            f"{path} belongs to a run with other episodes, another start or another key. "
            "Delete it, or give this run another checkpoint file."
        )
    return load_tree(path, like)[0]


def _fingerprint(program: _Program, weights, key: PRNGKeyArray) -> str:
    """What tells runs apart that have the same settings: their data, their start and their key."""
    rest = program.rest.arrays
    digest = sha256()
    for leaf in jax.tree.leaves((program.train, program.validation_batch, weights, rest, jax.random.key_data(key))):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


def _plain(config: TrainingConfig) -> dict:
    """The config as JSON gives it back: tuples are lists there."""
    return jax.tree.map(
        lambda x: list(x) if isinstance(x, tuple) else x,
        asdict(config),
        is_leaf=lambda x: isinstance(x, tuple),
    )


def _run(program: _Program, state: State, key, path: Path | None, notes: dict) -> State:
    config = program.config
    tell(STAGE, int(state.step), config.steps)
    while int(state.step) < config.steps:
        count = min(config.validate_every, config.steps - int(state.step))
        state = _advanced(program, state, key, count)
        if path is not None:
            save_tree(path, state, notes)
        if bool(state.diverged.all()):
            raise DivergedError(_where_diverged(state, config, path), _last_good(state, program.rest))
    return state


def _advanced(program: _Program, state: State, key, count: int) -> State:
    check = int(state.step) // program.config.validate_every
    weights, optimiser, diverged, step = state.weights, state.optimiser, state.diverged, state.step
    values = []
    for first in range(0, count, STRIDE):
        some = min(STRIDE, count - first)
        weights, optimiser, diverged, value = program.block(weights, optimiser, diverged, step, key, count=some)
        step, values = step + some, [*values, some * np.asarray(value)]
        tell(STAGE, int(step), program.config.steps)
    value = jnp.asarray(sum(values) / count, state.training.dtype)
    episodes = program.validate(weights, _validation_key(key))
    score = episodes.sum(1)
    better = score > state.best_score  # False for NaN

    def kept(new, old):
        return jnp.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return State(
        weights=weights,
        optimiser=optimiser,
        best=jax.tree.map(kept, weights, state.best),
        best_score=jnp.where(better, score, state.best_score),
        best_episodes=kept(episodes, state.best_episodes),
        diverged=diverged,
        step=state.step + count,
        validation=state.validation.at[check].set(score),
        training=state.training.at[check].set(value),
    )


def _where_diverged(state: State, config: TrainingConfig, path: Path | None) -> str:
    kept = f" The last good parameters are in {path}." if path is not None else ""
    return (
        f"all {config.seeds} seeds diverged (a loss or gradient was not finite) by step {int(state.step)} of "
        f"{config.steps}; the best validation score before was {float(state.best_score.max()):.4f}.{kept} "
        f"Lower learning_rate ({config.learning_rate:g}) or clip ({config.clip:g}), or check the data's scale."
    )


def _last_good(state: State, rest: Rest) -> Fit | None:
    return _result(state, rest) if bool(jnp.isfinite(state.best_score).any()) else None


def _result(state: State, rest: Rest) -> Fit:
    score = np.asarray(state.best_score)
    every = [rest.whole(*jax.tree.map(lambda x, i=i: x[i], (state.best, rest.arrays))) for i in range(len(score))]
    best = int(np.argmax(score))
    return Fit(
        model=every[best].model,
        proposal=every[best].proposal,
        seed=best,
        every=every,
        score=score,
        validation=np.asarray(state.validation),
        training=np.asarray(state.training),
        diverged=np.asarray(state.diverged),
    )
