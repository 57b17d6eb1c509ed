"""Thm 2 on held-out segments: the bound on misassignment, what it was, and what the filter's own posterior adds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vhydro.episodes import Episode
from vhydro.filter import Belief
from vhydro.fitted import Fitted
from vhydro.modes.clamped import clamped_predictions
from vhydro.modes.segments import run_starts
from vhydro.modes.theorem import Constants, concentration, residual_constants, transfer

DELTA = 0.05  # that the bound fails on any of a division's test segments
SURE = 0.95  # share of a configuration's validation rows in one mode, for that mode to stand for it
LEAST = -300.0  # of a logarithm to base 10


class Stretch(NamedTuple):
    """Rows `start` to `end` (exclusive) of one log, in the mode that stands for their configuration."""

    log: int
    start: int
    end: int
    mode: int


def stretches(labels: Sequence[np.ndarray], mode_of: dict[int, int]) -> list[Stretch]:
    """The segments of logs by their labels: their ends do not depend on what the model thinks."""
    out = []
    for number, own in enumerate(labels):
        starts = run_starts(own)
        for start, end in zip(starts, [*starts[1:], len(own)], strict=True):
            if own[start] in mode_of and end - max(start, 1) >= 1:
                out.append(Stretch(number, int(start), int(end), mode_of[int(own[start])]))
    return out


def modes_of(paths: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> dict[int, int]:
    """The mode that stands for each class: the theorem is of segments in one mode, and other classes have none."""
    path, label = np.concatenate(paths), np.concatenate(labels)
    counts = {int(c): np.bincount(path[label == c]) for c in np.unique(label)}
    return {c: int(n.argmax()) for c, n in counts.items() if n.max() >= SURE * n.sum()}


def constants_of(full: Fitted, seen: Sequence[Episode], found: Sequence[Stretch]) -> Constants | None:
    """What validation segments ask of the constants; none where there are too few."""
    residuals = []
    for s in found:
        mean, sd, values = clamped_predictions(full.model, seen[s.log], s.start, s.end)
        residuals.append((values - mean[:, s.mode]) / sd)
    return residual_constants(residuals) if len(residuals) > 1 else None


def theorem_record(
    full: Fitted,
    seen: Sequence[Episode],
    posteriors: Sequence[Belief],
    found: Sequence[Stretch],
    constants: Constants | None,
    every: int,
) -> dict[str, Any]:
    """Of every segment, how many have a mode and conditions that hold, and the bound there; a point for each mode's."""
    points, modes, each = [], full.model.modes, DELTA / max(len(found), 1)
    for s in found if constants is not None and modes > 1 else ():
        mean, sd, values = clamped_predictions(full.model, seen[s.log], s.start, s.end)
        prior = np.full(modes, 1 / modes)
        one = concentration(mean, sd, values, s.mode, prior, each, constants)
        own = np.asarray(posteriors[s.log].moments.mode[s.end - 1], np.float64)
        q = transfer(one, own / own.sum())
        certain = int(one.conditions_hold), int(one.holds)
        sizes = _log10(one.bound), _log10(one.realised)
        points.append([s.end - s.start, *sizes, *certain, q.divergence, q.bound, q.realised])
    conditions = [p for p in points if p[3]]
    held = sum(p[4] for p in conditions)
    return {"segments": every, "conditions": len(conditions), "held": held, "points": points}


def _log10(value: float) -> float:
    return float(np.log10(value)) if value > 10**LEAST else LEAST
