"""A LeRobot v2.1 dataset from any other: what the standard has no place for goes to extra columns and `vhydro.json`."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from vhydro.data.assembly import FORCES
from vhydro.data.dataset import Dataset
from vhydro.data.errors import DataError
from vhydro.data.lerobot import EXTRA, VERSION
from vhydro.data.lerobot_meta import imported_pyarrow
from vhydro.data.uniform import Kind, json_value, move_folder, temporary_sibling
from vhydro.episodes import Episode

CHUNK = 1000  # episodes
DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
RATE_SPREAD = 0.01  # LeRobot knows one rate; episodes may differ from it by this share
PADDING = "The last row of each episode is its last observation; its action repeats the one before and is padding."


@dataclass
class Written:
    """What is gathered while episodes are written."""

    folder: Path
    kind: Kind | None = None
    fps: float = 0.0
    frames: int = 0
    features: dict[str, dict] = field(default_factory=dict)
    tasks: dict[str, int] = field(default_factory=dict)
    episodes: list[dict] = field(default_factory=list)
    stats: list[dict] = field(default_factory=list)
    extra: list[dict] = field(default_factory=list)


def write_lerobot(dataset: Dataset, folder: Path, *, overwrite: bool = False) -> Path:
    """The folder of a LeRobot v2.1 dataset with every episode; nothing is left behind if one cannot be read."""
    imported_pyarrow(folder)
    with temporary_sibling(folder, overwrite=overwrite) as temporary:
        written = Written(temporary / "result")
        for index in range(len(dataset)):
            add_episode(written, dataset, index)
        if written.kind is None:
            raise DataError(dataset.path, found="no episodes", expected="at least one")
        write_meta(written, written.kind)
        move_folder(temporary / "result", folder, temporary / "old")
    return folder


def add_episode(written: Written, dataset: Dataset, index: int) -> None:
    """Writes the parquet file of one episode and notes what `meta` needs of it."""
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
    write_parquet(written.folder, index, columns)
    rows = episode.steps + 1
    written.frames += rows
    written.features = written.features or {k: said_feature(k, v, written.kind) for k, v in columns.items()}
    written.episodes.append({"episode_index": index, "tasks": [task], "length": rows})
    written.stats.append(
        {"episode_index": index, "stats": {k: stats(v) for k, v in columns.items() if v.dtype.kind != "U"}}
    )
    info = {k: json_value(v) for k, v in episode.info.items()}
    written.extra.append({"name": name, "dt": float(episode.dt), "info": info})


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


def write_parquet(folder: Path, index: int, columns: dict[str, np.ndarray]) -> None:
    arrow, parquet = imported_pyarrow(folder)
    arrays = {}
    for key, values in columns.items():
        # LeRobot reads a feature of one number as a plain column
        wide = values.ndim == 2 and values.shape[1] > 1
        flat = arrow.array(values.reshape(-1), from_pandas=False)
        arrays[key] = arrow.FixedSizeListArray.from_arrays(flat, values.shape[1]) if wide else flat
    path = folder / DATA_PATH.format(episode_chunk=index // CHUNK, episode_index=index)
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.table(arrays), path, write_page_checksum=True)


def said_feature(key: str, values: np.ndarray, kind: Kind) -> dict:
    """The entry of a column in `info.json`."""
    names = {"observation.state": kind.channels, "action": kind.inputs}.get(key)
    return {
        "dtype": "string" if values.dtype.kind == "U" else str(values.dtype),
        "shape": [values.shape[1] if values.ndim == 2 else 1],
        "names": [c.name for c in names] if names else None,
    }


def stats(values: np.ndarray) -> dict:
    """Minimum, maximum, mean and spread of each number over an episode, hidden values left out."""
    wide = values.reshape(len(values), -1).astype(np.float64)
    seen = np.isfinite(wide)
    count = np.maximum(seen.sum(axis=0), 1)
    mean = np.where(seen, wide, 0).sum(axis=0) / count
    spread = np.sqrt(np.where(seen, (wide - mean) ** 2, 0).sum(axis=0) / count)
    least = np.where(seen.any(axis=0), np.where(seen, wide, np.inf).min(axis=0), 0)
    most = np.where(seen.any(axis=0), np.where(seen, wide, -np.inf).max(axis=0), 0)
    found = {"min": least, "max": most, "mean": mean, "std": spread}
    return {name: values.tolist() for name, values in found.items()} | {"count": [len(wide)]}


def write_meta(written: Written, kind: Kind) -> None:
    """The `meta` folder."""
    meta = written.folder / "meta"
    meta.mkdir()
    count = len(written.episodes)
    info = {
        "codebase_version": "v2.1", "robot_type": None, "total_episodes": count, "total_frames": written.frames,
        "total_tasks": len(written.tasks), "total_videos": 0, "total_chunks": (count - 1) // CHUNK + 1,
        "chunks_size": CHUNK, "fps": written.fps, "splits": {"train": f"0:{count}"}, "data_path": DATA_PATH,
        "video_path": None, "features": written.features,
    }  # fmt: skip
    (meta / "info.json").write_text(json.dumps(info, indent=4), "utf-8")
    write_lines(meta / "episodes.jsonl", written.episodes)
    write_lines(meta / "episodes_stats.jsonl", written.stats)
    write_lines(meta / "tasks.jsonl", [{"task_index": i, "task": t} for t, i in written.tasks.items()])
    (written.folder / EXTRA).write_text(json.dumps(extra(written, kind), indent=1), "utf-8")


def write_lines(path: Path, records: list[dict]) -> None:
    path.write_text("".join(json.dumps(r) + "\n" for r in records), "utf-8")


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
