"""A folder of audit results: finished groups as they come, then one file of cells; nothing is ever half written.

`run.json` says what the folder is for (config, cells) and what it took (seconds, commits, devices); `cells/` holds one
file per finished group until all are; `cells.jsonl.gz` is the result, one JSON line a cell, and holds nothing that
depends on when, in which order or where it was computed. A plain `cells.jsonl` is read as well.
"""

import gzip
import json
import os
import shutil
import subprocess
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

import vhydro
from vhydro.outputs import LOCK, PARTIAL, locked, write_whole
from vhydro.printable import printable_json
from vhydro.report.files import plain, version

RUN, GROUPS, CELLS, PLAIN_CELLS = "run.json", "cells", "cells.jsonl.gz", "cells.jsonl"
PAGES = ("summary.json", "index.html")  # what is made of the cells
SHOWN = 5  # differences named in an error
REMEDY = "Give --overwrite to discard what is there, or another --out."


def canonical(value: Any) -> str:
    """The one JSON text of a value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def as_json(value: Any) -> Any:
    """The value as it will be read back: arrays as lists, paths as text, numbers that are not finite as null."""
    return json.loads(json.dumps(plain(value), default=_listed), parse_constant=lambda _: None)


def _listed(value: Any) -> Any:
    """The Python numbers of an array or of one of its scalars."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"found {value!r} ({type(value).__name__}), which JSON cannot hold; return numbers, text or lists.")


def rounded(value: Any, digits: int) -> Any:
    """The value with its floats to so many digits, for what is beyond depends on the machine; null if not finite."""
    if isinstance(value, dict):
        return {k: rounded(v, digits) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v, digits) for v in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.{digits}g}") if np.isfinite(value) else None
    return value


def commit() -> str:
    """The commit this code is at, marked where it was changed since; outside its repository, the package's version.

    `BENCH_COMMIT` names it for a copy of the code that has no history.
    """
    package = Path(vhydro.__path__[0])
    asked = (["ls-files", "--error-unmatch", "cli.py"], ["describe", "--always", "--dirty", "--exclude=*"])
    try:
        # A package installed below somebody else's repository is not tracked there.
        tracked, described = (subprocess.run(["git", *a], cwd=package, capture_output=True, text=True) for a in asked)
        found = described.stdout.strip() if tracked.returncode == 0 else ""
    except OSError:
        found = ""
    return os.environ.get("BENCH_COMMIT") or found or version()


@dataclass
class Store:
    """A folder opened for one grid; `run` is what its `run.json` holds."""

    folder: Path
    run: dict[str, Any]
    _started: float = field(default_factory=time.monotonic)

    @property
    def complete(self) -> bool:
        """Whether there is a file of cells: all of the grid, or of a smaller one."""
        return cells_file(self.folder).exists()

    def holds_whole(self, cells: Sequence[str], names: Sequence[str]) -> bool:
        """Whether the file of cells has all of these."""
        return self.complete and _holds_all(self.folder, cells, names)

    def holds(self, key: dict) -> bool:
        """Whether this group is finished."""
        return self._group(key).exists()

    def begin(self) -> None:
        """Nothing; the folder says what it is for and which code adds to it from now."""
        (self.folder / GROUPS).mkdir(exist_ok=True)
        self._add("commits", commit())
        self._write_run()

    def keep(self, key: dict, records: Sequence[dict], device: str) -> None:
        """Nothing; the finished group is on disk."""
        write_whole(self._group(key), canonical({"key": key, "records": records}) + "\n")
        self._add("devices", device)
        self._write_run()

    def unpack(self, groups: Sequence[tuple[dict, Sequence[dict]]], names: Sequence[str]) -> None:
        """Nothing; a smaller grid's cells are on disk as groups again, ready for more to be added."""
        records = {cell_text(record, names): record for record in read_cells(self.folder)}
        (self.folder / GROUPS).mkdir(exist_ok=True)
        for key, cells in groups:
            found = [records[text] for text in (cell_text(cell, names) for cell in cells) if text in records]
            if len(found) == len(cells):
                write_whole(self._group(key), canonical({"key": key, "records": found}) + "\n")
        for name in (CELLS, PLAIN_CELLS):
            (self.folder / name).unlink(missing_ok=True)

    def finish(self, keys: Sequence[dict], names: Sequence[str]) -> None:
        """Nothing; the cells of all groups are in one file, sorted by their cell."""
        records = [r for key in keys for r in json.loads(self._group(key).read_text("utf-8"))["records"]]
        lines = sorted((cell_text(record, names), _line(record, names)) for record in records)
        write_whole(self.folder / CELLS, _compressed("".join(f"{line}\n" for _, line in lines).encode()))
        self.tidy()

    def tidy(self) -> None:
        """Nothing; a complete folder holds its cells once and compressed, and no longer the groups they came from."""
        plain_file = self.folder / PLAIN_CELLS
        if plain_file.exists():
            if not (self.folder / CELLS).exists():
                write_whole(self.folder / CELLS, _compressed(plain_file.read_bytes()))
            plain_file.unlink()
        shutil.rmtree(self.folder / GROUPS, ignore_errors=True)

    def cells(self) -> list[dict[str, Any]]:
        """Every finished cell, as its file has it."""
        return list(read_cells(self.folder))

    def _group(self, key: dict) -> Path:
        digest = sha256(canonical([key, self.run["config"]]).encode()).hexdigest()
        return self.folder / GROUPS / f"{digest}.json"

    def _add(self, name: str, value: str) -> None:
        self.run[name] = list(dict.fromkeys([*self.run[name], value]))

    def _write_run(self) -> None:
        now = time.monotonic()
        self.run["seconds"] = round(self.run["seconds"] + now - self._started, 3)
        self._started = now
        write_whole(self.folder / RUN, json.dumps(self.run, indent=1, ensure_ascii=False) + "\n")


def cell_text(record: dict, names: Sequence[str]) -> str:
    """The text that tells a record's cell from all others."""
    return canonical({name: record.get(name) for name in names})


def _line(record: dict, names: Sequence[str]) -> str:
    """A record as JSON: its cell first, then the metrics by name."""
    ordered = {name: record[name] for name in (*names, *sorted(record.keys() - set(names)))}
    return json.dumps(ordered, ensure_ascii=False, allow_nan=False)


def cells_file(folder: Path) -> Path:
    """The file that the folder's cells are in, or would be: compressed, unless there is a plain one only."""
    packed = folder / CELLS
    return folder / PLAIN_CELLS if (folder / PLAIN_CELLS).exists() and not packed.exists() else packed


def read_cells(folder: Path) -> Iterator[dict[str, Any]]:
    """Every cell of the folder's file, as it has them; a line that is damaged is named."""
    path, line = cells_file(folder), 0
    try:
        # Not `splitlines`: text inside JSON may hold other separators, which it takes for line ends.
        with gzip.open(path, "rt", encoding="utf-8") if path.name == CELLS else path.open(encoding="utf-8") as file:
            for text in file:
                line += 1
                if text.strip():
                    plain_text = "\\u" not in text and text.strip().isprintable()
                    yield json.loads(text) if plain_text else printable_json(json.loads(text))
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"line {line} of {path} does not read as JSON lines ({error}).") from error


def _compressed(content: bytes) -> bytes:
    """The same bytes each time: no date is kept."""
    return gzip.compress(content, 9, mtime=0)


@contextmanager
def claimed(folder: Path, *, overwrite: bool = False) -> Iterator[None]:
    """The folder is there, and this process alone writes results into it."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; expected a folder for the results. Give another one.")
    foreign = [name for name in PAGES if (folder / name).exists()]
    if foreign and not (folder / RUN).exists() and not overwrite:
        raise ValueError(f"{folder} has {', '.join(foreign)} but no {RUN}, so they are of something else. {REMEDY}")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, folder):
        yield


def opened(folder: Path, config: dict, cells: Sequence[str], names: Sequence[str], *, overwrite: bool) -> Store:
    """The folder, ready to take this grid up where it was left; results of another configuration are refused.

    `cells` are the texts of the grid's cells (`cell_text`), `names` what a cell is named by.
    """
    if overwrite:
        _discard(folder)
    for leftover in (*folder.glob(f".*{PARTIAL}"), *folder.glob(f"{GROUPS}/.*{PARTIAL}")):
        leftover.unlink()
    digest = sha256("\n".join(sorted(cells)).encode()).hexdigest()
    asked = {"config": config, "cells": len(cells), "grid": digest, "seconds": 0.0, "commits": [], "devices": []}
    store = Store(folder, _resumed(folder, asked))
    if store.complete and _holds_all(folder, cells, names):
        store.tidy()
    store.run |= {"cells": len(cells), "grid": digest}
    return store


def _discard(folder: Path) -> None:
    """Removes what a grid writes and nothing else; first what says that the rest is sound."""
    for name in (RUN, CELLS, PLAIN_CELLS):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / GROUPS, ignore_errors=True)


def _resumed(folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """What `run.json` holds where there are results of the grid that is asked for; where there are none, its start."""
    if not cells_file(folder).exists() and not any(folder.glob(f"{GROUPS}/*.json")):
        return asked
    if not (folder / RUN).exists():
        raise ValueError(f"{folder} holds cells but no {RUN}, so it is not known what they are of. {REMEDY}")
    run = json.loads((folder / RUN).read_text("utf-8"))
    differences = _differences(run.get("config"), asked["config"])
    if differences:
        more = f" and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        raise ValueError(f"{folder} holds other results: {'; '.join(differences[:SHOWN])}{more}. {REMEDY}")
    return run


def _differences(there: Any, here: Any, path: str = "config") -> list[str]:
    """Every setting that is not the same, by name, with both values."""
    if isinstance(there, dict) and isinstance(here, dict):
        names = sorted(there.keys() | here.keys())
        return [d for n in names for d in _differences(there.get(n), here.get(n), f"{path}.{n}")]
    return [] if there == here else [f"{path} is {json.dumps(there)} there and {json.dumps(here)} here"]


def _holds_all(folder: Path, cells: Sequence[str], names: Sequence[str]) -> bool:
    """Whether the file of cells holds the whole grid; one that holds a part, as of fewer seeds, is to be added to."""
    try:
        found = [cell_text(record, names) for record in read_cells(folder)]
    except ValueError as error:
        raise ValueError(f"{error} {REMEDY}") from error
    if set(found) - set(cells) or len(found) != len(set(found)):
        path = cells_file(folder)
        raise ValueError(f"{path} has {len(found)} cells, not all of them the grid's {len(cells)}. {REMEDY}")
    return len(found) == len(cells)
