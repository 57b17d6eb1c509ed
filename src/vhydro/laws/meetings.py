"""Which surfaces the jumps of velocity belong to: walls along a position, or where two moving bodies meet.

A wall that one body hits makes a jump in its distance to every other body too, and two bodies that meet make one in
each position. What tells them apart is the place, which all impacts with one surface share.
"""

from typing import NamedTuple

import numpy as np

from vhydro.lagrangian import Surface
from vhydro.laws.jumps import SURE, Impacts, Sides, found_impacts, sides
from vhydro.laws.smoothing import sensor_noise

FEWEST_IMPACTS = 6
NEAR = 0.03  # of a position's spread: too near a surface for a flight to be told from small bounces
LOOSE = 3.0  # standard deviations of noise by which places may differ besides
SHARED = 0.5  # of the impacts that no other surface explains: fewer at one place are there by chance
SAME = 4  # samples by which one impact may be found apart along two lines
ONE_JUMPS = 0.3  # of a meeting's sureness is left where only one body's velocity jumps


class Meeting(NamedTuple):
    """A surface and the impacts with it."""

    surface: Surface
    impacts: Impacts
    place: float


def meetings(positions: np.ndarray, units: tuple[str, ...], dt: float) -> tuple[list[Meeting], list[Impacts]]:
    """The surfaces that positions (episodes, times, positions) meet, and all jumps, also those with no surface.

    They are sought along every position, and along the difference of every two of the same unit.
    """
    n, columns = positions.shape[-1], [*np.moveaxis(positions, -1, 0)]
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n) if units[i] == units[j]]
    lines = [Surface(i, side, j) for i, j in [*((i, None) for i in range(n)), *pairs] for side in ("below", "above")]
    tracks = {(s.axis, s.other): s.along(columns) for s in lines}
    jumps = {line: found_impacts(track, dt) for line, track in tracks.items()}
    alone = [sides(x, dt) for x in columns] if pairs else []
    left, out = dict(jumps), []
    while True:
        tried = [_meeting(left[s.axis, s.other], s, tracks[s.axis, s.other], dt) for s in lines]
        known = [m for m in tried if m is not None]
        if not known:
            return sorted(out, key=lambda m: lines.index(m.surface)), [*jumps.values()]
        out.append(max(known, key=lambda m: _sureness(m, alone)))
        left = {line: taken(one, ~_at_once(one, out[-1].impacts)) for line, one in left.items()}


def taken(found: Impacts, which: np.ndarray) -> Impacts:
    """Some of the impacts."""
    return Impacts(*(x[which] for x in found))


def toward(found: Impacts, sign: float) -> np.ndarray:
    """The impacts that stop a motion one way; what is merely lifted off, let go or slowed down is none."""
    stopped = sign * found.after < 0.5 * sign * found.before
    return (sign * found.before > 3 * found.error) & stopped & np.isfinite(found.after)


def margin(found: Impacts, track: np.ndarray, dt: float) -> float:
    """How near a surface small bounces would go unseen: it is known to about half of what moves in a sample."""
    return float(NEAR * np.nanstd(track) + 0.5 * dt * np.median(np.abs(found.before)))


def _meeting(found: Impacts, surface: Surface, track: np.ndarray, dt: float) -> Meeting | None:
    """The place where most of the impacts are that stop a motion towards the surface; None if it is not most."""
    here = taken(found, toward(found, surface.sign))
    if len(here.place) < FEWEST_IMPACTS:
        return None
    reach = margin(here, track, dt) + LOOSE * float(sensor_noise(track[..., None])[0])
    close = np.abs(here.place[:, None] - here.place) <= reach
    shared = close[np.argmax(close.sum(0))]
    if shared.sum() < max(FEWEST_IMPACTS, SHARED * len(shared)):
        return None
    here = taken(here, shared)
    return Meeting(surface, here, float(np.median(here.place)))


def _sureness(one: Meeting, alone: list[Sides]) -> float:
    """How many impacts there are for how much their places differ; of two bodies less unless both velocities jump."""
    apart = float(np.median(np.abs(one.impacts.place - one.place)))
    known = len(one.impacts.place) / max(apart, 1e-300)
    if one.surface.other is None:
        return known
    both = all(_jumps(alone[i], one.impacts) for i, _ in one.surface.weights)
    return np.sqrt(2) * known * (1.0 if both else ONE_JUMPS)  # a difference has the noise of both


def _jumps(one: Sides, found: Impacts) -> bool:
    """Whether a position's velocity jumps at these impacts, taken together."""
    at = found.episode, found.sample
    jump, error = one.right[at][:, 1] - one.left[at][:, 1], one.error[at]
    seen = np.isfinite(jump) & np.isfinite(error)
    return bool(np.abs(jump[seen].sum()) > SURE * np.sqrt(2 * np.sum(error[seen] ** 2)))


def _at_once(found: Impacts, others: Impacts) -> np.ndarray:
    """Which of the impacts are the same as some of the others."""
    same = found.episode[:, None] == others.episode
    return (same & (np.abs(found.sample[:, None] - others.sample) <= SAME)).any(1)
