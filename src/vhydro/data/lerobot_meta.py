"""The layout of a LeRobot dataset: what its `meta` folder says about features, episodes and files.

v2.0 and v2.1 have a parquet file per episode and `meta/episodes.jsonl`; v3.0 has many episodes per file and
`meta/episodes/chunk-*/file-*.parquet` to say which lies where.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vhydro.data.assembly import translated
from vhydro.data.errors import DataError
from vhydro.data.row_groups import imported_pyarrow, indexed_file

FIELD = re.compile(r"\{(\w+)(?::0?(\d)d)?\}")
NUMERIC = re.compile(r"(float(16|32|64)|u?int(8|16|32|64)|bool)")
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
WIDEST = 10_000
MOST_LISTED = 10_000_000  # values in the list of episodes, a handful for each


@dataclass(frozen=True)
class Feature:
    """One column of a LeRobot dataset with as many numbers as it has names."""

    key: str
    names: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Place:
    """Where an episode lies."""

    index: int
    length: int
    file: Path
    task: str


@dataclass(frozen=True)
class Layout:
    """What `meta/info.json` and the list of episodes say."""

    folder: Path
    version: str
    fps: float
    features: tuple[Feature, ...]  # numeric ones
    left_out: tuple[str, ...]
    places: tuple[Place, ...]


def layout(folder: Path) -> Layout:
    """The layout of the dataset in this folder."""
    file = folder / "meta" / "info.json"
    with translated(file, "LeRobot's info.json"):
        info = json.loads(file.read_text("utf-8"))
        version, fps, template = str(info["codebase_version"]), float(info["fps"]), str(info["data_path"])
        chunk = int(info.get("chunks_size", 1000))
        features, left_out = numeric_features(info["features"])
    if not version.startswith(("v2.", "v3.")):
        raise DataError(file, key="codebase_version", found=version, expected="v2.0, v2.1 or v3.0")
    if not math.isfinite(fps) or fps <= 0 or chunk < 1:
        raise DataError(file, key="fps", found=f"{fps}, chunks of {chunk}", expected="positive numbers")
    read = places_v2 if version.startswith("v2.") else places_v3
    places = read(folder, template, chunk)
    if not places:
        raise DataError(folder / "meta", key="episodes", found="no episodes", expected="at least one")
    return Layout(folder, version, fps, features, left_out, places)


def numeric_features(record: Mapping) -> tuple[tuple[Feature, ...], tuple[str, ...]]:
    """The features that are a few numbers per row, and the keys of the others (videos, images, text)."""
    features, left_out = [], []
    for key, said in record.items():
        shape = [int(n) for n in said["shape"]]
        if key in BOOKKEEPING:
            continue
        if NUMERIC.fullmatch(str(said["dtype"])) and len(shape) == 1 and 0 < shape[0] <= WIDEST:
            features.append(Feature(str(key), feature_names(said.get("names"), shape[0])))
        else:
            left_out.append(str(key))
    return tuple(features), tuple(left_out)


def feature_names(said, width: int) -> tuple[str, ...]:
    """The names of a feature's numbers: a list, a list under some heading, or none."""
    if isinstance(said, dict):
        said = next(iter(said.values()), None)
    if isinstance(said, list) and len(said) == width and len({str(n) for n in said}) == width:
        return tuple(str(n) for n in said)
    return tuple(str(i + 1) for i in range(width))


def places_v2(folder: Path, template: str, chunk: int) -> tuple[Place, ...]:
    """Episodes listed in `episodes.jsonl`, a file each."""
    file = folder / "meta" / "episodes.jsonl"
    places = []
    with translated(file, "a line of JSON for each episode"):
        for line in file.read_text("utf-8").splitlines():
            if line.strip():
                said = json.loads(line)
                index, length = int(said["episode_index"]), int(said["length"])
                path = filled_path(folder, template, {"episode_index": index, "episode_chunk": index // chunk})
                places.append(Place(index, length, path, task_text(said.get("tasks"))))
    return checked_places(file, places)


def places_v3(folder: Path, template: str, _chunk: int) -> tuple[Place, ...]:
    """Episodes listed in `meta/episodes/**.parquet`, many to a file."""
    _, parquet = imported_pyarrow(folder)
    places, listed = [], 0
    files = sorted((folder / "meta" / "episodes").rglob("*.parquet"))
    for file in files:
        with translated(file, "LeRobot's list of episodes"):
            columns = ["episode_index", "length", "data/chunk_index", "data/file_index"]
            index = indexed_file(file)
            tasks = ["tasks"] if "tasks" in index.names else []
            listed += index.promised([*columns, "tasks"])
            if listed > MOST_LISTED:
                raise ValueError(f"a list of {listed} values, more than {MOST_LISTED}")
            for said in parquet.read_table(file, columns=columns + tasks).to_pylist():
                fields = {"chunk_index": int(said[columns[2]]), "file_index": int(said[columns[3]])}
                path = filled_path(folder, template, fields)
                places.append(Place(int(said[columns[0]]), int(said[columns[1]]), path, task_text(said.get("tasks"))))
    return checked_places(folder / "meta" / "episodes", places)


def checked_places(file: Path, places: list[Place]) -> tuple[Place, ...]:
    places.sort(key=lambda p: p.index)
    if len({p.index for p in places}) != len(places) or any(p.length < 1 or p.index < 0 for p in places):
        raise DataError(file, key="episode_index", found="an episode twice, or an empty one", expected="each once")
    return tuple(places)


def task_text(tasks) -> str:
    return "; ".join(str(t) for t in tasks) if isinstance(tasks, list) else str(tasks or "")


def filled_path(folder: Path, template: str, fields: Mapping[str, int]) -> Path:
    """The path of a data file. The template is filled in by hand: Python's own formatting can do more than paths."""
    text = FIELD.sub(lambda m: f"{fields[m[1]]:0{int(m[2] or 0)}d}", template)
    # By its words: files of a dataset in a cache are links to where their contents are kept.
    if os.path.isabs(text) or os.path.normpath(text).split(os.sep)[0] == os.pardir:
        raise ValueError(f"the path {text[:100]}, which is outside the dataset")
    return folder / text
