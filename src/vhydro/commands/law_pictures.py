"""What the pictures of a law show: how it predicts a log, its phase portraits, and where friction shows itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vhydro.commands.law_course import course, in_own_momenta, is_told, rows_held, without_lost
from vhydro.commands.law_friction import friction
from vhydro.commands.law_phase import phase
from vhydro.episodes import Episode
from vhydro.filter import Belief
from vhydro.fitted import Fitted
from vhydro.laws.lagrange_law import AnyLaw
from vhydro.laws.mechanics import mechanics_laws, mechanics_problem, mechanics_recording
from vhydro.laws.recover import LawsConfig
from vhydro.laws.tracks import prepared
from vhydro.views.mechanics import MechanicsView

WINDOW = 1.0  # s that a law is left alone with the inputs
MOST_WINDOWS = 40
MOST_ROWS, MOST_POINTS = 60_000, 1000  # of the log that is followed, and shown of it


def pictures(fitted: Fitted, logs: Sequence[Episode], law: AnyLaw, *, seed: int) -> dict[str, Any]:
    """`prediction`, `phase` and `friction` of a law of these logs, in the modes that the model tells of them."""
    assert isinstance(fitted.view, MechanicsView)  # `Fitted.laws` has refused others
    seen, beliefs = [fitted.see(log) for log in logs], fitted.smooth_all(logs, seed=seed)
    recording = mechanics_recording(fitted.view, seen, [np.asarray(b.mode) for b in beliefs])
    tracks = prepared(recording, mechanics_problem(fitted.view, seen[0], law.modes))
    shown = richest([np.asarray(b.path) for b in beliefs])
    return {
        "prediction": prediction(fitted, seen, beliefs, law, shown, logs[shown].source),
        "phase": phase(law, tracks), "friction": friction(law, tracks),
    }  # fmt: skip


def richest(paths: Sequence[np.ndarray]) -> int:
    """The log with the most modes, and of those the one that changes most often."""
    return max(range(len(paths)), key=lambda i: (len(set(paths[i])), np.count_nonzero(np.diff(paths[i]))))


def prediction(
    fitted: Fitted, seen: Sequence[Episode], beliefs: Sequence[Belief], law: AnyLaw, shown: int, name: str
) -> dict | None:
    """One log from its first sample, and second by second, by a law that was fitted to the other logs.

    Of a single log the law is the one that was fitted to it. None where the law cannot be followed.
    """
    own = _of_others(fitted, seen, beliefs, law, shown)
    held_out, own = own is not None, own or law
    log, path = seen[shown], np.asarray(beliefs[shown].path)
    rows = min(len(path), MOST_ROWS)
    measured = np.where(log.observed, log.observations, np.nan)[:rows]
    spread = np.nanstd(measured, 0)
    assert fitted.law is not None
    try:
        states = in_own_momenta(np.asarray(beliefs[shown].mean, np.float64), fitted.law, own)
        whole = course(own, states[0], log.actions[: rows - 1], log.dt, path)
        pieces, starts = _second_by_second(own, states, log, path, rows)
    except ValueError:  # a mass that is not positive
        return None
    held = rows_held(measured, whole, spread)
    whole, pieces = (without_lost(measured[: len(x)], x, spread) for x in (whole, pieces))
    if not np.isfinite(pieces).any():
        return None
    short = len(pieces)
    lost = sum(not np.isfinite(pieces[first : first + starts.step]).all() for first in starts)
    return {
        "log": name or "one of the logs", "held_out": held_out, "others": len(seen) - 1, "dt": log.dt,
        "names": list(law.coordinates[: law.positions]), "units": list(law.units[: law.positions]),
        "whole": {"holds": held * log.dt, "seconds": rows * log.dt, "all": held == rows, "told": is_told(own)}
        | _thinned(measured, whole, log.dt),
        "stretches": len(starts), "lost": lost, **_thinned(measured[:short], pieces, log.dt, starts),
        "rms": _numbers(np.sqrt(np.nanmean((measured[:short] - pieces) ** 2, 0))), "spread": _numbers(spread),
    }  # fmt: skip


def _of_others(
    fitted: Fitted, seen: Sequence[Episode], beliefs: Sequence[Belief], law: AnyLaw, shown: int
) -> AnyLaw | None:
    """The law of the other logs; None where there are none, or they do not determine one."""
    rest = [i for i in range(len(seen)) if i != shown]
    assert isinstance(fitted.view, MechanicsView)
    assert fitted.law is not None
    others = fitted.view, [seen[i] for i in rest], [beliefs[i] for i in rest], fitted.law, LawsConfig(held_out=False)
    try:
        return mechanics_laws(*others, estimator=law.estimator) if rest else None
    except ValueError:
        return None


def _second_by_second(
    law: AnyLaw, states: np.ndarray, log: Episode, path: np.ndarray, rows: int
) -> tuple[np.ndarray, range]:
    """The positions of windows that begin from smoothed states, and where each begins."""
    long = max(round(WINDOW / log.dt), 2)
    rows = min(rows, MOST_WINDOWS * long + 1)
    starts = range(0, rows - 1, long)
    followed = np.full((rows, law.positions), np.nan)
    for first in starts:
        last = min(first + long, rows - 1)
        part = slice(first, last)
        followed[first : last + 1] = course(law, states[first], log.actions[part], log.dt, path[part])
    return followed, starts


def _thinned(measured: np.ndarray, followed: np.ndarray, dt: float, starts: range = range(0)) -> dict[str, Any]:
    """What is drawn of a course: rows at equal steps, and the rows at which windows begin."""
    every = -(-len(followed) // MOST_POINTS)
    rows = np.unique([*range(0, len(followed), every), *starts])
    where = {"starts": np.searchsorted(rows, starts).tolist()} if starts else {}
    return {
        "times": _numbers(rows * dt), "seen": _numbers(measured[rows]), "predicted": _numbers(followed[rows]), **where
    }  # fmt: skip


def _numbers(values: np.ndarray) -> list:
    """With as many digits as a picture shows; what was not seen is NaN."""
    return np.vectorize(lambda x: float(f"{x:.5g}"))(values).tolist()
