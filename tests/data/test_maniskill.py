"""What the ManiSkill reader makes of known contents."""

import json

import h5py
import numpy as np
import pytest
from builders_hdf5 import NUMBERS, STEPS, maniskill_flat, maniskill_full, maniskill_observed, maniskill_released, ramp

from vhydro.data import DataError
from vhydro.data.maniskill import ManiSkill

POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")
STATE = (*POSE, "vx", "vy", "vz", "wx", "wy", "wz")


def columns(episode, *names):
    return episode.observations[:, [[c.name for c in episode.channels].index(n) for n in names]]


def body(name, quantities=STATE):
    return [f"{name}.{q}" for q in quantities]


@pytest.fixture
def full(tmp_path):
    return ManiSkill().open(maniskill_full(tmp_path))


def test_trajectories_come_by_number(full):
    assert full.names == tuple(f"traj_{n}" for n in NUMBERS)
    assert tuple(e.steps for e in full) == STEPS


def test_states_keep_their_numbers_names_and_units(full):
    for episode, steps in zip(full, STEPS, strict=True):
        robot = ramp(steps + 1, 31, 100)
        arm = [f"arm.joint_{i}" for i in range(1, 8)] + [f"arm.joint_velocity_{i}" for i in range(1, 8)]
        np.testing.assert_array_equal(columns(episode, *arm), robot[:, [*range(13, 20), *range(22, 29)]])
        hand = ("gripper.finger_1", "gripper.finger_2", "gripper.finger_velocity_1", "gripper.finger_velocity_2")
        np.testing.assert_array_equal(columns(episode, *hand), robot[:, [20, 21, 29, 30]])
        np.testing.assert_array_equal(columns(episode, *body("cube")), ramp(steps + 1, 13, 200))
        np.testing.assert_array_equal(columns(episode, *body("goal_site")), ramp(steps + 1, 13, 300))
        np.testing.assert_array_equal(columns(episode, *body("tcp", POSE)), ramp(steps + 1, 7, 500))
        np.testing.assert_array_equal(episode.actions, ramp(steps, 8))
        assert episode.observations.dtype == np.float32
    known = {c.name: (c.group, c.unit) for c in full[0].channels}
    assert known["arm.joint_1"] == ("joints", "rad")
    assert known["arm.joint_velocity_7"] == ("joints", "rad/s")
    assert known["gripper.finger_2"] == ("gripper", "m")
    assert known["gripper.finger_velocity_2"] == ("gripper", "m/s")
    assert known["cube.vx"] == ("object", "m/s")
    assert known["cube.wz"] == ("object", "rad/s")
    assert known["goal_site.x"] == ("scene", "m")
    assert known["tcp.qw"] == ("end_effector", "")
    assert not any(name.startswith("table") for name in known)


def test_task_fields_are_kept_unless_they_repeat_a_body(full):
    episode = full[0]
    np.testing.assert_array_equal(columns(episode, "extra.is_grasped")[:, 0], [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(columns(episode, *body("box_hole", POSE)), ramp(6, 7, 600))
    np.testing.assert_array_equal(columns(episode, "box_hole.radius"), ramp(6, 1, 700))
    np.testing.assert_array_equal(columns(episode, *(f"peg.half_size_{i}" for i in (1, 2, 3))), ramp(6, 3, 800))
    groups = {c.name: c.group for c in episode.channels}
    assert (groups["extra.is_grasped"], groups["box_hole.radius"], groups["peg.half_size_1"]) == (
        "object", "scene", "scene",
    )  # fmt: skip
    assert not any(name.startswith(("obj", "tcp_to")) for name in groups)
    assert len(groups) == 18 + 7 + 13 + 13 + 1 + 7 + 1 + 3


def test_forces_pair_with_the_observation_they_led_to(full):
    finger, table = full[0].contacts
    assert (finger.bodies, table.bodies) == (("cube", "lfinger"), ("cube", "table"))
    np.testing.assert_allclose(finger.normal, [0, *np.linalg.norm(ramp(5, 3, 1), axis=1)], rtol=1e-6)
    np.testing.assert_array_equal(finger.peak, [0, 9, 10, 11, 12, 13])
    np.testing.assert_array_equal(table.peak, table.normal)
    assert finger.tangential is None


def test_the_json_beside_tells_rate_task_seed_and_commands(full):
    assert full[2].dt == 1 / 50
    assert full[2].info == {"task": "PickCube-v1", "seed": 17.0, "control_mode": "pd_joint_pos", "success": True}
    assert [c.name for c in full[0].inputs] == [*(f"arm.joint_target_{i}" for i in range(1, 8)), "gripper.command"]
    assert not any("default" in note for note in full.notes)
    assert any("images" in note for note in full.notes)


def test_released_files_have_no_observations(tmp_path):
    dataset = ManiSkill().open(maniskill_released(tmp_path))
    episode = dataset[0]
    assert any("20 Hz" in note for note in dataset.notes)
    assert (episode.dt, episode.info["task"]) == (0.05, "OpenDrawer-v1")
    groups = {c.name: (c.group, c.unit) for c in episode.channels}
    assert groups["arm.joint_9"] == ("joints", "")  # which of fetch's joints slide is not told
    assert groups["cabinet.joint_velocity_2"] == ("object", "")
    np.testing.assert_array_equal(columns(episode, "cabinet.joint_1", "cabinet.joint_2"), ramp(6, 17, 900)[:, 13:15])
    assert [c.name for c in episode.inputs] == [f"action.a{i}" for i in range(1, 9)]


@pytest.mark.parametrize(("build", "width", "name"), [(maniskill_flat, 44, "state"), (maniskill_observed, 20, "obs")])
def test_flat_arrays_name_nothing(tmp_path, build, width, name):
    dataset = ManiSkill().open(build(tmp_path))
    assert [c.name for c in dataset[1].channels] == [f"{name}.s{i + 1}" for i in range(width)]
    np.testing.assert_array_equal(dataset[1].observations, ramp(5, width))
    assert any("no names" in note for note in dataset.notes) == (name == "state")


def test_a_json_that_is_none_is_refused_by_name(tmp_path):
    path = maniskill_full(tmp_path)
    for text in ("{", "[" * 100_000, "[]", json.dumps({"env_info": {"env_kwargs": {"control_freq": -1}}})):
        path.with_suffix(".json").write_text(text)
        with pytest.raises(DataError, match="PickCube-v1.json"):
            ManiSkill().open(path)


def test_two_robots_are_told_apart(tmp_path):
    path = maniskill_released(tmp_path)
    with h5py.File(path, "r+") as file:
        for traj in file.values():
            states = traj["env_states/articulations"]
            states.move("fetch", "panda-agent-0")
            states["panda-agent-1"] = ramp(len(traj["actions"]) + 1, 31, 50)
    names = [c.name for c in ManiSkill().open(path)[0].channels]
    assert {"panda-agent-0.joint_1", "panda-agent-1.gripper.finger_2", "cabinet.joint_1"} <= set(names)
