"""`vhydro segment MODEL LOGS`: when each mode was on, in words, as tables, as a picture or as LeRobot's subtasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from tyro.conf import OmitArgPrefixes, Positional, arg

from vhydro.commands.blocks import Where, print_totals, run_blocks
from vhydro.commands.mapping import Naming
from vhydro.data import read
from vhydro.data.dataset import Dataset
from vhydro.data.lerobot_annotate import write_annotated
from vhydro.data.lerobot_language import Subtask
from vhydro.data.options import ReadOptions
from vhydro.episodes import Episode
from vhydro.filter import Belief
from vhydro.fitted import Fitted, digest, load
from vhydro.modes.readings import REGIMES, Readings, touching_words
from vhydro.modes.segments import COLUMNS, Segment, as_rows, segments_of, write_segments
from vhydro.progress import counted
from vhydro.report.files import staged
from vhydro.report.run_page import refuse_foreign_page, write_run_page
from vhydro.report.timeline import Stretch, timeline_svg
from vhydro.usage import at_least
from vhydro.views import ContactView

CONTACT = ("nothing touches", "something touches")
FILES = ("segments.json", "segments.csv", "timeline.svg", "posteriors.npz")
BESIDE = Path("meta") / "vhydro_segments"  # what LeRobot has no place for: how sure the model is of each


@dataclass(frozen=True)
class SegmentCommand:
    """Cut logs into segments of one mode each, with how sure the model is of them."""

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """What `vhydro fit` wrote: a file, or the folder of a run."""
    logs: Annotated[Positional[Path], arg(metavar="LOGS")]
    """File or folder of episodes; the format is recognised from its content."""
    out: Path = Path("segments")
    """Folder for segments.json, segments.csv, timeline.svg, posteriors.npz and the page index.html; or what --to
    names."""
    to: Literal["files", "lerobot", "parquet"] = "files"
    """lerobot: a new LeRobot v3.0 dataset of these logs, the segments in words as its subtasks.
    parquet: a table of segments, block by block, for any number of logs. Both need pyarrow."""
    overwrite: bool = False
    """Replace a LeRobot dataset or the tables of another run that are there."""
    seed: int = 0
    """Of the particles, for models that need them."""
    json: bool = False
    """Print one JSON document on stdout, and everything else on stderr."""
    naming: OmitArgPrefixes[Naming] = field(default_factory=Naming)
    reading: OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)
    where: OmitArgPrefixes[Where] = field(default_factory=Where)

    def __post_init__(self):
        at_least("seed", self.seed, 0)


def run_segment(config: SegmentCommand) -> list[list[Segment]]:
    """The segments of every log, after they were written; none where they are too many to hold, in Parquet."""
    if config.to == "parquet":
        totals = run_blocks(
            segment_tables, segment_rows, config.out, verb="segment", model=config.model, logs=config.logs,
            naming=config.naming, reading=config.reading, options={"seed": config.seed},
            where=config.where, overwrite=config.overwrite,
        )  # fmt: skip
        print_totals(totals, config.out)
        return []
    config.where.refuse_without_blocks(config.to)
    fitted = load(config.model)
    logs = config.naming.applied(read(config.logs, **vars(config.reading)), fitted.view)
    if config.to == "lerobot":
        found, rows = _to_lerobot(config, fitted, logs)
    else:
        found, rows = kept_segments(config, fitted, logs)
    print("\n".join(f"mode {i}: {name}" for i, name in enumerate(fitted.names)))
    print(f"{sum(map(len, found))} segments in {len(found)} logs, {rows:,} rows")
    if fitted.model.modes == 1:
        print("The model has one mode: there is nothing to tell apart.")
    print(config.out if config.to == "lerobot" else config.out / "timeline.svg")
    if config.to == "files":
        print(config.out / "index.html")
    return found


def segment_tables(fitted: Fitted) -> dict[str, dict[str, str]]:
    """One row for each segment."""
    numbers = {"start": "int64", "end": "int64", "start_s": "float64", "end_s": "float64", "mode": "int64"}
    columns = {"episode": "string", **numbers, "words": "string", "confidence": "float64"}
    return {"segments": columns | ({"touching": "string"} if isinstance(fitted.view, ContactView) else {})}


def segment_rows(
    fitted: Fitted, logs: Sequence[Episode], names: Sequence[str], options: Mapping[str, Any]
) -> dict[str, dict[str, list]]:
    """The segments of logs, as columns."""
    beliefs = fitted.smooth_all(logs, seed=options["seed"])
    found = [_cut(belief) for belief in beliefs]
    tables = [as_rows(log, fitted.dt) for log in found]
    rows = [{"episode": name, **row} for name, log in zip(names, tables, strict=True) for row in log]
    columns = {key: [row[key] for row in rows] for key in ("episode", *COLUMNS)}
    columns["words"] = [fitted.names[row["mode"]] for row in rows]
    if isinstance(fitted.view, ContactView):
        each = zip(logs, beliefs, found, strict=True)
        columns["touching"] = [w for log, b, cut in each for w in touching_words(fitted.contacts(log, b), cut)]
    return {"segments": columns}


def _cut(belief: Belief) -> list[Segment]:
    """The segments of a log, with how sure the belief is of each."""
    return segments_of(belief.path, np.asarray(belief.mode, np.float64))


def kept_segments(config: SegmentCommand, fitted: Fitted, logs: Dataset) -> tuple[list[list[Segment]], int]:
    """The segments of every log, after they were written with their page, and how many rows there are."""
    refuse_foreign_page(config.out)
    with staged(config.out, FILES) as folder:
        beliefs, contacts = [], []
        for log in counted(logs, "cutting logs"):
            beliefs.append(fitted.smooth(log, seed=config.seed))
            contacts.append(_contacts(fitted, log, beliefs[-1]))
        found = [_cut(belief) for belief in beliefs]
        _write(folder, fitted, logs.names, found, beliefs, contacts, digest(config.model))
    write_run_page(config.out)
    return found, sum(len(b.path) for b in beliefs)


def _to_lerobot(config: SegmentCommand, fitted: Fitted, logs: Dataset) -> tuple[list[list[Segment]], int]:
    by_log: dict[int, list[Segment]] = {}

    def subtasks(number: int) -> list[Subtask]:
        by_log[number] = fitted.segments(logs[number], seed=config.seed)[0]
        return [Subtask(s.start, fitted.names[s.mode]) for s in by_log[number]]

    def finish(folder: Path) -> None:
        found = [by_log[i] for i in range(len(logs))]
        write_segments(folder / BESIDE, found, logs.names, fitted.dt, fitted.names)

    write_annotated(logs, config.out, subtasks, overwrite=config.overwrite, finish=finish)
    found = [by_log[i] for i in range(len(logs))]
    return found, sum(log[-1].end for log in found)


def _contacts(fitted: Fitted, log: Episode, belief: Belief) -> Readings | None:
    """What the modes say of contact, where the view tells it."""
    return fitted.contacts(log, belief) if isinstance(fitted.view, ContactView) else None


def _as_json(found: Readings) -> dict[str, Any]:
    """The readings of one log beside its modes, each as stretches with words."""
    words = {"touching": found.words, "contact": dict(enumerate(CONTACT)), "regime": dict(enumerate(REGIMES))}
    return {
        name: [
            {"start": s.start, "end": s.end, "is": words[name][int(codes[s.start])]}
            for s in segments_of(np.unique(codes, return_inverse=True)[1])
        ]
        for name, codes in zip(words, found[1:4], strict=True)
    }


def _write(
    folder: Path,
    fitted: Fitted,
    names: Sequence[str],
    found: Sequence[Sequence[Segment]],
    beliefs: Sequence[Belief],
    contacts: Sequence[Readings | None],
    model: str,
) -> None:
    dt = fitted.dt
    stretches = [[Stretch(s.start * dt, s.end * dt, s.mode, s.confidence) for s in log] for log in found]
    arrays = {
        "filtered": np.concatenate([b.moments.mode for b in beliefs]).astype(np.float32),
        "smoothed": np.concatenate([b.mode for b in beliefs]).astype(np.float32),
        "path": np.concatenate([b.path for b in beliefs]),
        "first_row": np.cumsum([0, *(len(b.path) for b in beliefs)]),
        "names": np.array(names),
        "model": np.array(model),
    }
    np.savez_compressed(folder / "posteriors.npz", **arrays)
    (folder / "timeline.svg").write_text(timeline_svg(names, stretches, fitted.names), encoding="utf-8")
    readings = [_as_json(c) for c in contacts if c is not None]
    touching = [touching_words(c, log) for c, log in zip(contacts, found, strict=True) if c is not None]
    write_segments(folder / "segments", found, names, dt, fitted.names, readings, touching)
