"""How well a path of modes agrees with labels: by step, by change point and by segment.

A path is one integer per step. Steps whose label is negative are unlabelled: they do not count, and an episode is
scored as the stretches between them, so that neither change nor segment reaches across one. What the modes are called
never matters.

The paper reports mode F1 "after label-permutation matching", ARI, change-point F1 and segment purity, and defines none
of them further, nor gives a tolerance: the definitions are those of the docstrings here.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment

from vhydro.modes.segments import integer_path, run_starts

Stretch = tuple[np.ndarray, np.ndarray]  # found modes and labels of successive labelled steps


class ChangePointScore(NamedTuple):
    """The share of found changes that are true, the share of true ones that were found, their harmonic mean."""

    precision: float
    recall: float
    f1: float


class SegmentationRates(NamedTuple):
    """Extra found segments for each true one, and extra true segments for each found one."""

    over: float
    under: float


class Scores(NamedTuple):
    """How the paths of several episodes agree with their labels, all episodes together."""

    mode_f1: float
    ari: float
    purity: float
    change_points: dict[int, ChangePointScore]  # by tolerance in steps
    over_segmentation: float
    under_segmentation: float
    matching: dict[int, int]  # label by found mode


def matching(found: ArrayLike, truth: ArrayLike) -> dict[int, int]:
    """The label of each found mode that has one: the one-to-one assignment under which most steps agree.

    Of equally good assignments it is the one with the largest macro F1, so that this does not depend on names. A mode
    and a label without a step in common are never partners.
    """
    return _partners(_table(*_joined(_stretches([found], [truth]))))


def macro_f1(found: ArrayLike, truth: ArrayLike) -> float:
    """The mean over the labels that occur of each one's F1 with its partner in `matching`; 0 for one without."""
    return _macro_f1(_table(*_joined(_stretches([found], [truth]))))


def adjusted_rand(found: ArrayLike, truth: ArrayLike) -> float:
    """The adjusted Rand index over steps: 1 for equal partitions, 0 on average for unrelated ones."""
    return rand_index(*_joined(_stretches([found], [truth])))


def rand_index(labels: np.ndarray, truth: np.ndarray) -> float:
    """The adjusted Rand index of two labellings."""
    _, a = np.unique(labels, return_inverse=True)
    _, b = np.unique(truth, return_inverse=True)
    table = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(table, (a, b), 1)
    return float(rand_index_of_tables(table))


def rand_index_of_tables(table: np.ndarray) -> np.ndarray:
    """The adjusted Rand index of contingency tables (*tables, classes, classes)."""

    def pairs(n):
        return n * (n - 1) / 2

    same = pairs(table).sum((-2, -1))
    rows, columns = pairs(table.sum(-1)).sum(-1), pairs(table.sum(-2)).sum(-1)
    expected = rows * columns / np.maximum(pairs(table.sum((-2, -1))), 1)
    most = (rows + columns) / 2
    return np.where(most > expected, (same - expected) / np.where(most > expected, most - expected, 1.0), 1.0)


def purity(found: ArrayLike, truth: ArrayLike) -> float:
    """The share of steps that have the most frequent label of their found segment (a run, not all of a mode).

    Many short segments are pure whatever they are: read it beside `segmentation_rates`.
    """
    return _purity(_stretches([found], [truth]))


def change_points(path: ArrayLike) -> np.ndarray:
    """The first step of every run but the first."""
    return run_starts(integer_path(path))[1:]


def change_point_f1(found: ArrayLike, truth: ArrayLike, tolerance: int) -> ChangePointScore:
    """How found changes agree with true ones, as many pairs as possible of one each, at most `tolerance` steps apart.

    Without changes in both all three numbers are 1, without any in one of them 0.
    """
    return _change_point_score(_stretches([found], [truth]), tolerance)


def segmentation_rates(found: ArrayLike, truth: ArrayLike) -> SegmentationRates:
    """Over- and under-segmentation, by where segments lie and not by what they are called.

    A found segment belongs to the true segment that holds more than half of its steps, where there is one. Over: found
    segments beyond the first that belong to the same true one, per true segment. Under: the same with found and true
    exchanged, per found segment. A border that is a little off changes neither.
    """
    return _segmentation_rates(_stretches([found], [truth]))


def scores(found: Sequence[ArrayLike], truth: Sequence[ArrayLike], tolerances: Sequence[int] = (2, 5)) -> Scores:
    """All of the above over several episodes: modes are matched once, steps and changes are counted over all of them.

    No segment and no change reaches across the border of two episodes.
    """
    stretches = _stretches(found, truth)
    joined = _joined(stretches)
    table = _table(*joined)
    return Scores(
        _macro_f1(table),
        rand_index(*joined),
        _purity(stretches),
        {tolerance: _change_point_score(stretches, tolerance) for tolerance in tolerances},
        *_segmentation_rates(stretches),
        _partners(table),
    )


class _Table(NamedTuple):
    """How many steps each mode shares with each label."""

    modes: np.ndarray
    labels: np.ndarray
    counts: np.ndarray  # (modes, labels)

    @property
    def f1(self) -> np.ndarray:
        return 2 * self.counts / (self.counts.sum(1, keepdims=True) + self.counts.sum(0))

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the partners."""
        # The sum of all F1 is at most the number of labels, so this never outweighs one step of agreement.
        tie_break = self.f1 / (1 + len(self.labels))
        rows, columns = linear_sum_assignment(self.counts + tie_break, maximize=True)
        shared = self.counts[rows, columns] > 0
        return rows[shared], columns[shared]


def _table(found: np.ndarray, truth: np.ndarray) -> _Table:
    modes, row = np.unique(found, return_inverse=True)
    labels, column = np.unique(truth, return_inverse=True)
    cells = np.bincount(row * len(labels) + column, minlength=len(modes) * len(labels))
    return _Table(modes, labels, cells.reshape(len(modes), len(labels)))


def _partners(table: _Table) -> dict[int, int]:
    rows, columns = table.pairs()
    return dict(zip(table.modes[rows].tolist(), table.labels[columns].tolist(), strict=True))


def _macro_f1(table: _Table) -> float:
    return float(table.f1[table.pairs()].sum() / len(table.labels))


def _purity(stretches: Sequence[Stretch]) -> float:
    agreeing = sum(_table(_run_numbers(found), truth).counts.max(1).sum() for found, truth in stretches)
    return float(agreeing / sum(len(truth) for _, truth in stretches))


def _change_point_score(stretches: Sequence[Stretch], tolerance: int) -> ChangePointScore:
    if tolerance < 0:
        raise ValueError(f"the tolerance is {tolerance} steps; expected 0 or more.")
    points = [(change_points(found), change_points(truth)) for found, truth in stretches]
    hits = sum(_hits(found.tolist(), truth.tolist(), tolerance) for found, truth in points)
    found, true = (sum(map(len, side)) for side in zip(*points, strict=True))
    if found == true == 0:
        return ChangePointScore(1.0, 1.0, 1.0)
    return ChangePointScore(hits / max(found, 1), hits / max(true, 1), 2 * hits / (found + true))


def _hits(found: list[int], true: list[int], tolerance: int) -> int:
    """The largest number of pairs: with one tolerance for all, taking the earliest two that fit loses none."""
    hits = i = j = 0
    while i < len(found) and j < len(true):
        late = found[i] - true[j]
        hits += abs(late) <= tolerance
        i, j = i + (late <= tolerance), j + (late >= -tolerance)
    return hits


def _segmentation_rates(stretches: Sequence[Stretch]) -> SegmentationRates:
    runs = [(_run_numbers(found), _run_numbers(truth)) for found, truth in stretches]
    over = sum(_extra(found, true) for found, true in runs)
    under = sum(_extra(true, found) for found, true in runs)
    found, true = (sum(int(numbers[-1]) + 1 for numbers in side) for side in zip(*runs, strict=True))
    return SegmentationRates(over / true, under / found)


def _extra(parts: np.ndarray, wholes: np.ndarray) -> int:
    """How many parts lie for more than half in a whole that holds one already; both as numbers of runs."""
    starts = run_starts(parts + wholes)  # both only rise, so their sum changes where either does
    lengths = np.diff(np.append(starts, len(parts)))
    inside = 2 * lengths > np.bincount(parts)[parts[starts]]
    holders = wholes[starts][inside]
    return len(holders) - len(np.unique(holders))


def _run_numbers(path: np.ndarray) -> np.ndarray:
    """For each step the number of its run: 0, 0, 1, …"""
    return np.cumsum(np.diff(path, prepend=path[0]) != 0)


def _joined(stretches: Sequence[Stretch]) -> Stretch:
    found, truth = zip(*stretches, strict=True)
    return np.concatenate(found), np.concatenate(truth)


def _stretches(found: Sequence[ArrayLike], truth: Sequence[ArrayLike]) -> list[Stretch]:
    """The labelled stretches of all episodes, checked."""
    if len(found) != len(truth) or not len(found):
        raise ValueError(f"{len(found)} paths and {len(truth)} of labels; expected one of each for every episode.")
    episodes = enumerate(zip(found, truth, strict=True))
    out = [stretch for i, (modes, labels) in episodes for stretch in _labelled(modes, labels, f" of episode {i}")]
    if not out:
        raise ValueError("every label is negative, that is unlabelled; expected at least one labelled step.")
    return out


def _labelled(found: ArrayLike, truth: ArrayLike, where: str) -> list[Stretch]:
    modes, labels = integer_path(found, f"the found path{where}"), integer_path(truth, f"the labels{where}")
    if len(modes) != len(labels):
        raise ValueError(
            f"the found path{where} has {len(modes)} steps and its labels have {len(labels)}; expected as many. "
            "Give the path and the labels of the same rows of the same log."
        )
    if (modes < 0).any():
        raise ValueError(
            f"the found path{where} has mode {modes.min()}; expected 0 or more. Only labels may be negative: "
            "leave a step out by making its label negative."
        )
    starts = run_starts(labels >= 0)
    ends = np.append(starts[1:], len(labels))
    return [(modes[a:b], labels[a:b]) for a, b in zip(starts, ends, strict=True) if labels[a] >= 0]
