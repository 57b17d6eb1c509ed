"""Modes from local dynamics: a sticky switching regression of accelerations, fitted without any label."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.cluster import KMeans

from vhydro.laws.form import momentum_degree
from vhydro.laws.problem import Problem
from vhydro.laws.tracks import Tracks
from vhydro.library import slope


@dataclass(frozen=True)
class SwitchingConfig:
    """How the regression is fitted."""

    steps: int = 40  # of expectation and maximisation
    kept: int = 5  # proposals, of those that differ
    restarts: int = 4  # random ones, beside those from outliers, speeds and places
    stay: float = 0.97  # probability of staying in a mode, to begin with
    ridge: float = 1e-6
    temper: float = 4.0  # samples whose smoothed accelerations say the same


def switching_proposals(
    tracks: Tracks, problem: Problem, modes: int, left_out: np.ndarray, config: SwitchingConfig, *, seed: int
) -> list[np.ndarray]:
    """Mode weights (episodes, times, modes) from several starts, the likeliest first and no two alike.

    In each mode acceleration is one linear law of position, velocity and input. Noise is shared by all modes, so
    that no mode can win by being vague. Samples `left_out` count for nothing.
    """
    columns, target, seen = _rows(tracks, problem, left_out)
    if modes == 1:
        return [np.ones((*seen.shape, 1))]
    starts = np.eye(modes)[np.stack(_starts(columns, target, seen, tracks, modes, config, seed))]
    with jax.enable_x64(True):
        fitted = jax.vmap(partial(_fitted, config=config), (None, None, None, 0))
        weights, scores = map(np.asarray, fitted(columns, target, seen, starts))
    distinct = {round(float(score), 1): w for score, w in zip(scores, weights, strict=True)}
    return [distinct[score] for score in sorted(distinct, reverse=True)[: config.kept]]


def _rows(tracks: Tracks, problem: Problem, left_out: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns (episodes, times, positions, columns), accelerations (episodes, times, positions), and what is seen."""
    n, z = problem.positions, tracks.states
    held = np.concatenate([tracks.actions, tracks.actions[:, -1:]], 1)
    held[:, 1:] = 0.5 * (held[:, 1:] + held[:, :-1])
    still = [t for t in problem.library if momentum_degree(t) == 0]
    per_axis = []
    for axis in range(n):
        forces = [np.broadcast_to(slope(t, axis, z), z[0].shape) for t in still]
        columns = [np.ones_like(z[0]), z[axis], z[n + axis], *forces, *np.moveaxis(held, -1, 0)]
        per_axis.append(np.stack(columns, -1))
    columns, target = np.stack(per_axis, 2), tracks.smooth.acceleration
    seen = np.isfinite(target).all(-1) & np.isfinite(columns).all((2, 3)) & (tracks.modes.sum(-1) > 0) & ~left_out
    columns = np.where(seen[..., None, None], columns, 0.0)
    size = np.sqrt(np.mean(columns[seen] ** 2, 0)) + 1e-12
    return columns / size, np.where(seen[..., None], target, 0.0), seen


def _starts(columns, target, seen, tracks: Tracks, modes: int, config: SwitchingConfig, seed: int) -> list[np.ndarray]:
    """Hard labels to begin from: outliers of one law grouped by place, speeds, places, and random groups."""
    generator = np.random.default_rng(seed)
    misfit = _robust_misfit(columns, target, seen)
    where = np.moveaxis(tracks.states, 0, -1)
    spread = np.nanstd(where[seen], 0)
    scaled = np.where(seen[..., None], where, 0.0) / np.maximum(spread, 1e-12)
    out = []
    for share in (0.03, 0.08, 0.2):
        odd = seen & (misfit > np.quantile(misfit[seen], 1 - share))
        n = tracks.positions.shape[-1]
        start = np.zeros(seen.shape, int)
        start[odd] = 1 + _grouped(scaled[odd][:, :n], modes - 1, generator)
        out.append(start)
    speed = np.where(seen, tracks.smooth.velocity[..., 0], 0.0)
    slow = 0.1 * np.std(speed[seen])
    by_direction = np.where(speed > slow, 1, np.where(speed < -slow, 2, 0))
    out.append(np.minimum(by_direction, modes - 1))
    for _ in range(config.restarts):
        start = np.zeros(seen.shape, int)
        start[seen] = _grouped(scaled[seen] * generator.uniform(0.2, 2, scaled.shape[-1]), modes, generator)
        out.append(start)
    return out


def _grouped(points: np.ndarray, groups: int, generator: np.random.Generator) -> np.ndarray:
    if groups == 1:
        return np.zeros(len(points), int)
    seed = int(generator.integers(2**31))
    return KMeans(groups, random_state=seed).fit_predict(points)


def _robust_misfit(columns, target, seen) -> np.ndarray:
    """How far each sample is from the one law that most follow, in that law's median misfit."""
    x, y = columns[seen], target[seen]
    off, scale, weight = np.empty_like(y), np.ones(y.shape[1]), np.ones(y.shape)
    for _ in range(20):
        for axis in range(y.shape[1]):
            w = weight[:, axis]
            theta = np.linalg.lstsq(x[:, axis] * w[:, None], y[:, axis] * w, rcond=1e-8)[0]
            off[:, axis] = y[:, axis] - x[:, axis] @ theta
        scale = np.median(np.abs(off), 0) / 0.6745 + 1e-12
        weight = 1 / (1 + (off / (2 * scale)) ** 2)
    out = np.zeros(seen.shape)
    out[seen] = np.max(np.abs(off) / scale, 1)
    return out


@partial(jax.jit, static_argnames=("config",))
def _fitted(columns, target, seen, start, config: SwitchingConfig):
    """Mode weights and log likelihood after expectation and maximisation from one-hot labels."""
    modes = start.shape[-1]
    off_diagonal = (1 - config.stay) / (modes - 1)
    transition = jnp.full((modes, modes), off_diagonal) + (config.stay - off_diagonal) * jnp.eye(modes)

    def improved(carry, _):
        weights, transition = carry
        log_density = _log_density(columns, target, seen, weights, config)
        weights, pairs, log_likelihood = jax.vmap(partial(_posterior, jnp.log(transition)))(log_density)
        counts = pairs.sum(0) + 1.0
        return (weights * seen[..., None], counts / counts.sum(1, keepdims=True)), log_likelihood.sum()

    (weights, _), trace = jax.lax.scan(improved, (start * seen[..., None], transition), None, config.steps)
    return jnp.where(seen[..., None], weights, 1.0 / modes), trace[-1]


def _log_density(columns, target, seen, weights, config: SwitchingConfig):
    """How likely every sample is in every mode, each mode's law refitted: (episodes, times, modes).

    Neighbouring accelerations are smoothed from the same samples: the density is tempered by how many.
    """
    axes = range(target.shape[-1])

    def mode_misfit(weight):
        def one(x, y):
            gram = jnp.einsum("eti,et,etj->ij", x, weight, x)
            cross = jnp.einsum("eti,et,et->i", x, weight, y)
            ridge = config.ridge * (jnp.trace(gram) / len(gram) + 1.0) * jnp.eye(len(gram))
            return (y - x @ jnp.linalg.solve(gram + ridge, cross)) ** 2

        return jnp.stack([one(columns[:, :, i], target[..., i]) for i in axes], -1)

    misfit = jax.vmap(mode_misfit, -1, -2)(weights)  # (episodes, times, modes, positions)
    total = jnp.maximum(weights.sum(), 1.0)
    variance = jnp.einsum("etm,etmi->i", weights, misfit) / total
    log_density = -0.5 * (misfit / variance + jnp.log(variance)).sum(-1)
    return jnp.where(seen[..., None], log_density, 0.0) / config.temper


def _posterior(log_transition, log_density):
    """Smoothed weights, pair counts and log likelihood of one episode."""
    modes = log_density.shape[-1]

    def ahead(log_alpha, now):
        out = jax.nn.logsumexp(log_alpha[:, None] + log_transition, 0) + now
        return out, out

    first = log_density[0] - jnp.log(modes)
    last, rest = jax.lax.scan(ahead, first, log_density[1:])
    log_alpha = jnp.concatenate([first[None], rest])

    def back(log_beta, now):
        out = jax.nn.logsumexp(log_transition + now + log_beta, 1)
        return out, out

    zero = jnp.zeros(modes)
    log_beta = jnp.concatenate([jax.lax.scan(back, zero, log_density[1:], reverse=True)[1], zero[None]])
    log_likelihood = jax.nn.logsumexp(last)
    weights = jax.nn.softmax(log_alpha + log_beta)
    pairs = log_alpha[:-1, :, None] + log_transition + (log_density + log_beta)[1:, None, :] - log_likelihood
    return weights, jnp.exp(pairs).sum(0), log_likelihood
