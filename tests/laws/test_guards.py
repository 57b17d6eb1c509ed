"""What modes are, read off weights made by hand."""

import numpy as np
import pytest

from vhydro.laws.form import Guard
from vhydro.laws.guards import at_rest, labels, sort_modes, steady
from vhydro.laws.smoothing import Smooth


def one_hot(mode: np.ndarray, modes: int) -> np.ndarray:
    return np.eye(modes)[mode]


def test_a_single_wrong_label_does_not_count():
    truth = np.repeat([[0, 1, 0]], 10, 1)
    flipped = truth.copy()
    flipped[0, [4, 15]] = [1, 0]
    assert labels(one_hot(flipped, 2)).tolist() == truth.tolist()


def test_steadied_weights_are_means_that_sum_to_one_outside_padding():
    modes = one_hot(np.array([[0, 0, 1, 1, 1, 1]]), 2)
    modes[0, 5] = 0  # padding
    found = steady(modes)
    np.testing.assert_allclose(found.sum(-1), [[1, 1, 1, 1, 1, 0]])
    np.testing.assert_allclose(found[0, 2], [2 / 5, 3 / 5])
    np.testing.assert_allclose(found[0, 4], [0, 1])
    assert labels(modes)[0].tolist() == [0, 0, 1, 1, 1, -1]


def test_modes_in_which_nothing_moves_are_at_rest():
    modes = one_hot(np.repeat([[0, 1, 2]], 50, 1), 4)
    rng = np.random.default_rng(0)
    speed = np.repeat([[1e-4, 2.0, 0.3]], 50, 1)[..., None]
    assert at_rest(modes, speed, np.array([1e-3])) == (0,)
    noisy = np.repeat([[0.0, 2.0, 0.3]], 50, 1)[..., None] + 0.2 * rng.standard_normal((1, 150, 1))
    assert at_rest(modes, noisy, np.array([0.25])) == (0, 2)  # 0.3 is no faster than noise looks
    assert at_rest(modes, noisy, np.array([0.01])) == ()  # so much speed cannot be noise
    # A mode that is never on, here the last, is not known to rest.
    assert at_rest(modes, 0 * speed + 1.0, np.array([1e-3])) == ()


def test_an_impact_is_not_at_rest_for_passing_through_it():
    """A few samples, slow ones: it passes through zero speed and does not stay there."""
    speed = np.concatenate([np.full(40, -2.0), [-0.04, -0.02, 0.02, 0.04], np.full(40, 1.6), np.zeros(40)])
    mode = np.concatenate([np.zeros(40), np.ones(4), np.zeros(40), np.full(40, 2)]).astype(int)
    assert at_rest(one_hot(mode[None], 3), speed[None, :, None], np.array([1e-3])) == (2,)


def moving(episodes: int = 4, times: int = 500) -> Smooth:
    t = np.arange(times) * 0.01 + np.arange(episodes)[:, None]
    q = np.stack([np.sin(3 * t), np.cos(2 * t)], -1)
    v = np.stack([3 * np.cos(3 * t), -2 * np.sin(2 * t)], -1)
    return Smooth(q, v, np.zeros_like(q))


@pytest.mark.parametrize(("axis", "side", "place"), [(0, "above", 0.7), (1, "below", -0.6)])
def test_a_contact_is_past_its_surface(axis, side, place):
    smooth, guard = moving(), Guard(axis, side)
    touching = guard.sign * (smooth.position[..., axis] - place) > 0
    flipped = np.random.default_rng(1).random(touching.shape) < 0.02
    found = sort_modes(one_hot((touching ^ flipped) * 1, 2), smooth, 0, ())
    assert found.guards == {1: guard}
    assert found.places[1] == pytest.approx(place, abs=0.05)


def test_a_direction_of_sliding_is_no_surface():
    smooth = moving()
    mode = np.where(smooth.velocity[..., 1] > 0, 1, 0)
    found = sort_modes(one_hot(mode, 3), smooth, 0, (2,))
    assert found.guards == {1: None}
    assert not found.places
