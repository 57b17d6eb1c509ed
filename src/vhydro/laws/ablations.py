"""What is left of the method without its parts: without modes, without sparsity, without the Hamiltonian.

All see the same positions, smoothing, bumps and windows as the method itself.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations_with_replacement

import jax
import numpy as np

from vhydro.laws.estimate import ShootingConfig, first_guess, shot, weak_law
from vhydro.laws.guards import labels
from vhydro.laws.law import Law
from vhydro.laws.problem import Problem
from vhydro.laws.recording import Recording
from vhydro.laws.recover import LawsConfig, recover
from vhydro.laws.support import best_subset
from vhydro.laws.tracks import Tracks
from vhydro.laws.weak import bent, bumps

Acceleration = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # mode, q, v, a: (samples, positions)


def without_modes(recording: Recording, problem: Problem, config: LawsConfig) -> Law:
    """One law for everything."""
    one = recording._replace(modes=recording.modes.sum(-1, keepdims=True))
    law = recover(one, replace(problem, modes=("all",)), config)
    assert isinstance(law, Law)
    return law


def without_sparsity(tracks: Tracks, problem: Problem, config: ShootingConfig) -> Law:
    """Every candidate term kept, fitted by the same weak form and the same shooting."""
    start = weak_law(tracks, problem, config.bump, momenta=False)
    theta, support = first_guess(start, tracks)
    support = support | (start.form.free & np.array([e.kind != "port" for e in start.form.entries]))
    with jax.enable_x64(True):
        found = shot(start.form, tracks, theta, support, config, select=False)
    names = (problem.coordinates, problem.units, problem.inputs, problem.modes)
    return Law(*names, start.form, found.theta, found.support, found.covariance, "dense", found.chi_square)


def without_hamiltonian(tracks: Tracks, problem: Problem, bump: int) -> Acceleration:
    """Accelerations as sparse polynomials of position, velocity and input in each mode: a vector field, no law."""
    now = labels(tracks.modes)
    modes, n = len(problem.modes), problem.positions
    phi, x, z = bumps(bump, tracks.dt), tracks.filled, tracks.states
    window = np.arange(0, x.shape[1] - 2 * bump, bump // 2)[:, None] + np.arange(2 * bump + 1)
    features = np.stack([np.broadcast_to(f, z[0].shape) for f in _features(z)], -1)
    held = np.concatenate([tracks.actions, tracks.actions[:, -1:]], 1)
    features = np.concatenate([features, held], -1)
    on = (now[..., None] == np.arange(modes)) * 1.0
    joint = np.einsum("etf,etm->etmf", features, on).reshape(*now.shape, -1)
    design = np.einsum("ewkf,k->ewf", joint[:, window], phi.value) * tracks.dt
    size = features.shape[-1]
    found = np.zeros((n, modes, size))
    for axis in range(n):
        left = bent(x[:, window, axis], phi) * tracks.dt
        good = np.isfinite(left) & np.isfinite(design).all(-1)
        found[axis] = _chosen(design[good], left[good]).reshape(modes, size)

    def acceleration(mode: int, q: np.ndarray, v: np.ndarray, a: np.ndarray) -> np.ndarray:
        points = np.concatenate([q.T, v.T])
        basis = np.concatenate([np.stack([np.broadcast_to(f, points[0].shape) for f in _features(points)], -1), a], -1)
        return basis @ found[:, mode].T

    return acceleration


def _features(z: np.ndarray) -> list:
    """All products of coordinates up to degree 3 (of two positions: up to 2)."""
    degree = 3 if len(z) == 2 else 2
    picks = [c for k in range(degree + 1) for c in combinations_with_replacement(range(len(z)), k)]
    return [np.prod([z[i] for i in c], axis=0) if c else 1.0 for c in picks]


def _chosen(design: np.ndarray, left: np.ndarray) -> np.ndarray:
    columns = design.shape[1]
    gram, cross, square = design.T @ design, design.T @ left, float(left @ left)
    everything, nothing = np.ones(columns, bool), np.zeros(columns, bool)
    dense = best_subset(gram, cross, square, 0.0, always=everything, optional=nothing)
    scale = max(dense.misfit, 1e-300) / len(left)
    penalty = np.log(len(left)) + 2 * np.log(columns)
    return best_subset(gram / scale, cross / scale, square / scale, penalty, always=nothing, optional=everything).theta
