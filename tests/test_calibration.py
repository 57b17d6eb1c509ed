"""Conformal factors: nominal coverage of fresh scores, the quantile by hand, and who borrows from whom."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from vhydro.calibration import (
    EDGES,
    LEVELS,
    Calibration,
    band_of,
    conformal_factors,
    covered,
    excesses,
    hidden_share,
    implied_log_density,
)

NORMAL = norm.ppf((1 + LEVELS) / 2)
SPREAD = np.array([0.5, 1.0, 2.0, 4.0, 1.5])  # of the true errors, in the belief's standard deviations, by band


def drawn(count, seed):
    """Scores of `count` readings in every cell: beliefs of two groups, too sure of themselves when hidden."""
    group, band, hidden, _ = (x.ravel() for x in np.indices((2, 5, 2, count)))
    error = np.random.default_rng(seed).standard_t(5, size=group.size)
    score = np.abs(error) * SPREAD[band] * np.where(hidden, 3.0, 1.0) * (1 + group)
    return score, group, band, hidden.astype(bool)


def factors_of(score, group=None, band=None, hidden=None, groups=2, bands=5):
    """Factors of scores that are, where nothing is said, all of group 0, band 0 and seen."""
    score = np.asarray(score, float)
    zeros = np.zeros(score.size, int)
    group, band = (zeros if x is None else np.asarray(x) for x in (group, band))
    hidden = zeros.astype(bool) if hidden is None else np.asarray(hidden)
    return conformal_factors(score, group, band, hidden, groups=groups, bands=bands)


def test_fresh_scores_are_covered_at_every_level_in_every_cell():
    count = 4000
    factors = conformal_factors(*drawn(count, 0), groups=2, bands=5)
    score, group, band, hidden = drawn(count, 1)
    inside = covered(score, factors[group, band, hidden.astype(int)])
    share = inside.reshape(2, 5, 2, count, 19).mean(3)
    expected = np.ceil((count + 1) * LEVELS - 1e-9) / (count + 1)
    error = np.sqrt(2 * LEVELS * (1 - LEVELS) / count)  # of the quantile and of the share, each from `count` scores
    assert (np.abs(share - expected) < 4.5 * error).all()  # 380 shares: a normal one strays so far once in 400 runs
    assert (np.diff(factors) >= 0).all()


def test_overconfident_beliefs_are_widened_and_timid_ones_narrowed():
    score, group, band, hidden = drawn(4000, 2)
    plain = covered(score, np.broadcast_to(NORMAL, (score.size, 19)))[..., 17]
    worst, timid = (band == 3) & hidden, (band == 0) & ~hidden & (group == 0)
    assert plain[worst].mean() < 0.3
    assert plain[timid].mean() > 0.95
    factors = conformal_factors(score, group, band, hidden, groups=2, bands=5)
    assert (factors[:, 3, 1, 17] > 5 * NORMAL[17]).all()
    assert factors[0, 0, 0, 17] < NORMAL[17]


def test_the_quantile_by_hand():
    """Of the scores 1 … 99 the ⌈100 a⌉-th is 100 a; floats would put .55 · 100 above 55."""
    scores = np.random.default_rng(0).permutation(np.arange(1, 100))
    np.testing.assert_array_equal(factors_of(scores)[0, 0, 0], np.arange(5, 100, 5))
    # Of 1 … 40: ⌈41 · .05⌉ = 3, ⌈41 · .5⌉ = 21, ⌈41 · .95⌉ = 39.
    np.testing.assert_array_equal(factors_of(np.arange(1, 41))[0, 0, 0, [0, 9, 18]], [3, 21, 39])


def test_ranks_beyond_few_scores_take_the_largest_or_the_normal():
    few = factors_of([0.1, 0.2, 5.0])[0, 0, 0]  # ⌈4 a⌉ is above 3 from a = .80 on
    np.testing.assert_array_equal(few[[4, 9, 14, 15, 18]], [0.1, 0.2, 5.0, 5.0, 5.0])
    narrow = factors_of([0.1, 0.2, 0.3])[0, 0, 0]
    np.testing.assert_allclose(narrow[[14, 15, 18]], [0.3, NORMAL[15], NORMAL[18]])
    assert (np.diff(narrow) >= 0).all()


def cell(value, count, group, band, hidden):
    return [np.full(count, value), np.full(count, group), np.full(count, band), np.full(count, hidden)]


def test_small_cells_borrow_from_the_nearest_that_suffice():
    cells = [
        cell(1.0, 40, 0, 0, False),  # speaks for itself
        cell(2.0, 39, 0, 1, False),  # too few: with its neighbours, 40 ones and 5 threes
        cell(3.0, 5, 0, 2, False),  # its neighbours suffice: 39 twos, 5 threes
        cell(9.0, 60, 1, 0, False),
    ]
    factors = factors_of(*(np.concatenate(x) for x in zip(*cells, strict=True)), groups=3)[:, :, 0]
    np.testing.assert_array_equal(factors[0, 0], 1.0)
    np.testing.assert_array_equal(factors[0, 1, [0, 8, 9, 17, 18]], [1, 1, 2, 2, 3])  # 40 + 39 + 5: 40th and 79th
    np.testing.assert_array_equal(factors[0, 2, [0, 16, 17, 18]], [2, 2, 3, 3])  # 39 + 5: 45 · .85 = 38.25, .9 = 40.5
    np.testing.assert_array_equal(factors[0, 3], factors[0, 1])  # its neighbours have 5: all bands of the group
    np.testing.assert_array_equal(factors[1], 9.0)
    np.testing.assert_array_equal(factors[2, :, [0, 18]].T, np.tile([1.0, 9.0], (5, 1)))  # an empty group: all of them


def test_a_state_never_met_is_taken_at_its_word():
    factors = factors_of(np.ones(50))
    np.testing.assert_array_equal(factors[:, :, 0], 1.0)
    np.testing.assert_allclose(factors[:, :, 1], np.broadcast_to(NORMAL, (2, 5, 19)))


def test_every_occlusion_level_has_its_band():
    np.testing.assert_array_equal(band_of(np.array([0.0, 0.25, 0.5, 0.75, 0.9, 1.0]), EDGES), [0, 1, 2, 3, 4, 4])
    np.testing.assert_array_equal(band_of(np.array([[0.125, 0.1249]])), [[1, 0]])


def test_the_hidden_share_is_of_each_group_over_valid_rows():
    hidden = np.zeros((2, 4, 3), bool)
    hidden[0, 1:3, :2] = True  # two of four rows
    hidden[1, 0, 2] = hidden[1, 3] = True  # row 3 is padding
    valid = np.array([[True] * 4, [True] * 3 + [False]])
    share = hidden_share(hidden, np.array([0, 0, 1]), valid)
    np.testing.assert_allclose(share, [[0.5, 0.0], [0.0, 1 / 3]])
    np.testing.assert_allclose(hidden_share(hidden[0], np.array([0, 1, 0])), [0.25, 0.5])
    np.testing.assert_array_equal(hidden_share(hidden[:1], np.array([0, 0, 1]), np.zeros((1, 4), bool)), [[0, 0]])


def test_the_factors_of_readings_are_those_of_their_cells():
    values = jnp.arange(2 * 5 * 2 * 19, dtype=float).reshape(2, 5, 2, 19)
    hidden = np.array([[[True, False, False], [True, True, False]]])
    found = Calibration(values, (1, 0, 1)).factors_at(np.array([[0.3, 0.95]]), hidden)
    assert found.shape == (1, 2, 3, 19)
    np.testing.assert_array_equal(found[0, 0], [values[1, 4, 1], values[0, 1, 0], values[1, 4, 0]])
    np.testing.assert_array_equal(found[0, 1], [values[1, 4, 1], values[0, 1, 1], values[1, 4, 0]])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"score": [1.0, np.nan]}, "not finite"),
        ({"score": [1.0, -1.0]}, "negative"),
        ({"group": [0, 2]}, "group numbers go from 0 to 2; expected numbers from 0 to 1"),
        ({"band": [-1, 0]}, "band numbers go from -1 to 0"),
        ({"hidden": [True]}, r"\[2, 2, 2, 1\] entries"),
    ],
)
def test_bad_scores_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        factors_of(**{"score": [1.0, 2.0], **change})


@pytest.mark.parametrize(
    ("factors", "groups", "edges", "words"),
    [
        (np.ones((1, 2, 2, 19)), (0,), EDGES, "2 bands and 19 levels; expected 5 bands"),
        (np.ones((1, 2, 2, 9)), (0,), (0.5,), "9 levels"),
        (np.ones((1, 3, 2, 19)), (0,), (0.5, 0.5), "rising shares"),
        (np.ones((1, 2, 2, 19)), (0,), (1.2,), "rising shares"),
        (np.ones((1, 2, 2, 19)), (0, 1), (0.5,), "numbers from 0 to 0"),
        (np.ones((1, 2, 2, 19)), (), (0.5,), r"groups \(\)"),
        (-np.ones((1, 2, 2, 19)), (0,), (0.5,), "negative"),
        (np.broadcast_to(NORMAL[::-1], (1, 2, 2, 19)), (0,), (0.5,), "fall with the level"),
    ],
)
def test_a_calibration_that_means_nothing_is_refused(factors, groups, edges, words):
    with pytest.raises(ValueError, match=words):
        Calibration(jnp.asarray(factors), groups, edges)


def test_the_implied_density_has_a_twentieth_of_its_mass_between_two_levels_and_one_in_all():
    factors = np.cumsum(0.2 + np.random.default_rng(0).exponential(size=19))
    grid = np.linspace(0, factors[-1] + 60, 200_001)
    sd, tail = np.full(grid.shape, 2.0), np.full(grid.shape, 1.5)
    density = 2 * np.exp(implied_log_density(grid, sd, np.broadcast_to(factors, (grid.size, 19)), tail))
    mass = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(grid))]) * 2.0
    np.testing.assert_allclose(np.interp(factors, grid, mass), LEVELS, atol=1e-3)
    assert mass[-1] == pytest.approx(1, abs=1e-3)


def test_the_excess_beyond_the_last_level_is_a_mean_and_one_where_there_is_none():
    factors = np.broadcast_to(LEVELS, (1, 1, 2, 19))
    score, zero = np.array([0.5, 1.95, 2.95]), np.zeros(3, int)
    np.testing.assert_allclose(excesses(score, zero, zero, zero, factors)[0, 0], [1.5, 1.0])
