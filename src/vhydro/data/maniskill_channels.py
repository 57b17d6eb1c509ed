"""What a ManiSkill trajectory shows: joints, end effector, bodies and the task's own fields as channels."""

import re

import numpy as np

from vhydro.data.assembly import floats
from vhydro.data.columns import POSE, POSITION, SPIN, VELOCITY, Columns, numbered
from vhydro.data.hdf5 import Group

STATE = POSE + VELOCITY + SPIN
ROBOTS = (
    "allegro", "anymal", "dclaw", "fetch", "floating", "google", "humanoid", "inspire", "koch", "panda", "so100",
    "stompy", "trifinger", "unitree", "ur", "widowx", "xarm", "xmate",
)  # fmt: skip
FLOOR = ("table", "ground")
SCENERY = ("goal", "box_with_hole", "target", "hole", "box_hole")
CONSTANT = re.compile(r"(.+?)_((?:half_)?(?:size|radius|length|width|height))")  # of a body: it never changes


def observed(group: Group, keys: list[str], rows: int) -> Columns:
    """Joints, end effector, bodies and scene, from the states where there are some, else from the observations."""
    columns = Columns()
    obs = group.subgroup("obs") if "obs" in keys else None
    inside = obs.names() if obs else []
    extra = obs.group("extra") if obs and "extra" in inside else None
    fields = extra.names() if extra else []
    states = group.subgroup("env_states") if "env_states" in keys else None
    kinds = states.names() if states else []
    if states and "articulations" in kinds:
        add_articulations(columns, states.group("articulations"), rows)
    elif obs and "agent" in inside:
        add_agent(columns, obs.group("agent"), rows)
    if extra and "tcp_pose" in fields:
        columns.add("tcp", extra.numbers("tcp_pose", rows, 7), POSE, "end_effector")
    bodies = add_actors(columns, states.group("actors"), rows) if states and "actors" in kinds else {}
    if "env_states" in keys and states is None:
        add_flat(columns, group, "env_states", "state", rows)
    if extra:
        add_extra(columns, extra, fields, bodies, rows)
    if not columns.values and "obs" in keys and obs is None:
        add_flat(columns, group, "obs", "obs", rows)
    if not columns.values:
        raise group.fault("env_states", f"only {', '.join(keys)}", "states or observations")
    return columns


def add_flat(columns: Columns, group: Group, key: str, body: str, rows: int) -> None:
    values = floats(group.numbers(key, rows, None))
    columns.add(body, values, [(f"s{i + 1}", "") for i in range(values.shape[1])], "object")


def is_robot(name: str, among: int) -> bool:
    """Whether an articulation is a robot; if it is alone it must be, for something carries out the actions."""
    return among == 1 or "-agent-" in name or name.startswith(ROBOTS)


def add_articulations(columns: Columns, group: Group, rows: int) -> None:
    """Joint positions and velocities: the 13 numbers of the root come first and are left out."""
    names = group.names()
    robots = [n for n in names if is_robot(n, len(names))]
    for name in names:
        values = floats(group.numbers(name, rows, None))
        joints, odd = divmod(values.shape[1] - 13, 2)
        if joints < 0 or odd:
            raise group.fault(name, f"{values.shape[1]} numbers", "13 of the root and two for each joint")
        arm, hand = ("arm", "gripper") if robots == [name] else (name, f"{name}.gripper")
        position, velocity = values[:, 13 : 13 + joints], values[:, 13 + joints :]
        if name in robots and name.startswith("panda") and joints == 9:
            add_panda(columns, arm, hand, position, velocity)
        else:
            add_joints(columns, arm, position, velocity, "joints" if name in robots else "object")


def add_agent(columns: Columns, group: Group, rows: int) -> None:
    keys = group.names()
    if "qpos" in keys and "qvel" in keys:
        position = floats(group.numbers("qpos", rows, None))
        add_joints(columns, "arm", position, floats(group.numbers("qvel", rows, position.shape[1])), "joints")


def add_panda(columns: Columns, arm: str, hand: str, position: np.ndarray, velocity: np.ndarray) -> None:
    """Seven joints and two fingers; which of them slide is known for this robot."""
    columns.add(arm, position[:, :7], numbered("joint", 7, "rad"), "joints")
    columns.add(arm, velocity[:, :7], numbered("joint_velocity", 7, "rad/s"), "joints")
    columns.add(hand, position[:, 7:], numbered("finger", 2, "m"), "gripper")
    columns.add(hand, velocity[:, 7:], numbered("finger_velocity", 2, "m/s"), "gripper")


def add_joints(columns: Columns, body: str, position: np.ndarray, velocity: np.ndarray, group: str) -> None:
    """Joints of a robot or of a thing, such as a cabinet; whether they turn or slide is not known: no unit."""
    columns.add(body, position, numbered("joint", position.shape[1]), group)
    columns.add(body, velocity, numbered("joint_velocity", velocity.shape[1]), group)


def add_actors(columns: Columns, group: Group, rows: int) -> dict[str, np.ndarray]:
    """Every body but the table and the ground; comes back as a mapping from name to its 13 numbers."""
    bodies = {n: floats(group.numbers(n, rows, 13)) for n in group.names() if not n.startswith(FLOOR)}
    for name, values in bodies.items():
        still = name.startswith(SCENERY) or name.endswith(("_site", "_region"))
        columns.add(name, values, STATE, "scene" if still else "object")
    return bodies


def is_derived(name: str, bodies: dict[str, np.ndarray]) -> bool:
    """Whether a field is a difference of two poses, or the pose of a body that has its own channels."""
    return "_to_" in name or name == "tcp_pose" or name.removesuffix("_pose") in bodies


def add_extra(columns: Columns, group: Group, names: list[str], bodies: dict[str, np.ndarray], rows: int) -> None:
    """The task's own fields, without those that only repeat a body under another name."""
    for name in names:
        if is_derived(name, bodies):
            continue
        stored = group.dataset(name)
        if len(stored.shape) > 2:
            continue  # an image
        values = group.numbers(name, rows, *stored.shape[1:], stored=stored)
        # A flag fits in any float: it must not make the whole episode double.
        values = (values.astype(np.float32) if values.dtype.kind == "b" else floats(values)).reshape(rows, -1)
        copies = (b[:, : values.shape[1]] for b in bodies.values())
        if name.endswith(("_pose", "_pos")) and any(np.array_equal(values, c) for c in copies):
            continue
        add_field(columns, name, values)


def add_field(columns: Columns, name: str, values: np.ndarray) -> None:
    """One field under the best name its own name allows."""
    width, constant = values.shape[1], CONSTANT.fullmatch(name)
    if name.endswith("_pose") and width == 7:
        body, quantities = name.removesuffix("_pose"), POSE
    elif name.endswith("_pos") and width == 3:
        body, quantities = name.removesuffix("_pos"), POSITION
    elif constant:
        body, quantities = constant[1], measures(constant[2], width, "m")
    else:
        body, quantities = "extra", measures(name, width)
    taken = {c.name for c in columns.channels}
    if any(f"{body}.{q}" in taken for q, _ in quantities):
        body, quantities = "extra", measures(name, width)
    columns.add(body, values, quantities, "scene" if constant or name.startswith(SCENERY) else "object")


def measures(name: str, width: int, unit: str = "") -> tuple[tuple[str, str], ...]:
    return ((name, unit),) if width == 1 else numbered(name, width, unit)
