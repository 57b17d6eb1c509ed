"""Best subsets: which parameters a quadratic misfit asks for, all subsets tried."""

from typing import NamedTuple

import numpy as np

MOST_SUBSETS = 1 << 14
SHORT_LIST = 32  # subsets solved anew of those that elimination ranks first: it rounds a little more
RIDGE = 1e-12  # of columns of length 1, at rounding level: collinear ones then share a coefficient


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
    score = subset_misfits(gram, cross, square, np.flatnonzero(always), pool) + penalty * masks.sum(1)
    likely = np.argsort(np.where(np.isfinite(score), score, np.inf), kind="stable")[:SHORT_LIST]
    return _best(gram, cross, square, penalty, masks[np.sort(likely)])


def subset_misfits(
    gram: np.ndarray, cross: np.ndarray, square: float, always: np.ndarray, pool: np.ndarray
) -> np.ndarray:
    """The misfit of every subset of the pool beside what is always there: (2^pool,), bit j says whether pool[j] is in.

    One parameter after the other is eliminated from a copy of the normal equations and struck from another, so that
    subsets share all their work but the last step's.
    """
    order = np.concatenate([always, pool])
    scaled, right, _ = _scaled(gram, cross)
    tables = np.empty((1, len(order) + 1, len(order) + 1))
    tables[0, :-1, :-1] = scaled[np.ix_(order, order)] + RIDGE * np.eye(len(order))
    tables[0, :-1, -1] = tables[0, -1, :-1] = right[order]
    tables[0, -1, -1] = square
    for _ in always:
        tables = _eliminated(tables)
    for _ in pool:
        tables = np.concatenate([tables[:, 1:, 1:], _eliminated(tables)])
    return tables[:, 0, 0]


def _eliminated(tables: np.ndarray) -> np.ndarray:
    """Quadratic forms (tables, n, n) minimised over their first variable: (tables, n − 1, n − 1)."""
    return tables[:, 1:, 1:] - tables[:, 1:, :1] * (tables[:, :1, 1:] / tables[:, :1, :1])


def _best(gram, cross, square, penalty, masks: np.ndarray) -> Choice:
    theta = solutions(gram, cross, masks)
    misfit = square - 2 * theta @ cross + np.einsum("si,ij,sj->s", theta, gram, theta, optimize=True)
    score = misfit + penalty * masks.sum(1)
    i = int(np.nanargmin(np.where(np.isfinite(score), score, np.inf)))
    return Choice(masks[i], theta[i], float(misfit[i]), float(score[i]))


def solutions(gram: np.ndarray, cross: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """The least-squares parameters on every support: (supports, entries)."""
    scaled, right, size = _scaled(gram, cross)
    both = masks[:, :, None] & masks[:, None, :]
    systems = np.where(both, scaled, 0.0) + np.eye(len(size)) * np.where(masks, RIDGE, 1.0)[:, None, :]
    return np.linalg.solve(systems, np.where(masks, right, 0.0)[..., None])[..., 0] / size


def _scaled(gram: np.ndarray, cross: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The normal equations of columns of length 1, and the columns' lengths."""
    size = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    return gram / np.outer(size, size), cross / size, size


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
