"""The support audit's result files as they are read, and what its families, methods and metrics are called."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vhydro.report.laws_results import SPACE, written

Record = dict[str, Any]
REMEDY = "Run the support audit again for this folder, or give the folder of a finished one."

FAMILIES = ("contact", "sawyer-bridge")
REGIMES = ("matched", "shift", "lit")
PLAIN = "plain"  # of few methods and tasks: it shows a loss and is in no comparison
LEVELS = (0.0, 0.25, 0.5, 0.75, 0.9)
HARDEST = LEVELS[-1]
NOMINAL = tuple(round(0.05 * k, 2) for k in range(1, 20))  # of the intervals whose coverage a cell holds
SEEDS = 20  # of the audit in full


class Method(NamedTuple):
    """A method and how it is drawn, everywhere the same."""

    key: str
    colour: str
    symbol: str = "circle"
    safe: bool = True  # keeps some of the model's own prediction, so that no branch is cut off


class Metric(NamedTuple):
    """A number of every cell; its good end is 1 (large), −1 (small) or 0 (near `TARGET`)."""

    key: str
    title: str
    good: int
    places: int | None = 3  # decimals; None: three significant digits


ADAPTIVE, NO_SUPPORT, SMOOTH, TWO_SIDED, OURS = "adaptive", "no-support", "smooth", "two-sided", "two-sided+conformal"
METHODS = (
    Method(ADAPTIVE, "#0d9488"),
    Method("conservative", "#f2a33a"),
    Method(NO_SUPPORT, "#d9480f", safe=False),
    Method(SMOOTH, "#9d174d", safe=False),
    Method(TWO_SIDED, "#7fb2ff", "diamond"),
    Method(OURS, "#2563eb"),
)
BEYOND = (TWO_SIDED, OURS)  # methods that the paper does not have
TARGET = 0.9
ESS = Metric("ess", "ESS/N", 1)
WEIGHT_VARIANCE = Metric("relative_weight_variance", "relative weight variance", -1, None)
VARIANCE = Metric("empirical_relative_variance", "empirical relative variance", -1, None)
NLL = Metric("nll", "NLL", -1, 2)
ECE = Metric("ece", "ECE", -1)
COV90 = Metric("cov90", "Cov90", 0)
METRICS = (ESS, WEIGHT_VARIANCE, VARIANCE, NLL, ECE, COV90)

NUMBERS = (
    *(m.key for m in METRICS), "realised_variance", "nll_hidden", "ece_hidden", "cov90_hidden", "mixing", "certified",
    "redrawn", "bounded", "bound", "bound_realised", "bound_realised_se", "pareto_k", "pareto_bad", "lost",
)  # fmt: skip
PLACE = ("family", "regime", "occlusion", "method")
FILM = ("channel", "dt", "truth", "seen", "particles", "weights", "contact", "lost_at")
META = ("commit", "device", "seconds", "seeds", "config", "quick")


class Place(NamedTuple):
    """Which of the audit's settings and methods a number is of."""

    family: str
    regime: str
    occlusion: float
    method: str


class Film(NamedTuple):
    """One channel of one episode, step by step: what was true and where the particles were."""

    channel: str
    dt: float
    truth: np.ndarray
    seen: np.ndarray
    particles: np.ndarray  # one row a step
    weights: np.ndarray
    contact: np.ndarray
    lost_at: int | None


class Cell(NamedTuple):
    """One seed of one task in one place."""

    place: Place
    task: str
    seed: int
    numbers: Mapping[str, float | None]
    coverage: Sequence[float] | None  # at each of `NOMINAL`
    film: Film | None
    diverged: bool  # the fit that was run, which then kept its last finite parameters


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
    def regimes(self) -> list[str]:
        return _known(REGIMES, (place.regime for place, _ in self.rows)) or [PLAIN]

    @property
    def methods(self) -> list[Method]:
        there = {place.method for place, _ in self.rows}
        return [m for m in METHODS if m.key in there]

    def tasks(self, family: str) -> list[str]:
        """The family's tasks that have rows of their own, in the order of the file."""
        found = (task for place, task in self.rows if place.family == family and task is not None)
        return list(dict.fromkeys(found))

    def levels(self, family: str, regime: str) -> list[float]:
        """The occlusion levels that were run, from nothing hidden to nearly all."""
        return sorted({p.occlusion for p, _ in self.rows if (p.family, p.regime) == (family, regime)})

    def number(self, place: Place, key: str, task: str | None = None) -> float | None:
        """The mean of `key` at a place; None where there is no row or no number."""
        row = self.rows.get((place, task))
        return None if row is None else row.numbers.get(key)


def _known(order: Sequence[str], there: Iterable[str]) -> list[str]:
    found = set(there)
    return [name for name in order if name in found]


def merit(metric: Metric, value: float) -> float:
    """The value on a scale where larger is better."""
    return metric.good * value if metric.good else -abs(value - TARGET)


def shown(metric: Metric, value: float | None) -> str:
    """The value to as many digits as the metric has; a dash where there is none."""
    if value is None or metric.places is None:
        return written(value, digits=3)
    return f"{value:.{metric.places}f}".replace("-", "−")


def percent(share: float) -> str:
    """`90 %`, on one line."""
    return f"{100 * share:g}{SPACE}%"


# --- reading ------------------------------------------------------------------------------------------------


def read_results(folder: Path) -> Results:
    """The audit's files in `folder`, checked for what the page needs of them."""
    path, summary_path = folder / "cells.jsonl", folder / "summary.json"
    lines = enumerate(_text(path).split("\n"), start=1)
    cells = [_cell(_json(line, f"line {n} of {path}"), f"line {n} of {path}") for n, line in lines if line.strip()]
    summary = _json(_text(summary_path), str(summary_path))
    records = summary.get("rows") or []
    if not cells or not records:
        raise ValueError(f"{folder} holds {len(cells)} cells and {len(records)} rows; expected some. {REMEDY}")
    meta = summary.get("meta") or {}
    _refuse_lacking(meta, META, f"the meta of {summary_path}")
    rows = [_row(record, f"row {n} of {summary_path}") for n, record in enumerate(records, start=1)]
    return Results(cells, {(row.place, row.task): row for row in rows}, meta)


def _text(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"{path} is not there; expected a file that the support audit writes. {REMEDY}")
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
    _refuse_lacking(record, (*PLACE, "task", "seed", *NUMBERS, "coverage", "film", "diverged"), where)
    coverage, film, diverged = record["coverage"], record["film"], record["diverged"]
    if coverage is not None and (len(coverage) != len(NOMINAL) or None in coverage):
        raise ValueError(f"{where} has {len(coverage)} coverages; expected {len(NOMINAL)} numbers. {REMEDY}")
    if not isinstance(diverged, bool):
        raise ValueError(f"{where} has {diverged!r} as its diverged; expected true or false. {REMEDY}")
    numbers = {key: _number(record, key, where) for key in NUMBERS}
    seen = None if coverage is None else [float(share) for share in coverage]
    drawn = None if film is None else _film(film, where)
    return Cell(_place(record, where), record["task"], int(record["seed"]), numbers, seen, drawn, diverged)


def _row(record: Record, where: str) -> Row:
    _refuse_lacking(record, (*PLACE, *(m.key for m in METRICS), "published"), where)
    there = [name for key in NUMBERS for name in (key, f"{key}_sem") if name in record]
    numbers = {name: _number(record, name, where) for name in there}
    return Row(_place(record, where), record.get("task"), numbers, record["published"])


def _place(record: Record, where: str) -> Place:
    for name, known in (("family", FAMILIES), ("regime", (*REGIMES, PLAIN)), ("method", [m.key for m in METHODS])):
        if record[name] not in known:
            raise ValueError(f"{where} has the {name} {record[name]!r}; expected one of {', '.join(known)}.")
    occlusion = _number(record, "occlusion", where)
    if occlusion is None:
        raise ValueError(f"{where} has no occlusion (null); expected the share that is hidden. {REMEDY}")
    return Place(record["family"], record["regime"], round(occlusion, 9), record["method"])


def _number(record: Record, name: str, where: str) -> float | None:
    value = record[name]
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{where} has {value!r} as its {name}; expected a number or null. {REMEDY}")
    return None if value is None else float(value)


def _film(record: Record, where: str) -> Film:
    _refuse_lacking(record, FILM, f"the film of {where}")
    truth, seen, contact, particles, weights = (
        np.array(record[name], float) for name in ("truth", "seen", "contact", "particles", "weights")
    )
    along = {name: values.shape for name, values in (("truth", truth), ("seen", seen), ("contact", contact))}
    if len(set(along.values())) > 1 or particles.shape != weights.shape or particles.shape[:1] != truth.shape:
        shapes = along | {"particles": particles.shape, "weights": weights.shape}
        raise ValueError(f"the film of {where} has the shapes {shapes}; expected one entry a step in each. {REMEDY}")
    return Film(record["channel"], float(record["dt"]), truth, seen, particles, weights, contact, record["lost_at"])


def _refuse_lacking(record: Record, names: Sequence[str], where: str) -> None:
    if lacking := [name for name in names if name not in record]:
        raise ValueError(f"{where} has no {', '.join(lacking)}; expected {', '.join(names)}. {REMEDY}")
