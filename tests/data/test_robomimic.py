"""What the robomimic reader makes of known contents."""

import builders_hdf5 as built
import h5py
import numpy as np
import pytest
from builders_hdf5 import MODEL, MODEL_WIDTH, NUMBERS, STEPS, ramp

from vhydro.data.mujoco_state import joints, state_channels
from vhydro.data.robomimic import Robomimic

QUATERNION = ("qw", "qx", "qy", "qz")
STATE_NAMES = [
    "arm.joint_1", "arm.joint_2", "gripper.finger_1", "gripper.finger_2", "Door_hinge.angle",
    *(f"knob.{q}" for q in QUATERNION), *(f"cube.{q}" for q in ("x", "y", "z", *QUATERNION)),
    "arm.joint_velocity_1", "arm.joint_velocity_2", "gripper.finger_velocity_1", "gripper.finger_velocity_2",
    "Door_hinge.angular_velocity", *(f"knob.{q}" for q in ("wx", "wy", "wz")),
    *(f"cube.{q}" for q in ("vx", "vy", "vz", "wx", "wy", "wz")),
]  # fmt: skip


def columns(episode, *names):
    return episode.observations[:, [[c.name for c in episode.channels].index(n) for n in names]]


def test_demonstrations_come_by_number_with_the_last_outcome(tmp_path):
    dataset = Robomimic().open(built.robomimic_full(tmp_path))
    assert dataset.names == tuple(f"demo_{n}" for n in NUMBERS)
    for episode, steps in zip(dataset, STEPS, strict=True):
        assert episode.steps == steps  # next_obs tells what the last action led to
        np.testing.assert_array_equal(columns(episode, "tcp.x", "tcp.y", "tcp.z"), ramp(steps + 1, 3))
        np.testing.assert_array_equal(episode.actions, ramp(steps, 7))
    assert any("images" in n for n in dataset.notes)
    assert not any("last action" in n for n in dataset.notes)


def test_quaternions_come_w_first(tmp_path):
    episode = Robomimic().open(built.robomimic_full(tmp_path))[0]
    xyzw = ramp(6, 4, 100)
    np.testing.assert_array_equal(columns(episode, *(f"tcp.{q}" for q in QUATERNION)), xyzw[:, [3, 0, 1, 2]])
    np.testing.assert_array_equal(
        columns(episode, *(f"cube.{q}" for q in QUATERNION)), ramp(6, 4, 800)[:, [3, 0, 1, 2]]
    )


def test_observables_have_groups_and_units(tmp_path):
    episode = Robomimic().open(built.robomimic_full(tmp_path))[0]
    known = {c.name: (c.group, c.unit) for c in episode.channels}
    assert known["arm.joint_7"] == ("joints", "rad")
    assert known["arm.joint_velocity_1"] == ("joints", "rad/s")
    assert known["gripper.finger_1"] == ("gripper", "m")
    assert known["gripper.finger_velocity_2"] == ("gripper", "m/s")
    assert known["cube.x"] == ("object", "m")
    assert known["bin.x"] == ("scene", "m")
    assert known["tcp.z"] == ("end_effector", "m")
    assert len(known) == 3 + 4 + 2 + 2 + 7 + 7 + 3 + 4 + 3  # no image, no cosine, no flat copy
    assert [c.name for c in episode.inputs][-2:] == ["tcp.drz", "gripper.command"]
    assert episode.info == {"task": "Lift", "robot": "Panda"}
    assert episode.dt == 0.05


def test_without_an_outcome_the_last_action_is_left_out(tmp_path):
    dataset = Robomimic().open(built.robomimic_object(tmp_path))
    assert any("last action" in n for n in dataset.notes)
    episode = dataset[0]
    assert (episode.steps, episode.dt, episode.observations.dtype) == (STEPS[0] - 1, 0.1, np.float64)
    np.testing.assert_array_equal(episode.actions, ramp(STEPS[0], 2)[:-1])
    np.testing.assert_array_equal(columns(episode, *(f"object.s{i + 1}" for i in range(10))), ramp(STEPS[0], 10))


@pytest.mark.parametrize("build", [built.robosuite_states, built.roboturk])
def test_states_are_named_by_the_model(tmp_path, build):
    dataset = Robomimic().open(build(tmp_path))
    episode = dataset[0]
    assert [c.name for c in episode.channels] == STATE_NAMES
    np.testing.assert_array_equal(episode.observations, built.timed_states(STEPS[0], 1 + MODEL_WIDTH)[:, 1:])
    assert episode.dt == 0.04
    known = {c.name: (c.group, c.unit) for c in episode.channels}
    assert known["gripper.finger_1"] == ("gripper", "m")
    assert known["Door_hinge.angular_velocity"] == ("object", "rad/s")
    assert known["cube.vx"] == ("object", "m/s")


def test_roboturk_actions_are_joint_velocities_and_gripper_actuations(tmp_path):
    episode = Robomimic().open(built.roboturk(tmp_path))[0]
    expected = np.concatenate([ramp(STEPS[0], 7), ramp(STEPS[0], 1, 50)], axis=1)[:-1]
    np.testing.assert_array_equal(episode.actions, expected)
    assert [c.name for c in episode.inputs][-2:] == ["arm.joint_velocity_target_7", "gripper.command_1"]


def test_states_without_a_model_are_numbered(tmp_path):
    dataset = Robomimic().open(built.robosuite_unnamed(tmp_path))
    assert [c.name for c in dataset[0].channels] == [f"state.s{i + 1}" for i in range(MODEL_WIDTH)]
    assert any("numbered" in n for n in dataset.notes)


@pytest.mark.parametrize(
    "model",
    [
        MODEL.replace('type="slide"', 'type="ball"'),
        MODEL.replace('type="slide"', 'type="screw"'),
        MODEL.replace("<default/>", '<default><joint type="slide"/></default>'),
        MODEL.replace("<default/>", '<include file="more.xml"/>'),
        '<!DOCTYPE m [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>' + MODEL,
        MODEL[:200],
        "<mujoco/>",
        "<a>" * 50_000,
        "",
    ],
)
def test_a_model_that_does_not_account_for_every_number_names_nothing(model):
    assert state_channels(MODEL, MODEL_WIDTH) is not None
    assert state_channels(MODEL, MODEL_WIDTH + 1) is None
    assert state_channels(model, MODEL_WIDTH) is None


def test_deep_models_are_walked_without_recursion():
    deep = f"<mujoco><worldbody>{'<body>' * 20_000}<joint/>{'</body>' * 20_000}</worldbody></mujoco>"
    assert [j.kind for j in joints(deep)] == ["hinge"]


def test_several_arms_keep_their_own_names():
    arms = "".join(f'<joint name="robot{r}_joint{i}"/>' for r in (0, 1) for i in (1, 2))
    base = '<body><joint name="mobilebase0_joint_forward" type="slide"/></body>'
    named = state_channels(f"<mujoco><worldbody>{base}<body>{arms}</body></worldbody></mujoco>", 10)
    assert named is not None
    assert [c.name for c in named[:5]] == [
        "mobilebase0.joint_1", "arm.joint_1", "arm.joint_2", "robot1.joint_1", "robot1.joint_2",
    ]  # fmt: skip


def test_our_recordings_carry_forces_and_labels(tmp_path):
    episode = Robomimic().open(built.sawyer(tmp_path))[0]
    grip, table = episode.contacts
    assert (grip.bodies, table.bodies) == (("grip", "obj"), ("obj", "table"))
    np.testing.assert_array_equal(grip.normal, [0, *ramp(4, 2, 1)[:, 0]])
    np.testing.assert_array_equal(table.tangential, [0, *ramp(4, 2, 11)[:, 1]])
    np.testing.assert_array_equal(grip.peak, [0, *ramp(4, 2, 21)[:, 0]])
    np.testing.assert_array_equal(episode.labels["contact_mode"], [0, 0, 1, 2, 3])
    np.testing.assert_array_equal(episode.labels["phase"], [10, 10, 11, 12, 13])
    assert [c.name for c in episode.channels][:6] == [f"cloth.v{v}.{axis}" for v in (1, 2) for axis in "xyz"]
    np.testing.assert_array_equal(columns(episode, "cloth.v2.z")[:, 0], ramp(5, 6)[:, 5])
    assert episode.info == {"task": "laundry", "robot": "Sawyer", "seed": 14.0, "success": True, "mode": "pick"}


def test_one_file_is_opened_once_and_many_do_not_exhaust_the_process(tmp_path):
    from vhydro.data.hdf5 import MOST_OPEN, Hdf5File

    datasets = [Robomimic().open(built.sawyer(tmp_path / str(i))) for i in range(MOST_OPEN + 5)]
    for dataset in [*datasets, *datasets]:
        assert dataset[0].steps == STEPS[0] - 1
    assert len(Hdf5File.opened) <= MOST_OPEN
    with h5py.File(datasets[0].path, "r") as file:
        assert file
