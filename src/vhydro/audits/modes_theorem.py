"""Thm 2 on held-out segments: the bound on misassignment, what it was, and what the filter's own posterior adds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vhydro.episodes import Episode
from vhydro.labels import run_starts
from vhydro.modes.clamped import clamped_predictions
from vhydro.modes.learn import Learned
from vhydro.modes.posterior import ModePosterior
from vhydro.modes.theorem import Constants, concentration, residual_constants, transfer

DELTA = 0.05
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
    """The mode in which most rows of each class are."""
    path, label = np.concatenate(paths), np.concatenate(labels)
    return {int(c): int(np.bincount(path[label == c]).argmax()) for c in np.unique(label)}


def constants_of(full: Learned, seen: Sequence[Episode], found: Sequence[Stretch]) -> Constants | None:
    """What validation segments ask of the constants; none where there are too few."""
    residuals = []
    for s in found:
        mean, sd, values = clamped_predictions(full.model, seen[s.log], s.start, s.end)
        residuals.append((values - mean[:, s.mode]) / sd)
    return residual_constants(residuals) if len(residuals) > 1 else None


def theorem_record(
    full: Learned,
    seen: Sequence[Episode],
    posteriors: Sequence[ModePosterior],
    found: Sequence[Stretch],
    constants: Constants | None,
) -> dict[str, Any]:
    """How many segments there are, in how many the conditions hold, and the bound there; and a point for each."""
    points, modes = [], full.model.modes
    for s in found if constants is not None and modes > 1 else ():
        mean, sd, values = clamped_predictions(full.model, seen[s.log], s.start, s.end)
        prior = np.full(modes, 1 / modes)
        one = concentration(mean, sd, values, s.mode, prior, DELTA, constants)
        own = np.asarray(posteriors[s.log].filtered[s.end - 1], np.float64)
        q = transfer(one, own / own.sum())
        certain = int(one.conditions_hold), int(one.holds)
        sizes = _log10(one.bound), _log10(one.realised)
        points.append([s.end - s.start, *sizes, *certain, q.divergence, q.bound, q.realised])
    conditions = [p for p in points if p[3]]
    held = sum(p[4] for p in conditions)
    return {"segments": len(points), "conditions": len(conditions), "held": held, "points": points}


def _log10(value: float) -> float:
    return float(np.log10(value)) if value > 10**LEAST else LEAST
