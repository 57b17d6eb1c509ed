"""Split-conformal calibration: how many standard deviations an interval really needs, learned on validation logs.

A score is `|y − mean| / sd` of one reading. A cell is a group of channels, a band of the log's hidden share, and seen
or hidden now. Its factor at level a is the quantile of its scores, so that `mean ± factor · sd` covers a share a.

What is exchangeable is the episode, not the step: steps of one log are dependent and share their mistakes. Coverage is
therefore marginal over episodes, and nominal in the limit of many validation episodes; with few of them the quantile,
which counts every step as a score of its own, promises more than it can hold.
"""

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num
from scipy.special import ndtri

STEPS = 20
LEVELS = np.arange(1, STEPS) / STEPS  # the nominal levels .05, .10, … .95
EDGES = (0.125, 0.375, 0.625, 0.825)  # hidden shares of 0, .25, .5, .75 and .9 have a band each
FEWEST = 40  # scores a cell needs to speak for itself
SEEN, HIDDEN = 0, 1


class Calibration(eqx.Module):
    """The factor of every cell and level, the group of every channel, and the hidden shares between two bands."""

    factors: Float[Array, "groups bands 2 levels"]  # 2: seen now, hidden now
    groups: tuple[int, ...] = eqx.field(static=True)
    edges: tuple[float, ...] = eqx.field(static=True, default=EDGES)

    def __check_init__(self):
        count, bands, _, levels = self.factors.shape
        if (bands, levels) != (len(self.edges) + 1, len(LEVELS)):
            raise ValueError(
                f"the factors are of {bands} bands and {levels} levels; expected {len(self.edges) + 1} bands, one more "
                f"than there are edges, and the {len(LEVELS)} levels of `LEVELS`."
            )
        if list(self.edges) != sorted(set(self.edges)) or not all(0 <= e <= 1 for e in self.edges):
            raise ValueError(f"the edges are {self.edges}; expected rising shares in [0, 1].")
        if not self.groups or not all(0 <= g < count for g in self.groups):
            raise ValueError(f"the channels are in groups {self.groups}; expected numbers from 0 to {count - 1}.")
        factors = np.asarray(self.factors)
        if not ((factors >= 0).all() and (np.diff(factors) >= 0).all()):
            raise ValueError("the factors fall with the level or are negative; expected them to rise from 0 or more.")

    def factors_at(
        self, hidden_share: Float[np.ndarray, "*logs groups"], hidden: Bool[np.ndarray, "*logs rows channels"]
    ) -> Float[np.ndarray, "*logs rows channels levels"]:
        """The factors of every reading of a log, or of many."""
        group = np.asarray(self.groups)
        band = band_of(hidden_share, self.edges)[..., None, group]
        return np.asarray(self.factors)[group, band, np.where(hidden, HIDDEN, SEEN)]


def hidden_share(
    hidden: Bool[np.ndarray, "*logs rows channels"],
    groups: Int[np.ndarray, "channels"],
    valid: Bool[np.ndarray, "*logs rows"] | None = None,
) -> Float[np.ndarray, "*logs groups"]:
    """The share of every group's entries that is hidden, over the valid rows of each log."""
    valid = np.ones(hidden.shape[:-1], bool) if valid is None else valid
    gone = (hidden & valid[..., None]).sum(-2)
    member = groups[:, None] == np.arange(groups.max() + 1)  # channels, groups
    entries = valid.sum(-1)[..., None] * member.sum(0)
    return gone @ member / np.maximum(entries, 1)  # a log of padding alone hides nothing


def band_of(hidden_share: Float[np.ndarray, "*cells"], edges: tuple[float, ...] = EDGES) -> Int[np.ndarray, "*cells"]:
    """The band of every hidden share; a share on an edge is in the band above it."""
    return np.searchsorted(np.asarray(edges), hidden_share, side="right")


def conformal_factors(
    score: Float[np.ndarray, "_"],
    group: Int[np.ndarray, "_"],
    band: Int[np.ndarray, "_"],
    hidden: Bool[np.ndarray, "_"],
    *,
    groups: int,
    bands: int,
) -> Float[np.ndarray, "groups bands 2 levels"]:
    """The factor of every cell and level: the ⌈(n + 1) a⌉-th smallest of the cell's n scores.

    A cell of fewer than `FEWEST` scores borrows from others that are seen, or hidden, as it is: first from the
    neighbouring bands of its group, then from all bands of its group, then from all groups. Where a state has so few
    scores in all that the rank is above n, the factor is the largest score or the normal's, whichever is larger; where
    it has none, the factors are those of the standard normal: nothing is known, and the belief is taken at its word.
    """
    _refuse_bad_scores(score, group, band, hidden, groups, bands)
    shape = (groups, bands, 2)
    cell = np.ravel_multi_index((group, band, np.where(hidden, HIDDEN, SEEN)), shape)
    ends = np.cumsum(np.bincount(cell, minlength=groups * bands * 2))
    parts = np.split(score[np.argsort(cell, kind="stable")], ends[:-1])
    cells = dict(zip(np.ndindex(shape), parts, strict=True))
    factors = [_quantiles(_pool(cells, place, groups, bands)) for place in cells]
    return np.stack(factors).reshape(*shape, len(LEVELS))


def _refuse_bad_scores(score, group, band, hidden, groups: int, bands: int) -> None:
    sizes = [a.size for a in (score, group, band, hidden)]
    if len(set(sizes)) > 1:
        raise ValueError(f"score, group, band and hidden have {sizes} entries; expected one of each for every score.")
    for what, values, count in (("group", group, groups), ("band", band, bands)):
        if values.size and not (values.min() >= 0 and values.max() < count):
            raise ValueError(
                f"{what} numbers go from {values.min()} to {values.max()}; expected numbers from 0 to {count - 1}."
            )
    if not (np.isfinite(score).all() and (score >= 0).all()):
        raise ValueError("some scores are negative or not finite; expected |y − mean| / sd. Leave out what is unknown.")


def _pool(cells: dict, place: tuple[int, ...], groups: int, bands: int) -> np.ndarray:
    """The cell's scores, or the smallest pool around it that is large enough, or all of its state."""
    group, band, state = place
    near = range(max(band - 1, 0), min(band + 2, bands))
    wider = (([group], [band]), ([group], near), ([group], range(bands)), (range(groups), range(bands)))
    pool = np.empty(0)
    for some_groups, some_bands in wider:
        pool = np.concatenate([cells[g, b, state] for g in some_groups for b in some_bands])
        if pool.size >= FEWEST:
            break
    return pool


def _quantiles(pool: np.ndarray) -> np.ndarray:
    """The finite-sample quantile of a pool of scores at every level."""
    normal = ndtri((1 + LEVELS) / 2)
    count = pool.size
    if not count:
        return normal
    rank = -(
        -(count + 1) * np.arange(1, STEPS) // STEPS
    )  # ⌈(n + 1) a⌉ in whole numbers: .55 · 20 is above 11 in floats
    placed = np.sort(pool)
    beyond = np.maximum(placed[-1], normal)
    return np.where(rank <= count, placed[np.minimum(rank, count) - 1], beyond)


def covered(
    score: Float[np.ndarray, "*readings"], factors_at: Float[np.ndarray, "*readings levels"]
) -> Bool[np.ndarray, "*readings levels"]:
    """Whether each reading is inside its interval, at every level; `factors_at` are the factors of its cell."""
    return score[..., None] <= factors_at


NARROWEST = 1e-3  # standard deviations between two factors: equal scores must not make an infinite density


def excesses(
    score: Float[np.ndarray, "_"],
    group: Int[np.ndarray, "_"],
    band: Int[np.ndarray, "_"],
    hidden: Num[np.ndarray, "_"],
    factors: Float[np.ndarray, "groups bands 2 levels"],
) -> Float[np.ndarray, "groups bands 2"]:
    """How far, on average, the scores of every cell go beyond the factor of the last level; 1 where none does."""
    place = (group, band, hidden.astype(int))
    beyond = score - factors[..., -1][place]
    far = beyond > 0
    place = tuple(x[far] for x in place)
    total, count = np.zeros(factors.shape[:3]), np.zeros(factors.shape[:3])
    np.add.at(total, place, beyond[far])
    np.add.at(count, place, 1.0)
    return np.where(count > 0, np.maximum(total / np.maximum(count, 1), NARROWEST), 1.0)


def implied_log_density(
    score: Float[np.ndarray, "*readings"],
    sd: Float[np.ndarray, "*readings"],
    factors: Float[np.ndarray, "*readings levels"],
    tail: Float[np.ndarray, "*readings"],
) -> Float[np.ndarray, "*readings"]:
    """The log density of readings that the intervals imply: flat between two of them, exponential beyond the last."""
    edges = np.concatenate([np.zeros_like(factors[..., :1]), factors], axis=-1)
    step = np.minimum((score[..., None] >= factors).sum(-1), STEPS - 1)
    low = np.take_along_axis(edges, step[..., None], -1)[..., 0]
    high = np.take_along_axis(edges, np.minimum(step + 1, STEPS - 1)[..., None], -1)[..., 0]
    last = step == STEPS - 1
    width = np.where(last, tail, np.maximum(high - low, NARROWEST))
    return -np.log(2 * STEPS * width * sd) - np.where(last, (score - low) / tail, 0.0)
