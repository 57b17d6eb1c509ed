"""Best subsets: which parameters a quadratic misfit asks for, all subsets tried."""

from typing import NamedTuple

import numpy as np

MOST_SUBSETS = 1 << 14
CHUNK = 2048  # subsets solved at once


class Choice(NamedTuple):
    """The chosen parameters."""

    support: np.ndarray  # (entries,) bool
    theta: np.ndarray  # (entries,): 0 outside the support
    misfit: float
    score: float  # misfit plus penalty: smaller is better


def best_subset(
    gram: np.ndarray,
    cross: np.ndarray,
    square: float,
    penalty: float,
    *,
    always: np.ndarray,
    optional: np.ndarray,
) -> Choice:
    """The minimiser of `misfit + penalty · size` over all subsets of the optional parameters.

    The misfit of θ is `square − 2 crossᵀθ + θᵀ gram θ`. Beyond 2^14 subsets single additions, removals and
    exchanges are followed to a local optimum instead.
    """
    pool = np.flatnonzero(optional)
    if 2 ** len(pool) > MOST_SUBSETS:
        return _exchanged(gram, cross, square, penalty, always, pool)
    masks = np.tile(always, (2 ** len(pool), 1))
    masks[:, pool] = np.arange(len(masks))[:, None] >> np.arange(len(pool)) & 1
    return _best(gram, cross, square, penalty, masks)


def _best(gram, cross, square, penalty, masks: np.ndarray) -> Choice:
    solved = [solutions(gram, cross, masks[i : i + CHUNK]) for i in range(0, len(masks), CHUNK)]
    theta = np.concatenate(solved)
    misfit = square - 2 * theta @ cross + np.einsum("si,ij,sj->s", theta, gram, theta, optimize=True)
    score = misfit + penalty * masks.sum(1)
    i = int(np.nanargmin(np.where(np.isfinite(score), score, np.inf)))
    return Choice(masks[i], theta[i], float(misfit[i]), float(score[i]))


def solutions(gram: np.ndarray, cross: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """The least-squares parameters on every support: (supports, entries)."""
    size = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    scaled, right = gram / np.outer(size, size), cross / size
    both = masks[:, :, None] & masks[:, None, :]
    # A ridge at rounding level: collinear columns then share a coefficient instead of breaking the solve.
    systems = np.where(both, scaled, 0.0) + np.eye(len(size)) * np.where(masks, 1e-12, 1.0)[:, None, :]
    return np.linalg.solve(systems, np.where(masks, right, 0.0)[..., None])[..., 0] / size


def _exchanged(gram, cross, square, penalty, always, pool) -> Choice:
    best = _best(gram, cross, square, penalty, always[None])
    while True:
        on = [j for j in pool if best.support[j]]
        off = [j for j in pool if not best.support[j]]
        moves = [(j,) for j in pool] + [(i, j) for i in on for j in off]
        masks = np.tile(best.support, (len(moves), 1))
        for mask, move in zip(masks, moves, strict=True):
            mask[list(move)] ^= True
        found = _best(gram, cross, square, penalty, masks)
        if found.score >= best.score:
            return best
        best = found
