"""Numbers of the comparison against definitions worked out by hand or by another library."""

import numpy as np
import pytest

from vhydro.report.comparison import (
    Runs,
    Truth,
    difference,
    film,
    lost,
    matching,
    row,
    standard_error,
    weighted_quantile,
)

MARGIN = 0.1


@pytest.mark.parametrize("level", [0.05, 0.5, 0.95])
def test_weighted_quantile_is_numpys(level):
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=(7, 40)), rng.dirichlet(np.ones(40), 7)
    expected = [np.quantile(v, level, weights=w, method="inverted_cdf") for v, w in zip(values, weights, strict=True)]
    np.testing.assert_array_equal(weighted_quantile(values, weights, level), expected)


def test_weighted_quantile_ignores_particles_without_weight():
    assert weighted_quantile(np.array([-9.0, 0.0, 1.0, 9.0]), np.array([0.0, 0.5, 0.5, 0.0]), 0.05) == 0.0


def test_lost_only_where_sight_returns_and_all_particles_are_away():
    shown = np.array([True, False, True, True, False, True, False, True])
    truth = np.zeros(8)
    cloud = np.full((8, 3), 1.0)  # away from the truth everywhere …
    cloud[5] = [-1.0, 1.0, 2.0]  # … but around it here
    cloud[7] = [MARGIN, 1.0, 2.0]  # and at the margin here
    assert lost(cloud, truth, shown, MARGIN).tolist() == [False, False, True, False, False, False, False, False]


def test_matching_undoes_a_relabelling():
    labels = np.random.default_rng(1).integers(0, 3, (4, 50))
    names = np.array([2, 0, 1])  # learned name of every true mode
    assert matching(np.eye(3)[names[labels]], labels).tolist() == names.tolist()


def test_standard_error():
    values = np.array([1.0, 2.0, 4.0])
    assert standard_error(values) == pytest.approx(np.std(values, ddof=1) / 3**0.5)
    assert standard_error(values[:1]) == 0.0


def runs(log_evidence, position) -> Runs:
    """Two episodes of four rows with one key; the belief is one particle, in mode 1."""
    shape = (1, 2, 4)
    record = {n: np.full(shape, 0.5) for n in ("mixing", "certified", "step_ess", "bound", "relative_variance")}
    position = np.broadcast_to(np.asarray(position, float), shape)
    return Runs(
        log_evidence=np.array([log_evidence]),
        record=record | {"redrawn": np.zeros(shape, bool)},
        mode=np.broadcast_to([0.0, 1.0], (*shape, 2)),
        mean=position,
        position=position[..., None],
        weight=np.ones((*shape, 1)),
    )


TRUTH = Truth(
    position=np.zeros((2, 4)),
    mode=np.array([[0, 0, 0, 0], [1, 1, 1, 1]]),
    seen=np.array([[0.0, np.nan, np.nan, 0.0], [0.0, 0.0, np.nan, 0.0]]),
)


def test_row_counts_hidden_positions_only_and_every_run():
    position = np.array([[5.0, 0.0, 3.0, 0.0], [5.0, 5.0, 4.0, 1.0]])
    out = row(runs([2.0, -6.0], position), TRUTH, np.array([0, 1]), MARGIN)
    assert out["log_evidence"] == pytest.approx(-4 / 5)
    assert out["log_evidence_worst"] == pytest.approx(-2.0)
    assert out["coverage90"] == pytest.approx(1 / 3)
    assert out["rmse"] == pytest.approx((25 / 3) ** 0.5)
    assert out["rmse_worst"] == pytest.approx(4.0)
    assert out["mode_accuracy"] == 0.5
    assert (out["lost"], out["runs"]) == (1, 2)


def test_difference_has_both_ends():
    gap = difference(runs([1.0, 2.0], 0.0), runs([3.0, -4.0], 0.0), TRUTH)
    assert gap["mean"] == pytest.approx(4 / 5)
    assert (gap["runs_ahead"], gap["best_run"], gap["worst_run"]) == (1, pytest.approx(2.0), pytest.approx(-1.0))


def test_film_shows_the_run_that_differs_most_even_if_the_first_is_behind():
    scene = film({"a": runs([0.0, -9.0], 1.0), "b": runs([1.0, 0.0], 0.0)}, TRUTH, np.array([1, 0]), MARGIN)
    assert scene["episode"] == 1
    assert scene["seen"] == [0.0, 0.0, None, 0.0]
    assert scene["sides"]["a"]["lost"] == [3]
    assert scene["sides"]["b"]["lost"] == []
    assert scene["sides"]["a"]["mode"][0] == [1.0, 0.0]  # in the order of the true modes
