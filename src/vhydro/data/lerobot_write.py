"""A LeRobot dataset from any other: what the standard has no place for goes to extra columns and `vhydro.json`."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vhydro.data.assembly import FORCES
from vhydro.data.dataset import Dataset
from vhydro.data.errors import DataError
from vhydro.data.lerobot import EXTRA, VERSION
from vhydro.data.lerobot_language import FEATURE, PERSISTENT, Subtasks, persistent_column
from vhydro.data.lerobot_v21 import FilesV21
from vhydro.data.lerobot_v30 import FilesV30
from vhydro.data.row_groups import imported_pyarrow
from vhydro.data.uniform import Kind, json_value, move_folder, temporary_sibling
from vhydro.episodes import Episode
from vhydro.progress import counted

RATE_SPREAD = 0.01  # LeRobot knows one rate; episodes may differ from it by this share
PADDING = "The last row of each episode is its last observation; its action repeats the one before and is padding."

LeRobotVersion = Literal["v3.0", "v2.1"]
FILES = {"v3.0": FilesV30, "v2.1": FilesV21}


@dataclass
class Written:
    """What is gathered while episodes are written."""

    files: FilesV30 | FilesV21
    subtasks: Subtasks | None = None
    kind: Kind | None = None
    fps: float = 0.0
    frames: int = 0
    features: dict[str, dict] = field(default_factory=dict)
    schema: Any = None
    tasks: dict[str, int] = field(default_factory=dict)
    extra: list[dict] = field(default_factory=list)


def write_lerobot(
    dataset: Dataset,
    folder: Path,
    *,
    overwrite: bool = False,
    version: LeRobotVersion = "v3.0",
    subtasks: Subtasks | None = None,
    finish: Callable[[Path], None] = lambda _: None,
) -> Path:
    """The folder of a LeRobot dataset with every episode; nothing is left behind if one cannot be read.

    `subtasks` gives what goes on in the episode of a number, for a column of `language_persistent`. `finish` may add
    files to the dataset before it takes its place.
    """
    if version not in FILES:
        raise ValueError(f"cannot write LeRobot {version!r}; expected one of {', '.join(FILES)}.")
    imported_pyarrow(folder)
    with temporary_sibling(folder, overwrite=overwrite) as temporary:
        written = Written(FILES[version](temporary / "result"), subtasks)
        with closing(written.files):
            for index in counted(range(len(dataset)), "writing episodes"):
                add_episode(written, dataset, index)
        if written.kind is None:
            raise DataError(dataset.path, found="no episodes", expected="at least one")
        write_meta(written, written.kind)
        finish(temporary / "result")
        move_folder(temporary / "result", folder, temporary / "old")
    return folder


def add_episode(written: Written, dataset: Dataset, index: int) -> None:
    """Writes the rows of one episode and notes what `meta` needs of it."""
    episode, name = dataset[index], dataset.names[index]
    if written.kind is None:
        written.kind = Kind.of(episode, name)
        written.fps = whole_rate(1 / episode.dt)
    written.kind.same(episode, name, dataset.path)
    if abs(episode.dt * written.fps - 1) > RATE_SPREAD:
        found = f"{1 / episode.dt:.4g} Hz"
        expected = f"{written.fps:.4g} Hz as in episode {written.kind.name}: a LeRobot dataset has one rate"
        raise DataError(
            dataset.path, episode=name, key="dt", found=found, expected=expected, remedy="Convert to npz instead."
        )
    task = str(episode.info.get("task", "")) or "no task told"
    number = written.tasks.setdefault(task, len(written.tasks))
    columns = standard_columns(episode, index, number, written)
    written.features = written.features or said_features(columns, written)
    table = arrow_table(written, index, columns)
    refuse_other_types(written, table, dataset.path, name)
    written.files.add(index, table, {k: v for k, v in columns.items() if v.dtype.kind != "U"}, task)
    written.frames += episode.steps + 1
    info = {k: json_value(v) for k, v in episode.info.items()}
    written.extra.append({"name": name, "dt": float(episode.dt), "info": info})


def refuse_other_types(written: Written, table: Any, path: Path, name: str) -> None:
    """Raises where a column has another type than in the episodes before: a dataset has one for all."""
    assert written.kind is not None
    written.schema = written.schema or table.schema
    for told, found in zip(written.schema, table.schema, strict=True):
        if told.type != found.type:
            raise DataError(
                path, episode=name, key=told.name, found=f"values of type {found.type}",
                expected=f"{told.type} as in episode {written.kind.name}: a LeRobot dataset has one type for a column",
                remedy="Convert to npz instead, or `Dataset.map` them to the same.",
            )  # fmt: skip


def whole_rate(rate: float) -> float | int:
    """The rate; a whole number where it is one, but for rounding or the jitter of a median."""
    return round(rate) if round(rate) and abs(rate / round(rate) - 1) < 1e-3 else rate


def standard_columns(episode: Episode, index: int, task: int, written: Written) -> dict[str, np.ndarray]:
    """Every column of an episode, a row for each observation."""
    rows = episode.steps + 1
    columns = {"observation.state": np.asarray(episode.observations)}
    if episode.inputs:
        last = episode.actions[-1:] if episode.steps else np.zeros((1, len(episode.inputs)), episode.actions.dtype)
        columns["action"] = np.concatenate([episode.actions, last])
    for name, values in sorted(episode.labels.items()):
        columns[label_column(name)] = np.asarray(values)
    for i, contact in enumerate(episode.contacts):
        for force in FORCES:
            if getattr(contact, force) is not None:
                columns[force_column(i, force)] = np.asarray(getattr(contact, force))
    return columns | {
        "timestamp": (np.arange(rows) / written.fps).astype(np.float32),
        "frame_index": np.arange(rows),
        "episode_index": np.full(rows, index),
        "index": written.frames + np.arange(rows),
        "task_index": np.full(rows, task),
    }


def label_column(name: str) -> str:
    return f"label.{name.replace('/', '.')}"  # LeRobot allows no slash in a name


def force_column(i: int, force: str) -> str:
    return f"contact.{i}.{force}"


def arrow_table(written: Written, index: int, columns: dict[str, np.ndarray]) -> Any:
    """The columns of an episode as an arrow table, with what goes on in words where that is told."""
    arrow, _ = imported_pyarrow(written.files.folder)
    arrays = {}
    for key, values in columns.items():
        # LeRobot reads a feature of one number as a plain column
        wide = values.ndim == 2 and values.shape[1] > 1
        flat = arrow.array(values.reshape(-1), from_pandas=False)
        arrays[key] = arrow.FixedSizeListArray.from_arrays(flat, values.shape[1]) if wide else flat
    if written.subtasks is not None:
        arrays[PERSISTENT] = persistent_column(arrow, written.subtasks(index), columns["timestamp"])
    return arrow.table(arrays)


def said_features(columns: dict[str, np.ndarray], written: Written) -> dict[str, dict]:
    """The features of `info.json`."""
    assert written.kind is not None
    features = {key: said_feature(key, values, written.kind) for key, values in columns.items()}
    return features | ({PERSISTENT: FEATURE} if written.subtasks is not None else {})


def said_feature(key: str, values: np.ndarray, kind: Kind) -> dict:
    """The entry of a column in `info.json`."""
    names = {"observation.state": kind.channels, "action": kind.inputs}.get(key)
    return {
        "dtype": "string" if values.dtype.kind == "U" else str(values.dtype),
        "shape": [values.shape[1] if values.ndim == 2 else 1],
        "names": [c.name for c in names] if names else None,
    }


def write_meta(written: Written, kind: Kind) -> None:
    """The `meta` folder."""
    count = len(written.extra)
    info = {"robot_type": None, "total_episodes": count, "total_frames": written.frames} | {
        "total_tasks": len(written.tasks), "fps": written.fps, "splits": {"train": f"0:{count}"},
    }  # fmt: skip
    info |= written.files.finish(written.tasks) | {"features": written.features}
    folder = written.files.folder
    (folder / "meta" / "info.json").write_text(json.dumps(info, indent=4), "utf-8")
    (folder / EXTRA).write_text(json.dumps(extra(written, kind), indent=1), "utf-8")


def extra(written: Written, kind: Kind) -> dict:
    """What the standard has no place for, so that reading gives the same episodes again."""
    forces = [FORCES if tangential else FORCES[:2] for _, tangential in kind.contacts]
    return {
        "vhydro": VERSION,
        "padding": PADDING,
        "channels": [asdict(c) for c in kind.channels],
        "inputs": [asdict(c) for c in kind.inputs],
        "actions": str(kind.actions),
        "labels": {name: label_column(name) for name in kind.labels},
        "contacts": [
            {"bodies": list(bodies), "columns": {f: force_column(i, f) for f in mine}}
            for i, ((bodies, _), mine) in enumerate(zip(kind.contacts, forces, strict=True))
        ],
        "episodes": written.extra,
    }
