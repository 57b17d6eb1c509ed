"""Nested laws on rows whose errors last: what is there is found, what is not is not."""

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import binom

from vhydro.laws.nested import comparison, effective_rows, held_out_width, ladder
from vhydro.laws.weak import Rows

START = np.array([True, False, False, False])


def made(theta: np.ndarray, seed: int, fade: float = 0.6, bumps: int = 400) -> Rows:
    """Rows of four random columns with a law and errors that fade."""
    rng = np.random.default_rng(seed)
    columns = lfilter([1.0], [1.0, -0.5], rng.standard_normal((1, bumps, len(theta))), axis=1)
    errors = lfilter([1.0], [1.0, -fade], rng.standard_normal((1, bumps)), axis=1)
    return Rows(columns, columns @ theta + errors, np.ones((1, bumps), bool), np.ones(1), np.ones(1), 1, 1)


def test_the_ladder_climbs_by_what_matters_most_and_stops():
    steps = ladder(made(np.array([1.0, 0.0, 3.0, 0.8]), seed=0), START, ~START)
    assert [s.entry for s in steps] == [2, 3]
    assert steps[0].against.bic_gain > steps[1].against.bic_gain > 0
    assert steps[1].support.tolist() == [True, False, True, True]
    assert steps[0].against.wide == pytest.approx(steps[1].against.narrow)


def test_errors_that_last_propose_nothing():
    repeats = 200
    proposed = sum(bool(ladder(made(START * 1.0, seed, bumps=200), START, ~START)) for seed in range(repeats))
    # Three entries, each wanted by chance in 1 of 1000 cases; ten times that allows for the errors' own estimation.
    assert proposed <= binom.isf(1e-3, repeats, 0.03)


def test_comparison_wants_one_law_inside_the_other():
    rows = made(np.ones(4), seed=1)
    with pytest.raises(ValueError, match="union"):
        comparison(rows, START, np.array([False, True, True, False]))
    with pytest.raises(ValueError, match="smaller"):
        comparison(rows, START, START)


@pytest.mark.parametrize("fade", [0.0, 0.6])
def test_effective_rows_shrink_as_errors_last(fade):
    found = np.array([effective_rows(made(START * 1.0, seed, fade, 2000), START) for seed in range(40)]) / 2000
    true = (1 - fade) / (1 + fade)  # of an autoregression
    assert abs(found.mean() - true) < 0.1 * true + 4 * found.std() / np.sqrt(40)


def test_the_width_that_predicts_unseen_rows_is_chosen():
    theta = np.array([1.0, 2.0])

    def rows_of(width: int) -> Rows:
        rng = np.random.default_rng(width)
        columns = rng.standard_normal((1, 300, 2))
        wrong = np.array([(width - 30) / 30, 0.0])  # what other widths get wrong
        left = columns @ (theta + wrong) + 0.1 * rng.standard_normal((1, 300))
        return Rows(columns, left, np.ones((1, 300), bool), np.ones(1), np.ones(1), 1, 1)

    assert held_out_width(rows_of, (10, 20, 30, 40, 50), np.array([True, True])) == 30
