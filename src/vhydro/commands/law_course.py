"""A law left alone with the inputs from one state, and how long it stays with what was measured."""

from itertools import pairwise

import numpy as np

from vhydro.laws.as_model import masses
from vhydro.laws.lagrange_law import AnyLaw
from vhydro.laws.shooting import LEAST, substeps

CHUNK, SHORT_CHUNK = 512, 64  # samples that are simulated at a time, so that one program serves all
MOST_SUBSTEPS = 64
WITHIN = 0.1  # of the log's spread: a course that is further off no longer holds …
STEADY = 5  # … as the median of so many readings says
LOST = 10.0  # spreads from what was measured: a course that is that far off is not followed any further


def is_told(law: AnyLaw) -> bool:
    """Whether something else than surfaces and directions says which mode is on, so that it has to be told."""
    ways = {mode for mode, *_ in law.circumstances.directions} if law.circumstances else set()
    alone = any(block.guard is None and block.mode not in ways for block in law.form.blocks)
    return alone or (bool(law.form.resting) and not ways)  # what turns round by itself also sticks by itself


def course(law: AnyLaw, start: np.ndarray, actions: np.ndarray, dt: float, path: np.ndarray) -> np.ndarray:
    """The positions (steps + 1, positions) from one state; NaN after what no number can follow.

    Contacts come and go by themselves. Modes that the law cannot switch by itself are those of `path`.
    """
    n, steps = law.positions, len(actions)
    out = np.full((steps + 1, n), np.nan)
    state, out[0] = np.array(start, float), start[:n]
    told = is_told(law)
    chunk = min(SHORT_CHUNK if told else CHUNK, max(steps, 1))
    small = int(np.clip(substeps(law.form, law.theta, dt), LEAST, MOST_SUBSTEPS))
    for first, end in pairwise(_cuts(path[:steps] if told else np.zeros(steps, int), chunk)):
        mode = int(path[first])
        if told and mode in law.form.resting:
            state[n:] = 0.0
        held = actions[first:end]
        held = np.concatenate([held, np.repeat(held[-1:], chunk - len(held), 0)])
        states = law.simulate(state, held, dt, mode=mode if told else None, substeps=small)[: end - first + 1]
        out[first + 1 : end + 1], state = states[1:, :n], np.array(states[-1])
        if not np.isfinite(state).all():
            break
    return out


def _cuts(path: np.ndarray, chunk: int) -> list[int]:
    """Where stretches of one mode begin, none longer than a chunk, and the end."""
    changes = [0, *(np.flatnonzero(np.diff(path)) + 1).tolist(), len(path)]
    return [*(first for a, b in pairwise(changes) for first in range(a, b, chunk)), len(path)]


def in_own_momenta(states: np.ndarray, of: AnyLaw, law: AnyLaw) -> np.ndarray:
    """States of one law's model as another law has them: the same positions and velocities."""
    n = law.positions
    return np.concatenate([states[..., :n], states[..., n:] / masses(of) * masses(law)], -1)


def rows_held(seen: np.ndarray, followed: np.ndarray, spread: np.ndarray) -> int:
    """How many rows a course stays with what was seen, NaN where hidden."""
    known = np.isfinite(seen).any(1)
    rows = np.flatnonzero(known)
    off = np.nan_to_num(np.abs(seen - followed) / spread, nan=0.0)
    off = np.where(np.isfinite(followed).all(1), off.max(1), np.inf)[rows]
    if not len(rows):
        return 0
    padded = np.pad(off, (STEADY // 2, STEADY // 2), mode="edge")
    steady = np.median(np.lib.stride_tricks.sliding_window_view(padded, STEADY), -1)
    late = np.flatnonzero(steady > WITHIN)
    return int(rows[late[0]]) if len(late) else len(seen)


def without_lost(seen: np.ndarray, followed: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """The same course, NaN where it is many spreads away from all that was measured."""
    low, high = np.nanmin(seen, 0), np.nanmax(seen, 0)
    away = ((followed < low - LOST * spread) | (followed > high + LOST * spread)).any(1)
    return np.where(away[:, None], np.nan, followed)
