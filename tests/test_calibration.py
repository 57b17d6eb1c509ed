"""Conformal factors: coverage of readings of new episodes, order statistics by hand, and who borrows from whom."""

from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm, t

from vhydro.calibration import (
    DRAWS,
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
    """Scores of `count` episodes of one reading in every cell: two groups, too sure of themselves when hidden."""
    group, band, hidden, episode = (x.ravel() for x in np.indices((2, 5, 2, count)))
    error = np.random.default_rng(seed).standard_t(5, size=group.size)
    score = np.abs(error) * SPREAD[band] * np.where(hidden, 3.0, 1.0) * (1 + group)
    return score, episode, group, band, hidden.astype(bool)


def factors_of(score, episode=None, group=None, band=None, hidden=None, groups=2, bands=5):
    """Factors of scores that are, where nothing is said, each an episode of its own, of group 0, band 0 and seen."""
    score = np.asarray(score, float)
    zeros = np.zeros(score.size, int)
    episode = np.arange(score.size) if episode is None else np.asarray(episode)
    group, band = (zeros if x is None else np.asarray(x) for x in (group, band))
    hidden = zeros.astype(bool) if hidden is None else np.asarray(hidden)
    return conformal_factors(score, episode, group, band, hidden, groups=groups, bands=bands)[0]


def test_fresh_scores_are_covered_at_every_level_in_every_cell():
    count = 4000
    factors, episodes = conformal_factors(*drawn(count, 0), groups=2, bands=5)
    score, _, group, band, hidden = drawn(count, 1)
    inside = covered(score, factors[group, band, hidden.astype(int)])
    share = inside.reshape(2, 5, 2, count, 19).mean(3)
    error = np.sqrt(2 * LEVELS * (1 - LEVELS) / count)  # of the quantile and of the share, each from `count` scores
    assert (np.abs(share - LEVELS) < 4.5 * error).all()  # 380 shares: a normal one strays so far once in 400 runs
    assert (np.diff(factors) >= 0).all()
    assert (episodes == count).all()


def test_overconfident_beliefs_are_widened_and_timid_ones_narrowed():
    score, episode, group, band, hidden = drawn(4000, 2)
    plain = covered(score, np.broadcast_to(NORMAL, (score.size, 19)))[..., 17]
    worst, timid = (band == 3) & hidden, (band == 0) & ~hidden & (group == 0)
    assert plain[worst].mean() < 0.3
    assert plain[timid].mean() > 0.95
    factors, _ = conformal_factors(score, episode, group, band, hidden, groups=2, bands=5)
    assert (factors[:, 3, 1, 17] > 5 * NORMAL[17]).all()
    assert factors[0, 0, 0, 17] < NORMAL[17]


READINGS, PERSISTENCE = 40, 0.8  # of an episode; from one reading to the next


def simulated(studies, count, spread, seed):
    """Scores (studies, episodes, readings): every episode has a log-normal scale of its own and wanders slowly."""
    rng = np.random.default_rng(seed)
    error = rng.normal(size=(studies, count, READINGS))
    for i in range(1, READINGS):
        error[..., i] = PERSISTENCE * error[..., i - 1] + np.sqrt(1 - PERSISTENCE**2) * error[..., i]
    return np.abs(error) * np.exp(spread * rng.normal(size=(studies, count, 1)))


def by_episodes(score):
    """The factors of every study, each of which is a group."""
    study, episode, _ = (x.ravel() for x in np.indices(score.shape))
    band, hidden = np.zeros(study.size, int), np.zeros(study.size, bool)
    factors, _ = conformal_factors(score.ravel(), episode, study, band, hidden, groups=len(score), bands=1)
    return factors[:, 0, 0]


def by_readings(score):
    """The factors of every study if its readings were exchangeable: the ⌈(n + 1) a⌉-th smallest of all n."""
    placed = np.sort(score.reshape(len(score), -1))
    return placed[:, np.ceil((placed.shape[1] + 1) * LEVELS - 1e-9).astype(int) - 1]


def coverage(factors, spread):
    """The share of a new episode's readings inside, and the standard error of its mean over studies."""
    node, weight = np.polynomial.hermite_e.hermegauss(60)
    inside = norm.cdf(factors[..., None] / np.exp(spread * node)) @ weight / weight.sum() * 2 - 1
    return inside.mean(0), inside.std(0, ddof=1) / np.sqrt(len(factors))


@pytest.mark.parametrize(("count", "studies"), [(5, 400), (10, 400), (20, 200), (100, 100)])
@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0])
def test_readings_of_a_new_episode_are_covered_as_promised(count, studies, spread):
    share, error = coverage(by_episodes(simulated(studies, count, spread, seed=count)), spread)
    assert (share > LEVELS - 4 * error).all()
    sure = count / (count + 1) >= LEVELS
    assert (share < LEVELS + 0.2 / (count + 1) + 4 * error)[sure].all()  # a fifth of what one more rank would cover


@pytest.mark.parametrize("kind", ["heavy tails", "two sizes", "one in ten, tenfold"])
@pytest.mark.parametrize("count", [12, 20])
def test_coverage_is_that_of_the_level_whatever_the_scores(kind, count):
    """Where larger scores are not rarer too, and where tails are heavy."""
    rng, studies, readings = np.random.default_rng(count), 120, 60
    shape = (studies, count + 50, readings)
    score = {
        "heavy tails": lambda: np.abs(rng.standard_t(3, size=shape)),
        "two sizes": lambda: np.where(rng.random(shape) < 0.5, 0.01, 5.0) * (1 + 0.1 * rng.random(shape)),
        "one in ten, tenfold": lambda: rng.random(shape) * np.where(rng.random((*shape[:2], 1)) < 0.1, 10.0, 1.0),
    }[kind]()
    factors = by_episodes(score[:, :count])
    inside = (score[:, count:, :, None] <= factors[:, None, None]).mean((1, 2))
    error = inside.std(0, ddof=1) / np.sqrt(studies)
    assert (np.abs(inside.mean(0) - LEVELS) < 0.01 + 4 * error)[count / (count + 1) >= LEVELS].all()


def test_counting_readings_in_place_of_episodes_promises_too_much():
    share, error = coverage(by_readings(simulated(400, 5, 1.0, seed=5)), 1.0)
    assert (share < LEVELS - 4 * error)[LEVELS > 0.84].all()


def test_where_episodes_are_alike_intervals_are_hardly_wider():
    """Narrower at least than with an episode's mass at infinity, whose intervals would cover a share a + a / K."""
    count = 20
    score = simulated(100, count, 0.0, seed=0)
    ratio = np.median(by_episodes(score) / by_readings(score), axis=0)[5:18]  # levels .3 to .9
    levels = LEVELS[5:18]
    assert (ratio < norm.ppf((1 + levels + levels / count) / 2) / norm.ppf((1 + levels) / 2)).all()


@pytest.mark.parametrize("readings", [1, 7])
def test_episodes_of_one_value_are_ranked_by_hand(readings):
    """Of 1 … 99 the 100 a-th is 100 a; of 1 … 40 the 41 a-th lies between two of them."""
    for count in (99, 40):
        values = np.random.default_rng(0).permutation(np.arange(1, count + 1))
        found = factors_of(np.repeat(values, readings), np.repeat(np.arange(count), readings))[0, 0, 0]
        np.testing.assert_allclose(found, (count + 1) * LEVELS)


def test_the_share_of_an_order_statistic_by_enumeration():
    episodes = [1.0, 9.0], [2.0], [4.0, 5.0, 12.0]
    ordered = np.sort(list(product(*episodes)), axis=1)
    number = np.repeat(np.arange(3), [len(e) for e in episodes])
    weight = np.repeat([1 / 6, 1 / 3, 1 / 9], [2, 1, 3])  # of every score
    values, order = np.array([1.0, 9.0, 2.0, 4.0, 5.0, 12.0]), [0, 2, 3, 4, 1, 5]
    shares = np.cumsum(weight[order]) - weight[order] / 2
    each = np.interp(ordered, values[order], shares)
    expected = np.interp(each.mean(0), shares, values[order])
    found = factors_of(np.concatenate(episodes), number)[0, 0, 0, [4, 9, 14]]  # ranks 1, 2 and 3 of 3
    steepest = np.max(np.diff(values[order]) / np.diff(shares))
    assert (np.abs(found - expected) <= 4 * steepest * each.std(0) / np.sqrt(DRAWS)).all()
    half = factors_of(np.concatenate(episodes), number)[0, 0, 0, [1, 2]]  # ranks .4 and .6: below the least score
    assert 0 < half[0] < half[1] < found[0]


def test_an_episode_weighs_the_same_however_long():
    score, episode = np.repeat([1.0, 2.0, 3.0, 4.0, 5.0], 20), np.repeat(np.arange(5), 20)
    longer = np.concatenate([score, np.full(500, 5.0)]), np.concatenate([episode, np.full(500, 4)])
    np.testing.assert_allclose(factors_of(*longer)[0, 0, 0], factors_of(score, episode)[0, 0, 0])


def test_beyond_the_last_rank_scales_are_log_normal():
    """With readings that are all their episode's scale, the quantile is that of a Student-t, on a grid of 100."""
    logs = np.array([-0.5, -0.1, 0.0, 0.2, 0.6])
    found = factors_of(np.exp(np.repeat(logs, 10)), np.repeat(np.arange(5), 10))[0, 0, 0]

    def predicted(level):
        return np.exp(logs.mean() + logs.std(ddof=1) * np.sqrt(1 + 1 / 5) * t.ppf(level, 4))

    np.testing.assert_allclose(found[15], 0.8 * np.exp(0.6) + 0.2 * np.exp(0.2))  # .8 · 6 = 4.8
    for step in (17, 18, 19):  # of 20: above 5 / 6
        low, high = predicted(step / 20 - 0.01), predicted(step / 20 + 0.01)
        largest = np.exp(0.6)
        assert max(low, largest) * (1 - 1e-9) <= found[step - 1] <= max(high, largest) * (1 + 1e-9)


def test_one_episode_takes_its_own_or_the_normal():
    wide = factors_of([0.1, 0.2, 5.0], [0, 0, 0])[0, 0, 0]
    np.testing.assert_allclose(wide[[15, 18]], np.quantile([0.1, 0.2, 5.0], [0.8, 0.95]))
    narrow = factors_of([0.1, 0.2, 0.3], [0, 0, 0])[0, 0, 0]
    np.testing.assert_allclose(narrow[[14, 18]], NORMAL[[14, 18]])
    assert (np.diff(narrow) >= 0).all()


def test_episodes_that_could_not_differ_more_have_finite_factors():
    assert np.isfinite(factors_of([0.0, 1e6]).astype(np.float32)).all()


def cell(value, count, group, band, hidden):
    """`count` equal scores, each of an episode that no other cell has."""
    episode = 1000 * (5 * group + band) + np.arange(count)
    return [np.full(count, value), episode, np.full(count, group), np.full(count, band), np.full(count, hidden)]


def test_small_cells_borrow_from_the_nearest_that_suffice():
    cells = [
        cell(1.0, 40, 0, 0, False),  # speaks for itself
        cell(2.0, 39, 0, 1, False),  # too few: with its neighbours, 40 ones and 5 threes
        cell(3.0, 5, 0, 2, False),  # its neighbours suffice: 39 twos, 5 threes
        cell(9.0, 60, 1, 0, False),
    ]
    factors = factors_of(*(np.concatenate(x) for x in zip(*cells, strict=True)), groups=3)[:, :, 0]
    np.testing.assert_array_equal(factors[0, 0], 1.0)
    np.testing.assert_allclose(factors[0, 1, [0, 8, 9, 17, 18]], [1, 1, 2, 2, 3])  # 85 · .45 = 38.25, .95 = 80.75
    np.testing.assert_allclose(factors[0, 2, [0, 16, 17, 18]], [2, 2, 3, 3])  # 39 + 5: 45 · .85 = 38.25, .9 = 40.5
    np.testing.assert_array_equal(factors[0, 3], factors[0, 1])  # its neighbours have 5: all bands of the group
    np.testing.assert_array_equal(factors[1], 9.0)
    np.testing.assert_allclose(factors[2, :, [0, 18]].T, np.tile([1.0, 9.0], (5, 1)))  # an empty group: all of them


def test_many_scores_of_few_episodes_borrow_too():
    score = np.repeat([1.0, 2.0], [400, 50])
    episode = np.repeat([*range(4), *range(4, 14)], [100] * 4 + [5] * 10)
    band = np.repeat([0, 1], [400, 50])
    zeros = np.zeros(score.size, int)
    factors, own = conformal_factors(score, episode, zeros, band, zeros.astype(bool), groups=1, bands=3)
    np.testing.assert_array_equal(own[0, :, 0], [0, 10, 0])
    np.testing.assert_allclose(factors[0, 0, 0, [5, 6, 17]], [1.5, 2, 2])  # 15 · .3 = 4.5 of 4 ones and 10 twos
    np.testing.assert_array_equal(factors[0, 1, 0, 1:18], 2.0)
    np.testing.assert_array_equal(factors[0, 2], factors[0, 1])


def test_one_episode_in_two_cells_is_one_where_they_are_pooled():
    score, episode = np.repeat([1.0, 3.0], 100), np.tile(np.repeat(np.arange(4), 25), 2)
    band, zeros = np.repeat([0, 1], 100), np.zeros(200, int)
    factors, own = conformal_factors(score, episode, zeros, band, zeros.astype(bool), groups=1, bands=2)
    # Four draws that are 1 or 3 with even odds: the largest, rank 4 = 5 · .8, is 3 but for one time in 16.
    error = 2 * np.sqrt(1 / 16 * 15 / 16 / DRAWS)
    assert (np.abs(factors[0, :, 0, 15] - (3 - 2 / 16)) < 4 * error).all()
    assert not own.any()


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
        ({"episode": [1]}, r"\[2, 1, 2, 2, 2\] entries"),
        ({"hidden": [True]}, r"\[2, 2, 2, 2, 1\] entries"),
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
