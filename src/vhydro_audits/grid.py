"""Grids of cells that can be killed at any moment, taken up again and spread over processes or machines.

A cell is a dict of JSON scalars (task, condition, method, seed, …); a group is the cells that one call computes
together, for instance all seeds in one program. An audit gives the groups and a top-level function `work(key, config)`
that returns one record per cell of the group: the cell and its metrics. What `work` returns may depend on its
arguments only: it runs in a process of its own, where nothing but them and the environment is known.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from vhydro import places
from vhydro.progress import tell
from vhydro_audits.store import Store, as_json, canonical, cell_text, claimed, opened

Work = Callable[[dict, dict], list[dict]]


@dataclass(frozen=True)
class Group:
    """The cells that one call of an audit's `work` computes; with the config, `key` is all it is told."""

    key: dict[str, Any]
    cells: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Results:
    """Every cell of a complete grid, and what it took: wall-clock seconds of all runs, code and devices."""

    cells: list[dict[str, Any]]
    config: dict[str, Any]
    seconds: float
    commits: tuple[str, ...]
    devices: tuple[str, ...]


class GroupFailedError(RuntimeError):
    """Groups that could not be computed; the others were, and are kept."""


def run_grid(
    groups: Sequence[Group],
    work: Work,
    config: dict[str, Any],
    folder: Path,
    *,
    workers: int | None = None,
    on: Literal["local", "ray"] = "local",
    address: str | None = None,
    overwrite: bool = False,
) -> Results:
    """The results of every cell, in `folder/cells.jsonl.gz`; what is there already, of fewer seeds too, is kept.

    `workers` is the number of processes, 0 this one; by default one per core, and at most eight on an accelerator.
    """
    config = as_json(config)
    groups = [Group(as_json(group.key), tuple(as_json(list(group.cells)))) for group in groups]
    names = _cell_names(groups)
    texts = [cell_text(cell, names) for group in groups for cell in group.cells]
    _refuse_twice([canonical(group.key) for group in groups], "group")
    _refuse_twice(texts, "cell")
    with claimed(folder, overwrite=overwrite):
        store = opened(folder, config, texts, names, overwrite=overwrite)
        if store.complete and not store.holds_whole(texts, names):
            store.unpack([(group.key, group.cells) for group in groups], names)
        if not store.complete:
            waiting = [group for group in groups if not store.holds(group.key)]
            question = partial(places.answer, partial(_as_json, work), config)
            keys = [group.key for group in waiting]
            place = places.answers(question, keys, on=on, workers=workers, address=address)
            store.begin()
            with closing(place) as answers:
                failures = _kept(answers, waiting, store, names, total=len(texts))
            _refuse_failed(failures, len(groups), folder)
            store.finish([group.key for group in groups], names)
    run = store.run
    return Results(store.cells(), config, run["seconds"], tuple(run["commits"]), tuple(run["devices"]))


def _as_json(work: Work, key: dict, config: dict) -> list[dict]:
    """The records as JSON has them."""
    return as_json(work(key, config))


def _cell_names(groups: Sequence[Group]) -> tuple[str, ...]:
    """The keys of every cell, which must be the same for all and hold one value each."""
    cells = [cell for group in groups for cell in group.cells]
    if not cells:
        raise ValueError("the grid has no cells; expected at least one. Give it a task, a method and a seed.")
    names = tuple(cells[0])
    for cell in cells:
        if set(cell) != set(names):
            raise ValueError(f"cell {cell} has other keys than cell {cells[0]}; expected the same for all.")
        if any(isinstance(value, dict | list) for value in cell.values()):
            raise ValueError(f"cell {cell} holds a list or a dict; expected numbers and text, to be told apart by.")
    return names


def _refuse_twice(texts: Sequence[str], what: str) -> None:
    text, count = Counter(texts).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{what} {text} is {count} times in the grid; expected once.")


def _kept(
    answers: places.Answers,
    groups: Sequence[Group],
    store: Store,
    names: Sequence[str],
    *,
    total: int,
) -> dict[str, str]:
    """Why groups failed, by their key, after all others were kept."""
    failures: dict[str, str] = {}
    done = total - sum(len(group.cells) for group in groups)
    tell("cells", done, total)
    for position, (records, error, device) in answers:
        group = groups[position]
        reason = error if records is None else _mismatch(group, records, names)
        if records is None or reason:
            failures[canonical(group.key)] = reason
            continue
        store.keep(group.key, records, device)
        done += len(group.cells)
        tell("cells" + (f", {len(failures)} groups failed" if failures else ""), done, total)
    return failures


def _mismatch(group: Group, records: Any, names: Sequence[str]) -> str:
    """What is wrong with the records of a group; empty where there is one for each of its cells."""
    if not (isinstance(records, list) and all(isinstance(record, dict) for record in records)):
        return f"work returned {type(records).__name__}; expected a list of dicts, one per cell."
    found = Counter(cell_text(record, names) for record in records)
    asked = Counter(cell_text(cell, names) for cell in group.cells)
    if found == asked:
        return ""
    odd = [*(asked - found), *(found - asked)][0]
    return f"work returned {len(records)} records, expected one for each of {len(group.cells)} cells; first odd: {odd}"


def _refuse_failed(failures: dict[str, str], total: int, folder: Path) -> None:
    if not failures:
        return
    key, reason = next(iter(failures.items()))
    last = reason.strip().splitlines()[-1]
    error = GroupFailedError(
        f"{len(failures)} of {total} groups failed; the other {total - len(failures)} are kept in {folder}, "
        f"and running again computes only what is missing. The first, {key}: {last}"
    )
    for key, reason in failures.items():
        error.add_note(f"{key}:\n{reason}")
    raise error
