"""What every seed's filter believes at every occlusion level, and how much its steps vary: one program per method."""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, Bool, Float, Key, PRNGKeyArray

from vhydro.emission import LinearEmission
from vhydro.episodes import Batch
from vhydro.filter import Belief, FilterSettings, Particles, filtered
from vhydro.filter.repeats import repeated_steps
from vhydro.filter.run import frames_of
from vhydro.gaussian import LOG_2PI
from vhydro.model import HybridModel
from vhydro.occlusion import visible
from vhydro.small import log_sum, precise
from vhydro.training import Parts

REPEATS = 32
CHECKED_ROWS, CHECKED_EPISODES = 8, 8  # of every cell; each is drawn `REPEATS` times


class Readings(NamedTuple):
    """What the belief says of every reading, in standardised units; axes seeds, levels, episodes, rows, channels."""

    hidden: Bool[Array, "*axes"]
    sd: Float[Array, "*axes"]
    score: Float[Array, "*axes"]  # |y − mean| / sd
    log_density: Float[Array, "*axes"]
    quantile: Float[Array, "*axes"]  # where y lies in the belief, 0 to 1
    lost: Bool[Array, "*axes"]  # no particle is near, and the belief excludes it


class Steps(NamedTuple):
    """What every step says of itself; axes seeds, levels, episodes, rows."""

    ess: Float[Array, "*axes"]
    mixing: Float[Array, "*axes"]
    certified: Bool[Array, "*axes"]
    bound: Float[Array, "*axes"]
    redrawn: Bool[Array, "*axes"]
    pareto_k: Float[Array, "*axes"]


class Checks(NamedTuple):
    """Bounds of some steps beside what repeated draws from the same ancestors gave; axes seeds, levels, checks."""

    bound: Float[Array, "*axes"]
    variance: Float[Array, "*axes"]  # relative variance of the step's normaliser
    error: Float[Array, "*axes"]  # its standard error


class Film(NamedTuple):
    """One channel of one episode as particles saw it, in metres; the first seed's."""

    seen: Bool[Array, "rows"]
    particles: Float[Array, "rows particles"]
    weights: Float[Array, "rows particles"]


class Runs(NamedTuple):
    """The readings, steps and checks of one method on one set of episodes."""

    readings: Readings
    steps: Steps
    checks: Checks | None
    film: Film | None


class Shot(NamedTuple):
    """Which level, episode and channel a film is of."""

    level: int
    episode: int
    channel: int


def runs(
    parts: list[Parts],
    settings: FilterSettings,
    batch: Batch,
    levels: tuple[float, ...],
    groups: np.ndarray,
    *,
    sensor_noise: float,
    units: Float[np.ndarray, "seeds"],
    burst: int,
    keys: Key[Array, "seeds"],
    checked: bool = True,
    shot: Shot | None = None,
) -> Runs:
    """Every seed's filter on its episodes at every level; `keys` has one for every seed, and decides what is hidden.

    `units` are what every seed's readings are standardised by, in metres.
    """
    arrays = [eqx.partition(p, eqx.is_array) for p in parts]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(a for a, _ in arrays))
    hiding, running = jax.vmap(jax.random.split, out_axes=1)(keys)
    shown = _shown(batch, jnp.asarray(levels, batch.dt.dtype), tuple(groups.tolist()), burst, hiding)
    program = partial(_seed, arrays[0][1], settings, sensor_noise, checked, shot)
    out = jax.jit(jax.vmap(program))(stacked, batch, shown, running, jnp.asarray(units, batch.dt.dtype))
    return jax.tree.map(np.asarray, out)


@partial(jax.jit, static_argnums=(2, 3))
def _shown(batch: Batch, levels: Float[Array, "levels"], groups: tuple[int, ...], burst: int, keys):
    """What every seed sees at every level: (seeds, levels, episodes, rows, channels)."""

    def at(valid, level, key):
        return visible(valid, level, groups=np.asarray(groups), burst=burst, keep_first=True, key=key)

    def seed(valid, key):
        return jax.vmap(partial(at, valid))(levels, jax.random.split(key, levels.shape[0]))

    return jax.vmap(seed)(batch.valid, keys) & batch.observed[:, None]


@precise
def _seed(fixed, settings, sensor_noise, checked, shot: Shot | None, arrays, batch: Batch, shown, key, unit) -> Runs:
    parts: Parts = eqx.combine(arrays, fixed)
    at = partial(_level, parts, settings, sensor_noise, unit, checked, batch)
    keys = jax.random.split(key, shown.shape[0])
    readings, steps, checks, history = jax.lax.map(lambda inputs: at(*inputs), (shown, keys))
    film = None
    if shot is not None:
        picked = jax.tree.map(lambda x: x[shot.level, shot.episode], history)
        hidden = readings.hidden[shot.level, shot.episode, :, shot.channel]
        film = _film(parts.model, picked, ~hidden, shot.channel)
    return Runs(readings, steps, checks, film)


def _level(parts: Parts, settings, sensor_noise, unit, checked, batch: Batch, shown, key):
    """One level of one seed: what is believed of every reading, what steps say, and the particles."""
    dark = batch._replace(observed=shown, observations=jnp.where(shown, batch.observations, 0.0))
    episodes, model = batch.valid.shape[0], parts.model
    run_keys, again_keys = (jax.random.split(k, episodes) for k in jax.random.split(key))
    out = jax.vmap(lambda b, k: filtered(model, parts.proposal, settings, b, k))(dark, run_keys)
    assert isinstance(out.history, Particles)
    readings = jax.vmap(partial(_readings, model, sensor_noise, unit))(out.history, batch, shown)
    checks = None
    if checked:
        some = min(CHECKED_EPISODES, episodes)
        first = jax.tree.map(lambda x: x[:some], (out.history, dark, again_keys))
        checks = jax.vmap(partial(_checks, parts, settings))(*first)
        checks = jax.tree.map(lambda x: x.reshape(-1), checks)
    return readings, _steps(out, settings), checks, out.history


def _steps(out: Belief, settings: FilterSettings) -> Steps:
    r = out.record
    assert r.pareto_k is not None
    # Where every step is resampled with look-ahead, the weights after it are this step's alone.
    return Steps(r.ess if settings.lookahead else r.step_ess, r.mixing, r.certified, r.bound, r.redrawn, r.pareto_k)


def _readings(model: HybridModel, sensor_noise: float, unit, history: Particles, batch: Batch, shown) -> Readings:
    """Of one episode: the belief about every reading, hidden or not, against what it truly was."""
    emission, ratio = model.emission, model.scale / unit
    assert isinstance(emission, LinearEmission)
    truth = (batch.observations - model.shift) / unit
    near = 3 * sensor_noise / unit

    def row(particles: Particles, y, seen):
        expected, noise = emission.mean(particles.z) * ratio[:, None], (emission.noise * ratio)[:, None]
        weight = jnp.exp(particles.log_weight)
        mean = expected @ weight
        sd = jnp.sqrt(((expected - mean[:, None]) ** 2) @ weight + noise[:, 0] ** 2)
        error = (y[:, None] - expected) / noise
        log_terms = particles.log_weight - 0.5 * error**2 - jnp.log(noise) - 0.5 * LOG_2PI
        away = jnp.min(jnp.abs(y[:, None] - expected), axis=1)
        score = jnp.abs(y - mean) / sd
        return Readings(~seen, sd, score, log_sum(log_terms.T), ndtr(error) @ weight, (away > near) & (score > 5))

    return jax.vmap(row)(history, truth, shown)


def _checks(parts: Parts, settings: FilterSettings, history: Particles, batch: Batch, key: PRNGKeyArray) -> Checks:
    """Of one episode: some steps, evenly spread over its valid rows, drawn again and again."""
    rows = batch.valid.sum()
    times = 1 + (jnp.arange(CHECKED_ROWS) * jnp.maximum(rows - 1, 1)) // CHECKED_ROWS
    frames = frames_of(parts.model, batch)
    before = jax.tree.map(lambda x: x[times - 1], history)
    frame = jax.tree.map(lambda x: x[times], frames)
    bound, log_normaliser = repeated_steps(parts.model, parts.proposal, settings, before, frame, times, key, REPEATS)
    top = jnp.max(log_normaliser, axis=1, keepdims=True)
    value = jnp.exp(log_normaliser - jnp.where(jnp.isfinite(top), top, 0.0))
    deviation = value / value.mean(1, keepdims=True) - 1
    variance = (deviation**2).sum(1) / (REPEATS - 1)
    # The error of a variance from its fourth moment; small samples of heavy tails understate it.
    error = jnp.sqrt(jnp.maximum((deviation**4).mean(1) - variance**2, 0.0) / REPEATS)
    return Checks(bound, variance, error)


def _film(model: HybridModel, history: Particles, seen, channel: int) -> Film:
    assert isinstance(model.emission, LinearEmission)
    expected = jax.vmap(model.emission.mean)(history.z)[:, channel]
    place = expected * model.scale[channel] + model.shift[channel]
    return Film(seen, place, jnp.exp(history.log_weight))
