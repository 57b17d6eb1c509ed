"""Episodes from described tables: the arrays of an npz file, or the columns of a CSV file."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from vhydro.data.assembly import DROPPED_NOTE, assembled, floats
from vhydro.data.dataset import Dataset
from vhydro.data.description import Block, Description, Part, Reference
from vhydro.data.errors import DataError
from vhydro.data.memory import REMEDY, allowance_of
from vhydro.data.timing import refuse_unlikely_seconds, step_from_stamps
from vhydro.episodes import Episode

MOST_EPISODES = 1_000_000


@runtime_checkable
class Table(Protocol):
    """Named arrays of a file, read when asked for."""

    @property
    def file(self) -> Path: ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def dtype(self, key: str) -> np.dtype: ...

    def array(self, key: str, episode: str = "") -> np.ndarray: ...


@dataclass(frozen=True)
class Rows:
    """The rows of one episode in an array that holds several, one after another."""

    start: int
    stop: int
    total: int  # rows of the whole array
    number: int = 0  # of the episode in the array
    episodes: int = 1  # in the array

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def between(self) -> "Rows":
        """The same episode in an array with a row less for each, as of what happens between observations."""
        start, stop, total = self.start - self.number, self.stop - self.number - 1, self.total - self.episodes
        return Rows(start, stop, total, self.number, self.episodes)


@dataclass(frozen=True)
class Span:
    """Where an episode lies, and its rate."""

    part: Part
    name: str
    rows: Rows
    dt: float
    variable: str = ""  # what {episode} stands for


def tabular_dataset(form: str, table: Table, said: Description) -> Dataset:
    """The episodes of a table by its description."""
    spans, notes = [], []
    for part in said.parts:
        mine, uneven = timed_spans(table, part)
        spans += mine
        notes += uneven
    names = [s.name for s in spans]
    if len(set(names)) != len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise DataError(table.file, found=f"two episodes named {twice}", expected="names that differ")
    extra = (DROPPED_NOTE,) if any(dropped(table, s) for s in spans) else ()
    return Dataset(
        form, table.file, tuple(names), partial(numbered_episode, table, spans), (*said.notes, *extra, *notes)
    )


def numbered_episode(table: Table, spans: Sequence[Span], index: int) -> Episode:
    return spanned_episode(table, spans[index])


def timed_spans(table: Table, part: Part) -> tuple[list[Span], list[str]]:
    """The episodes of a part with their rates, and what is uneven about their time stamps."""
    spans, notes = [], []
    divided = divided_rows(table, part)
    for number, (name, rows, variable) in enumerate(divided):
        if part.time is not None:
            dt, uneven = stamped_step(table, part, part.time.of(variable), name, rows)
            notes += uneven
        else:
            dt = stated_step(table, part, number, len(divided))
        spans.append(Span(part, name, rows, dt, variable))
    return spans, notes


def stamped_step(table: Table, part: Part, time: Reference, name: str, rows: Rows) -> tuple[float, tuple[str, ...]]:
    """The dt of the time stamps, and what is uneven about them."""
    stamps = column(table, time, name, rows)
    dt, uneven = step_from_stamps(table.file, name, time.key, stamps * (part.time_unit or 1.0))
    if part.time_unit is None:
        refuse_unlikely_seconds(table.file, name, time.key, stamps, dt)
    return dt, uneven


def stated_step(table: Table, part: Part, number: int, count: int) -> float:
    """The dt of the description: a number, or a key with one number or one for each episode."""
    if not isinstance(part.dt, str):
        return float(part.dt or 1.0)
    stored = array(table, part.dt).reshape(-1)
    values = floats(stored) if stored.dtype.kind in "biuf" else np.zeros(0)
    if len(values) not in (1, count) or not (np.isfinite(values) & (values > 0)).all():
        found = f"{stored[:3].tolist()}"[:100] + f" ({len(stored)} of type {stored.dtype})"
        expected = f"one positive number of seconds, or {count}, one for each episode"
        raise DataError(table.file, key=part.dt, found=found, expected=expected)
    return float(values[number] if len(values) > 1 else values[0])


def divided_rows(table: Table, part: Part) -> list[tuple[str, Rows, str]]:
    """Name, rows and variable of each episode."""
    if part.each:
        counts = [(name, row_count(table, part, name)) for name in part.each]
        return [(name, Rows(0, count, count), name) for name, count in counts]
    rows = row_count(table, part, "")
    if part.lengths:
        return by_lengths(table, part, rows)
    if part.trial:
        return by_trial(table, part, part.trial, rows)
    return [(part.name or table.file.stem, Rows(0, rows, rows), "")]


def row_count(table: Table, part: Part, variable: str) -> int:
    """The rows that all observations of a part share."""
    counts = {}
    for block in part.observations:
        key = block.reference.of(variable).key
        shape = shape_of(table, key, variable)
        counts[key] = shape[0] if shape else 0
    if len(set(counts.values())) != 1 or not min(counts.values()):
        raise DataError(
            table.file,
            episode=variable,
            key=next(iter(counts)),
            found=f"rows {counts}",
            expected="equal rows, at least one",
        )
    return next(iter(counts.values()))


def by_lengths(table: Table, part: Part, rows: int) -> list[tuple[str, Rows, str]]:
    """Episodes one after another, by their lengths."""
    key = part.lengths or ""
    lengths = array(table, key)
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or not 0 < len(lengths) <= MOST_EPISODES:
        expected = f"whole numbers, one for each of at most {MOST_EPISODES:,} episodes"
        raise DataError(table.file, key=key, found=f"{lengths.dtype} {lengths.shape}", expected=expected)
    counts = [int(n) for n in lengths]
    if min(counts) < 1 or sum(counts) != rows:
        raise DataError(
            table.file,
            key=key,
            found=f"lengths from {min(counts)} that add up to {sum(counts)}",
            expected=f"positive ones that add up to {rows}",
        )
    ends = np.cumsum([0, *counts]).tolist()
    names = [str(n) for n in array(table, part.names).tolist()] if part.names else [str(i) for i in range(len(counts))]
    if len(names) != len(counts):
        raise DataError(
            table.file,
            key=part.names or "",
            found=f"{len(names)} names",
            expected=f"{len(counts)}, one for each episode",
        )
    prefix = f"{part.name}/" if part.name else ""
    return [(prefix + name, found, "") for name, found in zip(names, consecutive(ends), strict=True)]


def consecutive(ends: Sequence[int]) -> list[Rows]:
    """The rows of episodes one after another, from where each begins and the last one ends."""
    return [Rows(a, b, ends[-1], number, len(ends) - 1) for number, (a, b) in enumerate(pairwise(ends))]


def by_trial(table: Table, part: Part, trial: Reference, rows: int) -> list[tuple[str, Rows, str]]:
    """Episodes as runs of rows with the same trial number."""
    numbers = column(table, trial, "", Rows(0, rows, rows))
    if np.isnan(numbers).any():
        raise DataError(
            table.file, key=trial.key, found="a row without its trial", expected="a trial number in every row"
        )
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), rows]
    if len(edges) > MOST_EPISODES:
        raise DataError(
            table.file, key=trial.key, found=f"{len(edges) - 1} trials", expected=f"at most {MOST_EPISODES}"
        )
    prefix = f"{part.name}/" if part.name else ""
    runs = [(f"{prefix}{numbers[run.start]:g}", run, "") for run in consecutive(edges)]
    if len({run[0] for run in runs}) != len(runs):
        raise DataError(
            table.file, key=trial.key, found="a trial whose rows are apart", expected="the rows of a trial together"
        )
    return runs


def spanned_episode(table: Table, span: Span) -> Episode:
    """The episode of these rows."""
    part, steps = span.part, span.rows.count - 1
    width = sum(len(b.channels) for b in (*part.observations, *part.actions))
    if span.rows.count * width * 8 > (most := allowance_of(table.file)):
        raise DataError(
            table.file, episode=span.name, found=f"{span.rows.count:,} rows of {width:,} numbers",
            expected=f"at most {most // 8:,} numbers in an episode of this file", remedy=REMEDY,
        )  # fmt: skip
    observations = [blocked(table, b, span, span.rows) for b in part.observations]
    commands = [blocked(table, b, span, action_rows(table, b, span)) for b in part.actions]
    labels = {name: label(table, ref.of(span.variable), span) for name, ref in part.labels.items()}
    return assembled(
        table.file,
        span.name,
        observations=np.concatenate(observations, axis=1),
        actions=np.concatenate([c[:steps] for c in commands], axis=1) if commands else np.zeros((steps, 0)),
        dt=span.dt,
        channels=[c for b in part.observations for c in b.channels],
        inputs=[c for b in part.actions for c in b.channels],
        labels=labels,
        info={**part.info, **{name: single(table, key) for name, key in part.info_keys.items()}},
    )


def action_rows(table: Table, block: Block, span: Span) -> Rows:
    """The rows of an action: those of the observations, or one less in each episode where the array has them so."""
    key, rows = block.reference.of(span.variable).key, span.rows
    shape = shape_of(table, key, span.name)
    if shape and shape[0] not in (rows.total, rows.between.total):
        expected = f"{rows.total} rows as in the observations, or {rows.between.total}, one less for each episode"
        raise DataError(table.file, episode=span.name, key=key, found=f"{shape[0]} rows", expected=expected)
    return rows.between if shape and shape[0] == rows.between.total else rows


def dropped(table: Table, span: Span) -> bool:
    return any(action_rows(table, b, span) == span.rows for b in span.part.actions)


def blocked(table: Table, block: Block, span: Span, rows: Rows) -> np.ndarray:
    """The columns of a block, scaled."""
    reference = block.reference.of(span.variable)
    values = sliced(table, reference, span.name, rows)
    if values.shape[1] != len(block.channels):
        found = f"{values.shape[1]} columns"
        raise DataError(
            table.file,
            episode=span.name,
            key=reference.key,
            found=found,
            expected=f"{len(block.channels)}, one for each name",
        )
    if block.scale == 1.0:
        return values
    return values * (scale_factor(table, block.scale) if isinstance(block.scale, str) else block.scale)


def scale_factor(table: Table, key: str) -> float:
    value = single(table, key)
    if isinstance(value, str) or not np.isfinite(value):
        raise DataError(table.file, key=key, found=f"{value!r}"[:40], expected="a finite number to scale by")
    return float(value)


def label(table: Table, reference: Reference, span: Span) -> np.ndarray:
    """A label keeps the type it has in the file."""
    return sliced(table, reference, span.name, span.rows, lambda x: x)[:, 0]


def column(table: Table, reference: Reference, episode: str, rows: Rows) -> np.ndarray:
    values = sliced(table, reference, episode, rows)
    if values.shape[1] != 1:
        raise DataError(
            table.file, episode=episode, key=reference.key, found=f"{values.shape[1]} columns", expected="one"
        )
    return values[:, 0].astype(np.float64)


def sliced(table: Table, reference: Reference, episode: str, rows: Rows, cast: Callable = floats) -> np.ndarray:
    """Rows of the columns that are meant, as (rows, columns)."""
    values = array(table, reference.key, episode)
    # Any other number of rows is another rate or another division: its first rows would be those of other times.
    if values.ndim not in (1, 2) or len(values) != rows.total or values.dtype.kind not in "biuf":
        raise DataError(
            table.file, episode=episode, key=reference.key, found=f"{values.dtype} {values.shape}",
            expected=f"numbers, (rows,) or (rows, columns), with {rows.total} rows",
        )  # fmt: skip
    chosen = values[rows.start : rows.stop]
    chosen = chosen[:, None] if chosen.ndim == 1 else chosen
    if reference.last is not None:
        if reference.last > chosen.shape[1]:
            found = f"{chosen.shape[1]} columns"
            raise DataError(
                table.file, episode=episode, key=reference.key, found=found, expected=f"column {reference.last - 1}"
            )
        chosen = chosen[:, reference.first : reference.last]
    return cast(np.array(chosen))


def single(table: Table, key: str) -> float | str | bool:
    """The one value of an array."""
    values = array(table, key)
    if values.size != 1 or values.dtype.kind not in "biufU":
        raise DataError(table.file, key=key, found=f"{values.dtype} {values.shape}", expected="a single value")
    value = values.reshape(-1)[0].item()
    return float(value) if type(value) is int else value


def shape_of(table: Table, key: str, episode: str) -> tuple[int, ...]:
    if key not in table.shapes:
        known = ", ".join(list(table.shapes)[:12])
        raise DataError(
            table.file, episode=episode, key=key, found="no such array or column", expected=f"one of {known}"
        )
    return table.shapes[key]


def array(table: Table, key: str, episode: str = "") -> np.ndarray:
    shape_of(table, key, episode)
    return table.array(key, episode)
