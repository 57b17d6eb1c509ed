"""Inverse-dynamics least squares: the constants of a drive whose force is known exactly."""

import pytest

from known_drives import BACKWARD, DRY, FORWARD, MASS, OFFSET, drive
from vhydro_audits.baselines.inverse_dynamics import Drive, inverse_dynamics


def test_it_finds_the_constants_of_a_drive():
    found = inverse_dynamics(drive(FORWARD))
    # The force is filtered and the sign of the velocity is not: dry friction comes out a little small.
    assert list(found) == pytest.approx([MASS, FORWARD, DRY, OFFSET, 0.0], rel=0.06)


def test_it_finds_a_friction_for_each_direction():
    found = inverse_dynamics(drive(), one_friction=False)
    assert list(found) == pytest.approx([MASS, FORWARD, DRY, OFFSET, BACKWARD - FORWARD], rel=0.06)
    assert found.force_left(drive()) < 0.5 * inverse_dynamics(drive()).force_left(drive())


def test_noise_on_positions_makes_the_mass_too_small():
    assert inverse_dynamics(drive(FORWARD, noise=3e-3)).mass < 0.5 * MASS


def test_the_force_left_over_is_what_is_missing():
    truth = Drive(MASS, FORWARD, DRY, OFFSET)
    assert truth._replace(offset=OFFSET + 7).force_left(drive(FORWARD)) == pytest.approx(7.0, rel=0.05)
