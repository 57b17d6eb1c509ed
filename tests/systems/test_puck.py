"""The puck bounces as its constants say."""

import numpy as np
import pytest

from vhydro.systems import Puck
from vhydro.systems.puck import FREE, LEFT, RIGHT


def crossing(puck, state, wall):
    """When (from this sample) and with what momentum a free puck is at the wall, in closed form."""
    q, p = state
    rate = puck.friction / puck.mass
    momentum = p + puck.friction * (q - wall)  # p + friction · q is conserved in free flight
    return -np.log(momentum / p) / rate, momentum


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_restitution_and_contact_time(side, played):
    puck = Puck()
    run = played(puck, [0.9 * side, 0.5 * side], substeps=64)
    touching = np.flatnonzero(run.modes[0] != FREE)
    before, after = touching[0] - 1, touching[-1] + 1
    enters, momentum_in = crossing(puck, run.states[0, before], side * puck.wall)
    leaves, momentum_out = crossing(puck, run.states[0, after], side * puck.wall)
    assert -momentum_out / momentum_in == pytest.approx(puck.restitution, rel=1e-7)

    natural = np.sqrt(puck.stiffness / puck.mass)
    half_swing = np.pi / (natural * np.sqrt(1 - puck.damping_ratio**2))
    assert (after - before) * run.dt + leaves - enters == pytest.approx(half_swing, rel=1e-7)
    assert 0.5 < puck.restitution < 0.9


def test_modes_are_the_sign_of_the_gap(drawn):
    puck = Puck()
    run = drawn(puck)
    q = run.states[..., 0]
    assert np.array_equal(run.modes == LEFT, q < -puck.wall)
    assert np.array_equal(run.modes == RIGHT, q > puck.wall)


def test_a_contact_shorter_than_a_sample_is_seen(played):
    # Forced back before the wall, it touches for under a millisecond in the middle of one step.
    puck, force, dt = Puck(), -3.0, 0.005
    brake = force / puck.mass
    depth = 1e-7
    speed = np.sqrt(2 * -brake * depth)
    arrive = 0.3 * dt
    fast = speed - brake * arrive
    start = [puck.wall - fast * arrive - 0.5 * brake * arrive**2, fast * puck.mass]
    run = played(Puck(), start, [force], substeps=1)
    assert run.changes[0, 0] == 2
    assert (run.modes[0, :2] == FREE).all()


def test_a_pressed_puck_rests_where_the_wall_pushes_back(played):
    puck, force = Puck(), 3.0
    run = played(puck, [puck.wall + force / puck.stiffness, 0.0], [force])
    np.testing.assert_allclose(run.states[0, -1], run.states[0, 0], atol=1e-12)
    assert (run.modes[0] == RIGHT).all()


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"mass": 0.0}, "mass of Puck is 0.0; expected a finite number that is positive"),
        ({"stiffness": -1.0}, "stiffness of Puck is -1.0"),
        ({"friction": float("nan")}, "friction of Puck is nan"),
        ({"damping": 100.0}, "never bounces off. Lower `damping`"),
    ],
)
def test_impossible_constants_are_refused(constants, message):
    with pytest.raises(ValueError, match=message):
        Puck(**constants)
