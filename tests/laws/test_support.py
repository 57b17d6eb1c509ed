"""Best subsets against every subset solved by plain least squares."""

from itertools import chain, combinations

import numpy as np
import pytest

from vhydro.laws import support
from vhydro.laws.support import best_subset, solutions, subset_misfits

ALWAYS = np.array([True, False, False, False, False, False, True, False])
OPTIONAL = np.array([False, True, True, True, True, False, False, True])  # entry 5 is never part of it


def made(seed: int, rows: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Correlated columns and a target that three of them make, with noise."""
    rng = np.random.default_rng(seed)
    design = rng.standard_normal((rows, 8)) @ (np.eye(8) + 0.3 * rng.standard_normal((8, 8)))
    design *= 10.0 ** rng.integers(-3, 4, 8)
    theta = np.array([1, 0, 2, 0, 0.5, 0, 0, 0.0]) / np.linalg.norm(design, axis=0)
    return design, design @ theta + 0.02 * rng.standard_normal(rows)


def brute_force(design: np.ndarray, target: np.ndarray, penalty: float) -> tuple[float, set[int]]:
    pool, fixed = np.flatnonzero(OPTIONAL), np.flatnonzero(ALWAYS)
    scores = {}
    for extra in chain.from_iterable(combinations(pool, k) for k in range(len(pool) + 1)):
        use = [*fixed, *extra]
        theta = np.linalg.lstsq(design[:, use], target, rcond=None)[0]
        scores[frozenset(map(int, use))] = np.sum((target - design[:, use] @ theta) ** 2) + penalty * len(use)
    best = min(scores, key=lambda s: scores[s])
    return scores[best], set(best)


@pytest.mark.parametrize("penalty", [1e-3, 0.15])
@pytest.mark.parametrize("exhaustive", [True, False])
def test_the_best_subset_is_the_best_of_all(penalty, exhaustive, monkeypatch):
    monkeypatch.setattr(support, "MOST_SUBSETS", support.MOST_SUBSETS if exhaustive else 1)
    sizes = set()
    for seed in range(10):
        design, target = made(seed)
        gram, cross, square = design.T @ design, design.T @ target, float(target @ target)
        found = best_subset(gram, cross, square, penalty, always=ALWAYS, optional=OPTIONAL)
        score, members = brute_force(design, target, penalty)
        assert set(np.flatnonzero(found.support)) == members
        assert found.score == pytest.approx(score, rel=1e-6)
        assert found.score == pytest.approx(found.misfit + penalty * len(members))
        assert (found.theta != 0).tolist() == found.support.tolist()
        sizes.add(len(members))
    assert len(sizes) > 1  # the penalty decides something


def test_elimination_gives_the_misfit_of_every_subset():
    design, target = made(0)
    fixed, pool = np.flatnonzero(ALWAYS), np.flatnonzero(OPTIONAL)
    found = subset_misfits(design.T @ design, design.T @ target, float(target @ target), fixed, pool)
    for number, misfit in enumerate(found):
        use = [*fixed, *(j for bit, j in enumerate(pool) if number >> bit & 1)]
        theta = np.linalg.lstsq(design[:, use], target, rcond=None)[0]
        assert misfit == pytest.approx(np.sum((target - design[:, use] @ theta) ** 2), rel=1e-6)
    assert len(found) == 2 ** len(pool)


def test_collinear_columns_share_a_coefficient():
    design = np.random.default_rng(0).standard_normal((50, 2))
    design = np.concatenate([design, design[:, :1]], 1)
    target = 4 * design[:, 0]
    found = solutions(design.T @ design, design.T @ target, np.array([[True, True, True], [True, False, False]]))
    np.testing.assert_allclose(found, [[2, 0, 2], [4, 0, 0]], atol=1e-3)
