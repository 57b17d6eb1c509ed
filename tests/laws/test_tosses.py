"""Tossed bodies: gravity and restitution from poses and a mass."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from vhydro.episodes import Channel, Episode
from vhydro.laws import LagrangeLaw, impact_constants, toss_law
from vhydro.laws.tosses import corner_heights

GRAVITY, RESTITUTION, HALF, DT = 9.7, 0.6, 0.05, 0.005
NAMES = ("x", "y", "z", "qw", "qx", "qy", "qz")


def toss(height: float, seconds: float, noise: float, generator: np.random.Generator, turn=(1.0, 0, 0, 0)) -> Episode:
    """A body that falls from a height above the floor and bounces, without turning."""
    t = DT * np.arange(round(seconds / DT))
    z, begin, start, speed = np.zeros_like(t), 0.0, height, 0.0
    while begin < t[-1]:
        lasts = (speed + np.sqrt(speed**2 + 2 * GRAVITY * start)) / GRAVITY
        now = (t >= begin) & (t <= begin + lasts)
        own = t[now] - begin
        z[now] = start + speed * own - 0.5 * GRAVITY * own**2
        begin, start, speed = begin + lasts, 0.0, RESTITUTION * abs(speed - GRAVITY * lasts)
    z = z + HALF + noise * generator.standard_normal(len(t))
    pose = np.column_stack([0.3 * t, 0 * t, z, np.tile(turn, (len(t), 1))])
    channels = tuple(Channel(f"cube.{n}", unit="m" if len(n) == 1 else "") for n in NAMES)
    return Episode(pose, np.zeros((len(t) - 1, 0)), DT, channels)


@pytest.fixture(scope="module")
def tosses() -> list[Episode]:
    generator = np.random.default_rng(0)
    heights = zip(generator.uniform(0.6, 1.2, 9), [0.9, 1.0, 1.1] * 3, strict=True)
    return [toss(height, seconds, 2e-4, generator) for height, seconds in heights]


def test_gravity_and_restitution_with_the_mass_given(tosses):
    law = toss_law(tosses, mass=0.4, half_sizes=HALF)
    found = impact_constants(law)
    fall = found["acceleration along cube.z"]
    assert abs(fall.value + GRAVITY) < 4 * fall.error
    assert fall.unit == "m/s²"
    bounce = found["restitution of floor along cube.z"]
    assert bounce.value == pytest.approx(RESTITUTION, abs=0.02)
    assert found["place of floor along cube.z"].value == pytest.approx(0.0, abs=0.002)
    assert isinstance(law.flight, LagrangeLaw)
    assert law.flight.terms(0)["V cube.z"].value == pytest.approx(0.4 * GRAVITY, rel=0.01)


def test_a_body_without_a_size_bounces_with_its_place(tosses):
    found = impact_constants(toss_law(tosses, mass=1.0))
    assert found["place of floor along cube.z"].value == pytest.approx(HALF, abs=0.002)
    assert found["restitution of floor along cube.z"].value == pytest.approx(RESTITUTION, abs=0.02)


def test_corners_turn_with_the_body():
    turned = Rotation.from_euler("xyz", [0.3, -0.2, 1.0])
    log = toss(1.0, 0.5, 0.0, np.random.default_rng(0), turned.as_quat(scalar_first=True))
    short = toss(1.0, 0.3, 0.0, np.random.default_rng(0))
    heights = corner_heights([log, short], (0.1, 0.2, 0.3))
    corner = turned.apply([-0.1, -0.2, -0.3])[2] + log.observations[:, 2]
    np.testing.assert_allclose(heights[0, :, 0], corner, atol=1e-6)
    assert np.isnan(heights[1, len(short.observations) :]).all()
    np.testing.assert_allclose(heights[1, 0].min(), short.observations[0, 2] - 0.3, atol=1e-6)


def test_a_hidden_pose_has_no_corners(tosses):
    seen = tosses[0].observations.copy()
    seen[3, 4] = np.nan
    log = Episode(seen, tosses[0].actions, DT, tosses[0].channels)
    assert np.isnan(corner_heights([log], HALF)[0, 3]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mass": 0.0}, "positive number of kilograms"),
        ({"mass": 1.0, "half_sizes": -1.0}, "positive lengths"),
    ],
)
def test_what_cannot_be_is_refused(tosses, options, message):
    with pytest.raises(ValueError, match=message):
        toss_law(tosses, **options)


def test_corners_need_an_orientation(tosses):
    bare = [e.select([f"cube.{a}" for a in "xyz"]) for e in tosses]
    with pytest.raises(ValueError, match="no orientation"):
        toss_law(bare, mass=1.0, half_sizes=HALF)
