"""Small valid files of the HDF5 formats, in every layout, with contents a test can predict."""

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

STEPS = (5, 4, 6)  # of the three episodes, numbered 0, 2 and 10 so that their order is not the alphabet's
NUMBERS = (0, 2, 10)
PAIRS = ("grip_obj", "obj_table")
MODEL = """<mujoco><compiler angle="radian"/><default/><worldbody>
<body name="base"><body name="link"><body name="hand">
<joint name="gripper0_finger_joint1" type="slide"/><joint name="gripper0_finger_joint2" type="slide"/></body>
<joint name="robot0_joint2" axis="0 1 0"/></body><joint name="robot0_joint1"/></body>
<body name="door"><joint name="Door_hinge" type="hinge"/>
<body name="knob"><joint name="knob" type="ball"/></body></body>
<body name="cube"><freejoint name="cube_joint0"/></body></worldbody></mujoco>"""
ARM_MODEL = """<mujoco><compiler angle="radian"/><worldbody>
<body name="upper" pos="0 0 0.2"><joint name="robot0_joint1"/><body name="lower" pos="1 0 0">
<joint name="robot0_joint2"/><site name="gripper0_grip_site" pos="0.5 0 0"/></body></body>
<body name="cube"><freejoint name="cube_joint0"/></body></worldbody></mujoco>"""  # two links of 1 m and 0.5 m
MODEL_WIDTH = 2 + 2 + 1 + 4 + 7 + 2 + 2 + 1 + 3 + 6  # positions, then velocities


def ramp(rows: int, width: int, start: float = 0.0) -> np.ndarray:
    """Numbers that tell their row and column: start + row + column / 100."""
    return (start + np.arange(rows)[:, None] + np.arange(width) / 100).astype(np.float32)


def maniskill_common(traj: h5py.Group, steps: int) -> None:
    traj["actions"] = ramp(steps, 8)
    traj["success"] = np.arange(steps) == steps - 1
    traj["terminated"] = np.zeros(steps, bool)


def maniskill_states(traj: h5py.Group, steps: int, robot: str = "panda") -> None:
    traj[f"env_states/articulations/{robot}"] = ramp(steps + 1, 31, 100)
    traj["env_states/actors/cube"] = ramp(steps + 1, 13, 200)
    traj["env_states/actors/goal_site"] = ramp(steps + 1, 13, 300)
    traj["env_states/actors/table-workspace"] = ramp(steps + 1, 13, 400)


def maniskill_full(folder: Path) -> Path:
    """Current layout with observations, contact forces and a JSON file beside."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "PickCube-v1.h5"
    with h5py.File(path, "w") as file:
        for number, steps in zip(NUMBERS, STEPS, strict=True):
            traj = file.create_group(f"traj_{number}")
            maniskill_common(traj, steps)
            maniskill_states(traj, steps)
            traj["obs/agent/qpos"], traj["obs/agent/qvel"] = ramp(steps + 1, 9), ramp(steps + 1, 9)
            traj["obs/sensor_data/camera/rgb"] = np.zeros((steps + 1, 4, 4, 3), np.uint8)
            extra = traj.create_group("obs/extra")
            extra["tcp_pose"] = ramp(steps + 1, 7, 500)
            extra["obj_pose"] = ramp(steps + 1, 13, 200)[:, :7]  # the cube again
            extra["tcp_to_obj_pos"] = ramp(steps + 1, 3)
            extra["is_grasped"] = np.arange(steps + 1) > 2
            extra["box_hole_pose"] = ramp(steps + 1, 7, 600)
            extra["box_hole_radius"] = ramp(steps + 1, 1, 700)[:, 0]
            extra["peg_half_size"] = ramp(steps + 1, 3, 800)
            traj["contact_forces/cube__lfinger/force"] = ramp(steps, 3, 1)
            traj["contact_forces/cube__lfinger/force_norm_max"] = ramp(steps, 1, 9)[:, 0]
            traj["contact_forces/cube__table/force"] = ramp(steps, 3, 2)
    options = {"control_mode": "pd_joint_pos", "sim_config": {"control_freq": 50, "sim_freq": 100}}
    episodes = [{"episode_id": n, "episode_seed": 7 + n, "control_mode": "pd_joint_pos"} for n in NUMBERS]
    record = {"env_info": {"env_id": "PickCube-v1", "env_kwargs": options}, "episodes": episodes}
    path.with_suffix(".json").write_text(json.dumps(record))
    return path


def maniskill_released(folder: Path) -> Path:
    """Current layout as files are released: no observations, and here no JSON file either."""
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "OpenDrawer-v1.h5", "w") as file:
        for number, steps in zip(NUMBERS, STEPS, strict=True):
            traj = file.create_group(f"traj_{number}")
            maniskill_common(traj, steps)
            maniskill_states(traj, steps, "fetch")
            traj["env_states/articulations/cabinet"] = ramp(steps + 1, 17, 900)
    return folder / "OpenDrawer-v1.h5"


def maniskill_flat(folder: Path) -> Path:
    """The older layout: one array of states without names."""
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "old.h5", "w") as file:
        for number, steps in zip(NUMBERS, STEPS, strict=True):
            maniskill_common(file.create_group(f"traj_{number}"), steps)
            file[f"traj_{number}/env_states"] = ramp(steps + 1, 44)
    return folder / "old.h5"


def maniskill_observed(folder: Path) -> Path:
    """No states at all: observations as one flat array."""
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "observed.h5", "w") as file:
        for number, steps in zip(NUMBERS, STEPS, strict=True):
            maniskill_common(file.create_group(f"traj_{number}"), steps)
            file[f"traj_{number}/obs"] = ramp(steps + 1, 20)
    return folder / "observed.h5"


def robomimic_observables(obs: h5py.Group, rows: int, shift: float = 0) -> None:
    for i, (name, width) in enumerate(
        {
            "robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2, "robot0_gripper_qvel": 2,
            "robot0_joint_pos": 7, "robot0_joint_pos_cos": 7, "robot0_joint_vel": 7, "cube_pos": 3, "cube_quat": 4,
            "bin_pos": 3,
        }.items()
    ):  # fmt: skip
        obs[name] = ramp(rows, width, shift + 100 * i)
    obs["object"] = ramp(rows, 10)
    obs["agentview_image"] = np.zeros((rows, 4, 4, 3), np.uint8)


def robomimic_full(folder: Path) -> Path:
    """Observations and what followed them, as robomimic's own datasets have it."""
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "low_dim.hdf5", "w") as file:
        options = {"control_freq": 20, "robots": ["Panda"], "controller_configs": {"type": "OSC_POSE"}}
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": options})
        for number, steps in zip(NUMBERS, STEPS, strict=True):
            demo = data.create_group(f"demo_{number}")
            demo["actions"], demo["states"] = ramp(steps, 7), ramp(steps, 32)
            robomimic_observables(demo.create_group("obs"), steps)
            robomimic_observables(demo.create_group("next_obs"), steps, 1)
    return folder / "low_dim.hdf5"


def robomimic_object(folder: Path) -> Path:
    """Older observations: everything but the robot in one vector, nothing after the last action."""
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "object.hdf5", "w") as file:
        file.create_group("data").attrs["dt"] = 0.1
        for number, steps in zip(NUMBERS, STEPS, strict=True):
            demo = file.create_group(f"data/demo_{number}")
            demo["actions"], demo["obs/object"] = ramp(steps, 2), ramp(steps, 10).astype(np.float64)
            demo["obs/robot0_eef_pos"] = ramp(steps, 3).astype(np.float64)
    return folder / "object.hdf5"


def robosuite_states(folder: Path) -> Path:
    """States only, with the model that names them."""
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "demo.hdf5", "w") as file:
        file.create_group("data").attrs["env"] = "Door"
        for number, steps in zip(NUMBERS, STEPS, strict=True):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs["model_file"] = MODEL
            demo["actions"], demo["states"] = ramp(steps, 4), timed_states(steps, 1 + MODEL_WIDTH)
    return folder / "demo.hdf5"


def robosuite_hand(folder: Path) -> Path:
    """States only, of an arm in a plane whose model tells where its gripper closes."""
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "demo.hdf5", "w") as file:
        for number, steps in zip(NUMBERS, STEPS, strict=True):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs["model_file"] = ARM_MODEL
            demo["actions"], demo["states"] = ramp(steps, 4), timed_states(steps, 1 + 9 + 8)
    return folder / "demo.hdf5"


def timed_states(rows: int, width: int) -> np.ndarray:
    states = ramp(rows, width).astype(np.float64)
    states[:, 0] = 3 + 0.04 * np.arange(rows)
    return states


def robosuite_unnamed(folder: Path) -> Path:
    """States only, with the name of a model file that is not there."""
    path = robosuite_states(folder)
    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():
            demo.attrs["model_file"] = "model_1.xml"
    return path


def roboturk(folder: Path) -> Path:
    """RoboTurk's pilot: joint velocities and gripper actuations for actions, models in a folder beside."""
    path = robosuite_states(folder)
    (folder / "models").mkdir(exist_ok=True)
    (folder / "models" / "model_1.xml").write_text(MODEL)
    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():
            demo.attrs["model_file"] = "model_1.xml"
            steps = len(demo["actions"])
            del demo["actions"]
            demo["joint_velocities"], demo["gripper_actuations"] = ramp(steps, 7), ramp(steps, 1, 50)
            demo["right_dpos"], demo["right_dquat"] = ramp(steps, 3), ramp(steps, 4)
    return path


def sawyer(folder: Path) -> Path:
    """Our own recordings: contact forces, labels, a cloth, compressed."""
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "SawyerLaundry.hdf5", "w") as file:
        data = file.create_group("data")
        settings = {"env_name": "Tabletop", "family": "laundry", "robots": "Sawyer", "control_freq": 20, "seed": 14}
        data.attrs.update({"env_args": json.dumps(settings), "dt": 0.05, "contact_pairs": list(PAIRS)})
        for number, steps in zip(NUMBERS, STEPS, strict=True):
            demo = data.create_group(f"demo_{number}")
            demo.attrs.update({"dt": 0.05, "mode": "pick", "success": True})
            demo.create_dataset("actions", data=ramp(steps, 7), compression="gzip")
            demo["contact_mode"], demo["phase"] = np.arange(steps), np.arange(steps) + 10
            for i, name in enumerate(("fn_mean", "ft_mean", "fn_max", "ft_max", "frac")):
                demo[f"next_contact/{name}"] = ramp(steps, 2, 1 + 10 * i)
            demo.create_dataset("obs/cloth_vert", data=ramp(steps, 6).reshape(steps, 2, 3), compression="gzip")
            demo["obs/robot0_eef_pos"] = ramp(steps, 3, 20)
            demo["obs/nothing"] = np.zeros((steps, 0))
    return folder / "SawyerLaundry.hdf5"


def aloha(folder: Path) -> Path:
    """One demonstration of two arms."""
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "episode_0.hdf5", "w") as file:
        file.attrs["sim"] = True
        file["observations/qpos"], file["observations/qvel"] = ramp(6, 14), ramp(6, 14, 100)
        file["observations/images/top"] = np.zeros((6, 4, 4, 3), np.uint8)
        file["action"] = ramp(6, 14, 200)
    return folder / "episode_0.hdf5"


def aloha_described(folder: Path) -> Path:
    """Seven joints, efforts, a moving base, and a description that says the rate and names the actions."""
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "episode_7.hdf5", "w") as file:
        file["observations/qpos"], file["observations/effort"] = ramp(6, 7), ramp(6, 7, 100)
        file["action"], file["base_action"] = ramp(5, 7, 200), ramp(5, 2, 300)
        file["compress_len"] = ramp(3, 6)
    said = {"dt": 0.1, "actions": [{"key": "action[0:2]", "names": ["arm.joint_target_1", "arm.joint_target_2"]}]}
    (folder / "channels.json").write_text(json.dumps(said))
    return folder / "episode_7.hdf5"


BUILDERS: dict[str, Callable[[Path], Path]] = {
    "maniskill_full": maniskill_full,
    "maniskill_released": maniskill_released,
    "maniskill_flat": maniskill_flat,
    "maniskill_observed": maniskill_observed,
    "robomimic_full": robomimic_full,
    "robomimic_object": robomimic_object,
    "robosuite_states": robosuite_states,
    "robosuite_unnamed": robosuite_unnamed,
    "robosuite_hand": robosuite_hand,
    "roboturk": roboturk,
    "sawyer": sawyer,
    "aloha": aloha,
    "aloha_described": aloha_described,
}
