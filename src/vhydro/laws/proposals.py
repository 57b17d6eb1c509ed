"""Modes from local dynamics: accelerations as a switching regression on positions, velocities and inputs."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.cluster import KMeans

from vhydro.laws.form import momentum_degree
from vhydro.laws.problem import Problem
from vhydro.laws.tracks import Tracks
from vhydro.learning.switching import Regression, SwitchingConfig, baum_welch, e_step, start_from_labels, structure
from vhydro.library import slope

OUTLYING = (0.03, 0.08, 0.2)  # shares of samples furthest from one law, tried as what other modes are
TINY = 1e-12  # in units of the accelerations' spread: noise is never 0


@dataclass(frozen=True)
class ProposalConfig:
    """How segmentations are proposed."""

    kept: int = 5  # of those that differ
    restarts: int = 4  # random ones, beside those from outliers, speeds and places
    ridge: float = 1e-3  # imagined rows in which nothing accelerates
    # Neighbouring accelerations are smoothed from the same four samples or so: what they say is tempered.
    switching: SwitchingConfig = field(
        default_factory=lambda: SwitchingConfig(stay=0.97, pseudo_moves=1.0, floor=TINY, temper=4.0)
    )


def segmentation_proposals(
    tracks: Tracks, problem: Problem, modes: int, left_out: np.ndarray, config: ProposalConfig, *, seed: int
) -> list[np.ndarray]:
    """Mode weights (episodes, times, modes) from several starts, the likeliest first and no two alike.

    In each mode acceleration is one linear law of position, velocity and input. Noise is shared by all modes, so
    that no mode can win by being vague. Samples `left_out` count for nothing.
    """
    columns, target, seen = _rows(tracks, problem, left_out)
    if modes == 1:
        return [np.ones((*seen.shape, 1))]
    starts = _starts(columns, target, seen, tracks, modes, config, seed)
    labels = np.stack(starts)
    weights, scores = _fitted(columns, target, seen, tracks.modes.sum(-1) > 0, labels, modes, config)
    distinct = {round(float(score), 1): w for score, w in zip(scores, weights, strict=True)}
    likeliest = [distinct[score] for score in sorted(distinct, reverse=True)[: config.kept]]
    return likeliest + [np.eye(modes)[start] for start in starts[: len(OUTLYING)]]


def _fitted(columns, target, seen, valid, labels, modes: int, config: ProposalConfig) -> tuple[np.ndarray, np.ndarray]:
    """Mode weights (starts, episodes, times, modes) and log likelihoods; where nothing is seen all modes are alike."""
    axes, width = columns.shape[2:]
    scale = np.sqrt(np.mean(target[seen] ** 2, 0)) + 1e-300
    with jax.enable_x64(True):
        data = Regression(
            jnp.asarray(target / scale),
            jnp.asarray(columns),
            jnp.asarray(np.broadcast_to(seen[..., None], target.shape)),
            jnp.asarray(valid),
            jnp.zeros((*seen.shape, 0)),
        )
        every = np.arange(axes * width).reshape(axes, width)
        assumed = structure(every, modes, precision=0.0, prior_rows=config.ridge, dtype=np.float64)
        starts = start_from_labels(data, assumed, jnp.asarray(labels), config.switching)
        found = baum_welch(data, assumed, starts, config.switching)
        chains = jax.vmap(lambda one: e_step(data, one, config.switching))(found)
        weights, scores = np.asarray(chains.mode), np.asarray(chains.log_likelihood.sum(1))
    return np.where(seen[..., None], weights, 1 / modes), scores


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


def _starts(columns, target, seen, tracks: Tracks, modes: int, config: ProposalConfig, seed: int) -> list[np.ndarray]:
    """Hard labels to begin from: outliers of one law grouped by place, speeds, places, and random groups."""
    generator = np.random.default_rng(seed)
    misfit = _robust_misfit(columns, target, seen)
    where = np.moveaxis(tracks.states, 0, -1)
    spread = np.nanstd(where[seen], 0)
    scaled = np.where(seen[..., None], where, 0.0) / np.maximum(spread, 1e-12)
    out = []
    for share in OUTLYING:
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
