"""RLDS episodes: the steps of a `tf.train.Example`, with shapes from `features.json` where it lies beside the file."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vhydro.data.assembly import translated
from vhydro.data.errors import DataError
from vhydro.data.tfrecord import Feature, Record, example, payload

STEP_SCALARS = ("steps/is_first", "steps/is_last", "steps/is_terminal", "steps/reward", "steps/discount")
DEEPEST_FEATURES = 20


@dataclass(frozen=True)
class Features:
    """What `features.json` says: the shape of every plain tensor, and the keys that hold something else."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    others: frozenset[str] = frozenset()  # images, text, encoded tensors, tensors of varying size


def features_beside(path: Path) -> Features:
    """The shapes told by `features.json` in the folder of the file; empty without one."""
    file = path.parent / "features.json"
    if not file.is_file():
        return Features()
    with translated(file, "the features of a TFDS dataset, as JSON"):
        shapes: dict[str, tuple[int, ...]] = {}
        others: set[str] = set()
        collect_features(json.loads(file.read_text("utf-8")), "", shapes, others, 0)
        return Features(shapes, frozenset(others))


def collect_features(node: dict, path: str, shapes: dict, others: set[str], depth: int) -> None:
    """Walks the tree of features, a name per level; a sequence adds no name."""
    if depth > DEEPEST_FEATURES:
        raise ValueError(f"features nested deeper than {DEEPEST_FEATURES} levels")
    if "featuresDict" in node:
        for name, child in node["featuresDict"]["features"].items():
            collect_features(child, f"{path}/{name}" if path else name, shapes, others, depth + 1)
    elif "sequence" in node:
        collect_features(node["sequence"]["feature"], path, shapes, others, depth + 1)
    elif "tensor" in node and node["tensor"].get("encoding", "none") == "none" and node["tensor"]["dtype"] != "string":
        shape = tuple(int(n) for n in node["tensor"].get("shape", {}).get("dimensions", ()))
        if min(shape, default=0) < -1:
            raise ValueError(f"the shape {shape[:5]} of {path}")
        if -1 in shape:  # TFDS's way to say that the size differs from step to step
            others.add(path)
        else:
            shapes[path] = shape
    else:
        others.add(path)


@dataclass(frozen=True)
class Steps:
    """One RLDS episode: the numbers of its steps by key, and what was told about it."""

    numbers: dict[str, np.ndarray]  # (steps, width)
    task: str  # the first language instruction
    metadata: dict[str, str | float | bool]
    left_out: tuple[str, ...]


def steps(record: Record, features: Features) -> Steps:
    """The numbers of every step of a record."""
    with translated(record.file, "a tf.train.Example", episode=str(record.number), key="record"):
        found = example(payload(record))
    count = step_count(record, found, features)
    numbers, task, left_out = {}, "", []
    for key, value in found.items():
        if not key.startswith("steps/"):
            continue
        if isinstance(value, np.ndarray) and key not in features.others:
            numbers[key] = rows(record, key, value, count, features.shapes.get(key))
        elif isinstance(value, list) and key.endswith("language_instruction") and value:
            task = text(value[0])
        else:
            left_out.append(key)
    return Steps(numbers, task, metadata(found), tuple(sorted(left_out)))


def step_count(record: Record, found: dict[str, Feature], features: Features) -> int:
    """How many steps the record has, by a key with one number for each."""
    for key in STEP_SCALARS:
        if key in found and len(found[key]):
            return len(found[key])
    for key, shape in features.shapes.items():
        if key.startswith("steps/") and key in found and math.prod(shape) and len(found[key]):
            count, rest = divmod(len(found[key]), math.prod(shape))
            if rest or not count:
                raise misfit(record, key, len(found[key]), f"whole steps of {math.prod(shape)}")
            return count
    raise DataError(
        record.file,
        episode=str(record.number),
        key="steps",
        found=f"keys {sorted(found)[:8]}",
        expected=f"one of {', '.join(STEP_SCALARS)}, to count the steps",
        remedy="Put the dataset's features.json beside the file.",
    )


def rows(record: Record, key: str, value: np.ndarray, count: int, shape: tuple[int, ...] | None) -> np.ndarray:
    """The flat numbers of a key as (steps, width)."""
    width = math.prod(shape) if shape is not None else len(value) // count
    if width * count != len(value):
        raise misfit(record, key, len(value), f"{count} steps of {width if shape is not None else 'equal size'}")
    return value.reshape(count, width)


def misfit(record: Record, key: str, count: int, expected: str) -> DataError:
    return DataError(record.file, episode=str(record.number), key=key, found=f"{count} numbers", expected=expected)


def metadata(found: dict[str, Feature]) -> dict[str, str | float | bool]:
    """What is told once per episode: single numbers and short texts."""
    kept: dict[str, str | float | bool] = {}
    for key, value in found.items():
        if key.startswith("episode_metadata/") and len(value) == 1:
            name = key.removeprefix("episode_metadata/").replace("/", ".")
            if isinstance(value, np.ndarray):
                kept[name] = bool(value[0]) if name.startswith(("has_", "is_")) else float(value[0])
            elif len(value[0]) < 10_000:
                kept[name] = text(value[0])
    return kept


def text(raw: memoryview) -> str:
    return str(raw, "utf-8", "replace")
