"""Logs of one sampling rate, where a file holds several."""

from collections import Counter
from collections.abc import Iterable

from vhydro.episodes import Episode

SAME_RATE = 0.01  # relative difference of rates that a user would call one


def of_rate(logs: Iterable[Episode], rate: float | None) -> list[Episode]:
    """The logs of a rate in Hz; all of them where none is asked for."""
    every = list(logs)
    if rate is None:
        return every
    counts = Counter(f"{1 / e.dt:.4g} Hz" for e in every)
    shown = ", ".join(f"{count} at {name}" for name, count in sorted(counts.items()))
    kept = [e for e in every if abs(e.dt * rate - 1) < SAME_RATE]
    if not kept:
        raise ValueError(f"no log is at {rate:g} Hz; there are {shown}. Choose one of these with --only-rate.")
    return kept
