"""BridgeData V2 and other RLDS logs: RLDS TFRecords, and BridgeData's numpy export."""

import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from vhydro.data.assembly import DROPPED_NOTE, assembled, floats, likely_group, translated
from vhydro.data.columns import POSITION, Columns, numbered
from vhydro.data.dataset import Dataset
from vhydro.data.errors import DataError
from vhydro.data.inert_pickle import Array, unpickled_inertly
from vhydro.data.memory import allowance_of
from vhydro.data.npz_archive import array_header
from vhydro.data.rlds import Features, Steps, features_beside, steps
from vhydro.data.tables import MOST_EPISODES
from vhydro.data.tfrecord import Record, is_tfrecord, records
from vhydro.episodes import Episode

POSE = (*POSITION, ("roll", "rad"), ("pitch", "rad"), ("yaw", "rad"))
MOVE = (("dx", "m"), ("dy", "m"), ("dz", "m"), ("droll", "rad"), ("dpitch", "rad"), ("dyaw", "rad"))
BRIDGE_RATE = 5.0  # Hz; Walke et al. 2023, BridgeData V2: the WidowX is commanded at 5 Hz
RATE_NOTE = "BridgeData stores no rate: 5 Hz, as published (Walke et al. 2023)."
LEAST_TRAJECTORY = 64  # bytes; a dictionary with one observation and one action has several times that
IMAGES_NOTE = "Images were left out."
STATE, ACTION = "steps/observation/state", "steps/action"


class BridgeRlds:
    """RLDS TFRecords: a shard, or a folder of shards with its `features.json`."""

    name = "RLDS TFRecord"

    def recognises(self, path: Path) -> bool:
        try:
            if path.is_dir():
                return bool(shards(path)) and all(is_tfrecord(shard) for shard in shards(path))
            return path.is_file() and is_tfrecord(path)
        except OSError:
            return False

    def open(self, path: Path) -> Dataset:
        files = shards(path) if path.is_dir() else [path]
        found = [record for file in files for record in records(file)]
        if not found:
            raise DataError(path, found="no records", expected="at least one episode")
        features = features_beside(files[0])
        names = tuple(str(r.number) if len(files) == 1 else f"{r.file.name}:{r.number}" for r in found)
        first = steps(found[0], features)
        bridge = is_bridge(files[0], first)

        load = partial(numbered_record, found, names, features, bridge)
        notes = rlds_notes(first, bridge, features)
        return Dataset(self.name, path, names, load, notes, notes[0])


def numbered_record(
    found: list[Record], names: tuple[str, ...], features: Features, bridge: bool, index: int
) -> Episode:
    return rlds_episode(found[index], names[index], steps(found[index], features), bridge)


def shards(folder: Path) -> list[Path]:
    """The TFRecord files of a folder that holds nothing else but JSON; empty for any other folder."""
    files = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    records = [p for p in files if p.is_file() and ".tfrecord" in p.name]
    return records if all(p in records or p.suffix == ".json" for p in files) else []


def is_bridge(file: Path, first: Steps) -> bool:
    """Whether the state and action are those of BridgeData's WidowX: by the dataset's name or BridgeData's own keys."""
    info = file.parent / "dataset_info.json"
    name = ""
    if info.is_file():
        with translated(info, "the description of a TFDS dataset, as JSON"):
            name = str(json.loads(info.read_text("utf-8")).get("name", ""))
    widths = [first.numbers[k].shape[1] for k in (STATE, ACTION) if k in first.numbers]
    own_keys = {"has_image_0", "has_language"} <= set(first.metadata)
    return widths == [7, 7] and (own_keys or name.startswith("bridge"))


def rlds_notes(first: Steps, bridge: bool, features: Features) -> tuple[str, ...]:
    unused = [k for k in first.numbers if k.startswith("steps/") and not is_used(k)]
    skipped = sorted({k.removeprefix("steps/") for k in (*first.left_out, *unused)})
    rate = RATE_NOTE if bridge else "RLDS tells no rate: dt is 1, one second per step. Say it with --rate."
    guessed = () if features.shapes else ("No features.json beside the file: widths follow from the number of steps.",)
    return (
        (rate, DROPPED_NOTE, *guessed, f"Left out: {', '.join(skipped)}.")
        if skipped
        else (rate, DROPPED_NOTE, *guessed)
    )


def is_used(key: str) -> bool:
    """Whether the numbers of this key are an observation or an action; embeddings of language and images are not."""
    inside = key.startswith(("steps/observation/", "steps/action/")) or key == ACTION
    return inside and "embedding" not in key


def rlds_episode(record: Record, name: str, found: Steps, bridge: bool) -> Episode:
    """The observations and actions of an episode; the last action is dropped."""
    observed, commanded = Columns(), Columns()
    for key in sorted(k for k in found.numbers if is_used(k) and found.numbers[k].shape[1]):
        values = floats(found.numbers[key])
        if bridge and key == STATE:
            add_state(observed, values)
        elif bridge and key == ACTION:
            add_action(commanded, values)
        elif key.startswith("steps/observation/"):
            add_numbered(observed, key.removeprefix("steps/"), values, likely_group(key))
        else:
            add_numbered(commanded, key.removeprefix("steps/"), values, "action")
    if not observed.values:
        raise DataError(
            record.file, episode=name, key="steps/observation", found=f"numbers only in {sorted(found.numbers)}",
            expected="at least one numeric observation",
        )  # fmt: skip
    count = len(observed.values[0])
    return assembled(
        record.file,
        name,
        observations=observed.array(),
        actions=commanded.array()[:-1] if commanded.values else np.zeros((count - 1, 0)),
        dt=1 / BRIDGE_RATE if bridge else 1.0,
        channels=observed.channels,
        inputs=commanded.channels,
        info=found.metadata | ({"task": found.task} if found.task else {}),
    )


def add_state(columns: Columns, state: np.ndarray) -> None:
    columns.add("tcp", state[:, :6], POSE, "end_effector")
    columns.add("gripper", state[:, 6:], (("opening", ""),), "gripper")


def add_action(columns: Columns, action: np.ndarray) -> None:
    columns.add("tcp", action[:, :6], MOVE, "action")
    columns.add("gripper", action[:, 6:], (("command", ""),), "action")


def add_numbered(columns: Columns, key: str, values: np.ndarray, group: str) -> None:
    body, _, quantity = key.replace("/", ".").rpartition(".")
    width = values.shape[1]
    columns.add(body, values, numbered(quantity, width) if width > 1 else ((quantity, ""),), group)


class BridgeNumpy:
    """`out.npy` of BridgeData's raw-to-numpy script: a pickled array of dictionaries, read without unpickling."""

    name = "BridgeData numpy"

    def recognises(self, path: Path) -> bool:
        try:
            return path.is_file() and object_count(path)[0] is not None
        except Exception:  # damaged headers make numpy raise anything
            return False

    def open(self, path: Path) -> Dataset:
        with translated(path, "the header of an .npy file"):
            count, start = object_count(path)
        size = path.stat().st_size
        if not count or count > min(size // LEAST_TRAJECTORY, MOST_EPISODES):
            raise DataError(
                path, found=f"{count} trajectories in {size} bytes", expected="at least one, each a dictionary"
            )
        names = tuple(str(i) for i in range(count))
        return Dataset(self.name, path, names, Trajectories(path, start, count), (RATE_NOTE, IMAGES_NOTE), RATE_NOTE)


@dataclass
class Trajectories:
    """The episodes of a file, which is read once, as a pickle can only be read from its beginning."""

    path: Path
    start: int
    count: int
    items: list | DataError | None = None

    def __reduce__(self):
        return Trajectories, (self.path, self.start, self.count)

    def __call__(self, index: int) -> Episode:
        if self.items is None:
            try:
                self.items = pickled_trajectories(self.path, self.start, self.count)
            except DataError as error:  # kept too: a damaged file is not read again for every episode
                self.items = error
        if isinstance(self.items, DataError):
            raise self.items
        return numpy_episode(self.path, str(index), self.items[index])


def object_count(path: Path) -> tuple[int | None, int]:
    """How many objects a flat .npy file of objects holds (None if it is another file), and where they begin."""
    with path.open("rb") as file:
        if file.read(6) != np.lib.format.MAGIC_PREFIX:
            return None, 0
        file.seek(0)
        header = array_header(file)
        flat = header.dtype == np.dtype(object) and len(header.shape) == 1
        return (header.shape[0] if flat else None), header.offset


def pickled_trajectories(path: Path, start: int, count: int) -> list:
    """The dictionaries of the file, with images left out."""
    with path.open("rb") as file:
        file.seek(start)
        found = unpickled_inertly(file, path)
    items = found.items if isinstance(found, Array) else None
    if items is None or len(items) != count:
        what = "no array of objects" if items is None else f"{len(items)} objects"
        raise DataError(path, key="pickle", found=what, expected=f"the {count} trajectories of the header")
    return items


def numpy_episode(path: Path, name: str, trajectory) -> Episode:
    """The states and actions of a trajectory; the last state comes from `next_observations`."""
    if not isinstance(trajectory, dict):
        raise DataError(path, episode=name, found=type(trajectory).__name__, expected="a dictionary")
    seen = listed(path, name, trajectory, "observations")
    states = within_memory(path, name, [state(path, name, "observations", o) for o in seen])
    following = listed(path, name, trajectory, "next_observations")
    if len(following) != len(states):
        found, expected = f"{len(following)} entries", f"{len(states)}, as in observations"
        raise DataError(path, episode=name, key="next_observations", found=found, expected=expected)
    states.append(state(path, name, "next_observations", following[-1]))
    numbers(path, name, "next_observations/state", states[-1])  # refused by this key, if it is
    actions = within_memory(path, name, listed(path, name, trajectory, "actions"))
    observed, commanded = Columns(), Columns()
    values, commands = stacked(path, name, "observations/state", states), stacked(path, name, "actions", actions)
    wide = values.shape[1] == 7
    add_state(observed, values) if wide else add_numbered(observed, "observation/state", values, "end_effector")
    add_action(commanded, commands) if commands.shape[1] == 7 else add_numbered(commanded, "action", commands, "action")
    language = trajectory.get("language")
    task = next((t for t in language if isinstance(t, str)), "") if isinstance(language, list) else ""
    return assembled(
        path, name, observations=observed.array(), actions=commanded.array(), dt=1 / BRIDGE_RATE,
        channels=observed.channels, inputs=commanded.channels, info={"task": task} if task else {},
    )  # fmt: skip


def listed(path: Path, name: str, trajectory: dict, key: str) -> list:
    found = trajectory.get(key)
    if not isinstance(found, list) or not found:
        what = "nothing" if found is None else f"an empty or wrong {type(found).__name__}"
        raise DataError(path, episode=name, key=key, found=what, expected="a list with an entry for each step")
    return found


def within_memory(path: Path, name: str, rows: list) -> list:
    """The rows, if their numbers fit in memory: a pickle can mean one long array a million times."""
    count = sum(map(row_length, rows))
    if count * 8 > (most := allowance_of(path)):
        raise DataError(
            path, episode=name, found=f"{count:,} numbers", expected=f"at most {most // 8:,} in a file of this size"
        )
    return rows


def row_length(row) -> int:
    if isinstance(row, Array):
        return math.prod(row.shape)
    return len(row) if isinstance(row, list | tuple) else 1


def state(path: Path, name: str, key: str, observation):
    """The state of one step, unread."""
    if not isinstance(observation, dict) or "state" not in observation:
        raise DataError(path, episode=name, key=f"{key}/state", found="none", expected="a state for each step")
    return observation["state"]


def numbers(path: Path, name: str, key: str, value) -> np.ndarray:
    """One row of numbers: a flat array, or a flat list (never a nested one, which could be a bomb)."""
    if isinstance(value, Array) and value.values is not None and value.values.ndim == 1:
        return floats(value.values)
    if isinstance(value, list | tuple) and all(type(x) in (int, float) and math.isfinite(x) for x in value):
        return np.array(value, np.float64)
    raise DataError(path, episode=name, key=key, found=f"a {type(value).__name__}", expected="a flat array of numbers")


def stacked(path: Path, name: str, key: str, rows: list) -> np.ndarray:
    """The rows as (rows, width)."""
    widths = sorted(set(map(row_length, rows)))
    if len(widths) != 1 or widths == [0]:
        what = f"rows of {', '.join(map(str, widths[:6]))} numbers"
        raise DataError(path, episode=name, key=key, found=what, expected="rows of equal width")
    return np.stack([numbers(path, name, key, row) for row in rows])
