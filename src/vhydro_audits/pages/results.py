"""An audit's result files as a page reads them: checked against the audit's spec, and found by place."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vhydro.printable import printable_json
from vhydro_audits.spec import Method, Metric, Spec
from vhydro_audits.store import cells_file, read_cells

Record = dict[str, Any]
Place = Mapping[str, Any]  # the parts of `Spec.place`, with or without the method
META = ("commit", "device", "seconds", "seeds", "config")


@dataclass(frozen=True)
class Results:
    """What one folder holds: every cell, and the means over seeds of every place and task."""

    spec: Spec
    cells: list[Record]
    rows: list[Record]  # without a task: over all tasks of a place
    meta: Record

    @cached_property
    def _rows(self) -> dict[tuple, Record]:
        return {(self._key(row), row.get("task")): row for row in self.rows}

    @cached_property
    def _cells(self) -> dict[tuple, list[Record]]:
        found: dict[tuple, list[Record]] = {}
        for cell in sorted(self.cells, key=lambda c: c["seed"]):
            found.setdefault(self._key(cell), []).append(cell)
        return found

    def _key(self, place: Place) -> tuple:
        return tuple(place[name] for name in self.spec.place)

    def row(self, place: Place, method: str, task: str | None = None) -> Record | None:
        """The means of a method at a place, over all tasks or of one."""
        return self._rows.get((self._key({**place, "method": method}), task))

    def number(self, place: Place, method: str, key: str, task: str | None = None) -> float | None:
        """One mean; None where there is no row or no number."""
        return (self.row(place, method, task) or {}).get(key)

    def paper(self, place: Place, method: str, key: str, task: str | None = None) -> float | None:
        """The number that the paper has there for the same method."""
        return ((self.row(place, method, task) or {}).get("published") or {}).get(key)

    def at(self, place: Place, method: str, task: str | None = None) -> list[Record]:
        """The cells of a method at a place, by seed."""
        found = self._cells.get(self._key({**place, "method": method}), [])
        return [cell for cell in found if task in (None, cell["task"])]

    def present(self, name: str, **where) -> list:
        """The values that a part of the place has, in the spec's order."""
        there = {row[name] for row in self.rows if all(row[k] == v for k, v in where.items())}
        return [value for value in self.spec.choices(name) if value in there]

    def of_family(self, name: str) -> "Results":
        """The part that is of one family of tasks, as if the audit had no other."""
        spec = replace(self.spec, families={name: self.spec.families[name]})
        cells, rows = ([r for r in x if r.get("family", name) == name] for x in (self.cells, self.rows))
        return Results(spec, cells, rows, self.meta)

    @cached_property
    def methods(self) -> list[Method]:
        there = self.present("method")
        return [m for m in self.spec.methods if m.key in there]

    @cached_property
    def settings(self) -> list[Place]:
        """Every place with a mean over its tasks, without its method, in the spec's order."""
        names = [name for name in self.spec.place if name != "method"]
        there = {tuple(row[name] for name in names) for row in self.rows if row.get("task") is None}
        order = [{v: k for k, v in enumerate(self.spec.choices(name))} for name in names]
        ranked = sorted(there, key=lambda p: [ranks[v] for ranks, v in zip(order, p, strict=True)])
        return [dict(zip(names, values, strict=True)) for values in ranked]

    def tasks(self, family: str | None = None) -> list[str]:
        """The tasks that were run, of one family or all."""
        there = {cell["task"] for cell in self.cells}
        families = self.spec.families if family is None else [family]
        return [task for f in families for task in self.spec.families[f] if task in there]

    @property
    def is_partial(self) -> bool:
        """Whether the run is less than the audit in full."""
        whole = sum(map(len, self.spec.families.values()))
        return bool(self.meta.get("quick")) or self.meta["seeds"] < self.spec.seeds or len(self.tasks()) < whole

    def best(
        self, place: Place, metric: Metric, methods: Iterable[str], task: str | None = None, *, paper: bool = False
    ) -> tuple[str, float] | None:
        """The best of these methods at a place, and its number, ours or the paper's; the first among equals."""
        number = self.paper if paper else self.number
        found = {m: v for m in methods if (v := number(place, m, metric.key, task)) is not None}
        if not found or not metric.ranked:
            return None
        best = max(found, key=lambda m: metric.merit(found[m]))
        return best, found[best]


def read_results(spec: Spec, folder: Path, check: Callable[[Record], str] = lambda _: "") -> Results:
    """The audit's files in `folder`; `check` says in words what is wrong with a cell, if anything is."""
    remedy = f"Run `vhydro audit {spec.name} --out {folder}` again, or give the folder of a finished one."
    path, summary_path = cells_file(folder), folder / "summary.json"
    for needed in (path, summary_path):
        if not needed.is_file():
            raise ValueError(f"{needed} is not there; expected a file that the {spec.name} audit writes. {remedy}")
    try:
        cells, summary = list(read_cells(folder)), printable_json(json.loads(summary_path.read_text("utf-8")))
    except json.JSONDecodeError as error:
        raise ValueError(f"{summary_path} does not read as JSON ({error}). {remedy}") from error
    except ValueError as error:
        raise ValueError(f"{error} {remedy}") from error
    rows, meta = summary.get("rows") or [], summary.get("meta") or {}
    if not cells or not rows:
        raise ValueError(f"{folder} holds {len(cells)} cells and {len(rows)} rows; expected some. {remedy}")
    wrong = _lacking(meta, META)
    if wrong:
        raise ValueError(f"the meta of {summary_path} {wrong}. {remedy}")
    for records, needed, more, where in ((cells, ("task", "seed"), check, path), (rows, (), None, summary_path)):
        for number, record in enumerate(records, start=1):
            if wrong := _wrong(spec, record, needed) or (more(record) if more else ""):
                raise ValueError(f"record {number} of {where} {wrong}. {remedy}")
    return Results(spec, cells, rows, meta)


def _wrong(spec: Spec, record: Record, needed: Sequence[str]) -> str:
    """What a page would silently leave out or misread in a record, whose levels are rounded on the way.

    Families that had the paper's name in older files get ours.
    """
    ours = {paper: name for name, paper in spec.paper_families.items()}
    if record.get("family") in ours:
        record["family"] = ours[record["family"]]
    wrong = _lacking(record, (*spec.place, *needed))
    if wrong:
        return wrong
    for name in (*spec.levels, *spec.numbers):
        value = record.get(name)
        missing = value is None and name not in spec.levels
        if not missing and (isinstance(value, bool) or not isinstance(value, int | float)):
            return f"has {value!r} as its {name}; expected a number" + ("" if name in spec.levels else " or null")
    record |= {name: round(float(record[name]), 9) for name in spec.levels}
    tasks = [t for f, some in spec.families.items() for t in some if record.get("family", f) == f]
    choices = {name: spec.choices(name) for name in spec.place} | {"task": (None, *tasks)}
    for name, known in choices.items():
        if record.get(name) not in known:
            expected = ", ".join(str(value) for value in known if value is not None)
            return f"has the {name} {record[name]!r}; expected one of {expected}"
    return ""


def _lacking(record: Record, names: Sequence[str]) -> str:
    lacking = [name for name in names if name not in record]
    return f"has no {', '.join(lacking)}; expected {', '.join(names)}" if lacking else ""
