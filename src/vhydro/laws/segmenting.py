"""Modes and law together, from positions alone: no label, no surface, no friction direction is given.

Several switching regressions propose modes. Each proposal is turned into rules a law can be simulated with (past a
surface, moving one way, at rest), and the weak form of the law under those rules says which explains the positions.
"""

from typing import NamedTuple

import numpy as np

from vhydro.laws.estimate import Weak, weak_law
from vhydro.laws.form import Form
from vhydro.laws.problem import Problem
from vhydro.laws.switching import SwitchingConfig, switching_proposals
from vhydro.laws.tracks import Tracks

REST_RUN = 10  # samples for which nothing may move, for it to be at rest
REST_SPEED = 3.0  # standard deviations of the velocity's noise


class Segmented(NamedTuple):
    """The modes, the law that explains the positions under them, and its score (smaller is better)."""

    weights: np.ndarray  # (episodes, times, modes)
    law: Weak
    score: float
    scores: tuple[float, ...]  # of all proposals


def segmented(tracks: Tracks, problem: Problem, config: SwitchingConfig, bump: int, *, seed: int) -> Segmented:
    """The modes and the law of the proposal that explains the positions best."""
    modes = len(problem.modes)
    resting = at_rest_samples(tracks)
    found: list[Segmented] = []
    proposals = switching_proposals(tracks, problem, modes, np.zeros_like(resting), config, seed=seed)
    if modes > 1 and 0.02 < resting.mean() < 0.9:
        moving = switching_proposals(tracks, problem, modes - 1, resting, config, seed=seed)
        proposals += [np.concatenate([resting[..., None] * 1.0, w * ~resting[..., None]], -1) for w in moving]
    for weights in proposals:
        found += _settled(tracks, problem, weights, bump)
    if not found:
        raise ValueError(
            f"no division of the log into {modes} modes leads to a law; expected contacts, directions of sliding or rests. "
            "Ask for fewer modes, or give labels."
        )
    scores = tuple(f.score for f in found)
    return found[int(np.argmin(scores))]._replace(scores=scores)


def _settled(tracks: Tracks, problem: Problem, weights: np.ndarray, bump: int) -> list[Segmented]:
    """A proposal after its rules were applied twice; empty where it leads nowhere."""
    out: list[Segmented] = []
    padding = tracks.modes.sum(-1) > 0
    for _ in range(3):
        now = tracks._replace(modes=weights * padding[..., None])
        if (now.modes.sum((0, 1)) < 1e-3 * padding.sum()).any():
            break
        try:
            law = weak_law(now, problem, bump, momenta=False)
        except np.linalg.LinAlgError:
            break
        out.append(Segmented(now.modes, law, law.score, ()))
        weights = ruled(law.form, law.places, now)
    return out


def at_rest_samples(tracks: Tracks) -> np.ndarray:
    """Where nothing moves for a while: (episodes, times)."""
    slow = (np.abs(tracks.smooth.velocity) < REST_SPEED * tracks.velocity_noise).all(-1)
    out = np.zeros_like(slow)
    for episode, row in enumerate(slow):
        edges = np.flatnonzero(np.diff(np.pad(row, 1).astype(int)))
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            out[episode, begin:end] = end - begin >= REST_RUN
    return out


def ruled(form: Form, places: np.ndarray, tracks: Tracks) -> np.ndarray:
    """One-hot modes by the rules of a law: past a surface, moving with a mode's direction, or at rest."""
    q, v = tracks.smooth.position + tracks.carried, tracks.smooth.velocity
    mode = np.full(q.shape[:2], form.base)
    for b, block in enumerate(form.blocks):
        if block.guard is not None:
            depth = block.guard.sign * (q[..., block.guard.axis] - places[form.places[b]])
            mode[depth > 0] = block.mode
        else:
            axis, sign = _direction(tracks, block.mode)
            mode[sign * v[..., axis] > 0] = block.mode
    for m in form.resting:
        mode[at_rest_samples(tracks)] = m
    return np.eye(tracks.modes.shape[-1])[mode] * (tracks.modes.sum(-1) > 0)[..., None]


def _direction(tracks: Tracks, mode: int) -> tuple[int, float]:
    """The axis and sign along which a mode moves most surely."""
    weight = tracks.modes[..., mode, None]
    v = np.nan_to_num(tracks.smooth.velocity)
    mean, size = (weight * v).sum((0, 1)), (weight * np.abs(v)).sum((0, 1)) + 1e-12
    axis = int(np.argmax(np.abs(mean / size)))
    return axis, float(np.sign(mean[axis]) or 1.0)
