"""What modes are, read off weights made by hand."""

import numpy as np
import pytest

from vhydro.laws.form import Guard
from vhydro.laws.guards import at_rest, labels, sort_modes, steady, wander
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
    still = np.ones(4)
    assert at_rest(modes, speed, np.array([1e-3]), still) == (0,)
    noisy = np.repeat([[0.0, 2.0, 0.3]], 50, 1)[..., None] + 0.2 * rng.standard_normal((1, 150, 1))
    assert at_rest(modes, noisy, np.array([0.25]), still) == (0, 2)  # 0.3 is no faster than noise looks
    assert at_rest(modes, noisy, np.array([0.01]), still) == ()  # so much speed cannot be noise
    # What goes slowly for long gets somewhere.
    assert at_rest(modes, noisy, np.array([0.25]), np.array([1.0, 900.0, 20.0, 1.0])) == (0,)
    # Beside slow motion noise looks fast: what wanders nowhere rests all the same.
    slow = np.repeat([[0.0, 0.6, 0.5]], 50, 1)[..., None] + 0.25 * rng.standard_normal((1, 150, 1))
    assert at_rest(modes, slow, np.array([0.25]), np.array([1.0, 30.0, 30.0, 1.0])) == (0,)
    # A mode that is never on, here the last, is not known to rest.
    assert at_rest(modes, 0 * speed + 1.0, np.array([1e-3]), still) == ()


def test_an_impact_is_not_at_rest_for_passing_through_it():
    """A few samples, slow ones: it passes through zero speed and does not stay there."""
    speed = np.concatenate([np.full(40, -2.0), [-0.04, -0.02, 0.02, 0.04], np.full(40, 1.6), np.zeros(40)])
    mode = np.concatenate([np.zeros(40), np.ones(4), np.zeros(40), np.full(40, 2)]).astype(int)
    modes = one_hot(mode[None], 3)
    assert at_rest(modes, speed[None, :, None], np.array([1e-3]), np.ones(3)) == (2,)


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


def test_how_far_a_stay_in_a_mode_leads():
    """The variance of positions in a stay over the sensors': about 1 at rest, the stay's own where things go on."""
    rng = np.random.default_rng(1)
    mode = np.repeat([0, 1, 0, 1], 60)[None]
    place = np.where(mode == 0, 0.3, np.tile(np.linspace(0, 0.5, 60), 4)[None])[..., None]
    found = wander(one_hot(mode, 3), place + 0.01 * rng.standard_normal(place.shape), np.array([0.01]))
    doubt = 3 * np.sqrt(2 / 112)
    assert 0.6 < found[0] + doubt < 1.5
    np.testing.assert_allclose(found[1] + doubt, 1 + np.var(np.linspace(0, 0.5, 60)[2:-2], ddof=1) / 0.01**2, rtol=0.1)
    assert found[2] == 1  # never on


def test_a_rare_mode_among_wrong_labels_has_its_surface():
    """A hundredth of all samples, and as many wrong labels: the labels steadied say where it begins."""
    rng = np.random.default_rng(2)
    times = np.arange(1000)
    position = np.cos(2 * np.pi * times / 250 + rng.uniform(0, 6, (10, 1)))
    truth = (position > 0.9985).astype(int)
    assert 0.01 < truth.mean() < 0.025
    seen = np.where(rng.random(truth.shape) < 0.03, 1 - truth, truth)
    smooth = Smooth(position[..., None], np.gradient(position, axis=1)[..., None], 0 * position[..., None])
    found = sort_modes(one_hot(seen, 2), smooth, 0, ())
    assert found.guards[1] == Guard(0, "above")
    assert abs(found.places[1] - 0.9985) < 0.002
