"""The pendulum swings and is stopped as its constants say."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from vhydro.systems import Pendulum
from vhydro.systems.pendulum import FREE, LOWER, UPPER


def test_below_its_stops_it_matches_a_high_precision_reference(played):
    pendulum, torque = Pendulum(), 0.2
    start = [-0.6, 0.0]
    run = played(pendulum, start, [torque], substeps=16)
    assert (run.modes[0] == FREE).all()
    assert np.ptp(run.states[0, :, 0]) > 1.0

    def newton(_, z):
        rate = z[1] / (pendulum.mass * pendulum.length**2)
        weight = pendulum.mass * pendulum.gravity * pendulum.length * np.sin(z[0])
        return [rate, torque - weight - pendulum.friction * rate]

    times = np.arange(run.states.shape[1]) * run.dt
    truth = solve_ivp(newton, (0, times[-1]), start, t_eval=times, method="DOP853", rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(run.states[0], truth.y.T, atol=1e-11)


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_a_stop_is_as_stiff_as_stated(side, played):
    pendulum, depth = Pendulum(), 0.01
    angle = side * (pendulum.stop + depth)
    weight = pendulum.mass * pendulum.gravity * pendulum.length * np.sin(angle)
    run = played(pendulum, [angle, 0.0], [weight + side * pendulum.stiffness * depth])
    np.testing.assert_allclose(run.states[0, -1], [angle, 0.0], atol=1e-10)
    assert (run.modes[0] == (UPPER if side > 0 else LOWER)).all()


def test_modes_are_the_sign_of_the_gap(drawn):
    pendulum = Pendulum()
    run = drawn(pendulum)
    angle = run.states[..., 0]
    assert np.array_equal(run.modes == LOWER, angle < -pendulum.stop)
    assert np.array_equal(run.modes == UPPER, angle > pendulum.stop)


def test_without_torque_energy_only_falls(played):
    pendulum = Pendulum()
    rng = np.random.default_rng(0)
    run = played(pendulum, rng.uniform(-1, 1, (16, 2)), substeps=8)
    energy = pendulum.law().energy(run.modes, run.states)
    assert run.changes.sum() > 16
    assert np.diff(energy).max() < 1e-9


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"length": 0.0}, "length of Pendulum is 0.0; expected a finite number that is positive"),
        ({"stop": 3.5}, "the stops of Pendulum are at ±3.5 rad; expected less than π"),
        ({"damping": -1.0}, "damping of Pendulum is -1.0"),
    ],
)
def test_impossible_constants_are_refused(constants, message):
    with pytest.raises(ValueError, match=message):
        Pendulum(**constants)
