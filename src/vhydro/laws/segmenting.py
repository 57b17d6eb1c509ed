"""Modes and law together, from positions alone: no label, no surface, no friction direction is given.

Several switching regressions propose modes. Each proposal is turned into rules a law can be simulated with (past a
surface, moving one way, at rest), and the weak form of the law under those rules says which explains the positions.
"""

from typing import NamedTuple

import numpy as np
from scipy.ndimage import maximum_filter1d

from vhydro.laws.estimate import Weak, sorted_by_motion, weak_law
from vhydro.laws.form import Form
from vhydro.laws.guards import direction, labels, run_lengths
from vhydro.laws.problem import Problem
from vhydro.laws.proposals import ProposalConfig, segmentation_proposals
from vhydro.laws.smoothing import local_polynomial, noise_gains
from vhydro.laws.tracks import Tracks

REST_RUN = 10  # samples for which nothing may move, for it to be at rest
DOUBT = 10  # samples around the beginning and end of a rest
REST_HALF_WIDTHS = (8, 12, 16, 24, 32, 48)  # samples over which that is looked at


class Segmented(NamedTuple):
    """The modes, the law that explains the positions under them, and its score (smaller is better)."""

    weights: np.ndarray  # (episodes, times, modes)
    law: Weak
    score: float  # BIC of the weak form's rows, and the price of stretches that no rule of the law tells
    scores: tuple[float, ...]  # of all proposals


def segmented(tracks: Tracks, problem: Problem, config: ProposalConfig, bump: int, *, seed: int) -> Segmented:
    """The modes and the law of the proposal that explains the positions best."""
    modes = len(problem.modes)
    resting = at_rest_samples(tracks)
    found: list[Segmented] = []
    proposals = segmentation_proposals(tracks, problem, modes, np.zeros_like(resting), config, seed=seed)
    if modes > 1 and 0.02 < resting.mean() < 0.9:
        moving = segmentation_proposals(tracks, problem, modes - 1, resting, config, seed=seed)
        proposals += [np.concatenate([resting[..., None] * 1.0, w * ~resting[..., None]], -1) for w in moving]
    for weights in proposals:
        found += _settled(tracks, problem, weights, resting, bump)
    if not found:
        raise ValueError(
            f"no division of the log into {modes} modes leads to a law; expected contacts, slides or rests. "
            "Ask for fewer modes, or give labels."
        )
    scores = tuple(f.score for f in found)
    return found[int(np.argmin(scores))]._replace(scores=scores)


def _settled(tracks: Tracks, problem: Problem, weights: np.ndarray, resting: np.ndarray, bump: int) -> list[Segmented]:
    """A proposal after its rules were applied twice; empty where it leads nowhere."""
    out: list[Segmented] = []
    padding = tracks.modes.sum(-1) > 0
    for _ in range(3):
        now = tracks._replace(modes=weights * padding[..., None])
        if (now.modes.sum((0, 1)) < 1e-3 * padding.sum()).any():
            break
        try:
            law = weak_law(now, problem, bump, momenta=False, skipped=_doubtful(resting))
        except np.linalg.LinAlgError:
            break
        out.append(Segmented(now.modes, law, law.score + price_of_untold(now), ()))
        weights = ruled(law.form, law.places, now, resting)
    return out


def price_of_untold(tracks: Tracks) -> float:
    """The price, as BIC has it, of when modes begin that no rule tells: each stretch is a number the data chose."""
    odd = sorted_by_motion(tracks)[0].unexplained
    stretches = sum(len(run_lengths(labels(tracks.modes) == mode)) for mode in odd)
    return float(np.log(max(tracks.modes.sum(), 1)) * stretches)


def at_rest_samples(tracks: Tracks) -> np.ndarray:
    """Where nothing moves for a while: (episodes, times).

    Velocity and acceleration are both lost in noise, looked at as coarsely as it takes for accelerations to stand
    out of it; from there a rest reaches as far as things stay where they are.
    """
    half_width, still = _still(tracks, REST_HALF_WIDTHS)
    out = np.zeros(still.shape, bool)
    for episode, row in enumerate(still):
        edges = np.flatnonzero(np.diff(np.pad(row, 1).astype(int))).tolist()
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            _reach(out[episode], tracks.smooth.position[episode], tracks.noise, begin, end, 2 * half_width)
    return out


def _still(tracks: Tracks, half_widths: tuple[int, ...]) -> tuple[int, np.ndarray]:
    """The first half-width at which accelerations stand out of noise, or the last; what does not move at it."""
    half_width, *wider = half_widths
    coarse = local_polynomial(tracks.positions - tracks.carried, tracks.dt, half_width)
    gains = noise_gains(half_width, tracks.dt)
    noise = tracks.noise * gains.acceleration
    if wider and not (noise < 0.15 * np.nanstd(coarse.acceleration, axis=(0, 1))).all():
        return _still(tracks, tuple(wider))
    slow = np.abs(coarse.velocity) < 3 * tracks.noise * gains.velocity
    return half_width, np.asarray((slow & (np.abs(coarse.acceleration) < 3 * noise)).all(-1))


def _reach(out: np.ndarray, position: np.ndarray, noise: np.ndarray, begin: int, end: int, furthest: int) -> None:
    """Marks a rest and, either side of it, the samples at the same place."""
    place = np.nanmean(position[begin:end], 0)
    same = (np.abs(position - place) < 0.5 * noise).all(-1)
    first, last = begin, end
    while first > max(begin - furthest, 0) and same[first - 1]:
        first -= 1
    while last < min(end + furthest, len(same)) and same[last]:
        last += 1
    if last - first >= REST_RUN:
        out[first:last] = True


def _doubtful(resting: np.ndarray) -> np.ndarray:
    """Near where a rest begins or ends: noise hides the moment, and no proposal is judged by it."""
    edge = np.diff(resting, axis=1, prepend=resting[:, :1])
    return maximum_filter1d(edge, 2 * DOUBT + 1, axis=1)


def ruled(form: Form, places: np.ndarray, tracks: Tracks, resting: np.ndarray) -> np.ndarray:
    """One-hot modes by the rules of a law: past a surface, moving with a mode's direction, or at rest."""
    q, v = tracks.smooth.position + tracks.carried, tracks.smooth.velocity
    mode = np.full(q.shape[:2], form.base)
    for b, block in enumerate(form.blocks):
        if block.guard is not None:
            depth = block.guard.sign * (q[..., block.guard.axis] - places[form.places[b]])
            mode[depth > 0] = block.mode
        else:
            axis, sign = direction(tracks.modes, v, block.mode)
            mode[sign * v[..., axis] > 0] = block.mode
    for m in form.resting:
        mode[resting] = m
    return np.eye(tracks.modes.shape[-1])[mode] * (tracks.modes.sum(-1) > 0)[..., None]
