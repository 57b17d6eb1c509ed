"""ALOHA and ACT demonstrations: one HDF5 file for each, with `observations/qpos` and `action` at its root."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vhydro.data.dataset import Dataset
from vhydro.data.description import Block, Description, Part, Reference, overlaid
from vhydro.data.errors import DataError
from vhydro.data.hdf5 import Group, Hdf5File, is_hdf5
from vhydro.data.options import DEFAULT, ReadOptions
from vhydro.data.tables import tabular_dataset
from vhydro.episodes import Channel

USUAL_DT = 0.02  # s, what ALOHA's recorder runs at
BIMANUAL = 14  # numbers: six joints and a gripper of the left arm, then of the right
OBSERVED = {"qpos": ("", "rad"), "qvel": ("_velocity", "rad/s"), "effort": ("_effort", "")}
KNOWN = (*OBSERVED, "observations", "action", "base_action")
NO_RATE = (
    "The file tells no rate: ALOHA's 50 Hz is assumed. Say another with --rate, or in NAME.channels.json beside it."
)
NAMED = "Joints are named by the order that ALOHA has them in: six and a gripper of the left arm, then of the right."
NUMBERED = "Joints are numbered: their names are known of 14 numbers only, those of two arms."


class Aloha:
    """Reads one demonstration of joint positions and targets."""

    name = "ALOHA HDF5"
    choices = ("rate",)

    def recognises(self, path: Path) -> bool:
        """Whether there are `observations` and `action` at the root."""
        try:
            return is_hdf5(path) and {"observations", "action"} <= set(Hdf5File(path).root().names())
        except DataError:
            return False

    def open(self, path: Path, options: ReadOptions = DEFAULT) -> Dataset:
        table = Hdf5Table.of(path)
        said = overlaid(usual_description(table), path, options.dt, USUAL_DT, NO_RATE)
        return tabular_dataset(self.name, table, said)


@dataclass(frozen=True)
class Hdf5Table:
    """The arrays of an HDF5 file by their keys; images are none of them."""

    file: Path
    opened: Hdf5File
    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, path: Path) -> "Hdf5Table":
        opened = Hdf5File(path)
        root = opened.root()
        shapes = dict(numeric(root, "")) | dict(numeric(root.group("observations"), "observations/"))
        return cls(path, opened, shapes)

    def dtype(self, key: str) -> np.dtype:
        return self.opened.root().dataset(key).dtype

    def array(self, key: str, episode: str = "") -> np.ndarray:
        root = replace(self.opened.root(), episode=episode)
        return root.numbers(key, *(None,) * len(self.shapes[key]))


def numeric(group: Group, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The arrays of numbers of a group that may have a row for each time, and their shapes."""
    for name in group.names():
        try:
            shape = () if group.subgroup(name) else group.shape(name)
        except DataError:
            if name in KNOWN:
                raise
            continue  # texts, packed images, links: whatever it is, it is none of ours
        if len(shape) in (1, 2):
            yield f"{prefix}{name}", shape


def usual_description(table: Hdf5Table) -> Description:
    """What ALOHA's arrays mean."""
    shapes = table.shapes
    for key in ("observations/qpos", "action"):
        if len(shapes.get(key, ())) != 2:
            found = f"{', '.join(shapes) or 'nothing'}"
            raise DataError(table.file, key=key, found=found, expected="joint positions and actions, (rows, joints)")
    observed = [
        Block(Reference(f"observations/{key}"), joints(shapes[f"observations/{key}"][1], ending, unit, "joints"))
        for key, (ending, unit) in OBSERVED.items()
        if len(shapes.get(f"observations/{key}", ())) == 2
    ]
    actions = [Block(Reference("action"), joints(shapes["action"][1], "_target", "rad", "action"))]
    if len(shape := shapes.get("base_action", ())) == 2:
        actions.append(Block(Reference("base_action"), base(shape[1])))
    known = {b.reference.key for b in (*observed, *actions)}
    left = sorted(set(shapes) - known)
    both = shapes["observations/qpos"][1] == BIMANUAL
    notes = [NAMED if both else NUMBERED, "Images are left out."]
    notes += [f"Left out: {', '.join(left[:12])}."] if left else []
    return Description((Part(tuple(observed), tuple(actions)),), tuple(notes))


def joints(width: int, ending: str, unit: str, group: str) -> tuple[Channel, ...]:
    """Channels of so many joints: of two arms with grippers where the number is that of ALOHA."""
    if width != BIMANUAL:
        return tuple(Channel(f"arm.joint{ending}_{i + 1}", group, unit) for i in range(width))
    return tuple(c for side in ("left", "right") for c in arm(side, ending, unit, group))


def arm(side: str, ending: str, unit: str, group: str) -> Sequence[Channel]:
    turning = [Channel(f"{side}.joint{ending}_{i + 1}", group, unit) for i in range(6)]
    grip = Channel(f"{side}.gripper{ending}", "gripper" if group == "joints" else group)  # a share of its opening
    return [*turning, grip]


def base(width: int) -> tuple[Channel, ...]:
    """The commands of a moving base: along, and around, where there are two."""
    if width != 2:
        return tuple(Channel(f"base.command_{i + 1}", "action") for i in range(width))
    return Channel("base.velocity", "action", "m/s"), Channel("base.angular_velocity", "action", "rad/s")
