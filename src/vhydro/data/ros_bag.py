"""ROS 2 bags in MCAP files: the numbers of several topics, each at a rate of its own, on one clock.

A sample goes to the row nearest in time; of several the nearest counts. A row without a sample of its own is hidden,
except that a topic as fast as the clock keeps its value over a single row, which is what jitter takes from it. Commands
hold until the next one. Only rows of numbers are kept, so that a bag may be larger than memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from vhydro.data.assembly import assembled, translated
from vhydro.data.dataset import Dataset
from vhydro.data.description import Description, beside
from vhydro.data.errors import DataError
from vhydro.data.hdf5 import Budget
from vhydro.data.mcap_file import MAGIC, McapFile, opened
from vhydro.data.memory import allowance_of
from vhydro.data.options import DEFAULT, ReadOptions
from vhydro.data.ros_messages import READ, Cdr, Quantity, Sample
from vhydro.data.ros_topics import NANOSECONDS, ROBOT, Source, chosen_clock, chosen_topics, listed
from vhydro.episodes import Channel, Episode

SAME_CLOCK = NANOSECONDS  # a header's time is believed if it is so near to the time of logging
AS_FAST = 0.9  # of the clock's rate
LONGEST = 1e10  # s
MOST_LAYOUTS = 64  # of the messages of a topic that are remembered


class RosBag:
    """An MCAP file of ROS 2 messages, as one episode."""

    name = "ROS 2 bag (MCAP)"
    choices = ("topics", "rate")

    def recognises(self, path: Path) -> bool:
        try:
            if not path.is_file():
                return False
            with path.open("rb") as file:
                return file.read(len(MAGIC)) == MAGIC
        except OSError:
            return False

    def open(self, path: Path, options: ReadOptions = DEFAULT) -> Dataset:
        require_mcap(path)
        file = opened(path)
        said = beside(path, partial=True)
        chosen, notes = chosen_topics(file, options, said)
        clock, clock_note = chosen_clock(file, chosen, options, said)
        notes = (*notes, clock_note, *(said.notes if said else ()))
        return Dataset(self.name, path, (path.stem,), Loader(file, chosen, clock, said), notes)


def require_mcap(path: Path) -> None:
    try:
        import mcap  # noqa: F401
    except ImportError:
        raise DataError(
            path, found="no mcap", expected="the package mcap, to read ROS 2 bags", remedy="Run: pip install mcap"
        ) from None


@dataclass
class Rows:
    """The rows of one topic."""

    file: Path
    source: Source
    count: int
    budget: Budget  # shared by all topics
    columns: dict[Quantity, int] = field(default_factory=dict)
    places: dict[tuple[Quantity, ...], np.ndarray] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    values: np.ndarray = field(init=False)
    away: np.ndarray = field(init=False)  # in steps, how far the sample of a row is from its time

    def __post_init__(self):
        self.values = np.zeros((self.count, 0))
        self.away = np.full(self.count, np.inf)

    def add(self, step: float, sample: Sample) -> None:
        """Puts a sample in the row nearest to it; of one that has a nearer sample, only what that does not tell."""
        places = self.places.get(sample.quantities)
        if places is None:
            places = self.placed(sample)
        row = int(step + 0.5)
        away = abs(step - row)
        if away <= self.away[row]:
            self.values[row, places] = sample.values
            self.away[row] = away
        elif np.isnan(self.values[row, places]).any():
            self.values[row, places] = np.where(np.isnan(had := self.values[row, places]), sample.values, had)

    def placed(self, sample: Sample) -> np.ndarray:
        for frame in sample.frames:
            child, _, parent = frame.rpartition(" in ")
            if self.parents.setdefault(child, parent) != parent:
                raise ValueError(f"the frame {child} in {parent} and in {self.parents[child]}; leave this topic out")
        for quantity in sample.quantities:
            self.columns.setdefault(quantity, len(self.columns))
        if len(self.columns) > self.values.shape[1]:
            self.widen()
        places = np.array([self.columns[q] for q in sample.quantities], np.int64)
        if not sample.frames:  # those are checked every time
            if len(self.places) >= MOST_LAYOUTS:
                self.places.clear()
            self.places[sample.quantities] = places
        return places

    def widen(self) -> None:
        """Makes room for new columns, and as much again once there are many."""
        had = self.values.shape[1]
        more = max(len(self.columns), 2 * had if had >= MOST_LAYOUTS else 0) - had
        if not self.budget.spend(more * self.count * self.values.itemsize):
            raise DataError(
                self.file, key=self.source.topic, found=f"{self.count:,} rows of {len(self.columns):,} numbers",
                expected=f"at most {self.budget.limit // 8:,} numbers in all", remedy="Give a lower --rate.",
            )  # fmt: skip
        self.values = np.concatenate([self.values, np.full((self.count, more), np.nan)], 1)

    @property
    def heard(self) -> np.ndarray:
        """The rows that have a sample."""
        return np.flatnonzero(np.isfinite(self.away))


@dataclass(frozen=True)
class Loader:
    """Reads the bag when it is called."""

    file: McapFile
    sources: tuple[Source, ...]
    dt: float
    said: Description | None

    def __call__(self, index: int) -> Episode:  # noqa: ARG002 (a bag is one episode)
        path, name = self.file.path, self.file.path.stem
        rows = self.rows()
        first, last = common_rows(path, rows)
        sides = []
        for action in (False, True):
            mine = [r for r in rows if r.source.action == action]
            values = [filled(r, self.dt)[first : last + 1] * scale_of(r) for r in mine]
            channels = distinct([(r.source.topic, c) for r in mine for c in described_channels(path, r)])
            sides.append((np.concatenate([*values, np.zeros((last + 1 - first, 0))], 1), channels))
        (observations, channels), (actions, inputs) = sides
        begin = int(np.isnan(actions).any(1).argmin()) if actions.shape[1] else 0
        if actions.shape[1] and np.isnan(actions[begin]).any():
            raise DataError(path, episode=name, found="commands that never come together", expected="some of each")
        return assembled(
            path, name, observations=observations[begin:], actions=actions[begin:-1], dt=self.dt,
            channels=channels, inputs=inputs, info=dict(self.said.parts[0].info) if self.said else {},
        )  # fmt: skip

    def rows(self) -> list[Rows]:
        """Every topic on the clock; one pass over the file."""
        path = self.file.path
        wanted = {c: s for s in self.sources for c in s.channels if c in self.file.counts}
        start, end = self.file.span(wanted)
        step = self.dt * NANOSECONDS
        seconds = (end - start) / NANOSECONDS
        margin = int(SAME_CLOCK / step) + 1  # for headers that tell another time than the log
        count = int(min(seconds, LONGEST) / self.dt) + 2 + 2 * margin
        budget = Budget(allowance_of(path))
        if not 0 <= seconds < LONGEST or not budget.spend(8 * count * len(self.sources)):
            raise DataError(
                path, found=f"{seconds:.6g} s between the first and the last message, {count:,} rows",
                expected=f"at most {budget.limit // (8 * len(self.sources)):,} rows", remedy="Give a lower --rate.",
            )  # fmt: skip
        rows = {s.topic: Rows(path, s, count, budget) for s in self.sources}
        origin = self.lead_time(wanted)
        origin -= round((origin - start) // step * step)  # the first row's time, at most a step after the start
        for source, logged, time, sample in self.samples(wanted):
            with translated(path, f"a message of type {source.type}", key=source.topic):
                if not start <= logged <= end:
                    raise ValueError("a message logged at a time that its index does not tell")
                rows[source.topic].add((time - origin) / step + margin, sample)
        return [r for r in rows.values() if r.columns]

    def lead_time(self, wanted: Mapping[int, Source]) -> int:
        """When the topic that is nearest to the clock was first heard: rows are centred on its samples."""
        lead = min(self.sources, key=lambda s: abs(s.rate * self.dt - 1))
        return next(t for _, _, t, _ in self.samples({c: s for c, s in wanted.items() if s is lead}))

    def samples(self, wanted: Mapping[int, Source]) -> Iterator[tuple[Source, int, int, Sample]]:
        """Topic, time of logging, time (ns) and numbers of every message."""
        for channel, logged, data in self.file.messages(wanted):
            source = wanted[channel]
            with translated(self.file.path, f"a message of type {source.type}", key=source.topic):
                sample = READ[source.type](Cdr(data))
            near = sample.stamp is not None and abs(sample.stamp - logged) < SAME_CLOCK
            yield source, logged, sample.stamp if near and sample.stamp is not None else logged, sample


def common_rows(path: Path, rows: Sequence[Rows]) -> tuple[int, int]:
    """From the row by which the robot's own topics and the commands have spoken to where the first of them ends."""
    observed = [r for r in rows if not r.source.action and r.values.shape[1]]
    if not observed:
        raise DataError(path, found="no number in the topics that are read", expected="messages with numbers")
    first, last = min(r.heard[0] for r in observed), max(r.heard[-1] for r in observed)
    for r in rows:
        if r.source.action:
            first = max(first, r.heard[0])
        elif r.source.group() in ROBOT:
            first, last = max(first, r.heard[0]), min(last, r.heard[-1])
    if last <= first:
        raise DataError(path, found="topics that were never heard at the same time", expected="a stretch with all",
                        remedy="Choose others with --topics.")  # fmt: skip
    return int(first), int(last)


def filled(rows: Rows, dt: float) -> np.ndarray:
    """The values of a topic: commands hold, what is as fast as the clock holds over one row, the rest is as it came."""
    values = rows.values[:, : len(rows.columns)]
    if rows.source.action:
        place = np.where(np.isnan(values), 0, np.arange(1, len(values) + 1)[:, None])
        held = np.maximum.accumulate(place, 0)
        return np.where(held > 0, np.take_along_axis(values, np.maximum(held - 1, 0), 0), np.nan)
    if rows.source.rate * dt < AS_FAST:
        return values
    before = np.concatenate([np.full((1, values.shape[1]), np.nan), values[:-1]])
    return np.where(np.isnan(values), before, values)


def scale_of(rows: Rows) -> float:
    return float(rows.source.block.scale) if rows.source.block else 1.0


def distinct(channels: Sequence[tuple[str, Channel]]) -> list[Channel]:
    """The channels of topics; one whose name another has before it is called after its topic too."""
    seen: set[str] = set()
    out = []
    for topic, channel in channels:
        out.append(replace(channel, name=f"{topic.strip('/')}/{channel.name}") if channel.name in seen else channel)
        seen.add(out[-1].name)
    return out


def described_channels(path: Path, rows: Rows) -> list[Channel]:
    """The channels of a topic, by its description where there is one."""
    source = rows.source
    usual = [source.channel(q) for q in rows.columns]
    block = source.block
    if block is None:
        return usual
    named = block.channels
    if len(named) == 1 and named[0].name == block.reference.key:  # no names given
        named = tuple(replace(named[0], name=c.name) for c in usual)
    if len(named) != len(usual):
        raise DataError(
            path, key=source.topic, found=f"{len(usual)} numbers: {listed([c.name for c in usual])}",
            expected=f"{len(named)}, one for each name of the description",
        )  # fmt: skip
    return [Channel(n.name, n.group or c.group, n.unit or c.unit) for n, c in zip(named, usual, strict=True)]
