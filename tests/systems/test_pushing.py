"""The slider is pushed, dragged along and let go as its constants say."""

import numpy as np
import pytest

from vhydro.systems import Pushing
from vhydro.systems.pushing import APART, PUSHING


def test_apart_it_glides_to_rest(played):
    pushing = Pushing()
    run = played(pushing, [0.5, 0.0, 0.1, -0.2])
    times = np.arange(run.states.shape[1]) * run.dt
    decay = np.exp(-pushing.friction / pushing.mass * times)
    np.testing.assert_allclose(run.states[0, :, 2:], decay[:, None] * [0.1, -0.2], atol=1e-10)
    reach = (1 - decay)[:, None] / pushing.friction * [0.1, -0.2]
    np.testing.assert_allclose(run.states[0, :, :2], np.array([0.5, 0.0]) + reach, atol=1e-10)
    assert (run.modes[0] == APART).all()


def test_a_steady_push_carries_the_slider_with_the_tip(played):
    pushing, speed, across = Pushing(), 0.3, 0.2
    depth = pushing.friction * speed / pushing.stiffness
    lateral = pushing.grip * across / (pushing.grip + pushing.friction)  # the tip slides along the face
    steady = [-depth, 0.0, pushing.mass * speed, pushing.mass * lateral]
    run = played(pushing, steady, [speed, across])
    moved = np.array([0.0, lateral * run.dt * (run.states.shape[1] - 1), 0.0, 0.0])
    np.testing.assert_allclose(run.states[0, -1], steady + moved, atol=1e-10)
    assert (run.modes[0] == PUSHING).all()


def test_modes_are_the_sign_of_the_gap(drawn):
    run = drawn(Pushing())
    assert np.array_equal(run.modes == PUSHING, run.states[..., 0] < 0)


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"stiffness": float("inf")}, "stiffness of Pushing is inf; expected a finite number"),
        ({"grip": -2.0}, "grip of Pushing is -2.0"),
        ({"hold": 0.0}, "hold of Pushing is 0.0"),
    ],
)
def test_impossible_constants_are_refused(constants, message):
    with pytest.raises(ValueError, match=message):
        Pushing(**constants)
