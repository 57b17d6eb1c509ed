"""ManiSkill trajectories: HDF5 groups `traj_0, traj_1, …`, with what is known about them in a JSON file beside."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vhydro.data.assembly import assembled, floats
from vhydro.data.columns import numbered
from vhydro.data.dataset import Dataset
from vhydro.data.errors import DataError
from vhydro.data.hdf5 import Group, Hdf5File, in_order, is_hdf5, mapping, plain, said
from vhydro.data.maniskill_channels import observed
from vhydro.episodes import Channel, Contact, Episode

DEFAULT_RATE = 20.0  # Hz, what ManiSkill runs at unless told otherwise
LARGEST_JSON = 1 << 28  # bytes
UNNAMED = "the older flat env_states has no names: its channels are numbered state.s1, state.s2, …"
ARM = numbered("joint_target", 7, "rad")
SHIFT = (("dx", ""), ("dy", ""), ("dz", ""))  # normalised to [-1, 1] by ManiSkill's controllers, hence no unit
TURN = (("drx", ""), ("dry", ""), ("drz", ""))
GRIPPER = Channel("gripper.command", "action")
COMMANDS = {
    "pd_joint_pos": ("arm", ARM),
    "pd_joint_delta_pos": ("arm", numbered("joint_delta", 7)),
    "pd_ee_delta_pos": ("tcp", SHIFT),
    "pd_ee_delta_pose": ("tcp", SHIFT + TURN),
}


class ManiSkill:
    """Reads ManiSkill's recordings, with or without observations, current and older layout."""

    name = "ManiSkill HDF5"

    def recognises(self, path: Path) -> bool:
        """Whether there are `traj_…` groups. A damaged HDF5 file is taken too, so that it is reported, not skipped."""
        if not is_hdf5(path):
            return False
        try:
            return bool(in_order(Hdf5File(path).root().names(), "traj"))
        except DataError:
            return True

    def open(self, path: Path) -> Dataset:
        file = Hdf5File(path)
        names = in_order(file.root().names(), "traj")
        if not names:
            raise DataError(path, found="no group traj_0, traj_1, …", expected="a ManiSkill recording")
        about = About.beside(path)
        first = file.root().group(names[0], episode=names[0])
        notes = (*about.notes, *structure_notes(first))
        assumed = next(iter(about.notes), "")
        return Dataset(self.name, path, tuple(names), Loader(file, tuple(names), about), notes, assumed)


@dataclass(frozen=True)
class About:
    """What the JSON file says: the task, the time between two steps, and a record for each trajectory."""

    task: str
    dt: float
    control_mode: str = ""
    episodes: dict[str, dict] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def beside(cls, path: Path) -> "About":
        """From `TASK.json` beside `TASK.h5`; without one, the file's name and ManiSkill's default rate."""
        sidecar = path.with_suffix(".json")
        record = read_json(sidecar) if sidecar.is_file() else {}
        environment = mapping(record.get("env_info"))
        options = mapping(environment.get("env_kwargs"))
        said_by = (mapping(options.get("sim_config")), options, environment)
        rate = next((place["control_freq"] for place in said_by if place.get("control_freq") is not None), None)
        note = f"no control rate beside the file: ManiSkill's default of {DEFAULT_RATE:g} Hz is assumed"
        episodes = record.get("episodes")
        listed = [e for e in episodes if isinstance(e, dict)] if isinstance(episodes, list) else []
        return cls(
            task=str(environment.get("env_id") or path.stem),
            dt=1 / (DEFAULT_RATE if rate is None else checked_rate(rate, sidecar)),
            control_mode=str(options.get("control_mode") or ""),
            episodes={f"traj_{e.get('episode_id')}": e for e in listed},
            notes=(note,) if rate is None else (),
        )

    def info(self, name: str) -> dict[str, str | float | bool]:
        """Task, seed, control mode and success of a trajectory, as far as they are known."""
        mine = self.episodes.get(name, {})
        seed = mine.get("episode_seed", mapping(mine.get("reset_kwargs")).get("seed"))
        mode = mine.get("control_mode") or self.control_mode or None
        found = {"task": self.task, "seed": seed, "control_mode": mode, "success": mine.get("success")}
        return plain({k: v for k, v in found.items() if v is not None})


def read_json(path: Path) -> dict:
    """The object in a JSON file."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise DataError(path, found=f"{path.stat().st_size:,} bytes", expected=f"at most {LARGEST_JSON:,}")
        record = json.loads(path.read_bytes())
    except DataError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        remedy = "Correct or remove it: it is optional."
        raise DataError(path, found=f"no JSON ({said(error)})", expected="a JSON object", remedy=remedy) from None
    if not isinstance(record, dict):
        raise DataError(path, found=f"a JSON {type(record).__name__}", expected="a JSON object")
    return record


def checked_rate(rate: Any, path: Path) -> float:
    if isinstance(rate, (int, float)) and not isinstance(rate, bool) and 1e-9 < rate < 1e9:
        return float(rate)
    raise DataError(path, key="control_freq", found=said(ValueError(rate)), expected="a positive rate in Hz")


@dataclass(frozen=True)
class Loader:
    """Reads one trajectory when it is called with its number."""

    file: Hdf5File
    names: tuple[str, ...]
    about: About

    def __call__(self, index: int) -> Episode:
        name = self.names[index]
        group = self.file.root().group(name, episode=name)
        keys = group.names()
        require(group, keys, "actions")
        actions = floats(group.numbers("actions", None, None))
        info = self.about.info(name)
        if "success" in keys:
            success = group.numbers("success", None)
            info["success"] = bool(success[-1]) if len(success) else False
        columns = observed(group, keys, len(actions) + 1)
        return assembled(
            group.file,
            name,
            observations=columns.array(),
            actions=actions,
            dt=self.about.dt,
            channels=columns.channels,
            inputs=commands(str(info.get("control_mode", "")), actions.shape[1]),
            contacts=contacts(group, len(actions)) if "contact_forces" in keys else (),
            info=info,
        )


def require(group: Group, keys: list[str], name: str) -> None:
    if name not in keys:
        raise group.fault(name, f"only {', '.join(keys) or 'nothing'}", f"a key '{name}'")


def commands(mode: str, width: int) -> tuple[Channel, ...]:
    """Names of the actions, as far as the control mode tells them."""
    body, quantities = COMMANDS.get(mode, ("", ()))
    if body and width == len(quantities) + 1:
        return (*(Channel(f"{body}.{name}", "action", unit) for name, unit in quantities), GRIPPER)
    return tuple(Channel(f"action.a{i + 1}", "action") for i in range(width))


def contacts(group: Group, steps: int) -> tuple[Contact, ...]:
    """The forces between each two bodies; PhysX tells no friction, so what it gives is the normal force."""
    forces = group.group("contact_forces")
    return tuple(contact(forces, name, steps) for name in forces.names())


def contact(group: Group, name: str, steps: int) -> Contact:
    bodies = name.split("__")
    if len(bodies) != 2 or not all(bodies):
        raise group.fault(name, "such a name", "two bodies, A__B")
    normal = np.zeros(steps + 1)
    force = floats(group.numbers(f"{name}/force", steps, 3)).astype(np.float64)
    np.sqrt(np.einsum("ij,ij->i", force, force), out=normal[1:])
    peak = normal
    if group.has(f"{name}/force_norm_max"):
        peak = np.zeros(steps + 1)
        peak[1:] = group.numbers(f"{name}/force_norm_max", steps)
    if not (math.isfinite(normal.sum()) and math.isfinite(peak.sum())):
        raise group.fault(name, "a force that is not finite", "newtons")
    return Contact((bodies[0], bodies[1]), peak, normal)


def structure_notes(group: Group) -> list[str]:
    """What is left out or guessed, judged by the first trajectory's structure."""
    keys, notes = group.names(), []
    if "env_states" in keys and group.subgroup("env_states") is None:
        notes.append(UNNAMED)
    if "obs" in keys and (obs := group.subgroup("obs")):
        inside = obs.names()
        if {"sensor_data", "image"} & set(inside):
            notes.append("images are left out")
        fields = obs.group("extra").names() if "extra" in inside else []
        if any("_to_" in name for name in fields):
            notes.append("fields of obs/extra that are differences of two bodies (a_to_b_pos) are left out")
    return notes
