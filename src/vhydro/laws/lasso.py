"""The paper's estimator: derivatives regressed inside each mode, Lasso on a validation grid, threshold, refit.

Paper: Thm 3 and Exp 3. Velocities are hidden, so the equation is written in units of mass 1, and the known part of R
or G gives the mass afterwards; its column and the damping's are never penalised.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import lasso_path

from vhydro.laws.form import Entry, Form, form_of, momentum_degree
from vhydro.laws.guards import Sorted, labels
from vhydro.laws.problem import Problem
from vhydro.laws.tracks import Tracks
from vhydro.laws.weak import in_units_of_force
from vhydro.library import slope


@dataclass(frozen=True)
class LassoConfig:
    """The grid and the split of the paper's estimator."""

    penalties: int = 40  # on the grid, from the one that selects nothing down …
    smallest: float = 1e-4  # … to this share of it
    threshold: float = 0.01  # of a mode's acceleration: a term that contributes less is dropped before the refit
    validation: float = 0.25  # share of the episodes


def lasso_law(tracks: Tracks, problem: Problem, sorted_modes: Sorted, base: int, config: LassoConfig):
    """The form (every mode for itself), its parameters and its support."""
    form = form_of(problem, base, sorted_modes.guards, sorted_modes.resting, additive=False)
    theta, support = np.zeros(len(form.entries)), np.zeros(len(form.entries), bool)
    for b, i in form.places.items():
        theta[i], support[i] = sorted_modes.places[form.blocks[b].mode], True
    modes = {-1: base} | {b: block.mode for b, block in enumerate(form.blocks)}
    for block, mode in modes.items():
        indices = [
            i for i, e in enumerate(form.entries) if e.block == block and e.kind != "place" and form.known[i] != 0
        ]
        energies = [i for i in indices if form.entries[i].kind == "energy" and not form.entries[i].is_kinetic]
        always = [i for i in indices if form.entries[i].kind != "energy"]
        found = _mode(form, tracks, mode, always, energies, theta, config)
        theta[[*always, *energies]] = found
        support[[*always, *energies]] = found != 0
        support[[i for i in indices if form.entries[i].is_kinetic]] = True
    return form, in_units_of_force(form, theta), support


def _mode(
    form: Form, tracks: Tracks, mode: int, always, energies, theta: np.ndarray, config: LassoConfig
) -> np.ndarray:
    """The parameters of one mode in units of mass 1: those always kept, then the energies."""
    design, target, episode = derivative_rows(form, tracks, mode, [*always, *energies], theta)
    free, terms = design[:, : len(always)], design[:, len(always) :]
    checked = episode >= np.ceil((1 - config.validation) * (tracks.positions.shape[0]))
    train = ~checked if checked.any() and (~checked).any() else np.ones(len(target), bool)
    checked = checked if (~train).any() else train
    if train.sum() < design.shape[1]:
        return np.zeros(design.shape[1])
    onto = np.linalg.pinv(free[train])
    rest, left = (
        terms[train] - free[train] @ (onto @ terms[train]),
        target[train] - free[train] @ (onto @ target[train]),
    )
    scale = np.maximum(np.sqrt(np.mean(rest**2, 0)), 1e-12)
    largest = np.abs((rest / scale).T @ left).max() / len(left)
    grid = np.geomspace(largest, config.smallest * largest, config.penalties)
    with warnings.catch_warnings():  # the smallest penalties of a collinear library never converge; validation judges
        warnings.simplefilter("ignore", ConvergenceWarning)
        _, path, _ = lasso_path(rest / scale, left, alphas=grid, max_iter=5000)
    path = path.T / scale
    kept = onto @ (target[train][:, None] - terms[train] @ path.T)
    errors = np.mean((target[checked][:, None] - terms[checked] @ path.T - free[checked] @ kept) ** 2, 0)
    chosen = path[int(np.argmin(errors))]
    size = np.sqrt(np.mean((terms * chosen) ** 2, 0))
    use = np.concatenate([np.ones(len(always), bool), size > config.threshold * np.sqrt(np.mean(target**2))])
    out = np.zeros(design.shape[1])
    out[use] = np.linalg.lstsq(design[:, use], target, rcond=None)[0]
    return out


def derivative_rows(form: Form, tracks: Tracks, mode: int, indices, theta: np.ndarray):
    """The regression of one mode's samples: (rows, columns), (rows,) and the episode of every row."""
    z, dt = tracks.states, tracks.dt
    use = labels(tracks.modes) == mode
    use[:, -1] = False
    held = np.concatenate([tracks.actions, tracks.actions[:, -1:]], 1)
    held[:, 1:] = 0.5 * (held[:, 1:] + held[:, :-1])  # the mean of the two holds that meet in a sample
    designs, targets, episodes = [], [], []
    for axis in range(form.positions):
        columns = [_column(form, form.entries[i], axis, z, held, theta, dt) for i in indices]
        target = tracks.smooth.acceleration[..., axis]
        design = np.stack([np.broadcast_to(c, target.shape) for c in columns], -1)
        good = use & np.isfinite(target) & np.isfinite(design).all(-1)
        designs.append(design[good])
        targets.append(target[good])
        episodes.append(np.nonzero(good)[0])
    return np.concatenate(designs), np.concatenate(targets), np.concatenate(episodes)


def _column(form: Form, e: Entry, axis: int, z: np.ndarray, held: np.ndarray, theta: np.ndarray, dt: float):
    n = form.positions
    if e.kind == "energy":
        assert e.term is not None
        place = theta[form.places[e.block]] if e.block in form.places else 0.0
        force = -slope(e.term, axis, z, place)
        if momentum_degree(e.term):
            force = force + np.gradient(np.broadcast_to(slope(e.term, n + axis, z), z[0].shape), dt, axis=1)
        return force
    if e.axis != axis:
        return 0.0
    return -z[n + axis] if e.kind == "dissipation" else held[..., e.column]
