"""The rate of a log from its time stamps."""

from pathlib import Path

import numpy as np

from vhydro.data.errors import DataError

GAP = 1.5  # steps longer than this many usual steps are gaps
JITTER = 0.01  # of a step; less than this is not worth a note
MOST = 0.99  # of the steps; a clock is even if these are
LONGEST_STEP = 1000.0  # s; a longer one is hardly meant in seconds
SMALLER_UNITS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}


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
    dt = _even(steps)
    return dt, unevenness(episode, steps, dt)


def _even(steps: np.ndarray) -> float:
    """The step of an even clock: the usual one; where stamps jitter a whole rate if they tell no other, else the mean.

    Files of one robot then have one rate, although each has a median of its own.
    """
    usual = float(np.median(steps))
    regular = steps[steps <= GAP * usual]
    off = np.abs(regular - usual)
    if np.quantile(off, MOST) <= JITTER * usual:
        return usual
    mean = float(regular.mean())
    rate = round(1 / mean)
    # The first and the last stamp of a stretch are off by the jitter at most, and the steps between add up to it.
    told = 2 * float(off.max()) / len(regular)
    return 1 / rate if rate and abs(mean - 1 / rate) <= told else mean


def refuse_unlikely_seconds(file: Path, episode: str, key: str, stamps: np.ndarray, dt: float) -> None:
    """Raises where whole numbers without a unit make very long steps in seconds, and usual ones in a smaller unit."""
    likely = {unit: dt * size for unit, size in SMALLER_UNITS.items() if dt * size <= LONGEST_STEP}
    if dt > LONGEST_STEP and likely and (stamps == np.round(stamps)).all():
        steps = ", ".join(f"{step:.3g} s in {unit}" for unit, step in likely.items())
        raise DataError(
            file, episode=episode, key=key, found=f"time stamps {dt:.3g} apart, without a unit ({steps})",
            expected=f"seconds, with steps of at most {LONGEST_STEP:g} s",
            remedy='Say "time_unit" ("s", "ms", "us" or "ns") in NAME.channels.json beside the file.',
        )  # fmt: skip


def unevenness(episode: str, steps: np.ndarray, dt: float) -> tuple[str, ...]:
    """Notes about gaps and jitter."""
    gaps = steps > GAP * dt
    notes = []
    if gaps.any():
        notes.append(f"{episode}: gaps in time: {gaps.sum()}, the longest {steps.max():.3g} s (usual step {dt:.3g} s).")
    jitter = float(np.abs(steps[~gaps] / dt - 1).max())
    if jitter > JITTER:
        notes.append(f"{episode}: time stamps jitter by up to {100 * jitter:.0f} % of {dt:.3g} s.")
    return tuple(notes)
