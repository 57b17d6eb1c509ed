"""The paper's kinematic proxy: contact regimes guessed from motion and actions alone, its constants frozen.

Paper: App. "Kinematic proxy-label construction". Differs: its constants are chosen by a stated criterion, agreement
with contact truth on validation episodes where forces exist and two-level Otsu thresholds where they do not; with
equal weights and quantile thresholds it hardly relates to contact.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np

from vhydro.episodes import Episode
from vhydro.modes.metrics import rand_index, rand_index_of_tables
from vhydro.modes.readings import FREE, IMPACT, SUSTAINED
from vhydro_audits.labels.runs import without_short_runs

LEVELS = (0.0, 0.3, 1.0)
WEIGHTS = tuple(w for w in product(LEVELS, LEVELS, LEVELS) if max(w) == 1.0)
WINDOWS = (1, 3, 5, 9)
EPSILONS = (1e-4, 1e-3, 1e-2)
RUNS = (1, 3, 5, 8)
QUANTILES = np.linspace(0.05, 0.98, 24)


@dataclass(frozen=True)
class ProxyLabeller:
    """The score `Σ α_k r_k` of object, end effector and action differences over their MAD, smoothed and cut twice.

    Below the first threshold free, from the second impact-like, between them sustained (stick or slip).
    """

    weights: tuple[float, float, float] = (1.0, 1.0, 0.3)  # object, end effector, action
    epsilon: float = 1e-3  # added to the MAD, which is 0 for an object that mostly rests
    window: int = 5
    minimum_run: int = 3
    thresholds: tuple[float, float] = (1.0, 3.0)
    criterion: str = "given"  # how the constants were chosen

    def __post_init__(self):
        if not self.thresholds[0] <= self.thresholds[1]:
            raise ValueError(f"thresholds are {self.thresholds}; expected the first not above the second.")
        if min(self.weights) < 0 or max(self.weights) <= 0:
            raise ValueError(f"weights are {self.weights}; expected none below 0 and one above.")
        if self.window < 1 or self.minimum_run < 1 or self.epsilon <= 0:
            raise ValueError(
                f"window {self.window}, minimum_run {self.minimum_run} and epsilon {self.epsilon} must all be positive."
            )

    def __call__(self, episode: Episode) -> Episode:
        """The episode with the label `proxy`."""
        labels = {**episode.labels, "proxy": self.regimes(score(episode, self))}
        return replace(episode, labels=labels)

    def regimes(self, scores: np.ndarray) -> np.ndarray:
        return without_short_runs(_cut(scores, self.thresholds), self.minimum_run)


def _cut(scores: np.ndarray, thresholds: tuple[float, float]) -> np.ndarray:
    low, high = thresholds
    return np.where(scores < low, FREE, np.where(scores >= high, IMPACT, SUSTAINED))


# --- the score --------------------------------------------------------------------------------------------------------


def differences(episode: Episode) -> np.ndarray:
    """How far the objects, the end effector and the action moved in each step, (3, steps + 1)."""
    rows = [_moved(_positions(episode, group)) for group in ("object", "end_effector")]
    actions = np.concatenate([episode.actions[:1], episode.actions]) if episode.steps else np.zeros((1, 0))
    return np.stack([*rows, _moved(actions)])


def _positions(episode: Episode, group: str) -> np.ndarray:
    columns = episode.columns(group=group, quantities=("x", "y", "z"))
    if not columns:
        groups = sorted({c.group for c in episode.channels})
        raise ValueError(
            f"no positions of group '{group}' in {episode.source or 'this episode'}; it has groups {groups}. "
            "Name channels `body.x`, `body.y`, `body.z` and give them that group."
        )
    values = episode.observations[:, columns]
    if np.isnan(values).any():
        raise ValueError(f"positions of group '{group}' are partly hidden; label an episode before it is occluded.")
    return values


def _moved(values: np.ndarray) -> np.ndarray:
    steps = np.linalg.norm(np.diff(values.astype(float), axis=0), axis=1)
    return np.concatenate([steps[:1], steps]) if len(steps) else np.zeros(len(values))


def score(episode: Episode, labeller: ProxyLabeller) -> np.ndarray:
    """The smoothed score of every row."""
    return _score(differences(episode), labeller.weights, labeller.epsilon, labeller.window)


def _score(moved: np.ndarray, weights: tuple[float, ...], epsilon: float, window: int) -> np.ndarray:
    middle = np.median(moved, axis=1, keepdims=True)
    spread = np.median(np.abs(moved - middle), axis=1, keepdims=True)
    raw = np.asarray(weights) @ (moved / (spread + epsilon))
    if window == 1:
        return raw
    padded = np.pad(raw, (window // 2, window - 1 - window // 2), mode="edge")
    return np.convolve(padded, np.full(window, 1 / window), mode="valid")


# --- choosing its constants -------------------------------------------------------------------------------------------


def fit_proxy_labeller(validation: Sequence[Episode], *, truth: str = "regime") -> ProxyLabeller:
    """The labeller with constants chosen on these episodes, to be frozen.

    Where every episode has the label `truth` (from a `ContactLabeller`) the constants agree with it best, by adjusted
    Rand index; where none has, the default weights and two-level Otsu thresholds.
    """
    if not validation:
        raise ValueError("no validation episodes given; expected at least one.")
    have = [truth in e.labels for e in validation]
    if any(have) and not all(have):
        raise ValueError(f"{sum(have)} of {len(have)} validation episodes have the label '{truth}'; label all or none.")
    moved = [differences(e) for e in validation]
    if not all(have):
        plain = ProxyLabeller()
        scores = np.concatenate([_score(m, plain.weights, plain.epsilon, plain.window) for m in moved])
        return replace(plain, thresholds=otsu(scores), criterion="two-level Otsu")
    return _agreeing(moved, [np.asarray(e.labels[truth]) for e in validation], truth)


def _agreeing(moved: list[np.ndarray], truths: list[np.ndarray], name: str) -> ProxyLabeller:
    truth = np.concatenate(truths)
    best, chosen = -np.inf, ProxyLabeller()
    for weights, epsilon, window in product(WEIGHTS, EPSILONS, WINDOWS):
        scores = [_score(m, weights, epsilon, window) for m in moved]
        thresholds, agreement = _best_thresholds(np.concatenate(scores), truth)
        if agreement <= best - 0.05:  # removing short runs cannot win that much back
            continue
        for run in RUNS:
            trial = ProxyLabeller(weights, epsilon, window, run, thresholds, f"agreement with {name}")
            agreement = rand_index(np.concatenate([trial.regimes(s) for s in scores]), truth)
            if agreement > best:
                best, chosen = agreement, trial
    return chosen


def _best_thresholds(scores: np.ndarray, truth: np.ndarray) -> tuple[tuple[float, float], float]:
    """The two thresholds whose labels agree best, from all pairs of quantiles."""
    cuts = np.unique(np.quantile(scores, QUANTILES))
    # Rows of the truth's classes below each cut: every pair of thresholds is then a difference of columns.
    classes = np.unique(truth)
    below = np.stack([[np.sum(scores[truth == c] < cut) for cut in cuts] for c in classes])
    total = np.array([[np.sum(truth == c)] for c in classes])
    pairs = [(i, j) for i, j in combinations(range(len(cuts)), 2)] + [(i, i) for i in range(len(cuts))]
    low, high = np.array(pairs).T
    tables = np.stack([below[:, low], below[:, high] - below[:, low], total - below[:, high]], axis=1)
    agreement = rand_index_of_tables(np.moveaxis(tables, -1, 0).astype(float))
    best = int(agreement.argmax())
    return (float(cuts[low[best]]), float(cuts[high[best]])), float(agreement[best])


def otsu(scores: np.ndarray, bins: int = 128) -> tuple[float, float]:
    """The two thresholds that leave the least variance of the log score within the three classes."""
    values = np.log(np.maximum(scores, 1e-12))
    count, edges = np.histogram(values, bins=bins)
    centre = (edges[:-1] + edges[1:]) / 2
    number, first = np.append(0, np.cumsum(count)), np.append(0, np.cumsum(count * centre))

    i, j = np.triu_indices(bins + 1, 1)
    between = np.zeros((bins + 1, bins + 1))  # n·mean² of every stretch of bins
    between[i, j] = (first[j] - first[i]) ** 2 / np.maximum(number[j] - number[i], 1)
    low, high = np.triu_indices(bins, 1)
    low, high = low[low > 0], high[low > 0]
    parted = between[0, low] + between[low, high] + between[high, bins]
    # All cuts inside an empty gap are equally good: the middle one.
    best = np.flatnonzero(parted >= parted.max() * (1 - 1e-12))
    return float(np.exp(edges[int(np.median(low[best]))])), float(np.exp(edges[int(np.median(high[best]))]))
