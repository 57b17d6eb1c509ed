"""What a robosuite demonstration shows: its observables as channels."""

import math
import re

import numpy as np

from vhydro.data.assembly import floats
from vhydro.data.columns import POSITION, QUATERNION, Columns, numbered
from vhydro.data.hdf5 import Group

W_FIRST = [3, 0, 1, 2]  # robosuite's observations have w last
# What repeats other channels: sines, accelerations, a quaternion of another frame, differences, flat copies.
REPEATED = re.compile(r"_joint_pos_(cos|sin)$|_joint_acc$|_eef_quat_site$|-state$|_to_|_proprio$")
STILL = re.compile(r"(bin|occluder|goal|table|wall|hole)[0-9]*|.*_goal")
ROBOT = {  # observable: body, group, quantity
    "joint_pos": ("arm", "joints", "joint"),
    "joint_vel": ("arm", "joints", "joint_velocity"),
    "gripper_qpos": ("gripper", "gripper", "finger"),
    "gripper_qvel": ("gripper", "gripper", "finger_velocity"),
    "eef_pos": ("tcp", "end_effector", ""),
    "eef_quat": ("tcp", "end_effector", ""),
}


class Observables:
    """The keys of `obs` that become channels; `next_obs`, where it has them all, adds the last action's outcome."""

    def __init__(self, obs: Group, following: Group | None, count: int):
        self.obs, self.count = obs, count
        self.shapes = {n: obs.shape(n) for n in obs.names() if obs.subgroup(n) is None}
        self.used = used(self.shapes)
        known = following.names() if following else []
        self.following = following if self.used and set(self.used) <= set(known) else None

    @property
    def has_images(self) -> bool:
        return any(len(shape) > 2 and n != "cloth_vert" for n, shape in self.shapes.items())

    def values(self, name: str, *shape: int | None) -> np.ndarray:
        """The rows of a key, of this shape after the first axis."""
        here = floats(self.obs.numbers(name, self.count, *shape))
        if self.following is None:
            return here
        outcome = self.following.numbers(name, self.count, *here.shape[1:], last=1)
        return np.concatenate([here, floats(outcome)])

    def columns(self) -> Columns:
        """Arm and gripper by their names, every other position and quaternion as a body's."""
        columns = Columns()
        for name in self.used:
            machine, _, quantity = name.partition("_")
            if name == "cloth_vert":
                add_cloth(columns, self)
            elif re.fullmatch(r"robot[0-9]+", machine) and quantity in ROBOT:
                add_robot(columns, self, name)
            else:
                add_body(columns, self, name)
        return columns


def used(shapes: dict[str, tuple[int, ...]]) -> list[str]:
    """No images, nothing of width 0, nothing that repeats another key."""
    found = [n for n, shape in shapes.items() if not REPEATED.search(n) and is_vector(n, shape)]
    # The flat vector `object` holds the same poses as the keys of the bodies, and its layout is the task's secret.
    bodies = any(n.endswith("_pos") and not n.startswith("robot") for n in found)
    return [n for n in found if n != "object" or not bodies]


def is_vector(name: str, shape: tuple[int, ...]) -> bool:
    return math.prod(shape[1:]) > 0 and (len(shape) in (1, 2) or (name == "cloth_vert" and len(shape) == 3))


def add_cloth(columns: Columns, observables: Observables) -> None:
    vertices = observables.shapes["cloth_vert"][1]
    axes = [(f"v{i + 1}.{axis}", "m") for i in range(vertices) for axis in "xyz"]
    columns.add("cloth", observables.values("cloth_vert", vertices, 3), axes, "object")


def add_robot(columns: Columns, observables: Observables, name: str) -> None:
    machine, _, quantity = name.partition("_")
    body, group, label = ROBOT[quantity]
    body = body if machine == "robot0" else f"{machine}.{body}"
    if quantity == "eef_pos":
        columns.add(body, observables.values(name, 3), POSITION, group)
    elif quantity == "eef_quat":
        columns.add(body, observables.values(name, 4)[:, W_FIRST], QUATERNION, group)
    else:
        values = observables.values(name, None)
        width = values.shape[1]
        # robosuite's arms turn; its grippers of two joints slide, those of more do both.
        unit = "rad" if group == "joints" else "m" if width == 2 else ""
        rate = f"{unit}/s" if unit and label.endswith("velocity") else unit
        columns.add(body, values, numbered(label, width, rate), group)


def add_body(columns: Columns, observables: Observables, name: str) -> None:
    """A position or a quaternion of a body by its name; anything else is numbered."""
    body, _, quantity = name.rpartition("_")
    width = observables.shapes[name][1:]
    group = "scene" if STILL.fullmatch(body) else "object"
    if body and (quantity, width) == ("pos", (3,)):
        columns.add(body, observables.values(name, 3), POSITION, group)
    elif body and (quantity, width) == ("quat", (4,)):
        columns.add(body, observables.values(name, 4)[:, W_FIRST], QUATERNION, group)
    else:
        numbers = [(f"s{i + 1}", "") for i in range(math.prod(width))]
        columns.add(name, observables.values(name, *width), numbers, "object")
