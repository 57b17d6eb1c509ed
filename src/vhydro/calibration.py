"""Conformal calibration: how many standard deviations an interval really needs, learned on validation episodes.

A score is `|y − mean| / sd` of one reading. A cell is a group of channels, a band of the log's hidden share, and seen
or hidden now. Its factor at level a is what `mean ± factor · sd` needs to cover a share a of the cell's readings.

What is exchangeable is the episode, not the step: steps of one log are dependent and share their mistakes. One reading
of each of K episodes and one of a new episode are K + 1 exchangeable scores, so that the r-th smallest of the K covers
the new one with probability r / (K + 1). The factor covers as large a share as that r-th smallest does in the mean
over many such draws, both measured by the pooled distribution of the episodes' scores. With the distribution of a new
episode's scores in its place that is r / (K + 1) exactly. (The mean of the r-th smallest itself covers more, the more
so the heavier the tail: 0.92 to 0.95 in place of 0.90 with 12 episodes.)

Related: Dunn, Wasserman & Ramdas, "Distribution-free prediction sets for two-layer hierarchical models" (one draw, or
many that vote); Lee, Barber & Willett, "Distribution-free inference with hierarchical data" (all readings at once, with
an episode's mass at infinity: needs no assumption on the scores, and covers too much where episodes are alike).
"""

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num
from scipy.special import ndtri, stdtrit

STEPS = 20
LEVELS = np.arange(1, STEPS) / STEPS  # the nominal levels .05, .10, … .95
EDGES = (0.125, 0.375, 0.625, 0.825)  # hidden shares of 0, .25, .5, .75 and .9 have a band each
FEWEST = 40  # scores a cell needs to speak for itself,
FEWEST_EPISODES = 5  # and episodes that they must come from
DRAWS = 1000  # of one reading per episode: the error that is left is a small part of what K episodes leave
NARROWEST = 1e-3  # standard deviations between two factors: equal scores must not make an infinite density
ROUNDING = 1e-12  # on a share: a factor is not to fall below the scores that it equals
SEEN, HIDDEN = 0, 1


class Calibration(eqx.Module):
    """The factor of every cell and level, the group of every channel, and the hidden shares between two bands.

    `episodes` counts those a cell's factors rest on; it is 0 for a cell that borrowed from others, and None in files
    from before episodes were counted.
    """

    factors: Float[Array, "groups bands 2 levels"]  # 2: seen now, hidden now
    groups: tuple[int, ...] = eqx.field(static=True)
    edges: tuple[float, ...] = eqx.field(static=True, default=EDGES)
    episodes: Int[Array, "groups bands 2"] | None = None

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
        if self.episodes is not None and not (np.asarray(self.episodes) >= 0).all():
            raise ValueError("some cells rest on fewer than 0 episodes; expected counts.")

    def ranked_up_to(self) -> Float[np.ndarray, "groups bands 2"]:
        """The level up to which ranks decide every cell's factors: K / (K + 1) for K episodes, 0 where it borrowed.

        Above it, the factors assume that the scales of episodes are log-normal.
        """
        episodes = np.zeros(self.factors.shape[:3]) if self.episodes is None else np.asarray(self.episodes)
        return episodes / (episodes + 1)

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
    episode: Int[np.ndarray, "_"],
    group: Int[np.ndarray, "_"],
    band: Int[np.ndarray, "_"],
    hidden: Bool[np.ndarray, "_"],
    *,
    groups: int,
    bands: int,
) -> tuple[Float[np.ndarray, "groups bands 2 levels"], Int[np.ndarray, "groups bands 2"]]:
    """The factor of every cell and level, and how many episodes of its own the cell rests on.

    `episode` numbers the episode that a score is from; a log that was hidden in several ways is one episode. Every
    episode of a cell weighs the same, however long.

    A cell of fewer than `FEWEST` scores or `FEWEST_EPISODES` episodes borrows from others that are seen, or hidden, as
    it is: first from the neighbouring bands of its group, then from all bands of its group, then from all groups. It
    then rests on 0 episodes of its own, for borrowed ones need not be like it. Where a state has no score, the factors
    are those of the standard normal: nothing is known, and the belief is taken at its word.
    """
    _refuse_bad_scores(score, episode, group, band, hidden, groups, bands)
    shape = (groups, bands, 2)
    cell = np.ravel_multi_index((group, band, np.where(hidden, HIDDEN, SEEN)), shape)
    order = np.argsort(cell, kind="stable")
    ends = np.cumsum(np.bincount(cell, minlength=groups * bands * 2))[:-1]
    parts = zip(np.split(score[order], ends), np.split(episode[order], ends), strict=True)
    cells = dict(zip(np.ndindex(shape), parts, strict=True))
    pools = [_pool(cells, place, groups, bands) for place in cells]
    factors = np.stack([_factors(pool) for pool, _ in pools])
    own = np.array([0 if borrowed else len(pool) for pool, borrowed in pools])
    return factors.reshape(*shape, len(LEVELS)), own.reshape(shape)


def _refuse_bad_scores(score, episode, group, band, hidden, groups: int, bands: int) -> None:
    sizes = [a.size for a in (score, episode, group, band, hidden)]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"score, episode, group, band and hidden have {sizes} entries; expected one of each for every score."
        )
    for what, values, count in (("group", group, groups), ("band", band, bands)):
        if values.size and not (values.min() >= 0 and values.max() < count):
            raise ValueError(
                f"{what} numbers go from {values.min()} to {values.max()}; expected numbers from 0 to {count - 1}."
            )
    if not (np.isfinite(score).all() and (score >= 0).all()):
        raise ValueError("some scores are negative or not finite; expected |y − mean| / sd. Leave out what is unknown.")


def _pool(cells: dict, place: tuple[int, ...], groups: int, bands: int) -> tuple[list[np.ndarray], bool]:
    """The scores of each episode in the smallest pool around a cell that suffices, and whether it holds other cells'.

    Where no pool suffices it is all of the cell's state.
    """
    group, band, state = place
    near = range(max(band - 1, 0), min(band + 2, bands))
    wider = (([group], [band]), ([group], near), ([group], range(bands)), (range(groups), range(bands)))
    pool, size = [], 0
    for some_groups, some_bands in wider:
        parts = [cells[g, b, state] for g in some_groups for b in some_bands]
        score, episode = (np.concatenate(column) for column in zip(*parts, strict=True))
        pool, size = _by_episode(score, episode), score.size
        if len(pool) >= FEWEST_EPISODES and size >= FEWEST:
            break
    return pool, size > cells[place][0].size


def _by_episode(score: np.ndarray, episode: np.ndarray) -> list[np.ndarray]:
    """The scores of each episode that has any, sorted."""
    order = np.lexsort((score, episode))
    starts = np.flatnonzero(np.diff(episode[order])) + 1
    return np.split(score[order], starts) if score.size else []


def _factors(pool: list[np.ndarray]) -> np.ndarray:
    """The factor at every level from the sorted scores of each of K episodes.

    At level a it covers the share that the (K + 1) a-th smallest of one reading per episode covers in the mean, linear
    between whole ranks. Above K / (K + 1) there is no such rank and only an infinite factor is sure: see
    `_extrapolated`.
    """
    count = len(pool)
    if not count:
        return ndtri((1 + LEVELS) / 2)
    steps = np.arange(1, STEPS) * (count + 1)  # ranks, in whole 20ths
    values, shares = _distribution(pool)
    expected = np.concatenate([[0.0], np.interp(_drawn_in_order(pool), values, shares).mean(1)])
    wanted = np.interp(steps / STEPS, np.arange(count + 1), expected)
    within = np.interp(wanted + ROUNDING, shares, values)
    if steps[-1] <= STEPS * count:
        return within
    return np.where(steps <= STEPS * count, within, np.maximum(_extrapolated(pool), within[-1]))


def _distribution(pool: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The different scores, and the share below each with half of its own; every episode weighs the same."""
    weight = np.concatenate([np.full(len(scores), 1 / (len(scores) * len(pool))) for scores in pool])
    values, place = np.unique(np.concatenate(pool), return_inverse=True)
    mass = np.bincount(place, weight)
    shares = np.cumsum(mass) - mass / 2
    none = values[0] > 0
    return np.concatenate([[0.0], values]) if none else values, np.concatenate([[0.0], shares]) if none else shares


def _drawn_in_order(pool: list[np.ndarray]) -> Float[np.ndarray, "episodes draws"]:
    """The smallest, second smallest, … of one reading drawn from each episode, in each of `DRAWS` draws.

    An episode's readings are drawn evenly (one uniform offset, shuffled), which makes means precise; each draw is
    uniform still. The numbers are the same in every call, so that the same scores have the same factors.
    """
    rng = np.random.default_rng(0)
    even = (np.stack([rng.permutation(DRAWS) for _ in pool], axis=1) + rng.uniform(size=len(pool))) / DRAWS
    return np.sort([scores[(u * len(scores)).astype(int)] for scores, u in zip(pool, even.T, strict=True)], axis=0)


def _extrapolated(pool: list[np.ndarray]) -> np.ndarray:
    """Quantiles of the score of a new episode, if episodes have one shape and log-normal scales.

    The log of a new episode's mean score is then Student-t around those of K episodes, with K − 1 degrees of freedom.
    One episode says nothing of how they differ: its own quantiles are taken, or the normal's where those are larger.
    """
    grid = (np.arange(100) + 0.5) / 100
    count = len(pool)
    if count == 1:
        return np.maximum(np.quantile(pool[0], LEVELS), ndtri((1 + LEVELS) / 2))
    scale = np.log([max(scores.mean(), NARROWEST) for scores in pool])
    shape = np.concatenate(
        [np.quantile(s, grid, method="inverted_cdf") / np.exp(m) for s, m in zip(pool, scale, strict=True)]
    )
    new = scale.mean() + scale.std(ddof=1) * np.sqrt(1 + 1 / count) * stdtrit(count - 1, grid)
    scales = np.exp(np.minimum(new, 50.0))  # two or three unlike episodes ask for more than single precision holds
    return np.quantile(scales[:, None] * shape, LEVELS)


def covered(
    score: Float[np.ndarray, "*readings"], factors_at: Float[np.ndarray, "*readings levels"]
) -> Bool[np.ndarray, "*readings levels"]:
    """Whether each reading is inside its interval, at every level; `factors_at` are the factors of its cell."""
    return score[..., None] <= factors_at


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
