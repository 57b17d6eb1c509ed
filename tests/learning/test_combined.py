"""Combinations of what modes couple that no log shows: each becomes a mode that begins rarely."""

import numpy as np

from vhydro.learning.combined import BACK, RARELY, combined
from vhydro.learning.contact_em import ContactLaw

MACHINE = np.array([False, False, True])  # things: cup, peg, joints
CHANNELS = np.array([False, False, True])  # one channel each
FINGERS = np.zeros(3, bool)
STAY = np.array([[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9]])


def law() -> ContactLaw:
    gain = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.3]])
    return ContactLaw(gain, np.ones(3), np.log(STAY), np.zeros((0, 3)), np.log(np.full(3, 1 / 3)), np.zeros(3))


def test_a_missing_combination_moves_bodies_as_one_mode_and_the_machine_as_another():
    couples = np.array([[False, False, False], [True, False, False], [False, False, True]])
    share = np.array([0.6, 0.3, 0.1])
    more, which = combined(law(), couples, share, MACHINE, CHANNELS, FINGERS)
    assert which.tolist() == [*couples.tolist(), [True, False, True]]
    np.testing.assert_allclose(more.gain[3], [1.0, 0.0, 0.3])
    np.testing.assert_allclose(np.exp(more.logits[:3, 3]), RARELY * STAY[:, 1])
    np.testing.assert_allclose(np.exp(more.logits[3]), [0.05, BACK * 0.9, 0.05, 0.9])
    np.testing.assert_allclose(np.exp(more.log_start).sum(), 1)


def test_nothing_is_added_where_all_is_seen_or_fingers_would_be_on_nothing():
    couples = np.array([[False, False, False], [True, False, True], [True, False, False]])
    fingers = np.array([False, False, True])
    more, which = combined(law(), couples, np.array([0.6, 0.3, 0.1]), MACHINE, CHANNELS, fingers)
    assert which.tolist() == couples.tolist()
    np.testing.assert_array_equal(more.gain, law().gain)
