"""The metrics against cases worked by hand, scikit-learn, ruptures, enumeration, and what they must not depend on."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score

from vhydro.modes import (
    adjusted_rand,
    change_point_f1,
    change_points,
    macro_f1,
    matching,
    purity,
    scores,
    segmentation_rates,
)

short = settings(max_examples=25)
PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 2)), min_size=1, max_size=40).filter(
    lambda pairs: any(label >= 0 for _, label in pairs)
)


def runs(*parts: tuple[int, int]) -> np.ndarray:
    """The path with these (mode, length) runs."""
    return np.repeat([mode for mode, _ in parts], [length for _, length in parts])


def letters(text: str) -> list[int]:
    """A path written as digits; `.` is unlabelled."""
    return [-1 if letter == "." else int(letter) for letter in text]


def paths(pairs) -> tuple[np.ndarray, np.ndarray]:
    found, truth = np.array(pairs).T
    return found, truth


@pytest.mark.parametrize(
    ("found", "truth", "partners", "f1"),
    [
        ("7755", "0011", {7: 0, 5: 1}, 1.0),
        # Mode 0 shares 3 steps with label 0, mode 1 one with label 0 and 2 with label 1:
        # F1 of 0: 2·3/(3+4), of 1: 2·2/(3+2).
        ("000111", "000011", {0: 0, 1: 1}, (6 / 7 + 4 / 5) / 2),
        # One mode for two labels: the larger takes it, 2·3/(5+3); the other counts 0.
        ("00000", "00011", {0: 0}, 6 / 8 / 2),
        # A third mode has no label left; label 0: 2·2/(2+3), label 1 whole.
        ("002111", "000111", {0: 0, 1: 1}, (4 / 5 + 1) / 2),
        # Both modes have label 0 most often, 4 steps each; one-to-one 4 + 3 steps agree, or 1 + 4.
        ("000001111111", "000010000111", {0: 0, 1: 1}, (2 * 4 / (5 + 8) + 2 * 3 / (7 + 4)) / 2),
        # Mode 1 and label 1 are left over and share no step: 2·3/(4+4) and 0.
        ("00001", "00010", {0: 0}, 6 / 8 / 2),
        # Unlabelled steps neither agree nor disagree.
        ("00111", "0...1", {0: 0, 1: 1}, 1.0),
    ],
)
def test_partners_and_macro_f1(found, truth, partners, f1):
    assert matching(letters(found), letters(truth)) == partners
    assert macro_f1(letters(found), letters(truth)) == pytest.approx(f1)


@pytest.mark.parametrize(("names", "partner"), [("012", 0), ("102", 1)])
def test_of_equally_good_assignments_the_one_with_the_larger_f1_is_taken(names, partner):
    # Mode 0 shares 2 steps with each of the first two labels, which last 2 and 3 steps: F1 4/(4+2) and 4/(4+3).
    found, truth = letters("0000111"), [int(names[label]) for label in letters("0011122")]
    assert matching(found, truth) == {0: partner, 1: 2}
    assert macro_f1(found, truth) == pytest.approx((4 / 6 + 0 + 4 / 5) / 3)


@pytest.mark.parametrize(
    ("found", "truth", "expected"),
    [
        ("5533", "0011", 1.0),
        # No pair of steps together in both; 2 and 2 of 6 pairs: (0 − 4/6)/(2 − 4/6).
        ("0011", "0101", -0.5),
        # Pairs together: 3 + 0 + 1 = 4 in both, 6 found, 7 true, of 15: (4 − 2.8)/(6.5 − 2.8).
        ("000111", "000011", 1.2 / 3.7),
        ("0000", "0011", 0.0),
        ("000", "111", 1.0),
        ("00111", "00.11", 1.0),
    ],
)
def test_adjusted_rand(found, truth, expected):
    assert adjusted_rand(letters(found), letters(truth)) == pytest.approx(expected)


@short
@given(PAIRS)
def test_adjusted_rand_is_that_of_scikit_learn(pairs):
    found, truth = paths(pairs)
    labelled = truth >= 0
    assert_allclose(adjusted_rand(found, truth), adjusted_rand_score(truth[labelled], found[labelled]), atol=1e-12)


@pytest.mark.parametrize(
    ("found", "truth", "expected"),
    [
        ("0011", "1100", 1.0),
        ("000111", "000011", 5 / 6),
        ("000000", "000011", 4 / 6),
        # Mode 0 has both labels, in two runs that are pure.
        ("00110022", "00112200", 1.0),
        # The run of mode 0 is cut by the unlabelled step: 2 of 2 and 1 of 1, not 2 of 3.
        ("0000", "00.1", 1.0),
    ],
)
def test_purity(found, truth, expected):
    assert purity(letters(found), letters(truth)) == pytest.approx(expected)


def test_change_points_are_the_first_steps_of_new_runs():
    assert_array_equal(change_points([3]), [])
    assert_array_equal(change_points(letters("0001122")), [3, 5])
    assert_array_equal(change_points(letters("0101")), [1, 2, 3])


@pytest.mark.parametrize(
    ("found", "true", "tolerance", "precision", "recall", "f1"),
    [
        ([10, 20], [10, 20], 0, 1, 1, 1),
        ([12, 20], [10, 20], 1, 1 / 2, 1 / 2, 1 / 2),
        ([12, 20], [10, 20], 2, 1, 1, 1),
        # One true change is found once, however many are near it.
        ([9, 10, 11], [10], 2, 1 / 3, 1, 1 / 2),
        ([10], [9, 11, 30], 2, 1, 1 / 3, 1 / 2),
        # The nearest pair (12, 11) alone would leave 10 and 14 too far apart; 10–11 and 12–14 are two.
        ([10, 12], [11, 14], 2, 1, 1, 1),
        ([], [], 2, 1, 1, 1),
        ([10], [], 2, 0, 0, 0),
        ([], [10], 2, 0, 0, 0),
    ],
)
def test_change_point_f1(found, true, tolerance, precision, recall, f1):
    assert_allclose(change_point_f1(at(found), at(true), tolerance), (precision, recall, f1))


def at(points, steps: int = 50) -> np.ndarray:
    """A path that changes at exactly these steps."""
    return np.cumsum(np.isin(np.arange(steps), points))


def test_no_change_is_counted_into_or_out_of_unlabelled_steps():
    # Labelled: 000 and 1111; the path changes at 3 (unlabelled from there) and, inside 1111, at 6.
    assert change_point_f1(letters("000222111"), letters("000..1111"), 0) == (0, 0, 0)
    assert change_point_f1(letters("000221111"), letters("000..1111"), 0) == (1, 1, 1)


@short
@given(st.sets(st.integers(1, 29)), st.sets(st.integers(1, 29)), st.integers(0, 4))
def test_no_assignment_pairs_more_change_points(found, true, tolerance):
    near = np.abs(np.subtract.outer(sorted(found), sorted(true))) <= tolerance
    hits = near[linear_sum_assignment(near, maximize=True)].sum()
    score = change_point_f1(at(sorted(found)), at(sorted(true)), tolerance)
    if found or true:
        assert_allclose(score.f1, 2 * hits / (len(found) + len(true)))
        assert_allclose((score.precision * len(found), score.recall * len(true)), hits)


@short
@given(st.sets(st.integers(1, 199), min_size=1, max_size=20), st.sets(st.integers(1, 15), min_size=1))
def test_change_point_f1_is_that_of_ruptures(found, tens):
    metrics = pytest.importorskip("ruptures.metrics")
    # True changes further apart than twice the tolerance: nearer ones it pairs with one another's. Its margin is open.
    true = sorted(12 * t for t in tens)
    precision, recall = metrics.precision_recall([*true, 200], [*sorted(found), 200], margin=5 + 1)
    score = change_point_f1(at(sorted(found), 200), at(true, 200), 5)
    assert_allclose((score.precision, score.recall), (precision, recall))


@pytest.mark.parametrize(
    ("found", "truth", "over", "under"),
    [
        (runs((0, 10), (1, 10)), runs((1, 10), (0, 10)), 0, 0),
        # A border that is off.
        (runs((0, 12), (1, 8)), runs((0, 10), (1, 10)), 0, 0),
        # Five found in the first of two true segments: four extra.
        (runs((0, 2), (1, 2), (0, 2), (1, 2), (0, 2), (1, 10)), runs((0, 10), (1, 10)), 4 / 2, 0),
        # Three true segments in one found.
        (runs((0, 30)), runs((0, 10), (1, 10), (2, 10)), 0, 2 / 1),
        # The first true segment is split in two, the other two are one: the counts are equal and both rates are not 0.
        (runs((0, 5), (1, 5), (2, 20)), runs((0, 10), (1, 10), (2, 10)), 1 / 3, 1 / 3),
        # The found segment in the middle lies half in each: it belongs to neither.
        (runs((0, 8), (1, 4), (2, 8)), runs((0, 10), (1, 10)), 0, 0),
    ],
)
def test_segmentation_rates(found, truth, over, under):
    assert_allclose(segmentation_rates(found, truth), (over, under))
    assert_allclose(segmentation_rates(truth, found), (under, over))


def everything(found, truth):
    s = scores([found], [truth])
    return [*s[:3], *(x for score in s.change_points.values() for x in score), *s[4:6]]


@short
@given(PAIRS, st.sampled_from(list(permutations((7, 0, 2, 5)))), st.sampled_from(list(permutations(range(3)))))
def test_nothing_depends_on_names_or_on_the_direction_of_time(pairs, modes, labels):
    found, truth = paths(pairs)
    renamed = np.where(truth < 0, truth, np.array(labels)[truth])
    expected = everything(found, truth)
    assert_allclose(everything(np.array(modes)[found], renamed), expected)
    assert_allclose(everything(found[::-1], truth[::-1]), expected)


@short
@given(st.lists(st.integers(6, 12), min_size=2, max_size=5), st.data())
def test_a_split_segment_costs_change_point_precision_and_no_purity(lengths, data):
    truth = runs(*((i % 2, n) for i, n in enumerate(lengths)))
    found = truth.copy()
    part = data.draw(st.integers(0, len(lengths) - 1))
    begin = sum(lengths[:part])
    found[begin + 3 : begin + lengths[part]] = 2  # at least 3 steps from either border
    assert purity(found, truth) == 1
    assert segmentation_rates(found, truth).over > 0 == segmentation_rates(found, truth).under
    score = change_point_f1(found, truth, 2)
    assert score.precision < 1 == score.recall


@short
@given(PAIRS)
def test_every_score_is_in_its_range_and_a_path_agrees_with_itself(pairs):
    found, truth = paths(pairs)
    f1, ari, *shares, over, under = everything(found, truth)
    assert all(0 <= share <= 1 for share in (f1, *shares))
    assert -1 <= ari <= 1
    assert min(over, under) >= 0
    assert_allclose(everything(found, found), [1] * 9 + [0, 0])


def test_several_episodes_are_scored_together_but_never_across_their_border():
    found = [letters("000111"), letters("1111"), letters("0000")]
    truth = [letters("000011"), letters("0000"), letters("...." )]  # fmt: skip
    result = scores(found, truth, (0, 1))
    # Together: mode 0 has label 0 three times; mode 1 label 0 five times and label 1 twice. {1: 0} alone agrees in 5
    # steps, {0: 0, 1: 1} in 5 too; F1 2·5/(7+8) + 0 against 2·3/(3+8) + 2·2/(7+2).
    assert result.matching == {0: 0, 1: 1}
    assert result.mode_f1 == pytest.approx((6 / 11 + 4 / 9) / 2)
    assert result.ari == pytest.approx(adjusted_rand_score([0] * 4 + [1] * 2 + [0] * 4, [0] * 3 + [1] * 7))
    assert result.purity == pytest.approx(9 / 10)
    # One change found at 3, one true at 4, both in the first episode.
    assert result.change_points == {0: (0, 0, 0), 1: (1, 1, 1)}
    assert (result.over_segmentation, result.under_segmentation) == (0, 0)


def test_change_points_are_pooled_over_episodes_before_they_are_divided():
    found, truth = [at([10]), at([10, 20, 30])], [at([10]), at([20])]
    # Hits 1 and 1, found 1 and 3, true 1 and 1: the mean over episodes would be (1 + 1/2)/2.
    assert_allclose(scores(found, truth, (2,)).change_points[2], (2 / 4, 1, 2 / 3))


def test_the_scores_of_one_episode_are_the_metrics():
    found, truth = letters("0012221"), letters("00111.0")
    result = scores([found], [truth])
    assert result[:3] == (macro_f1(found, truth), adjusted_rand(found, truth), purity(found, truth))
    assert result.change_points == {t: change_point_f1(found, truth, t) for t in (2, 5)}
    assert result[4:6] == segmentation_rates(found, truth)
    assert result.matching == matching(found, truth)


@pytest.mark.parametrize(
    ("found", "truth", "message"),
    [
        ([0, 1], [0, 1, 1], "has 2 steps and its labels have 3"),
        ([], [], "at least one row"),
        ([[0, 1]], [[0, 1]], r"shape \(1, 2\)"),
        ([0.0, 1.0], [0, 1], "the found path .* holds float64 values; expected integers"),
        ([0, 1], [True, False], "the labels .* holds? bool"),
        ([0, -1], [0, 1], "mode -1; expected 0 or more"),
        ([0, 1], [-1, -1], "every label is negative"),
    ],
)
@pytest.mark.parametrize("metric", [macro_f1, adjusted_rand, purity, matching, segmentation_rates])
def test_unusable_paths_are_refused(metric, found, truth, message):
    with pytest.raises(ValueError, match=message):
        metric(found, truth)


def test_unusable_episodes_and_tolerances_are_refused():
    with pytest.raises(ValueError, match="2 paths and 1 of labels"):
        scores([[0], [1]], [[0]])
    with pytest.raises(ValueError, match="0 paths and 0 of labels"):
        scores([], [])
    with pytest.raises(ValueError, match="episode 1 has 1 steps and its labels have 2"):
        scores([[0], [1]], [[0], [1, 1]])
    with pytest.raises(ValueError, match="tolerance is -1"):
        change_point_f1([0, 1], [0, 1], -1)
