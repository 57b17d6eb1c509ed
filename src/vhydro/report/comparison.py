"""Filters compared on the same logs with the same random numbers: plain arrays in, rows of numbers out."""

from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

FILM_RULE = "the run whose log evidence differs most between the two, whichever is higher"
FILM_POINTS = 48


class Truth(NamedTuple):
    """What was true in the logs, and which of it was shown; arrays are (episodes, rows)."""

    position: np.ndarray
    mode: np.ndarray
    seen: np.ndarray  # the observed position, NaN where hidden

    @property
    def shown(self) -> np.ndarray:
        return ~np.isnan(self.seen)


class Runs(NamedTuple):
    """One method on every episode with every key; arrays lead with (keys, episodes)."""

    log_evidence: np.ndarray
    record: dict[str, np.ndarray]  # each (…, rows)
    mode: np.ndarray  # (…, rows, modes) posterior
    mean: np.ndarray  # (…, rows) of the position
    position: np.ndarray  # (…, rows, particles)
    weight: np.ndarray  # (…, rows, particles)


def weighted_quantile(values: np.ndarray, weights: np.ndarray, level: float) -> np.ndarray:
    """The smallest value with at least `level` of the weight at or below it, along the last axis."""
    order = np.argsort(values, -1)
    total = np.cumsum(np.take_along_axis(weights, order, -1), -1)
    index = (total < level * total[..., -1:]).sum(-1, keepdims=True).clip(max=values.shape[-1] - 1)
    return np.take_along_axis(np.take_along_axis(values, order, -1), index, -1)[..., 0]


def lost(position: np.ndarray, truth: np.ndarray, shown: np.ndarray, margin: float) -> np.ndarray:
    """Where a filter lost the object: (…, rows).

    At the first position seen after a dark span, and with that position already used, the true one is more
    than `margin` outside the range of all particles.
    """
    again = np.zeros_like(shown)
    again[..., 1:] = shown[..., 1:] & ~shown[..., :-1]
    outside = np.maximum(position.min(-1) - truth, truth - position.max(-1)) > margin
    return again & outside


def matching(mode: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The learned mode of every true one, one to one, by most rows in common; for names and scores only."""
    likely, labels = mode.argmax(-1), np.broadcast_to(labels, mode.shape[:-1])
    modes = range(mode.shape[-1])
    common = [[np.sum((likely == mine) & (labels == true)) for mine in modes] for true in modes]
    return linear_sum_assignment(-np.array(common))[1]


def standard_error(values: np.ndarray) -> float:
    """That of the mean; 0 for a single value."""
    return float(values.std(ddof=1) / np.sqrt(values.size)) if values.size > 1 else 0.0


def definitions(margin: float) -> dict[str, str]:
    """What every number of a row means."""
    return {
        "log_evidence": "log evidence per observed position, over all episodes",
        "log_evidence_worst": "the lowest of all runs; a run is one episode with one key",
        "log_evidence_spread": "standard deviation of an episode's log evidence over keys, averaged",
        "step_ess": "ESS/N of a step's own weights, mean over steps",
        "mixing": "mean λ",
        "certified": "share of steps whose variance bound is within the tolerance",
        "relative_variance_worst": "largest relative variance of one step's weights, in any run",
        "coverage90": "share of hidden true positions inside the belief's central 90 % interval",
        "rmse": "root mean square error of the belief's mean at hidden positions, in metres",
        "rmse_worst": "the largest of all runs",
        "mode_accuracy": "share of rows whose likeliest mode is the true one, modes matched one to one",
        "lost": "runs that lost the puck: at the first position seen after a dark span the true one was more "
        f"than {margin:g} m outside the range of all particles",
        "redrawn": "steps in which every weight was zero, so that the carrier was drawn instead",
        "_se": "standard error over the filter's keys, on the same episodes",
    }


def row(out: Runs, truth: Truth, match: np.ndarray, margin: float) -> dict:
    """One method's numbers, as they come; see `definitions`."""
    keys = len(out.log_evidence)
    observed, hidden = truth.shown.sum(-1), ~truth.shown
    low, high = (weighted_quantile(out.position, out.weight, level) for level in (0.05, 0.95))
    inside = (truth.position >= low) & (truth.position <= high)
    square = (out.mean - truth.position) ** 2
    gone = lost(out.position, truth.position, np.broadcast_to(truth.shown, square.shape), margin).any(-1)
    by_key = {
        "log_evidence": out.log_evidence.sum(1) / observed.sum(),
        **{name: out.record[name].mean((1, 2)) for name in ("step_ess", "mixing", "certified")},
        "coverage90": inside[:, hidden].mean(1),
        "rmse": np.sqrt(square[:, hidden].mean(1)),
        "mode_accuracy": (match[truth.mode] == out.mode.argmax(-1)).mean((1, 2)),
    }
    by_run = np.sqrt((square * hidden).sum(-1) / np.maximum(hidden.sum(-1), 1))
    return {
        **{name: float(v.mean()) for name, v in by_key.items()},
        **{f"{name}_se": standard_error(v) for name, v in by_key.items()},
        "log_evidence_worst": float((out.log_evidence / observed).min()),
        "log_evidence_spread": float(out.log_evidence.std(0, ddof=1).mean()) if keys > 1 else 0.0,
        "relative_variance_worst": float(out.record["relative_variance"].max()),
        "rmse_worst": float(by_run.max()),
        "lost": int(gone.sum()),
        "redrawn": int(out.record["redrawn"].sum()),
        "runs": int(gone.size),
    }


def difference(ours: Runs, theirs: Runs, truth: Truth) -> dict:
    """How far the first's log evidence per observed position is above the second's, by key and by run."""
    observed = truth.shown.sum(-1)
    gap = ours.log_evidence - theirs.log_evidence
    by_key, by_run = gap.sum(1) / observed.sum(), gap / observed
    return {
        "mean": float(by_key.mean()),
        "se": standard_error(by_key),
        "runs_ahead": int((by_run > 0).sum()),
        "best_run": float(by_run.max()),
        "worst_run": float(by_run.min()),
    }


def film(pair: dict[str, Runs], truth: Truth, match: np.ndarray, margin: float) -> dict:
    """One run of two methods side by side, chosen by `FILM_RULE`, as plain numbers."""
    first, second = pair.values()
    gap = np.abs(first.log_evidence - second.log_evidence)
    k, e = (int(i) for i in np.unravel_index(np.argmax(gap), gap.shape))
    position, shown, seen = truth.position[e], truth.shown[e], truth.seen[e]
    levels = (np.arange(FILM_POINTS) + 0.5) / FILM_POINTS

    def side(out: Runs) -> dict:
        cloud, weight = out.position[k, e], out.weight[k, e]
        points = np.stack([weighted_quantile(cloud, weight, level) for level in levels], -1)
        return {
            "log_evidence": float(out.log_evidence[k, e] / shown.sum()),
            "points": points.round(3).tolist(),
            "mode": out.mode[k, e][:, match].round(3).tolist(),
            "lost": np.flatnonzero(lost(cloud, position, shown, margin)).tolist(),
            **{n: out.record[n][k, e].astype(float).tolist() for n in ("mixing", "bound", "certified", "step_ess")},
        }

    return {
        "episode": e,
        "key": k,
        "rule": FILM_RULE,
        "truth": position.round(4).tolist(),
        "mode": truth.mode[e].tolist(),
        "seen": [float(v) if s else None for v, s in zip(seen, shown, strict=True)],
        "sides": {name: side(out) for name, out in pair.items()},
    }
