"""The laws audit's result files as they are read, and what its settings, methods, metrics and bars are called."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]
ABSENT = "–"
SPACE = "\u00a0"  # keeps a number and its unit on one line
REMEDY = "Run the laws audit again for this folder, or give the folder of a finished one."


class Setting(NamedTuple):
    """Where states and modes came from, and what was done to them."""

    source: str
    noise: float
    missing: float
    flips: float

    @property
    def trouble(self) -> str:
        """`5 % noise, 20 % missing, 2 % flips`, without what is zero."""
        kinds = ((self.noise, "noise"), (self.missing, "missing"), (self.flips, "flips"))
        return ", ".join(f"{100 * share:g}{SPACE}% {name}" for share, name in kinds if share or name == "noise")

    @property
    def title(self) -> str:
        return f"{self.source}, {self.trouble}"


class Metric(NamedTuple):
    """A number of every cell, and its good end."""

    key: str
    title: str
    good: int


class Method(NamedTuple):
    """A method, the name of its kind in legends, and how it is drawn."""

    key: str
    title: str
    kind: str
    colour: str
    dash: str = "solid"
    symbol: str = "circle"


class Bar(NamedTuple):
    """What the full method is asked for in one setting, in the order of `METRICS`."""

    setting: Setting
    word: str
    limits: tuple[float, ...]


METRICS = (
    Metric("support_f1", "support F1", 1),
    Metric("coefficient_error", "coefficient error", -1),
    Metric("vector_field_nrmse", "vector-field NRMSE", -1),
    Metric("physical_constant_error", "constants error", -1),
)
F1, COEFFICIENTS, *_ = METRICS
BARS = (
    Bar(Setting("given", 0.001, 0.0, 0.0), "at least", (0.99, 0.002, 0.001, 0.0005)),
    Bar(Setting("given", 0.05, 0.2, 0.02), "aim", (0.95, 0.05, 0.03, 0.03)),
    Bar(Setting("filtered", 0.01, 0.0, 0.0), "aim", (0.95, 0.05, 0.03, 0.03)),
)
FULL, PAPER = "full", "lasso"
_PEER, _PEER_ALONE = ("PySINDy, modes given", "#6b7280", "solid"), ("PySINDy, no modes", "#b3b9c4", "dot")
METHODS = (
    Method(FULL, "full", "full", "#2563eb"),
    Method("weak", "weak form", "weak form", "#7fb2ff"),
    Method(PAPER, "lasso", "lasso", "#0d9488"),
    Method("no-mode", "no-mode", "no-mode", "#d9480f"),
    Method("no-sparsity", "no-sparsity", "no-sparsity", "#f2a33a"),
    Method("no-ph", "no-pH", "no-pH", "#9d174d"),
    Method("sindy-stlsq", "SINDy STLSQ", *_PEER),
    Method("sindy-ensemble", "SINDy ensemble", *_PEER, "square"),
    Method("sindy-weak", "SINDy weak", *_PEER, "diamond"),
    Method("sindy-stlsq-no-modes", "SINDy STLSQ, no modes", *_PEER_ALONE),
    Method("sindy-ensemble-no-modes", "SINDy ensemble, no modes", *_PEER_ALONE, "square"),
    Method("sindy-weak-no-modes", "SINDy weak, no modes", *_PEER_ALONE, "diamond"),
)
PLACE = ("task", "source", "noise", "missing", "flips", "method", "seed")
NUMBERS = (*(m.key for m in METRICS), "support_precision")
CELL = (*PLACE, *NUMBERS, "status", "terms", "constants", "theorem")
ROW = ("source", "noise", "missing", "flips", "method", *(m.key for m in METRICS))


class Results(NamedTuple):
    """What one folder holds."""

    cells: list[Row]
    groups: dict[tuple[Setting, str], list[Row]]  # the same by setting and method
    rows: dict[tuple[Setting, str], Row]  # means over the systems
    meta: Row
    equations: list[Row]

    @property
    def settings(self) -> list[Setting]:
        """Every setting with a mean: given ones first, then from easy to hard."""
        return ordered(setting for setting, _ in self.rows)

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(cell["task"] for cell in self.cells))

    @property
    def shown(self) -> list[Setting]:
        """The settings whose cells are drawn one by one: those with a bar, or where none was run the two ends."""
        there = ordered(setting for setting, _ in self.groups)
        return [bar.setting for bar in BARS if bar.setting in there] or list(dict.fromkeys([there[0], there[-1]]))

    def methods(self, having: str | None = None) -> list[Method]:
        """The methods there are, or those with at least one cell in which `having` is neither null nor empty."""
        there = {cell["method"] for cell in self.cells if having is None or cell[having] not in (None, [])}
        return [m for m in METHODS if m.key in there]

    def at(self, setting: Setting, method: str) -> list[Row]:
        """The cells of one method in one setting."""
        return self.groups.get((setting, method), [])


def setting_of(record: Row) -> Setting:
    """The setting of a cell or a row."""
    noise, missing, flips = (round(float(record[name]), 9) for name in ("noise", "missing", "flips"))
    return Setting(record["source"], noise, missing, flips)


def ordered(settings: Iterable[Setting]) -> list[Setting]:
    """Each setting once: given ones first, then from easy to hard."""
    return sorted(set(settings), key=lambda s: (s.source != "given", *s))


def written(value: float | None, *, share: bool = False, digits: int = 2) -> str:
    """An error to `digits` significant digits, or a share to one decimal more; a dash where there is no number."""
    if value is None:
        return ABSENT
    if share:
        return f"{value:.{digits + 1}f}"
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e4:
        places = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
        return f"{value:.{places}f}".replace("-", "−")
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}·{power_of_ten(int(power))}".replace("-", "−")


def power_of_ten(exponent: int) -> str:
    """`10⁻³`, and 1 for the power 0."""
    return f"10{str(exponent).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}" if exponent else "1"


def standing(results: Results, setting: Setting, metric: Metric) -> tuple[int, list[str]] | None:
    """Full against the best of all others: 1 ahead, 0 level, −1 behind, and who is best; None without a contest."""
    values = {m.key: results.rows.get((setting, m.key), {}).get(metric.key) for m in METHODS}
    numbers = {key: metric.good * value for key, value in values.items() if value is not None}
    ours = numbers.pop(FULL, None)
    if ours is None or not numbers:
        return None
    best = max(numbers.values())
    side = (ours > best) - (ours < best)
    return side, [FULL] * (side >= 0) + [key for key, value in numbers.items() if value == best and side <= 0]


def read_results(folder: Path) -> Results:
    """The audit's files in `folder`, checked for what the page needs of them."""
    cells = [_json(line, folder / "cells.jsonl") for line in _text(folder / "cells.jsonl").split("\n") if line.strip()]
    summary = _json(_text(folder / "summary.json"), folder / "summary.json")
    equations = folder / "equations.json"
    if not cells or not summary.get("rows"):
        raise ValueError(f"{folder} holds {len(cells)} cells and {len(summary.get('rows', []))} rows. {REMEDY}")
    rows = [row for row in summary["rows"] if row.get("task") is None]
    _refuse_lacking(cells, CELL, folder / "cells.jsonl")
    _refuse_lacking(rows, ROW, folder / "summary.json")
    _refuse_lacking([summary.get("meta", {})], ("commit", "device", "seconds", "seeds"), folder / "summary.json")
    groups: dict[tuple[Setting, str], list[Row]] = {}
    for cell in cells:
        groups.setdefault((setting_of(cell), cell["method"]), []).append(cell)
    return Results(
        cells=cells,
        groups=groups,
        rows={(setting_of(row), row["method"]): row for row in rows},
        meta=summary["meta"],
        equations=_json(_text(equations), equations) if equations.exists() else [],
    )


def _text(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"{path} is not there; expected a file that the laws audit writes. {REMEDY}")
    return path.read_text("utf-8")


def _json(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} does not read as JSON ({error}). {REMEDY}") from error


def _refuse_lacking(records: Sequence[Row], names: Sequence[str], path: Path) -> None:
    """Raises where a record lacks a name, or has a method that the page would leave out."""
    known = [m.key for m in METHODS]
    for record in records:
        if lacking := [name for name in names if name not in record]:
            raise ValueError(f"a record of {path} has no {', '.join(lacking)}; expected {', '.join(names)}. {REMEDY}")
        if record.get("method", FULL) not in known:
            raise ValueError(f"{path} has the method {record['method']!r}; expected one of {', '.join(known)}.")
