"""Rows from cells: means over seeds with their spread, and beside each the row the paper published."""

import json
from collections.abc import Sequence
from functools import cache
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from vhydro_audits.grid import Results
from vhydro_audits.spec import Spec
from vhydro_audits.store import as_json, rounded, write_whole

DIGITS = 6  # of a number in the summary
META = ("commit", "device", "seconds", "seeds", "config")
MATCHED = ("experiment", "family", "task", "occlusion")
PUBLISHED = Path(__file__).with_name("published.json")

Row = dict[str, Any]


def rows(
    cells: Sequence[Row], by: Sequence[str], metrics: Sequence[str], spread: Literal["sem", "sd"] = "sem"
) -> list[Row]:
    """One row for every value of `by`: the mean of each metric over its cells, the spread, and the number of seeds.

    Cells without a number are left out of the mean and counted as `METRIC_missing`; one number has no spread (null).
    """
    for name in (*by, "seed"):
        lacking = next((cell for cell in cells if name not in cell), None)
        if lacking is not None:
            raise ValueError(f"cell {lacking} has no {name!r}; expected every cell to say which it is of.")
    for metric in metrics:
        if not any(metric in cell for cell in cells):
            raise ValueError(f"no cell has the metric {metric!r}; check its name.")
    together: dict[tuple, list[Row]] = {}
    for cell in cells:
        together.setdefault(tuple(cell[name] for name in by), []).append(cell)
    return [_row(dict(zip(by, value, strict=True)), group, metrics, spread) for value, group in together.items()]


def _row(place: Row, cells: Sequence[Row], metrics: Sequence[str], spread: str) -> Row:
    means: Row = {}
    for metric in metrics:
        numbers = [float(cell[metric]) for cell in cells if cell.get(metric) is not None]
        means |= {metric: fmean(numbers) if numbers else None, f"{metric}_{spread}": _spread(numbers, spread)}
        if len(numbers) < len(cells):
            means[f"{metric}_missing"] = len(cells) - len(numbers)
    return place | {"seeds": len({cell["seed"] for cell in cells})} | means


def _spread(numbers: Sequence[float], spread: str) -> float | None:
    """The sample standard deviation, or that of the mean."""
    if len(numbers) < 2:
        return None
    return stdev(numbers) / (sqrt(len(numbers)) if spread == "sem" else 1.0)


def summary_rows(spec: Spec, cells: Sequence[Row]) -> list[Row]:
    """Every place over all its tasks, then task by task, each with the paper's row beside it where it has one."""
    by = ("experiment", *spec.also, *spec.place)
    whole = rows(cells, by, spec.numbers, spec.spread)
    single = [r | {"experiment": f"{spec.name}-by-task"} for r in rows(cells, (*by, "task"), spec.numbers, spec.spread)]
    return [r | {"published": _published(spec, r)} for r in whole + single]


def _published(spec: Spec, row: Row) -> Row | None:
    """The paper's row beside ours, by the paper's name of the task and without what the paper holds fixed."""
    if any(row[name] != value for name, value in spec.paper_where.items()):
        return None
    place = {name: value for name, value in row.items() if name not in spec.paper_where}
    place["family"] = spec.paper_families.get(row.get("family", ""), row.get("family"))
    place["method"] = spec.paper_methods.get(row.get("method", ""), row.get("method"))
    if "task" in row:
        place["task"] = spec.paper_tasks.get(row["task"])
    return published_row(place, published())


@cache
def published() -> tuple[Row, ...]:
    """Every row of the paper's tables."""
    return tuple(json.loads(PUBLISHED.read_text("utf-8")))


def published_row(row: Row, published_rows: Sequence[Row]) -> Row | None:
    """The published row of the same experiment, family, task, occlusion and method, if there is one.

    An average over tasks stands beside an average only. Where the paper has one method and does not name it, its row
    stands beside every method.
    """
    return next((candidate for candidate in published_rows if _beside(candidate, row)), None)


def _beside(candidate: Row, row: Row) -> bool:
    same_method = candidate.get("method") in (None, row.get("method"))
    return same_method and all(candidate.get(name) == row.get(name) for name in MATCHED)


def meta(results: Results, seeds: int) -> Row:
    """Where the numbers come from: commit, device, wall-clock seconds, seeds and config."""
    names = {"commit": ", ".join(results.commits), "device": "; ".join(results.devices)}
    return names | {"seconds": round(results.seconds, 1), "seeds": seeds, "config": results.config}


def write_summary(folder: Path, meta: Row, rows: Sequence[Row]) -> Path:
    """The path of `summary.json`, which holds the rows and where they come from."""
    if lacking := [name for name in META if name not in meta]:
        raise ValueError(f"the summary's meta has no {', '.join(lacking)}; expected {', '.join(META)}.")
    path = folder / "summary.json"
    told = json.dumps(as_json(meta), indent=1, ensure_ascii=False, allow_nan=False)
    spreads = ("_sem", "_sd")  # which one seed does not have
    whole = as_json(rounded(list(rows), DIGITS))
    kept = [{k: v for k, v in row.items() if v is not None or not k.endswith(spreads)} for row in whole]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in kept)
    write_whole(path, f'{{"meta": {told},\n"rows": [\n{lines}\n]}}\n')
    return path
