"""Forward kinematics of models that come with states, against MuJoCo's own numbers and a closed form."""

import h5py
import numpy as np
import pytest
from builders_hdf5 import ARM_MODEL, robosuite_hand

from vhydro.data import read
from vhydro.data.mujoco_kinematics import hands, places, position_count

INERTIA = '<inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>'
MODEL = f"""<mujoco><compiler eulerseq="xyZ"/><worldbody>
<body name="cart" pos="0.1 0 0.3" euler="20 30 40">{INERTIA}
<joint name="robot0_j1" type="slide" axis="1 1 0" ref="0.2"/>
<body name="aside"><joint name="aside_hinge"/>{INERTIA}</body>
<body name="upper" pos="0 0.2 0" axisangle="1 2 3 50"><joint name="robot0_j2" axis="0 1 1" pos="0.1 0 0" ref="30"/>
<joint name="robot0_j3" axis="1 0 0" pos="0 0 -0.1"/>{INERTIA}
<body name="lower" pos="0 0 0.4" xyaxes="0 1 0.1 -1 0 0.2"><joint name="robot0_j4" type="ball" pos="0 0.05 0"/>{INERTIA}
<body name="hand" pos="0.05 0 0.1" quat="2 0 1 0">{INERTIA}
<site name="gripper0_grip_site" pos="0 0.01 0.1" zaxis="1 0 1"/></body></body></body></body>
<body name="cube"><freejoint name="cube_joint0"/>{INERTIA}</body></worldbody></mujoco>"""
QPOS = np.array([
    [0.3, 9.0, 0.7, -0.4, 0.5, 0.1, -0.2, 0.3, 0, 0, 0, 1, 0, 0, 0],
    [-0.1, 9.0, -1.2, 0.9, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0],
])  # fmt: skip
BY_MUJOCO = np.array([  # version 4.0.0: site_xpos, and the quaternion of site_xmat
    [0.265699622107, 0.551161525672, 0.819616203893, 0.540969819798, -0.089068877795, 0.199720766437, -0.812114526732],
    [-0.000958803823, -0.420964936256, 0.524630621412, -0.111921318445, 0.032845084905, 0.079305055968, 0.990002791397],
])  # fmt: skip


def test_every_joint_and_orientation_is_as_in_mujoco():
    (hand,) = hands(MODEL)
    assert position_count(MODEL) == QPOS.shape[1]
    found = places(hand, QPOS)
    np.testing.assert_allclose(found[:, :3], BY_MUJOCO[:, :3], atol=1e-11)
    signs = np.sign((found[:, 3:] * BY_MUJOCO[:, 3:]).sum(1, keepdims=True))  # a quaternion and its opposite are one
    np.testing.assert_allclose(signs * found[:, 3:], BY_MUJOCO[:, 3:], atol=1e-11)


def test_an_arm_in_a_plane_is_where_geometry_says(tmp_path):
    path = robosuite_hand(tmp_path)
    with h5py.File(path) as file:
        states = file["data/demo_0/states"][:]  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue]
    dataset = read(path)
    names = [c.name for c in dataset[0].channels]
    first, second = states[:, 1], states[:, 1] + states[:, 2]
    place = dataset[0].observations[:, [names.index(f"tcp.{a}") for a in "xyz"]]
    np.testing.assert_allclose(place[:, 0], np.cos(first) + 0.5 * np.cos(second), atol=1e-12)
    np.testing.assert_allclose(place[:, 1], np.sin(first) + 0.5 * np.sin(second), atol=1e-12)
    np.testing.assert_allclose(place[:, 2], 0.2)
    turned = dataset[0].observations[:, [names.index(f"tcp.{q}") for q in ("qw", "qz")]]
    np.testing.assert_allclose(np.diff(2 * np.unwrap(np.arctan2(*turned.T[::-1]))), np.diff(second), atol=1e-12)
    assert next(c for c in dataset[0].channels if c.name == "tcp.x").group == "end_effector"
    assert any("tcp, was computed from the joints" in note for note in dataset.notes)


def test_a_log_that_shows_the_hand_is_left_as_it_is(tmp_path):
    path = robosuite_hand(tmp_path)
    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():  # pyright: ignore[reportAttributeAccessIssue]
            demo["obs/robot0_eef_pos"] = np.zeros((len(demo["actions"]), 3))
    assert [c.name for c in read(path)[0].channels] == ["tcp.x", "tcp.y", "tcp.z"]
    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():  # pyright: ignore[reportAttributeAccessIssue]
            del demo["obs/robot0_eef_pos"]
            demo["obs/cube_pos"] = np.zeros((len(demo["actions"]), 3))
    assert [c.name for c in read(path)[0].channels][:4] == ["cube.x", "cube.y", "cube.z", "tcp.x"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<worldbody>", '<default><joint axis="1 0 0"/></default><worldbody>'),
        ("<worldbody>", '<default><site pos="1 0 0"/></default><worldbody>'),
        ("<worldbody>", '<compiler coordinate="global"/><worldbody>'),
        ('<body name="lower"', '<body mocap="true" name="lower"'),
        ('pos="0.5 0 0"', 'pos="0.5 0"'),
        ('pos="0.5 0 0"', 'pos="0.5 0 nan"'),
        ('pos="0.5 0 0"', 'pos="0.5 0 0" quat="1 0 0 0" zaxis="0 0 1"'),
        ('pos="0.5 0 0"', 'pos="0.5 0 0" quat="0 0 0 0"'),
        ('pos="0.5 0 0"', 'fromto="0 0 0 1 0 0"'),
        ("<mujoco>", '<!DOCTYPE x [<!ENTITY a "1">]><mujoco>'),
    ],
)
def test_what_is_not_certain_gives_no_hand(old, new):
    assert hands(ARM_MODEL)
    assert old in ARM_MODEL
    assert not hands(ARM_MODEL.replace(old, new))


def test_several_hands_have_names_of_their_own():
    two = ARM_MODEL.replace("</worldbody>", '<body name="b"><site name="gripper1_grip_site"/></body></worldbody>')
    assert [h.name for h in hands(two)] == ["tcp", "gripper1.tcp"]
    assert not hands(ARM_MODEL.replace("grip_site", "other"))
