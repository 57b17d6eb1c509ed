"""Tossed bodies: gravity and restitution from poses and a mass."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from known_tosses import DT, GRAVITY, HALF, RESTITUTION, toss, tosses
from vhydro.episodes import Episode
from vhydro.laws import LagrangeLaw, impact_constants, toss_law
from vhydro.laws.tosses import at_rest, corner_heights


def test_gravity_and_restitution_with_the_mass_given():
    logs = tosses(9)
    law = toss_law(logs, mass=0.4, half_sizes=HALF)
    found = impact_constants(law)
    fall = found["acceleration along cube.z"]
    assert abs(fall.value + GRAVITY) < 4 * fall.error
    assert fall.unit == "m/s²"
    bounce = found["restitution of floor along cube.z"]
    assert bounce.value == pytest.approx(RESTITUTION, abs=0.02)
    assert found["place of floor along cube.z"].value == pytest.approx(0.0, abs=0.002)
    assert isinstance(law.flight, LagrangeLaw)
    assert law.flight.status(0) == "identified"  # the acceleration of free fall has no spread
    assert law.flight.terms(0)["V cube.z"].value == pytest.approx(0.4 * GRAVITY, rel=0.01)


def test_a_body_without_a_size_bounces_with_its_place():
    found = impact_constants(toss_law(tosses(9), mass=1.0))
    assert found["place of floor along cube.z"].value == pytest.approx(HALF, abs=0.002)
    assert found["restitution of floor along cube.z"].value == pytest.approx(RESTITUTION, abs=0.02)


def test_impacts_in_which_no_corner_is_seen_are_left_out():
    hidden = []
    for k, log in enumerate(tosses(9)):
        gone = np.random.default_rng(k).random((len(log.observations), 1)) < 0.3
        hidden.append(replace(log, observations=np.where(gone, np.nan, log.observations)))
    found = impact_constants(toss_law(hidden, mass=0.4, half_sizes=HALF))
    assert found["restitution of floor along cube.z"].value == pytest.approx(RESTITUTION, abs=0.03)


def test_an_error_that_is_not_known_is_not_none():
    law = toss_law(tosses(9), mass=1.0)
    unknown = replace(law.flight, covariance=np.full_like(law.flight.covariance, np.nan))
    value, error = at_rest(replace(law, flight=unknown), 0)
    assert value == at_rest(law, 0)[0]
    assert np.isnan(error)
    assert at_rest(law, 0)[1] > 0


def test_corners_turn_with_the_body():
    turned = Rotation.from_euler("xyz", [0.3, -0.2, 1.0])
    log = toss(1.0, 0.5, 0.0, np.random.default_rng(0), turned.as_quat(scalar_first=True))
    short = toss(1.0, 0.3, 0.0, np.random.default_rng(0))
    heights = corner_heights([log, short], (0.1, 0.2, 0.3))
    corner = turned.apply([-0.1, -0.2, -0.3])[2] + log.observations[:, 2]
    np.testing.assert_allclose(heights[0, :, 0], corner, atol=1e-6)
    assert np.isnan(heights[1, len(short.observations) :]).all()
    np.testing.assert_allclose(heights[1, 0].min(), short.observations[0, 2] - 0.3, atol=1e-6)


def test_a_hidden_pose_has_no_corners():
    log = tosses(1)[0]
    seen = log.observations.copy()
    seen[3, 4] = np.nan
    log = Episode(seen, log.actions, DT, log.channels)
    assert np.isnan(corner_heights([log], HALF)[0, 3]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mass": 0.0}, "positive number of kilograms"),
        ({"mass": 1.0, "half_sizes": -1.0}, "positive lengths"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        toss_law(tosses(9), **options)


def test_corners_need_an_orientation():
    bare = [e.select([f"cube.{a}" for a in "xyz"]) for e in tosses(9)]
    with pytest.raises(ValueError, match="no orientation"):
        toss_law(bare, mass=1.0, half_sizes=HALF)
