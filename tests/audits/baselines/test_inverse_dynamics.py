"""Inverse-dynamics least squares: the constants of a drive whose force is known exactly."""

import numpy as np
import pytest

from vhydro_audits.baselines.inverse_dynamics import Drive, inverse_dynamics, motion

TRUE = Drive(mass=95.0, viscous=200.0, dry=20.0, offset=-3.0)


def record(noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Positions and forces of an axis that swings at two frequencies, 10 s at 1 kHz."""
    t = 0.001 * np.arange(10_000)
    parts = [(0.1, 2.0), (0.03, 7.0)]
    q = np.sum([size * np.sin(w * t) for size, w in parts], 0)
    v = np.sum([size * w * np.cos(w * t) for size, w in parts], 0)
    a = np.sum([-size * w**2 * np.sin(w * t) for size, w in parts], 0)
    return q + noise * np.random.default_rng(0).standard_normal(len(t)), TRUE.force(v, a)


def test_it_finds_the_constants_of_a_drive():
    found = inverse_dynamics(motion(*record(noise=1e-7), dt=0.001))
    # The force is filtered and the sign of the velocity is not: dry friction comes out a little small.
    assert list(found) == pytest.approx(list(TRUE), rel=0.06)


def test_noise_on_positions_makes_the_mass_too_small():
    q, force = record(noise=3e-4)
    found = inverse_dynamics(motion(q, force, dt=0.001, cutoff=60.0))
    assert found.mass < 0.5 * TRUE.mass


def test_a_cutoff_beyond_half_the_rate_is_refused():
    with pytest.raises(ValueError, match="half the sampling rate"):
        motion(*record(noise=0.0), dt=0.001, cutoff=500.0)


def test_a_record_too_short_to_filter_is_refused():
    with pytest.raises(ValueError, match="longer"):
        motion(np.zeros(50), np.zeros(50), dt=0.001)
