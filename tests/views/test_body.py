"""The body view: steps and turns from row to row, in the frame of the world."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from known_logs import BALL_DT, GRAVITY
from vhydro.episodes import Episode, episode
from vhydro.views import BodyView, body_view

NAMES = [f"cube.{n}" for n in ("x", "y", "z", "qw", "qx", "qy", "qz")]
SPIN = np.array([1.0, -2.0, 3.0])


@pytest.fixture
def flight() -> Episode:
    """Poses of a cube that flies and spins."""
    t = BALL_DT * np.arange(20)
    place = np.stack([t, 2 * t, 3 * t - GRAVITY * t**2 / 2], 1)
    turned = Rotation.from_rotvec(t[:, None] * SPIN) * Rotation.from_euler("x", 40, degrees=True)
    poses = np.concatenate([place, turned.as_quat(scalar_first=True)], 1)
    return episode(poses, dt=BALL_DT, channels=NAMES, labels={"mode": np.zeros(20)})


def test_a_flying_body_keeps_its_steps_and_falls(flight):
    view = body_view([flight])
    assert view == BodyView(tuple(NAMES[:3]), tuple(NAMES[3:]), "cube")
    steps = view(flight)
    assert steps.labels == {}
    change = np.diff(steps.observations, axis=0)
    np.testing.assert_allclose(change, np.tile([0, 0, -GRAVITY * BALL_DT**2, 0, 0, 0], (18, 1)), atol=1e-12)
    np.testing.assert_allclose(steps.observations[0, 3:], SPIN * BALL_DT, atol=1e-12)


def test_a_step_from_or_to_a_hidden_pose_is_hidden(flight):
    poses = flight.observations.copy()
    poses[7, 4] = np.nan
    hidden = np.isnan(body_view([flight])(replace(flight, observations=poses)).observations)
    assert hidden[[6, 7], 3:].all()
    assert hidden.sum() == 6


def test_without_an_orientation_only_the_place_is_seen(flight):
    view = body_view([flight.select(NAMES[:3])])
    assert view.turn == ()
    assert [c.name for c in view(flight).channels] == ["cube.dx", "cube.dy", "cube.dz"]


def test_bad_input_is_refused(flight):
    two = episode(np.zeros((4, 6)), dt=0.1, channels=[f"{b}.{a}" for b in ("a", "b") for a in "xyz"])
    with pytest.raises(ValueError, match=r"shows the places of a, b; expected one. Say which: BodyView\(place="):
        body_view([two])
    assert body_view([two], "b").place == ("b.x", "b.y", "b.z")
    with pytest.raises(ValueError, match="shows the places of no body; expected one"):
        body_view([flight.select(NAMES[3:])])
    with pytest.raises(ValueError, match="has one row; expected at least two, for a step"):
        body_view([flight])(episode(np.zeros((1, 7)), dt=BALL_DT, channels=NAMES))
    with pytest.raises(ValueError, match=r"3 \(x, y, z\) and 4 \(w, x, y, z\) or none"):
        BodyView(("x", "y"))
