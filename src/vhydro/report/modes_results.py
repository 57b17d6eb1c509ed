"""The modes audit's result files as they are read, and what its families, methods, labels and metrics are called."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vhydro.report.laws_results import ABSENT

Record = dict[str, Any]
REMEDY = "Run the modes audit again for this folder, or give the folder of a finished one."

TUNED, UNSEEN, SAWYER = "maniskill", "unseen", "sawyer-bridge"
FAMILIES = {
    TUNED: ("PushCube", "PokeCube", "PullCubeTool", "PegInsertionSide"),
    UNSEEN: ("PickCube", "StackCube", "PullCube"),
    SAWYER: ("tower", "laundry", "search", "bridge"),
}
LABELS = PROXY, REGIME, CONFIGURATION = "proxy", "regime", "configuration"
REGIMES = {"free": "#b9c0cb", "impact": "#b8342a", "sustained": "#4b5563"}
READINGS = ("modes", "kinds", "contact", "regime")
LIT, HALF = 0.0, 0.5
SIGHT = {LIT: "in full sight", HALF: "half hidden"}
SEEDS = 20  # of the audit in full


class Method(NamedTuple):
    """A method, how it is drawn, and whether ours is compared with it."""

    key: str
    colour: str
    rival: bool = True


class Metric(NamedTuple):
    """A number of every cell; one without a good end (0) says nothing alone, and none of it is best."""

    key: str
    title: str
    good: int = 1
    places: int = 3


OURS, NO_MODE = "full", "no-mode"
METHODS = (
    Method(OURS, "#2563eb", rival=False),
    Method("auto", "#7fb2ff", rival=False),
    Method("particles", "#0d9488", rival=False),
    Method("no-support", "#d9480f"),
    Method(NO_MODE, "#9d174d"),
    Method("hmm", "#6b7280"),
    Method("ar-hmm", "#f2a33a"),
    Method("slds", "#8b5cf6"),
    Method("changes", "#84a23b"),
)
F1 = Metric("mode_f1", "mode F1")
ARI = Metric("ari", "ARI")
CHANGES = Metric("change_point_f1", "change points ±2")
PURITY = Metric("purity", "purity")
METRICS = (F1, ARI, CHANGES, PURITY)  # that the paper has
FURTHER = (
    Metric("change_point_f1_5", "change points ±5"),
    Metric("over", "over", 0, 2),
    Metric("under", "under", 0, 2),
    Metric("modes", "modes", 0, 1),
)
NUMBERS = (*(m.key for m in (*METRICS, *FURTHER)), *(f"raw_{m.key}" for m in METRICS))
PLACE = ("family", "occlusion", "labels", "method")


class Place(NamedTuple):
    """Which family, sight, labels and method a number is of."""

    family: str
    occlusion: float
    labels: str
    method: str


class Runs(NamedTuple):
    """A path by its runs: how many rows it has, where each run starts, and the value it has there."""

    rows: int
    starts: list[int]
    values: list[int]

    @property
    def lengths(self) -> list[int]:
        return [b - a for a, b in pairwise([*self.starts, self.rows])]


class Histogram(NamedTuple):
    """Test rows by the logarithm of their score, for each regime."""

    edges: list[float]
    counts: dict[str, list[int]]


class Theorem(NamedTuple):
    """Thm 2 on the held-out segments of one cell; a point has the fields of `POINT`, NaN where there is no number."""

    segments: int
    conditions: int
    held: int
    points: np.ndarray


SMALLEST = -300.0  # powers of ten that the audit writes; what is beyond is at the edge
POINT = LENGTH, BOUND, REALISED, CONDITIONS, HOLDS, EPSILON, Q_BOUND, Q_REALISED = tuple(range(8))


class Cell(NamedTuple):
    """One seed of one task in one place, and what only some cells hold."""

    place: Place
    task: str
    seed: int
    reading: str | None
    confusion: np.ndarray | None  # (modes of the reading, classes of the label)
    classes: list[str]
    shown: Runs | None
    truth: Runs | None
    dt: float | None
    score: list[float | None]
    thresholds: list[float]
    histogram: Histogram | None
    words: list[str]
    theorem: Theorem | None


class Row(NamedTuple):
    """Means over seeds, of one task or (task None) over all of a family, with the paper's row where it has one."""

    place: Place
    task: str | None
    numbers: Mapping[str, float | None]
    published: Mapping[str, Any] | None


class Results(NamedTuple):
    """What one folder holds."""

    cells: list[Cell]
    rows: dict[tuple[Place, str | None], Row]
    meta: Record

    @property
    def families(self) -> list[str]:
        return _known(FAMILIES, (place.family for place, _ in self.rows))

    @property
    def methods(self) -> list[Method]:
        there = {place.method for place, _ in self.rows}
        return [m for m in METHODS if m.key in there]

    @property
    def labels(self) -> list[str]:
        return _known(LABELS, (place.labels for place, _ in self.rows))

    @property
    def levels(self) -> list[float]:
        return sorted({place.occlusion for place, _ in self.rows})

    def tasks(self, family: str) -> list[str]:
        """The family's tasks that have rows of their own."""
        return _known(FAMILIES[family], (t for p, t in self.rows if p.family == family and t is not None))

    def is_complete(self, family: str) -> bool:
        """Whether every task of the family was run."""
        return len(self.tasks(family)) == len(FAMILIES[family])

    def number(self, place: Place, key: str, task: str | None = None) -> float | None:
        """The mean of `key` at a place; None where there is no row or no number."""
        row = self.rows.get((place, task))
        return None if row is None else row.numbers.get(key)

    def at(self, place: Place, task: str | None = None) -> list[Cell]:
        """The cells of a place, of one task or all, by seed."""
        found = [c for c in self.cells if c.place == place and task in (None, c.task)]
        return sorted(found, key=lambda c: c.seed)


def _known(order: Iterable[str], there: Iterable[str]) -> list[str]:
    found = set(there)
    return [name for name in order if name in found]


def shown(metric: Metric, value: float | None) -> str:
    """The value to as many digits as the metric has; a dash where there is none."""
    return ABSENT if value is None else f"{value:.{metric.places}f}".replace("-", "−")


# --- reading ------------------------------------------------------------------------------------------------


def read_results(folder: Path) -> Results:
    """The audit's files in `folder`; what a partial run does not have is None or empty."""
    path, summary_path = folder / "cells.jsonl", folder / "summary.json"
    lines = enumerate(_text(path).split("\n"), start=1)
    cells = [_cell(_json(line, f"line {n} of {path}"), f"line {n} of {path}") for n, line in lines if line.strip()]
    summary = _json(_text(summary_path), str(summary_path))
    records = summary.get("rows") or []
    if not cells or not records:
        raise ValueError(f"{folder} holds {len(cells)} cells and {len(records)} rows; expected some. {REMEDY}")
    rows = [_row(record, f"row {n} of {summary_path}") for n, record in enumerate(records, start=1)]
    return Results(cells, {(row.place, row.task): row for row in rows}, summary.get("meta") or {})


def _text(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"{path} is not there; expected a file that the modes audit writes. {REMEDY}")
    return path.read_text("utf-8")


def _json(text: str, where: str) -> Record:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} does not read as JSON ({error}). {REMEDY}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{where} holds a {type(value).__name__}; expected an object with names. {REMEDY}")
    return value


def _cell(record: Record, where: str) -> Cell:
    _refuse_lacking(record, (*PLACE, "task", "seed"), where)
    confusion, histogram = record.get("confusion"), record.get("histogram")
    return Cell(
        place=_place(record, where),
        task=record["task"],
        seed=int(record["seed"]),
        reading=record.get("reading"),
        confusion=np.array(confusion, float).reshape(len(confusion), -1) if confusion else None,
        classes=[str(name) for name in record.get("classes") or []],
        shown=_runs(record.get("shown"), where),
        truth=_runs(record.get("truth"), where),
        dt=None if record.get("dt") is None else float(record["dt"]),
        score=record.get("score") or [],
        thresholds=[float(value) for value in record.get("thresholds") or []],
        histogram=Histogram(histogram["edges"], histogram["counts"]) if histogram else None,
        words=[str(words) for words in record.get("words") or []],
        theorem=_theorem(record.get("theorem"), where),
    )


def _runs(record: Record | None, where: str) -> Runs | None:
    if not record or not record["starts"]:
        return None
    starts, values, rows = record["starts"], record["values"], int(record["rows"])
    if len(starts) != len(values) or sorted(set(starts)) != starts or not 0 == starts[0] <= starts[-1] < rows:
        raise ValueError(
            f"{where} has a path of {rows} rows with {len(starts)} starts and {len(values)} values; expected a value "
            f"for each start, the first start 0, each after the one before it and before the end. {REMEDY}"
        )
    return Runs(rows, starts, values)


def _theorem(record: Record | None, where: str) -> Theorem | None:
    if not record:
        return None
    points = np.array(record.get("points") or [], float).reshape(-1, len(POINT)) if _even(record) else None
    if points is None:
        raise ValueError(f"{where} has points of Thm 2 of another length; expected {len(POINT)} numbers each. {REMEDY}")
    return Theorem(int(record["segments"]), int(record["conditions"]), int(record["held"]), points)


def _even(record: Record) -> bool:
    return all(len(point) == len(POINT) for point in record.get("points") or [])


def _row(record: Record, where: str) -> Row:
    _refuse_lacking(record, PLACE, where)
    names = [name for key in NUMBERS for name in (key, f"{key}_sem")]
    numbers = {name: _number(record, name, where) for name in names if name in record}
    return Row(_place(record, where), record.get("task"), numbers, record.get("published"))


def _place(record: Record, where: str) -> Place:
    """The record's place; one that the page would silently leave out is refused."""
    known = {"family": [*FAMILIES], "labels": [*LABELS], "method": [m.key for m in METHODS]}
    for name, expected in known.items():
        if record[name] not in expected:
            raise ValueError(f"{where} has the {name} {record[name]!r}; expected one of {', '.join(expected)}.")
    if record.get("task") not in (None, *FAMILIES[record["family"]]):
        raise ValueError(f"{where} has the task {record['task']!r}, which is not one of {record['family']}.")
    return Place(record["family"], round(float(record["occlusion"]), 9), record["labels"], record["method"])


def _number(record: Record, name: str, where: str) -> float | None:
    value = record[name]
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{where} has {value!r} as its {name}; expected a number or null. {REMEDY}")
    return None if value is None else float(value)


def _refuse_lacking(record: Record, names: Sequence[str], where: str) -> None:
    if lacking := [name for name in names if name not in record]:
        raise ValueError(f"{where} has no {', '.join(lacking)}; expected {', '.join(names)}. {REMEDY}")
