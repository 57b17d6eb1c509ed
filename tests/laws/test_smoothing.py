"""Local polynomials against polynomials, and noise against the noise that was added."""

import numpy as np
import pytest

from vhydro.laws.smoothing import local_polynomial, noise_gains, sensor_noise

DT = 0.01


def test_a_cubic_with_gaps_is_smoothed_exactly():
    t = np.arange(120) * DT
    q = np.stack([1 - 2 * t + 3 * t**2 - 4 * t**3, 0.5 + t**3], -1)[None]
    seen = np.where(np.random.default_rng(0).random(q.shape) < 0.3, np.nan, q)
    found = local_polynomial(seen, DT, 8)
    inner = slice(4, -4)  # at its ends a track has half as much to go by
    velocity = np.stack([-2 + 6 * t - 12 * t**2, 3 * t**2], -1)[None]
    acceleration = np.stack([6 - 24 * t, 6 * t], -1)[None]
    np.testing.assert_allclose(found.position, q, atol=1e-5)
    np.testing.assert_allclose(found.velocity[:, inner], velocity[:, inner], atol=1e-4)
    np.testing.assert_allclose(found.acceleration[:, inner], acceleration[:, inner], atol=1e-2)


def test_a_gap_wider_than_the_window_stays_unknown():
    q = np.ones((1, 100, 1))
    q[0, 30:70] = np.nan
    q[0, 50] = 3.0
    found = local_polynomial(q, DT, 4)
    assert found.position[0, 50, 0] == pytest.approx(3.0, rel=1e-6)  # one sample: a constant
    assert found.velocity[0, 50, 0] == pytest.approx(0.0, abs=1e-6)
    assert np.isnan(found.position[0, 36:45]).all()
    assert np.isfinite(found.position[0, :33]).all()


def test_sensor_noise_is_the_noise_that_was_added():
    rng = np.random.default_rng(1)
    t = np.arange(2000) * 0.005
    noise = np.array([0.02, 0.3])
    tracks = np.stack([np.sin(2 * t), np.abs(t % 2 - 1)], -1) + noise * rng.standard_normal((16, 2000, 2))
    tracks[rng.random(tracks.shape) < 0.1] = np.nan
    found = np.array([sensor_noise(track[None]) for track in tracks])  # the kinks of the second are as contacts are
    standard_error = found.std(0, ddof=1) / np.sqrt(16)
    assert (np.abs(found.mean(0) - noise) < 4 * standard_error).all()
    assert (np.abs(sensor_noise(tracks) / noise - 1) < 0.03).all()


@pytest.mark.parametrize("half_width", [4, 12])
def test_noise_gains_are_what_noise_leaves(half_width):
    repeats = 4000
    noise = np.random.default_rng(2).standard_normal((repeats, 2 * half_width + 1, 1))
    smooth, gains = local_polynomial(noise, DT, half_width), noise_gains(half_width, DT)
    for part, gain in zip(smooth, gains, strict=True):
        assert abs(part[:, half_width, 0].var() / gain**2 - 1) < 4 * np.sqrt(2 / repeats)
