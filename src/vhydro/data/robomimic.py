"""robomimic, robosuite and RoboTurk demonstrations: HDF5 groups `data/demo_0, data/demo_1, …`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vhydro.data.assembly import DROPPED_NOTE, assembled, floats
from vhydro.data.columns import Columns
from vhydro.data.dataset import Dataset
from vhydro.data.errors import DataError
from vhydro.data.hdf5 import Group, Hdf5File, in_order, is_hdf5, mapping, plain
from vhydro.data.mujoco_kinematics import add_hands, hands
from vhydro.data.mujoco_state import LARGEST_MODEL, state_channels
from vhydro.data.robosuite_channels import Observables
from vhydro.episodes import Channel, Contact, Episode

DEFAULT_RATE = 20.0  # Hz, what robosuite runs at unless told otherwise
LABELS = ("contact_mode", "phase")
ROBOTURK = {"joint_velocities": "arm.joint_velocity_target", "gripper_actuations": "gripper.command"}
UNNAMED = "the states come without a model that names them: channels are numbered state.s1, state.s2, …"
HAND = "the hand's place, tcp, was computed from the joints by the MuJoCo model in the file"
ASSUMED = f"no rate given: robosuite's {DEFAULT_RATE:g} Hz is assumed"
CLOCK_REMEDY = "Give the attribute `dt` of the group `data`, in seconds."
OSC = {"OSC_POSE": ("dx", "dy", "dz", "drx", "dry", "drz"), "OSC_POSITION": ("dx", "dy", "dz")}


class Robomimic:
    """Reads demonstrations with observations or with MuJoCo states only."""

    name = "robomimic/robosuite HDF5"

    def recognises(self, path: Path) -> bool:
        """Whether there are `data/demo_…` groups."""
        try:
            return is_hdf5(path) and bool(demos(Hdf5File(path).root()))
        except DataError:
            return False

    def open(self, path: Path) -> Dataset:
        file = Hdf5File(path)
        names = tuple(demos(file.root()))
        if not names:
            raise DataError(path, key="data", found="no group demo_0, demo_1, …", expected="demonstrations")
        about = about_all(file.root().group("data"))
        first = file.root().group("data").group(names[0], episode=names[0])
        about = about._replace(model=model_of(first))
        notes = structure_notes(first, about)
        assumed = ASSUMED if ASSUMED in notes else ""
        return Dataset(self.name, path, names, Loader(file, names, about), tuple(notes), assumed)


def demos(root: Group) -> list[str]:
    data = root.subgroup("data") if "data" in root.names() else None
    return in_order(data.names(), "demo") if data else []


class About(NamedTuple):
    """What the file says of all its demonstrations."""

    task: str
    dt: float | None  # None: by the states' clock
    pairs: tuple[str, ...]  # of bodies, whose contact forces are recorded
    seed: float | None
    robot: str
    controller: str
    model: str = ""  # MJCF of the first demonstration


def about_all(data: Group) -> About:
    """The attributes of the group `data`, and the JSON in them."""
    settings = json_attribute(data, "env_args") or json_attribute(data, "env_info")
    options = {**settings, **mapping(settings.get("env_kwargs"))}
    seed, robots, pairs = options.get("seed"), options.get("robots"), data.attribute("contact_pairs")
    task = settings.get("family") or settings.get("env_name") or data.attribute("env")
    return About(
        task=text(task),
        dt=dt_of_all(data, options.get("control_freq")),
        pairs=tuple(text(p) for p in pairs) if isinstance(pairs, list) else (),
        seed=float(seed) if isinstance(seed, int) and abs(seed) < 1 << 53 else None,
        robot=text(robots[0] if isinstance(robots, list) and robots else robots),
        controller=text(options.get("controller")) or text(mapping(options.get("controller_configs")).get("type")),
    )


def dt_of_all(data: Group, rate: Any) -> float | None:
    dt = data.attribute("dt")
    if dt is not None:
        return checked_dt(data, dt)
    if rate is None or is_positive(rate):
        return None if rate is None else 1 / rate
    raise data.fault("@env_args", f"control_freq {str(rate)[:50]!a}", "a positive rate in Hz")


def text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value if isinstance(value, str) else ""


def is_positive(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 1e-9 < value < 1e9


def checked_dt(group: Group, dt: Any) -> float:
    if not is_positive(dt):
        raise group.fault("@dt", f"{str(dt)[:50]}", "the positive time between two observations, in seconds")
    return float(dt)


def json_attribute(group: Group, name: str) -> dict:
    """The JSON object of an attribute; an empty one if it is not there."""
    value = group.attribute(name)
    if not isinstance(value, str) or not value:
        return {}
    try:
        record = json.loads(value)
    except (ValueError, RecursionError):
        raise group.fault(f"@{name}", "text that is not JSON", "a JSON object") from None
    return record if isinstance(record, dict) else {}


def model_of(demo: Group) -> str:
    """The MJCF text of a demonstration: an attribute, or a file of the folder `models` beside, as RoboTurk has it."""
    value = demo.attribute("model_file")
    if not isinstance(value, str) or "<mujoco" in value:
        return value if isinstance(value, str) else ""
    beside = demo.file.parent / "models" / value
    try:
        if beside.name == value and beside.is_file() and beside.stat().st_size <= LARGEST_MODEL:
            return beside.read_text()
    except (OSError, ValueError):
        pass  # the name says nothing then, which is what the note on unnamed states tells
    return ""


@dataclass(frozen=True)
class Loader:
    """Reads one demonstration when it is called with its number."""

    file: Hdf5File
    names: tuple[str, ...]
    about: About

    def __call__(self, index: int) -> Episode:
        name = self.names[index]
        return Demonstration(self.file.root().group("data").group(name, episode=name), self.about).episode()


class Demonstration:
    """One demonstration, each key read at most once."""

    def __init__(self, group: Group, about: About):
        self.group, self.about = group, about
        self.keys = group.names()
        self.read_states: np.ndarray | None = None

    def episode(self) -> Episode:
        actions, inputs = commands(self.group, self.keys, self.about.controller)
        if not len(actions):
            raise self.group.fault("actions", "no rows", "at least one action")
        columns = self.columns(len(actions))
        observations = columns.array()
        kept = len(observations) - 1  # one less than there are actions if the last one's outcome is not recorded
        return assembled(
            self.group.file,
            self.group.episode,
            observations=observations,
            actions=actions[:kept],
            dt=self.dt(len(actions)),
            channels=columns.channels,
            inputs=inputs,
            labels={k: led_to(self.group.numbers(k, len(actions))[:kept]) for k in LABELS if k in self.keys},
            contacts=contacts(self.group, self.keys, len(actions), kept, self.about.pairs),
            info=self.info(),
        )

    def columns(self, count: int) -> Columns:
        """The channels of `obs`, or of `states` where it has none."""
        if "obs" in self.keys:
            following = self.group.group("next_obs") if "next_obs" in self.keys else None
            observables = Observables(self.group.group("obs"), following, count)
            columns = observables.columns()
            if columns.values:
                return columns if observables.following else self.with_hand(columns, count)
        if "states" not in self.keys:
            raise self.group.fault("obs", f"only {', '.join(self.keys)}", "numbers in obs, or states")
        return self.state_columns(count)

    def state_columns(self, count: int) -> Columns:
        """MuJoCo's flat states, named by the model; their first number is the time and no observation."""
        states = self.states(count)[:, 1:]
        width = states.shape[1]
        if not width:
            raise self.group.fault("states", "a width of at most 1", "time, positions and velocities")
        named = state_channels(self.model, width)
        if named is None:
            return Columns([Channel(f"state.s{i + 1}", "object") for i in range(width)], [states])
        return self.with_hand(Columns(named, [states]), count)

    def with_hand(self, columns: Columns, count: int) -> Columns:
        """The columns and, where none shows the hand, its place by the model and the states."""
        if "states" in self.keys and not shows_hand(columns.channels) and hands(self.model):
            states = self.states(count)[:, 1:]
            if state_channels(self.model, states.shape[1]) is not None:
                add_hands(columns, self.model, states)
        return columns

    @cached_property
    def model(self) -> str:
        return model_of(self.group) or self.about.model

    def states(self, count: int) -> np.ndarray:
        if self.read_states is None:
            self.read_states = floats(self.group.numbers("states", count, None))
        return self.read_states

    def dt(self, count: int) -> float:
        """The time between two observations: of the demonstration, of the file, or by the states' clock."""
        mine = self.group.attribute("dt")
        if mine is not None:
            return checked_dt(self.group, mine)
        if self.about.dt is not None:
            return self.about.dt
        if "states" not in self.keys or count < 2:
            return 1 / DEFAULT_RATE
        clock = self.states(count)[:, :1].ravel().astype(float)
        with np.errstate(all="ignore"):  # what is not finite is refused below
            step = round(float(np.median(np.diff(clock))), 9) if len(clock) == count else 0.0
        if not is_positive(step):
            raise self.group.fault("states", "a clock that does not advance", "time in the first column", CLOCK_REMEDY)
        return step

    def info(self) -> dict[str, str | float | bool]:
        found = {"task": self.about.task, "robot": self.about.robot, "seed": self.about.seed}
        found |= {name: self.group.attribute(name) for name in ("success", "mode")}
        return plain({k: v for k, v in found.items() if v is not None and v != ""})


def shows_hand(channels: Sequence[Channel]) -> bool:
    return any(c.name == "tcp.x" for c in channels)


def commands(demo: Group, keys: list[str], controller: str) -> tuple[np.ndarray, tuple[Channel, ...]]:
    """The actions and their names; RoboTurk's are joint velocities and gripper actuations."""
    if "actions" in keys:
        actions = floats(demo.numbers("actions", None, None))
        return actions, action_names(controller, actions.shape[1])
    found = [k for k in ROBOTURK if k in keys]
    if not found:
        raise demo.fault("actions", f"only {', '.join(keys) or 'nothing'}", "actions")
    parts = [floats(demo.numbers(found[0], None, None))]
    parts += [floats(demo.numbers(k, len(parts[0]), None)) for k in found[1:]]
    inputs = [
        Channel(f"{ROBOTURK[k]}_{i + 1}", "action")
        for k, p in zip(found, parts, strict=True)
        for i in range(p.shape[1])
    ]
    return np.concatenate(parts, axis=1), tuple(inputs)


def action_names(controller: str, width: int) -> tuple[Channel, ...]:
    """Names as far as the controller tells them: an arm's OSC commands are normalised, so they have no unit."""
    moves = next((names for kind, names in OSC.items() if kind in controller), ())
    if moves and width - len(moves) in (0, 1):
        named = (*(f"tcp.{m}" for m in moves), "gripper.command")[:width]
        return tuple(Channel(n, "action") for n in named)
    return tuple(Channel(f"action.a{i + 1}", "action") for i in range(width))


def led_to(values: np.ndarray) -> np.ndarray:
    """Labels of steps as labels of the observations they led to; the first observation has the first step's."""
    return np.concatenate([values[:1], values])


def contacts(demo: Group, keys: list[str], count: int, kept: int, pairs: Sequence[str]) -> tuple[Contact, ...]:
    """The forces of our own recordings, each row of the step that led to an observation."""
    if "next_contact" not in keys or not pairs:
        return ()
    group = demo.group("next_contact")
    peak, normal, tangential = (forces(group, k, count, kept, len(pairs)) for k in ("fn_max", "fn_mean", "ft_mean"))
    return tuple(Contact(b, peak[:, i], normal[:, i], tangential[:, i]) for i, b in enumerate(map(two, pairs)))


def two(pair: str) -> tuple[str, str]:
    """`grip_obj` as ("grip", "obj")."""
    first, _, second = pair.partition("__" if "__" in pair else "_")
    return first, second


def forces(group: Group, key: str, count: int, kept: int, width: int) -> np.ndarray:
    values = floats(group.numbers(key, count, width))[:kept]
    if not np.isfinite(values).all():
        raise group.fault(key, "a force that is not finite", "newtons")
    return np.concatenate([np.zeros((1, width), values.dtype), values])


def structure_notes(demo: Group, about: About) -> list[str]:
    """What is left out or guessed, judged by the first demonstration's structure."""
    keys, notes = demo.names(), []
    obs = (
        Observables(demo.group("obs"), demo.group("next_obs") if "next_obs" in keys else None, 0)
        if "obs" in keys
        else None
    )
    if not (obs and obs.following):
        notes.append(DROPPED_NOTE)
    if obs and obs.has_images:
        notes.append("images are left out")
    if "states" in keys:
        named = state_channels(about.model, (demo.shape("states") or (0,))[-1] - 1)
        notes += [UNNAMED] if named is None and not (obs and obs.used) else []
        shown = obs is not None and (obs.following is not None or "robot0_eef_pos" in obs.used)
        notes += [HAND] if named is not None and hands(about.model) and not shown and not shows_hand(named) else []
    if about.dt is None and demo.attribute("dt") is None:
        clock = "the rate is taken from the states' clock"
        notes.append(clock if "states" in keys else ASSUMED)
    return notes
