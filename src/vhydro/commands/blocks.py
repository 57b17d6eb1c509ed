"""Datasets larger than a machine: blocks of episodes, each written as Parquet that appears whole, here or elsewhere.

A block is read, computed and written by one worker, which holds no more than that. What is finished stays: a run that
was killed is taken up where it was. An episode that cannot be read or seen is named in the table of problems, and the
others go on. The rows do not depend on how many workers there are, or where.
"""

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from vhydro import places
from vhydro.commands.mapping import Naming
from vhydro.data import read
from vhydro.data.dataset import Dataset
from vhydro.data.options import DEFAULT, ReadOptions
from vhydro.data.row_groups import imported_pyarrow
from vhydro.episodes import Episode
from vhydro.fitted import Fitted, load
from vhydro.outputs import LOCK, PARTIAL, locked, unfinished, write_whole

RUN, DONE, PROBLEMS = "run.json", "done", "problems"
PROBLEM = {"episode": "string", "error": "string"}
SHOWN = 3  # problems that are printed

Types = Mapping[str, str]  # the arrow type of every column
Tables = Callable[[Fitted], Mapping[str, Types]]  # what is written of a model's logs
Columns = Mapping[str, Sequence | np.ndarray]
# What is written of some logs, given the model, their names and the options of the run.
Rows = Callable[[Fitted, Sequence[Episode], Sequence[str], Mapping[str, Any]], Mapping[str, Columns]]


@dataclass(frozen=True)
class Where:
    """Where the blocks of `--to parquet` are computed."""

    on: Literal["local", "ray", "slurm"] = "local"
    """Of --to parquet: in processes here, on a Ray cluster, or by Slurm; those see the same files as this machine."""
    workers: int | None = None
    """Processes, 0 for this one, or jobs of Slurm; by default one for each core."""
    address: str | None = None
    """Of a Ray cluster, by default one on this machine; or the partition of Slurm."""
    block: int = 200
    """Episodes that a worker reads, computes and writes at a time."""

    def __post_init__(self):
        if self.block < 1:
            raise ValueError(f"--block {self.block}; expected at least one episode.")

    def refuse_without_blocks(self, to: str) -> None:
        """Raises where a place was asked for and nothing is computed in blocks."""
        if self != Where():
            raise ValueError(
                f"--on, --workers, --address or --block with --to {to}, which is computed here in one go; expected "
                "them with --to parquet."
            )


@dataclass(frozen=True)
class Totals:
    """What all blocks of a run hold."""

    episodes: int
    rows: dict[str, int]  # of every table
    problems: list[dict[str, str]]


def run_blocks(
    tables: Tables,
    rows: Rows,
    out: Path,
    *,
    apart: bool = True,
    verb: str,
    model: Path,
    logs: Path,
    naming: Naming,
    reading: ReadOptions = DEFAULT,
    options: Mapping[str, Any],
    where: Where,
    overwrite: bool = False,
) -> Totals:
    """Everything that `rows` gives of the logs, in `out/TABLE/part-*.parquet`; what is there already is kept.

    `rows` is asked for all logs of a block at once, so that they share a batch; where that fails and each log stands
    `apart`, for one after the other. It and `tables` are top-level functions: a worker finds them by their names.
    """
    imported_pyarrow(out)
    dataset = opened(str(model), _digest(model), str(logs), _naming(naming), _told(reading))[1]
    config = {
        "verb": verb, "model": str(model.resolve()), "digest": _digest(model), "logs": str(logs.resolve()),
        "naming": _naming(naming), "reading": _told(reading), "options": dict(options),
        "block": where.block, "episodes": len(dataset),
        "names": sha256("\n".join(dataset.names).encode()).hexdigest(),
    }  # fmt: skip
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file; expected a folder for the tables. Give another --out.")
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / LOCK, out):
        _claim(out, config, overwrite=overwrite)
        keys = [{"number": n} for n in range(-(-len(dataset) // where.block)) if not _marker(out, n).exists()]
        work = partial(computed_block, tables, rows, apart, str(out.resolve()))
        _compute(partial(places.answer, work, config), keys, where, out)
        return _totals(out, config)


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def _naming(naming: Naming) -> str:
    return json.dumps(asdict(naming.resolved()) | {"mapping": None}, sort_keys=True)


def _told(reading: ReadOptions) -> str:
    return json.dumps(asdict(reading), sort_keys=True)


def _from_json(text: str) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(text).items()}


def _claim(out: Path, config: dict[str, Any], *, overwrite: bool) -> None:
    """The folder is of this run, from now or from before; what another run left is refused, or discarded."""
    file = out / RUN
    if file.exists() and not overwrite:
        there = json.loads(file.read_text("utf-8"))["config"]
        if there != config:
            other = ", ".join(f"{k} {there.get(k)!r:.60}" for k in config if there.get(k) != config[k])
            raise ValueError(
                f"{out} holds the tables of another run ({other}); expected those of this one or an empty folder. Give "
                "another --out, or --overwrite."
            )
    elif any(p.name not in (RUN, LOCK) for p in out.iterdir()) and not file.exists():
        raise FileExistsError(f"{out} holds other files; expected an empty folder for the tables. Give another --out.")
    elif file.exists():
        for folder in [p for p in out.iterdir() if p.is_dir() and not p.is_symlink()]:
            if folder.name == DONE or all(p.match("part-*.parquet") for p in folder.iterdir()):
                shutil.rmtree(folder)
    for leftover in out.glob(f"*/.*{PARTIAL}"):
        leftover.unlink()
    (out / DONE).mkdir(exist_ok=True)
    write_whole(file, json.dumps({"config": config}, indent=1, ensure_ascii=False) + "\n")


def _marker(out: Path, number: int) -> Path:
    return out / DONE / f"{number:06d}.json"


def _compute(question: places.Question, keys: Sequence[dict], where: Where, out: Path) -> None:
    """Asks for every block; one that could not be computed is told after the others are done."""
    failures: list[str] = []
    if not keys:
        return
    answers = places.answers(question, keys, on=where.on, workers=where.workers, address=where.address)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with closing(answers), Progress(*columns, *times, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("blocks", total=len(keys))
        for _, (records, error, _) in answers:
            failures += [] if records is not None else [error.strip().splitlines()[-1]]
            bar.advance(task)
    if failures:
        raise ValueError(
            f"{len(failures)} of {len(keys)} blocks failed; the others are kept in {out}, and running again computes "
            f"only what is missing. The first: {failures[0]}"
        )


@lru_cache(1)
def opened(model: str, digest: str, logs: str, naming: str, reading: str) -> tuple[Fitted, Dataset]:
    """The model and the logs, unread; kept by a worker from block to block."""
    del digest  # tells a model from another that had its name
    fitted = load(model)
    return fitted, Naming(**_from_json(naming)).applied(read(logs, **_from_json(reading)), fitted.view)


def computed_block(tables: Tables, rows: Rows, apart: bool, out: str, key: dict, config: dict) -> list[dict]:
    """What a block holds, after its tables were written."""
    folder, number = Path(out), int(key["number"])
    if _marker(folder, number).exists():  # computed by a worker that died before it could say so
        return []
    fitted, logs = opened(*(config[k] for k in ("model", "digest", "logs", "naming", "reading")))
    first, end = number * config["block"], min((number + 1) * config["block"], len(logs))
    held: dict[str, Episode] = {}
    problems: dict[str, str] = {}
    for i in range(first, end):
        try:
            log = logs[i]
            fitted.see(log)
            held[logs.names[i]] = log
        except (ValueError, OSError) as error:
            problems[logs.names[i]] = str(error)
    found, more = _found(partial(rows, fitted), held, apart, config["options"])
    told = [{"episode": name, "error": error} for name, error in (problems | more).items()]
    kinds = tables(fitted)
    parts = {name: [columns[name] for columns in found] for name in kinds}
    counts = {name: _write_part(folder / name, number, kind, parts[name]) for name, kind in kinds.items()}
    if told:
        _write_part(folder / PROBLEMS, number, PROBLEM, [{k: [p[k]] for k in PROBLEM} for p in told])
    done = {"episodes": end - first - len(told), "rows": counts, "problems": told}
    write_whole(_marker(folder, number), json.dumps(done, ensure_ascii=False) + "\n")
    return [done]


def _found(rows, held: Mapping[str, Episode], apart: bool, options) -> tuple[list[Mapping[str, Columns]], dict]:
    """What is written of the logs, and why nothing is of some."""
    try:
        return ([rows(list(held.values()), list(held), options)] if held else []), {}
    except ValueError as error:
        if not apart or len(held) == 1:
            return [], dict.fromkeys(held, str(error))
    every = [_found(rows, {name: log}, apart, options) for name, log in held.items()]
    return [f for found, _ in every for f in found], {k: v for _, problems in every for k, v in problems.items()}


def _write_part(folder: Path, number: int, types: Types, logs: Sequence[Columns]) -> int:
    """The rows that the part of a table holds, after it was written whole."""
    arrow, parquet = imported_pyarrow(folder)
    schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in types.items()])
    parts = [arrow.table({n: arrow.array(c[n], schema.field(n).type) for n in types}, schema) for c in logs]
    table = arrow.concat_tables(parts) if parts else schema.empty_table()
    folder.mkdir(exist_ok=True)
    path = folder / f"part-{number:06d}.parquet"
    with unfinished(path) as part:
        parquet.write_table(table, part, write_page_checksum=True)
        part.replace(path)
    return table.num_rows


def _totals(out: Path, config: Mapping[str, Any]) -> Totals:
    """The sums over all blocks, which `run.json` holds from now on too."""
    blocks = [json.loads(file.read_text("utf-8")) for file in sorted((out / DONE).glob("*.json"))]
    names = dict.fromkeys(name for b in blocks for name in b["rows"])
    totals = Totals(
        sum(b["episodes"] for b in blocks),
        {name: sum(b["rows"].get(name, 0) for b in blocks) for name in names},
        [p for b in blocks for p in b["problems"]],
    )
    told = {"config": config, "episodes": totals.episodes, "rows": totals.rows, "problems": len(totals.problems)}
    write_whole(out / RUN, json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    return totals


def print_totals(totals: Totals, out: Path) -> None:
    """What was written, how to query it, and which episodes could not be used."""
    for name, count in totals.rows.items():
        print(f"{count:,} {name} of {totals.episodes:,} logs: {out / name}/*.parquet")
    for problem in totals.problems[:SHOWN]:
        print(f"left out: {problem['episode']}: {problem['error']}", file=sys.stderr)
    if totals.problems:
        print(f"{len(totals.problems)} logs were left out: {out / PROBLEMS}/*.parquet", file=sys.stderr)
        raise SystemExit(1)
