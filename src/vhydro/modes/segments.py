"""Segments: a path of modes as stretches with a start, an end, a mode and how sure the model is of it."""

import csv
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from vhydro.outputs import unfinished
from vhydro.printable import printable, spreadsheet_text

COLUMNS = ("start", "end", "start_s", "end_s", "mode", "confidence")
SUM_ERROR = 1e-3  # by which probabilities in single precision may miss 1


class Segment(NamedTuple):
    """Successive rows of one mode; the end is exclusive."""

    start: int
    end: int
    mode: int
    confidence: float | None = None  # mean probability of the mode over the rows, where one is known


def run_starts(labels: np.ndarray) -> np.ndarray:
    """The first row of every run, row 0 included."""
    return np.concatenate([[0], 1 + np.flatnonzero(labels[1:] != labels[:-1])]).astype(int)


def integer_path(path: ArrayLike, what: str = "the path") -> np.ndarray:
    """The path as an array, refused unless it is one integer per row."""
    array = np.asarray(path)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"{what} has the shape {array.shape}; expected one integer per row and at least one row.")
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{what} holds {array.dtype} values; expected integers. Convert it if they stand for modes.")
    return array.astype(np.int64)


def segments_of(path: ArrayLike, probability: ArrayLike | None = None) -> list[Segment]:
    """The runs of a mode path, in order; with the modes' probabilities (rows, modes) each has a confidence."""
    modes = integer_path(path)
    if modes.min() < 0:
        raise ValueError(f"the path has mode {modes.min()}; expected modes of 0 or more, counted from 0.")
    starts = run_starts(modes)
    ends = np.append(starts[1:], len(modes))
    confidence = [None] * len(starts)
    if probability is not None:
        sure = _probability(probability, modes)[np.arange(len(modes)), modes]
        confidence = (np.add.reduceat(sure, starts) / (ends - starts)).tolist()
    return [Segment(*s) for s in zip(starts.tolist(), ends.tolist(), modes[starts].tolist(), confidence, strict=True)]


def path_of(segments: Sequence[Segment], rows: int) -> np.ndarray:
    """The mode of every row; the segments must follow one another from row 0 to `rows`."""
    row = 0
    for segment in segments:
        if segment.start != row or segment.end <= row:
            raise ValueError(
                f"a segment has the rows {segment.start} to {segment.end} where row {row} comes next; expected "
                "segments of at least one row, in order, without gap or overlap. Sort them or fill the gap."
            )
        row = segment.end
    if row != rows:
        raise ValueError(f"the segments end at row {row}; expected {rows}, the number of rows of their log.")
    lengths = [segment.end - segment.start for segment in segments]
    return np.repeat(np.array([segment.mode for segment in segments], dtype=np.int64), lengths)


def as_rows(segments: Sequence[Segment], dt: float) -> list[dict[str, Any]]:
    """The segments as rows of a table, with their times in seconds from the first row of the log."""
    if not (math.isfinite(dt) and dt > 0):
        raise ValueError(f"dt is {dt}; expected the seconds from one row to the next, more than 0.")
    times = [(_seconds(s.start, dt), _seconds(s.end, dt)) for s in segments]
    values = ((s.start, s.end, *t, s.mode, s.confidence) for s, t in zip(segments, times, strict=True))
    return [dict(zip(COLUMNS, v, strict=True)) for v in values]


def write_segments(
    path_stem: str | Path,
    episodes_segments: Sequence[Sequence[Segment]],
    names: Sequence[str],
    dt: float,
    words: Sequence[str] = (),
    readings: Sequence[Mapping[str, Any]] = (),
    touching: Sequence[Sequence[str]] = (),
) -> tuple[Path, Path]:
    """The JSON and the CSV file `path_stem`.json and .csv, which now hold the segments of all named episodes.

    Both say what every mode means, where there are words, and what touches in every segment, where that is given; the
    JSON also how the path of each episode reads. Both are written out before either takes the place of an older one.
    """
    if len(names) != len(episodes_segments) or len(set(names)) != len(names):
        raise ValueError(
            f"{len(names)} names ({len(set(names))} different ones) for {len(episodes_segments)} episodes; "
            "expected a different name for each."
        )
    shown = map(printable, names)
    tables = {name: as_rows(segments, dt) for name, segments in zip(shown, episodes_segments, strict=True)}
    for rows, said in zip(tables.values(), touching, strict=True) if touching else ():
        for row, what in zip(rows, said, strict=True):
            row["touching"] = what
    stem = Path(path_stem)
    files = stem.with_name(f"{stem.name}.json"), stem.with_name(f"{stem.name}.csv")
    _write_together(dict(zip(files, (_json(tables, dt, words, readings), _csv(tables, words)), strict=True)))
    return files


def _probability(probability: ArrayLike, modes: np.ndarray) -> np.ndarray:
    """The probabilities, as many rows as the path has and a column for each of its modes."""
    given = np.asarray(probability, dtype=float)
    if given.ndim != 2 or len(given) != len(modes) or given.shape[1] <= modes.max():
        raise ValueError(
            f"the probabilities have the shape {given.shape}; expected (rows, modes) with {len(modes)} rows and at "
            f"least {modes.max() + 1} modes, as the path has."
        )
    wrong = ~((given >= 0).all(1) & (np.abs(given.sum(1) - 1) <= SUM_ERROR))
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"the probabilities of row {row} are {given[row].tolist()}; expected none below 0 and a sum of 1. "
            "Normalise them, and give probabilities rather than their logarithms."
        )
    return given


def _seconds(row: int, dt: float) -> float:
    return round(row * dt, 9)  # a nanosecond: 3 · 0.05 reads 0.15


def _json(
    tables: Mapping[str, list[dict[str, Any]]], dt: float, words: Sequence[str], readings: Sequence[Mapping[str, Any]]
) -> str:
    more = readings or [{}] * len(tables)
    episodes = [{"name": n, "segments": rows, **own} for (n, rows), own in zip(tables.items(), more, strict=True)]
    known = {"modes": list(words)} if words else {}
    return json.dumps({"dt": dt, **known, "episodes": episodes}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _csv(tables: Mapping[str, list[dict[str, Any]]], words: Sequence[str]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    touching = any("touching" in row for rows in tables.values() for row in rows)
    writer.writerow(("episode", *COLUMNS, *(["words"] if words else []), *(["touching"] if touching else [])))
    for name, rows in tables.items():
        for row in rows:
            told = [words[int(row["mode"])]] if words else []
            told += [row["touching"]] if touching else []
            writer.writerow((spreadsheet_text(name), *(row[c] for c in COLUMNS), *map(spreadsheet_text, told)))
    return text.getvalue()


def _write_together(texts: Mapping[Path, str]) -> None:
    """Nothing; each file holds its text and at no moment a part of it; what cannot be written changes neither."""
    with ExitStack() as stack:
        partial = {path: stack.enter_context(unfinished(path)) for path in texts}
        for path, text in texts.items():
            if path.is_dir():
                raise IsADirectoryError(f"{path} is a folder; expected a file or nothing there. Give another name.")
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial[path].open("x", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        for path in texts:
            os.replace(partial[path], path)
