"""The risk of episodes, told before their end was known, and how right it was.

A logistic regression of what the plan of a fixed step expects is fitted to the policy's own episodes; every seed's
episodes are judged by the regression of all other seeds'. Recalibrate where the planner changes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

BINS = 10  # of equal width, of predicted risk
RIDGE = 1.0  # on standardised coefficients, so that few episodes do not decide
ROUNDS = 30  # of Newton's method


def logistic(x: np.ndarray, failed: np.ndarray) -> np.ndarray:
    """The coefficients of the chance of failure, the last that of 1; a ridge on all but that."""
    x = np.hstack([x, np.ones((len(x), 1))])
    ridge = np.diag([RIDGE] * (x.shape[1] - 1) + [1e-6])
    w = np.zeros(x.shape[1])
    w[-1] = np.log((failed.sum() + 0.5) / ((1 - failed).sum() + 0.5))
    for _ in range(ROUNDS):
        p = chance(x[:, :-1], w)
        slope = x.T @ (p - failed) + ridge @ w
        w = w - np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x + ridge, slope)
    return w


def chance(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The chance of failure under these coefficients."""
    return 1 / (1 + np.exp(-np.clip(x @ w[:-1] + w[-1], -30, 30)))


def told(features: np.ndarray, failed: np.ndarray, seed: np.ndarray) -> np.ndarray | None:
    """The risk of every episode by the episodes of the other seeds; None where there is one seed only."""
    if len(set(seed.tolist())) < 2:
        return None
    out = np.zeros(len(failed))
    for one in set(seed.tolist()):
        here, others = seed == one, seed != one
        middle, spread = features[others].mean(0), features[others].std(0) + 1e-9
        w = logistic((features[others] - middle) / spread, failed[others])
        out[here] = chance((features[here] - middle) / spread, w)
    return out


def judged(risk: np.ndarray, failed: np.ndarray) -> dict[str, float | None]:
    """Gap, ECE, Brier score, that of the constant base rate (the best constant, in hindsight), and AUC."""
    base = failed.mean()
    return {
        "predicted_risk": float(risk.mean()),
        "risk_gap": float(abs(risk.mean() - base)),
        "ece": ece(risk, failed),
        "brier": float(((risk - failed) ** 2).mean()),
        "brier_base_rate": float(base * (1 - base)),
        "auc": auc(risk, failed),
    }


def ece(risk: np.ndarray, failed: np.ndarray) -> float:
    """The mean distance between predicted and realised risk over the bins, weighted by their episodes."""
    at = np.minimum((risk * BINS).astype(int), BINS - 1)
    each = [
        abs(risk[at == b].mean() - failed[at == b].mean()) * (at == b).mean() for b in range(BINS) if (at == b).any()
    ]
    return float(sum(each))


def auc(risk: np.ndarray, failed: np.ndarray) -> float | None:
    """The chance that a failed episode was given the higher risk, ties one half; None where all ended alike."""
    bad, good = risk[failed == 1], risk[failed == 0]
    if not len(bad) or not len(good):
        return None
    above = bad[:, None] - good[None, :]
    return float(((above > 0) + 0.5 * (above == 0)).mean())


def risk_columns(cells: Sequence[dict[str, Any]], moments: Sequence[int]) -> dict[str, Any]:
    """The columns of a summary row; those without a number are of the first moment, `_tN` those of the others."""
    out: dict[str, Any] = {}
    failed = np.array([0.0 if c["success"] else 1.0 for c in cells])
    seed = np.array([c["seed"] for c in cells])
    for k, moment in enumerate(moments):
        features = [c.get(f"features_t{moment}") for c in cells]
        risk = None if any(f is None for f in features) else told(np.array(features, float), failed, seed)
        scored = dict.fromkeys(NAMES) if risk is None else judged(risk, failed)
        out[f"predicted_risk_t{moment}"] = scored.pop("predicted_risk")
        out |= {name if k == 0 else f"{name}_t{moment}": value for name, value in scored.items()}
    return out


NAMES = ("predicted_risk", "risk_gap", "ece", "brier", "brier_base_rate", "auc")
