"""How sure the weak form's parameters are: rows overlap, so least squares' own errors would be too small.

With rows A θ ≈ b and G = AᵀA the covariance is the sandwich `G⁻¹ AᵀKA G⁻¹`, K being the covariance of the rows' errors.
Two K are offered: that of overlapping bumps over white sensor noise, which is known, and that of the residuals,
which also holds when the law leaves out forces that last (a real machine always does).
"""

import numpy as np

from vhydro.laws import weak
from vhydro.laws.form import Form
from vhydro.laws.weak import Rows


def sensor_covariance(rows: Rows, support: np.ndarray) -> np.ndarray:
    """The parameters' covariance (entries, entries) if white sensor noise on positions is the only error."""
    return _sandwich(rows, support, _summed_over_lags(rows.design[..., support], rows.overlap))


def robust_covariance(rows: Rows, support: np.ndarray) -> np.ndarray:
    """The parameters' covariance (entries, entries), whatever the rows' errors are and for however long they last.

    Newey and West's estimator. Neighbouring rows count as far as `memory` says, and at least as far as bumps overlap.
    """
    active = rows.design[..., support]
    scores = active * rows.residuals(rows.solution(support))[..., None]
    lags = max(memory(scores), len(rows.overlap))
    small_sample = rows.number / max(rows.number - int(support.sum()), 1)
    return _sandwich(rows, support, _summed_over_lags(scores, tapered(lags)) * small_sample)


def memory(scores: np.ndarray) -> int:
    """How many lags count for scores (series, bumps, scores), by Andrews' rule for autoregressions of order 1."""
    now, before = scores[:, 1:], scores[:, :-1]
    rho = np.sum(now * before, (0, 1)) / np.maximum(np.sum(before**2, (0, 1)), 1e-300)
    rho = np.clip(rho, -0.97, 0.97)
    power = np.sum((now - rho * before) ** 2, (0, 1)) ** 2
    # Each score is weighted by its own scale, so that the units of a parameter do not matter.
    weight = 1 / np.maximum(np.sum(scores**2, (0, 1)) ** 2, 1e-300)
    above = np.sum(weight * power * 4 * rho**2 / ((1 - rho) ** 6 * (1 + rho) ** 2))
    below = np.sum(weight * power / (1 - rho) ** 4)
    lags = 1.1447 * (above / max(below, 1e-300) * scores.shape[0] * scores.shape[1]) ** (1 / 3)
    return int(np.clip(np.ceil(lags), 1, scores.shape[1] - 1))


def tapered(lags: int) -> np.ndarray:
    """Bartlett's weights of lag 0, 1, …: they keep a covariance positive."""
    return 1 - np.arange(lags) / lags


def _summed_over_lags(scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Σ_lag weight · (Σ_t s_t s_{t+lag}ᵀ and its transpose)."""
    out = weights[0] * np.einsum("sbi,sbj->ij", scores, scores, optimize=True)
    for lag in range(1, min(len(weights), scores.shape[1])):
        pair = np.einsum("sbi,sbj->ij", scores[:, :-lag], scores[:, lag:], optimize=True)
        out = out + weights[lag] * (pair + pair.T)
    return out


def _sandwich(rows: Rows, support: np.ndarray, meat: np.ndarray) -> np.ndarray:
    gram = rows.gram[np.ix_(support, support)]
    size = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    bread = np.linalg.pinv(gram / np.outer(size, size), rcond=1e-12, hermitian=True) / np.outer(size, size)
    out = np.zeros(2 * (len(support),))
    out[np.ix_(support, support)] = bread @ meat @ bread
    return out


def covariance_in_units_of_force(form: Form, theta: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """The covariance of `weak.in_units_of_force(form, theta)`, by its slopes; 0 for what is known."""
    out = np.zeros_like(covariance)
    for i in np.flatnonzero(np.diag(covariance)):
        step = np.zeros_like(theta)
        step[i] = 1e-6 * abs(theta[i])
        above, below = (weak.in_units_of_force(form, theta + s) for s in (step, -step))
        out[:, i] = (above - below) / (2 * step[i])
    return out @ covariance @ out.T
