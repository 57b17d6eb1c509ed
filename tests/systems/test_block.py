"""The block sticks and slips as its constants say."""

import numpy as np
import pytest

from vhydro.systems import Block, law
from vhydro.systems.block import BACKWARD, FORWARD, STICK


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_coulomb_friction_decelerates_and_then_holds(direction, played):
    block = Block(stiffness=0.0, viscosity=0.0)
    speed, brake = 1.0, block.kinetic_friction * block.gravity
    run = played(block, [[0.2, block.mass * direction * speed]])
    times = np.minimum(np.arange(run.states.shape[1]) * run.dt, speed / brake)
    np.testing.assert_allclose(run.states[0, :, 1], direction * block.mass * (speed - brake * times), atol=1e-12)
    np.testing.assert_allclose(
        run.states[0, :, 0], 0.2 + direction * (speed * times - 0.5 * brake * times**2), atol=1e-12
    )
    stopped = np.arange(run.states.shape[1]) * run.dt > speed / brake
    assert np.array_equal(run.modes[0] == STICK, stopped)
    assert (run.modes[0][~stopped] == (FORWARD if direction > 0 else BACKWARD)).all()
    assert (run.states[0, stopped, 1] == 0).all()


def test_it_breaks_loose_at_the_static_limit(played):
    block = Block()
    limit = block.static_friction * block.mass * block.gravity
    pull = limit * np.array([0.999, -0.999, 1.001, -1.001])
    run = played(block, [0.0, 0.0], pull[:, None])
    assert (run.states[:2] == 0).all()
    assert (run.modes[:2] == STICK).all()
    assert run.modes[2, 1] == FORWARD
    assert run.modes[3, 1] == BACKWARD
    gained = run.states[2:4, 1, 1] / run.dt
    expected = pull[2:] - np.sign(pull[2:]) * block.kinetic_friction * block.mass * block.gravity
    np.testing.assert_allclose(gained, expected, rtol=2e-3)  # viscosity and spring have hardly begun


def test_slip_follows_newton():
    block = Block()
    for mode, sign in ((FORWARD, 1), (BACKWARD, -1)):
        q, p, force = 0.3, 0.7 * sign, 1.5
        velocity, pull = law(block).velocity(mode, (q, p), (force,))
        weight = block.mass * block.gravity
        drag = sign * block.kinetic_friction * weight + block.viscosity * p / block.mass
        assert velocity == pytest.approx(p / block.mass)
        assert pull == pytest.approx(force - block.stiffness * q - drag)
    assert law(block).velocity(STICK, (0.3, 0.0), (1.5,)) == (0, 0)


def test_modes_are_the_direction_of_motion(drawn):
    run = drawn(Block())
    p = run.states[..., 1]
    assert np.array_equal(run.modes == FORWARD, p > 0)
    assert np.array_equal(run.modes == BACKWARD, p < 0)


def test_a_reversal_passes_through_rest_without_sticking(played):
    # At the far end of a wide swing the spring beats static friction: it turns at once.
    block = Block()
    run = played(block, [1.0, 0.5])
    turn = np.flatnonzero(run.modes[0] == BACKWARD)[0]
    assert (run.modes[0, :turn] == FORWARD).all()
    assert run.changes[0, turn - 1] == 1


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"mass": -1.0}, "mass of Block is -1.0; expected a finite number that is positive"),
        (
            {"viscosity": -0.1},
            "viscosity of Block is -0.1; expected a finite number that is positive or zero",
        ),
        ({"static_friction": 0.1}, "static_friction of Block is 0.1, below its kinetic_friction 0.25"),
    ],
)
def test_impossible_constants_are_refused(constants, message):
    with pytest.raises(ValueError, match=message):
        Block(**constants)
