"""Holding borne out by paths: what stays, what the hand leaves, what it cannot reach, and that true holds remain."""

import numpy as np

from vhydro.modes.holding import borne_out, falls_short, reach_of

LEAST = np.array([0.003])


def found(goes, hand, body, least=LEAST) -> list[int]:
    """The rows in which the body is held, of a hand and a body along one line."""
    along = lambda x: np.stack([np.asarray(x, float), 0 * np.asarray(x, float), 0 * np.asarray(x, float)], 1)  # noqa: E731
    flags = np.zeros((len(hand), 1), bool)
    flags[list(goes)] = True
    return np.flatnonzero(borne_out(flags, along(body)[:, None], along(hand), least)[:, 0]).tolist()


def test_what_goes_with_the_hand_is_held():
    hand = np.concatenate([np.zeros(5), 0.01 * np.arange(20)])
    body = hand + 0.03
    assert found(range(5, 25), hand, body) == [*range(5, 25)]
    assert found(range(5, 25), hand, 0.03 + 0.6 * hand) == [*range(5, 25)]  # not all the way, as what is pushed may
    still = np.zeros(25)
    assert found(range(5, 25), still, still) == [*range(5, 25)]  # paths of nothing speak against nothing


def test_what_stays_where_it_is_while_the_hand_goes_is_not_held():
    hand = 0.01 * np.arange(25.0)
    assert found(range(5, 25), hand, np.full(25, 0.3)) == []
    back = np.concatenate([hand[:13], hand[11::-1]])  # and comes back
    assert found(range(1, 25), back, np.full(25, 0.3)) == []
    assert found(range(5, 25), 1e-4 * hand, np.full(25, 0.3)) == [
        *range(5, 25)
    ]  # a hand that hardly goes tells nothing


def test_what_the_hand_leaves_behind_is_not_held():
    hand = 0.01 * np.arange(25.0)
    assert found(range(5, 25), hand, np.minimum(hand, 0.15) - 0.03) == [*range(5, 16)]
    assert found(range(5, 25), hand, np.minimum(hand, 0.15) + 0.03) == [*range(5, 19)]  # passed, and then left


def test_what_goes_away_from_a_still_hand_is_not_left_behind():
    body = np.concatenate([np.zeros(10), 0.01 * np.arange(1, 11)])
    assert found(range(5, 20), np.zeros(20), body) == [*range(5, 20)]


def test_nothing_is_held_far_beyond_where_it_was_held_for_longest():
    hand = np.concatenate([0.3 - 0.01 * np.arange(3), np.linspace(0.28, 0.0, 10), -0.01 * np.arange(20)])
    body = np.concatenate([-0.01 * np.arange(3), np.full(10, -0.02), -0.02 - 0.01 * np.arange(20)])
    assert found([*range(3), *range(14, 33)], hand, body) == [*range(14, 33)]


def test_reach_is_that_of_the_longest_hold_and_unknown_without_any():
    gap = np.array([[0.1, 0.5], [0.1, 0.5], [0.4, 0.5]])
    none = np.zeros((3, 2), bool)
    assert np.isinf(reach_of(none, gap, np.zeros(2))).all()
    goes = np.array([[True, False], [True, False], [False, False]])
    np.testing.assert_allclose(reach_of(goes, gap, np.zeros(2)), 0.2)


def test_a_hand_is_held_back_where_it_is_told_much_and_does_little():
    told = np.ones((40, 1))
    went = np.where(np.arange(40)[:, None] < 20, 0.01, 0.001)
    flags = np.arange(41) > 20
    assert falls_short(flags, told, went).tolist() == flags.tolist()
    assert not falls_short(flags, told, 0 * went + 0.01).any()  # it does as it is told
    assert not falls_short(flags, np.where(flags[1:, None], 0.1, told), went).any()  # it is told little
    assert falls_short(np.ones(41, bool), told, went).all()  # what it does elsewhere is not known


def test_a_row_in_which_the_hand_is_hidden_says_nothing_of_the_others():
    flags = np.zeros(41, bool)
    flags[10:21] = True
    told = np.ones((40, 3))
    went = np.where(flags[1:, None], 0.0, 0.01) * told
    went[2] = np.nan
    assert falls_short(flags, told, went).tolist() == flags.tolist()
    assert falls_short(flags, told, -went).tolist() == flags.tolist()  # it does not follow at all
