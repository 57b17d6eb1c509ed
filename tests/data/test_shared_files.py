"""Real recordings of the HDF5 formats, where they are at hand: names, units, rates and forces make sense."""

from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from validity import GROUPS, assert_valid

from vhydro.data import read

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
FILES = sorted(p for p in DATA.rglob("*") if p.suffix in (".h5", ".hdf5"))
needs_files = pytest.mark.skipif(not FILES, reason="the folder ../shared/data beside the repository is not there")
ROBOT_ONLY = {"wipe_panda.hdf5", "maniskill_fmb_assembly1.h5"}  # states without names
COUNTS = {
    "PushCube-v1": 100, "PickCube-v1": 100, "PullCube-v1": 100, "PokeCube-v1": 80, "StackCube-v1": 60,
    "PegInsertionSide-v1": 60, "PullCubeTool-v1": 48, "SawyerTower": 10, "SawyerSearch": 10, "SawyerLaundry": 2,
    "VX300SBridgeOcclusion": 10,
}  # fmt: skip


def groups(episode) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for channel in episode.channels:
        found.setdefault(channel.group, set()).add(channel.name.rpartition(".")[0])
    return found


def joints_by_motion(dataset) -> np.ndarray:
    """For each named joint, the joint whose named velocity moves as it does, all paired at once."""
    moves, speeds = [], []
    for episode in dataset.take(range(3)):
        place, speed = (
            episode.select([f"arm.{quantity}_{i}" for i in range(1, 8)]).observations.astype(float)
            for quantity in ("joint", "joint_velocity")
        )
        moves.append(np.diff(place, axis=0))
        speeds.append(speed[1:] + speed[:-1])
    alike = np.corrcoef(np.concatenate(moves).T, np.concatenate(speeds).T)[:7, 7:]
    return linear_sum_assignment(-alike)[1] + 1


@needs_files
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_episode_is_valid_at_20_hz(path):
    dataset = read(path)
    assert len(dataset) == COUNTS.get(path.stem, len(dataset))
    channels = dataset[0].channels
    for episode in dataset:
        assert_valid(episode)
        assert episode.dt == pytest.approx(0.05, rel=1e-6)
        assert episode.channels == channels
        assert {c.group for c in episode.channels} <= GROUPS
        assert np.isfinite(episode.observations).all()


@needs_files
@pytest.mark.parametrize("path", [p for p in FILES if p.name not in ROBOT_ONLY], ids=lambda p: p.stem)
def test_bodies_have_unit_quaternions_and_joints_have_units(path):
    for episode in read(path).take([0]):
        bodies = {c.name.rpartition(".")[0] for c in episode.channels if c.name.endswith(".qw")}
        for body in bodies:
            turn = episode.observations[:, episode.columns(body=body, quantities=("qw", "qx", "qy", "qz"))]
            np.testing.assert_allclose(np.linalg.norm(turn, axis=1), 1, atol=1e-3)
        units = {c.unit for c in episode.channels if c.group == "joints"}
        assert units == {"rad", "rad/s"}
        assert {c.unit for c in episode.channels if c.group == "gripper"} == {"m", "m/s"}
        assert groups(episode)["object"] - {"extra"}


@needs_files
@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name == "maniskill"], ids=lambda p: p.stem)
def test_maniskill_velocities_are_what_positions_do(path):
    """Names and order are right only if the named velocity is the slope of the named position."""
    dataset = read(path)
    np.testing.assert_array_equal(joints_by_motion(dataset), range(1, 8))
    episode = dataset[0]
    assert episode.info["task"] == path.stem
    assert episode.info["success"] is True
    assert len(episode.contacts) >= 4


@needs_files
@pytest.mark.parametrize("path", [p for p in FILES if p.stem in ("lift_panda", "stack2021")], ids=lambda p: p.stem)
def test_mujoco_states_are_named_in_the_order_of_the_model(path):
    dataset = read(path)
    np.testing.assert_array_equal(joints_by_motion(dataset), range(1, 8))
    episode = dataset[0]
    cube = next(b for b in groups(episode)["object"] if b.startswith("cube"))
    height = episode.select([f"{cube}.z"]).observations[:, 0]
    assert 0.7 < height[0] < 1.0  # metres: a cube on robosuite's table


@needs_files
@pytest.mark.parametrize("name", ["PushCube-v1", "PullCube-v1"])
def test_force_is_zero_before_the_cube_moves_and_begins_with_it(name):
    path = DATA / "maniskill" / f"{name}.h5"
    for episode in read(path).take(range(20)):
        fingers = sum(c.peak for c in episode.contacts if "table" not in c.bodies)
        moved = np.linalg.norm(np.diff(episode.select(["cube.x", "cube.y"]).observations.astype(float), axis=0), axis=1)
        touched, first_moved = np.flatnonzero(fingers > 1e-3)[0], np.flatnonzero(moved > 1e-4)[0] + 1
        assert abs(int(touched) - int(first_moved)) <= 1


@needs_files
@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name == "sawyer"], ids=lambda p: p.stem)
def test_our_recordings_pair_contact_mode_with_gripper_force(path):
    for episode in read(path).take([0, 1]):
        grip = sum(c.normal for c in episode.contacts if c.bodies[0] == "grip")
        mode = episode.labels["contact_mode"]
        assert (grip[1:][mode[1:] == 2] > 0.05).all()
        assert (grip[1:][mode[1:] == 0] <= 0.05).all()
        assert any(c.tangential is not None and c.tangential.max() > 0 for c in episode.contacts)


@needs_files
@pytest.mark.parametrize(("name", "cube"), [("lift_panda", "cube"), ("stack2021", "cubeA")])
def test_a_computed_hand_closes_on_the_cube(name, cube):
    """The files show joints and cubes only; a hand that lifts a cube is at it, and rises with it."""
    for episode in read(next(p for p in FILES if p.stem == name)):
        hand, body = (episode.select([f"{x}.{a}" for a in "xyz"]).observations for x in ("tcp", cube))
        lifted = body[:, 2] > body[0, 2] + 0.03
        assert lifted.any()
        assert np.linalg.norm(hand - body, axis=1)[lifted].min() < 0.03
        assert np.linalg.norm(hand - body, axis=1)[0] > 0.05
