"""The rate of a log from its time stamps."""

from pathlib import Path

import numpy as np

from vhydro.data.errors import DataError

GAP = 1.5  # steps longer than this many usual steps are gaps
JITTER = 0.01  # of a step; less than this is not worth a note


def step_from_stamps(file: Path, episode: str, key: str, time: np.ndarray) -> tuple[float, tuple[str, ...]]:
    """The usual time between two rows, and what is uneven about it."""
    if len(time) < 2:
        raise DataError(file, episode=episode, key=key, found=f"{len(time)} time stamps", expected="at least two")
    if not np.isfinite(time).all():
        row = int(np.flatnonzero(~np.isfinite(time))[0])
        raise DataError(
            file, episode=episode, key=key, found=f"{time[row]} at row {row}", expected="finite time stamps"
        )
    steps = np.diff(time)
    if not (steps > 0).all():
        row = int(np.flatnonzero(steps <= 0)[0])
        found = f"{time[row]} followed by {time[row + 1]} at row {row + 1}"
        raise DataError(
            file, episode=episode, key=key, found=found, expected="time stamps that grow",
            remedy="Say where episodes begin, or sort the rows.",
        )  # fmt: skip
    dt = float(np.median(steps))
    return dt, unevenness(episode, steps, dt)


def unevenness(episode: str, steps: np.ndarray, dt: float) -> tuple[str, ...]:
    """Notes about gaps and jitter."""
    gaps = steps > GAP * dt
    notes = []
    if gaps.any():
        notes.append(f"{episode}: gaps in time: {gaps.sum()}, the longest {steps.max():.3g} s (usual step {dt:.3g} s).")
    jitter = float(np.abs(steps[~gaps] / dt - 1).max())
    if jitter > JITTER:
        notes.append(f"{episode}: time stamps jitter by up to {100 * jitter:.0f} % of {dt:.3g} s; dt is their median.")
    return tuple(notes)
