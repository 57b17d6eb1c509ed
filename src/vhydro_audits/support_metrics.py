"""The metrics of DESIGN's support audit, from what a filter believed of every reading and said of every step."""

from typing import Any, NamedTuple

import numpy as np

from vhydro.calibration import (
    EDGES,
    LEVELS,
    band_of,
    conformal_factors,
    covered,
    excesses,
    hidden_share,
    implied_log_density,
)
from vhydro_audits.support_runs import Checks, Readings, Steps

NINETY = int(np.argmin(np.abs(LEVELS - 0.9)))  # where 0.9 is among the levels

FOLDS = 5  # of the validation episodes, to choose a density
TELLING = 1.0  # a bound above this, on a relative variance, says nothing

Cell = dict[str, Any]


def coverages(readings: Readings) -> np.ndarray:
    """Whether each reading lies in the belief's central interval of every level."""
    return np.abs(2 * readings.quantile - 1)[..., None] <= LEVELS + 1e-9


class Calibrated(NamedTuple):
    """What calibrated intervals and densities say of the readings of one seed."""

    inside: np.ndarray  # (levels, episodes, rows, channels, nominal levels)
    log_density: np.ndarray  # (levels, episodes, rows, channels)


def calibrated(
    validation: Readings, valid: np.ndarray, test: Readings, test_valid: np.ndarray, groups: np.ndarray
) -> Calibrated:
    """Intervals and densities of test readings, calibrated on validation ones; axes levels, episodes, rows, channels.

    The density of a cell of the calibration is the belief's own or the one its calibrated intervals imply, whichever
    is likelier on validation episodes that the intervals were not calibrated on.
    """
    count, bands = int(groups.max()) + 1, len(EDGES) + 1
    place, test_place = _places(validation, valid, groups), _places(test, test_valid, groups)
    kept = np.broadcast_to(valid[..., None], validation.hidden.shape)
    score, sd = np.asarray(validation.score, np.float64), np.asarray(validation.sd)
    episode = np.broadcast_to(np.arange(valid.shape[1])[:, None, None], kept.shape)  # at all levels the same

    def learned(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        group, band, dark = (x[chosen] for x in place)
        cell = group, band, dark.astype(bool)
        factors, _ = conformal_factors(score[chosen], episode[chosen], *cell, groups=count, bands=bands)
        return factors, excesses(score[chosen], group, band, dark, factors)

    fold = episode % FOLDS
    gain = np.zeros((count, bands, 2))
    for out in range(min(FOLDS, valid.shape[1]) if valid.shape[1] > 1 else 0):
        factors, tails = learned(kept & (fold != out))
        held = kept & (fold == out)
        where = tuple(x[held] for x in place)
        implied = implied_log_density(score[held], sd[held], factors[where], tails[where])
        np.add.at(gain, where, implied - np.asarray(validation.log_density)[held])
    factors, tails = learned(kept)
    test_score = np.asarray(test.score, np.float64)
    other = implied_log_density(test_score, np.asarray(test.sd), factors[test_place], tails[test_place])
    density = np.where(gain[test_place] > 0, other, np.asarray(test.log_density))
    return Calibrated(covered(test_score, factors[test_place]), density)


def _places(readings: Readings, valid: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The cell of the calibration that every reading is in: its group, its band, and whether it is hidden."""
    shape, hidden = readings.hidden.shape, np.asarray(readings.hidden)
    band = band_of(hidden_share(hidden, groups, valid), EDGES)[..., None, groups]
    return np.broadcast_to(groups, shape), np.broadcast_to(band, shape), hidden.astype(int)


def cell_metrics(readings: Readings, log_density: np.ndarray, inside: np.ndarray, valid: np.ndarray) -> Cell:
    """Density and calibration of one cell; `valid` marks the rows that count, (episodes, rows)."""
    kept = np.broadcast_to(valid[..., None], readings.hidden.shape)
    dark = kept & readings.hidden
    out: Cell = {}
    for name, chosen in (("", kept), ("_hidden", dark)):
        some = bool(chosen.any())
        share = inside[chosen].mean(0) if some else None
        out[f"nll{name}"] = -float(log_density[chosen].astype(np.float64).mean()) if some else None
        out[f"ece{name}"] = float(np.abs(share - LEVELS).mean()) if share is not None else None
        out[f"cov90{name}"] = float(share[NINETY]) if share is not None else None
        if not name:
            out["coverage"] = [float(s) for s in share] if share is not None else None
    out["lost"] = float(readings.lost[dark].mean()) if dark.any() else None
    return out


def step_metrics(steps: Steps, valid: np.ndarray, particles: int) -> Cell:
    """Weights, mixing and certificates of one cell."""
    ess = np.maximum(steps.ess[valid].astype(np.float64), 1 / particles)
    variance = 1 / ess - 1
    k = steps.pareto_k[valid]
    k = k[np.isfinite(k)]
    return {
        "ess": float(ess.mean()),
        "relative_weight_variance": float(variance.mean()),
        "empirical_relative_variance": float(variance.mean() / particles),
        "mixing": float(steps.mixing[valid].mean()),
        "certified": float(steps.certified[valid].mean()),
        "redrawn": float(steps.redrawn[valid].mean()),
        "bounded": float((steps.bound[valid] <= TELLING).mean()),
        "pareto_k": float(k.mean()) if k.size else None,
        "pareto_bad": float((k > 0.7).mean()) if k.size else None,
    }


def check_metrics(checks: Checks) -> Cell:
    """Bounds beside what repeated draws gave, over the checked steps of one cell."""
    known = np.isfinite(checks.variance)
    within = known & (checks.bound <= TELLING)
    out: Cell = {"realised_variance": float(checks.variance[known].mean()) if known.any() else None}
    out |= dict.fromkeys(("bound", "bound_realised", "bound_realised_se"))
    if within.any():
        error = checks.error[within].astype(np.float64)
        out["bound"] = float(checks.bound[within].astype(np.float64).mean())
        out["bound_realised"] = float(checks.variance[within].astype(np.float64).mean())
        out["bound_realised_se"] = float(np.sqrt((error**2).sum()) / within.sum())
    return out
