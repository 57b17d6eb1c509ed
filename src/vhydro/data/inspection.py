"""`vhydro data inspect`: what a log holds, channel by channel, and what is wrong with it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vhydro.data.dataset import Dataset
from vhydro.data.errors import DataError
from vhydro.data.options import DEFAULT, ReadOptions
from vhydro.data.read import read
from vhydro.episodes import Channel, Episode
from vhydro.printable import printable
from vhydro.progress import counted

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 24
NARROW = 100  # columns of a terminal below which columns stand close
LEAST_COURSE = 6  # letters of a course that still show something
FIRST = 8  # episodes that are kept, to see which view fits them


@dataclass
class Quantity:
    """The range of one channel over all episodes, and its course in the first."""

    channel: Channel
    low: float = np.inf
    high: float = -np.inf
    hidden: int = 0
    count: int = 0
    gap: int = 0  # the most rows of an episode that it is hidden one after the other
    course: str = ""

    def add(self, values: np.ndarray) -> None:
        seen = values[~np.isnan(values)]
        self.count, self.hidden = self.count + values.size, self.hidden + values.size - seen.size
        if seen.size < values.size:
            self.gap = max(self.gap, longest_run(np.isnan(values)))
        if seen.size:
            self.low, self.high = min(self.low, float(seen.min())), max(self.high, float(seen.max()))
        self.course = self.course or sparkline(values)

    @property
    def missing(self) -> float:
        return self.hidden / self.count if self.count else 0.0


def longest_run(on: np.ndarray) -> int:
    """The most rows that are on one after the other."""
    ends = np.flatnonzero(np.diff(np.concatenate([[False], on, [False]]).astype(np.int8)))
    return int((ends[1::2] - ends[::2]).max(initial=0))


@dataclass
class Touching:
    """How often two bodies touch, and how hard at most."""

    on: int = 0
    rows: int = 0
    peak: float = 0.0

    def add(self, peak: np.ndarray) -> None:
        self.on, self.rows = self.on + int((peak > 1e-3).sum()), self.rows + len(peak)
        self.peak = max(self.peak, float(peak.max()))


@dataclass
class Inspection:
    """Everything `inspect` found."""

    dataset: Dataset
    steps: list[int] = field(default_factory=list)
    rates: Counter = field(default_factory=Counter)
    observations: dict[str, Quantity] = field(default_factory=dict)
    actions: dict[str, Quantity] = field(default_factory=dict)
    contacts: dict[str, Touching] = field(default_factory=dict)
    labels: dict[str, set] = field(default_factory=dict)
    layouts: Counter = field(default_factory=Counter)
    successes: list[bool] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unreadable: int = 0  # episodes
    first: list[Episode] = field(default_factory=list)  # the first few that have the same channels


def sparkline(values: np.ndarray, width: int = WIDTH) -> str:
    """The course of a series in block letters; a gap where all is hidden, a line where nothing changes."""
    pieces = np.array_split(values.astype(float), min(width, len(values)))
    means = np.array([np.nanmean(p) if not np.isnan(p).all() else np.nan for p in pieces])
    if np.isnan(means).all():
        return " " * len(means)
    low, high = np.nanmin(means), np.nanmax(means)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        return "".join(" " if np.isnan(m) else "─" for m in means)
    place = np.clip((means - low) / (high - low) * len(BARS), 0, len(BARS) - 1)
    return "".join(" " if np.isnan(m) else BARS[int(p)] for m, p in zip(means, np.nan_to_num(place), strict=True))


def inspect(path: Path | str, options: ReadOptions = DEFAULT) -> Inspection:
    """What a file or folder holds."""
    return inspected(read(path, **vars(options)))


def inspected(dataset: Dataset) -> Inspection:
    """Every episode looked at once, one at a time; a bad one is a problem in the list, not the end."""
    found = Inspection(dataset)
    for i, name in counted(list(enumerate(found.dataset.names)), "reading episodes"):
        try:
            _add(found, found.dataset[i], name)
        except DataError as error:
            found.problems.append(str(error))
            found.unreadable += 1
    _judge(found)
    return found


def _add(found: Inspection, episode: Episode, name: str) -> None:
    found.steps.append(episode.steps)
    if len(found.first) < FIRST and all(
        (e.channels, e.inputs) == (episode.channels, episode.inputs) for e in found.first
    ):
        found.first.append(episode)
    found.rates[round(1 / episode.dt, 3)] += 1
    found.layouts[tuple(c.name for c in episode.channels)] += 1
    sides = (
        (found.observations, episode.channels, episode.observations),
        (found.actions, episode.inputs, episode.actions),
    )
    for side, channels, values in sides:
        for channel, column in zip(channels, values.T, strict=True):
            if column.size:
                side.setdefault(channel.name, Quantity(channel)).add(column)
    for contact in episode.contacts:
        found.contacts.setdefault(contact.name, Touching()).add(contact.peak)
    for label, values in episode.labels.items():
        classes = np.unique(values)
        # Of a label that is really a measurement only the ends are kept.
        found.labels.setdefault(label, set()).update((classes if classes.size <= 50 else classes[[0, -1]]).tolist())
    if "success" in episode.info:
        found.successes.append(bool(episode.info["success"]))
    if episode.steps == 0:
        found.problems.append(f"episode {name} has one observation and no action; it teaches nothing.")


def _judge(found: Inspection) -> None:
    if len(found.layouts) > 1:
        sizes = ", ".join(f"{n} of {len(c)} channels" for c, n in found.layouts.most_common(4))
        found.problems.append(f"episodes differ in their channels ({sizes}); select common ones before fitting.")
    if len(found.rates) > 1:
        rates = ", ".join(f"{r:g} Hz" for r, _ in found.rates.most_common(6))
        found.problems.append(f"episodes differ in their rate ({rates}).")
    empty = [q.channel.name for q in found.observations.values() if q.count and q.hidden == q.count]
    if empty:
        found.problems.append(f"never observed: {_listed(empty)}.")


def _listed(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# --- in words and pictures --------------------------------------------------------------------------------------------


def show(found: Inspection, console: Console, *, rows: int = 40) -> None:
    """Prints an inspection: a summary, a table of channels, contacts, notes and problems."""
    width = console.width
    for line in _summary(found):
        console.print(line, highlight=False)
    if found.observations:
        console.print(_table("observed", found.observations, rows, width))
    if found.actions:
        console.print(_table("actions", found.actions, rows, width))
    if found.contacts:
        console.print(_contacts(found.contacts))
    for label, classes in found.labels.items():
        ordered = [c if isinstance(c, str) else f"{c:.4g}" for c in sorted(classes)]
        values = f"from {ordered[0]} to {ordered[-1]}" if len(ordered) > 12 else ", ".join(ordered)
        console.print(f"label {label}: {values}", highlight=False, markup=False)
    for note in found.dataset.notes:
        console.print(f"note: {note}", highlight=False, markup=False)
    for problem in found.problems[:20]:
        console.print(f"[bold red]wrong:[/] {escape(problem)}", highlight=False)
    if len(found.problems) > 20:
        console.print(f"[bold red]wrong:[/] and {len(found.problems) - 20} more.", highlight=False)


def _summary(found: Inspection) -> list[str]:
    steps = np.array(found.steps)
    lines = [f"[bold]{escape(printable(str(found.dataset.path)))}[/]", f"format    {found.dataset.format}"]
    episodes = f"episodes  {len(found.dataset)}"
    if found.successes:
        episodes += f", {sum(found.successes)} successful"
    lines.append(episodes)
    if steps.size:
        spread = f"{steps.min()} to {steps.max()}, median {np.median(steps):g}" if np.ptp(steps) else f"{steps[0]}"
        lines.append(f"steps     {spread}; {steps.sum():,} in all")
    if found.rates:
        rates = found.rates.most_common()
        lines.append(
            "rate      " + ", ".join(f"{r:g} Hz" + (f" ({n})" if len(rates) > 1 else "") for r, n in rates[:6])
        )
    if found.observations:
        hidden = sum(q.hidden for q in found.observations.values()) / sum(q.count for q in found.observations.values())
        lines.append(f"missing   {hidden:.1%} of {len(found.observations)} channels")
    return lines


def _table(title: str, quantities: dict[str, Quantity], rows: int, width: int) -> Table:
    """The channels with their ranges, in so many columns of text: the course gives way, then the group; numbers never.

    What is hidden has a column where anything is.
    """
    listed = list(quantities.values())
    some = listed[:rows]
    cells = {"channel": [q.channel.name for q in some], "group": [q.channel.group for q in some]}
    cells |= {"unit": [q.channel.unit for q in some]}
    cells |= {"least": [_number(q, q.low) for q in some], "most": [_number(q, q.high) for q in some]}
    if any(q.hidden for q in listed):
        cells["hidden"] = [f"{q.missing:.0%}" for q in some]
    gap = 2 if width >= NARROW else 1
    taken = {name: max(map(cell_len, (name, *texts))) + gap for name, texts in cells.items()}
    if width - sum(taken.values()) < LEAST_COURSE and sum(taken.values()) - gap > width:
        del cells["group"], taken["group"]
    room = min(WIDTH, width - sum(taken.values()))
    if room >= LEAST_COURSE:
        cells["course" if room < len("first episode") else "first episode"] = [_thinned(q.course, room) for q in some]
    table = Table(
        title=title, title_justify="left", box=None, pad_edge=False, header_style="dim", padding=(0, gap, 0, 0)
    )
    for name in cells:
        side = "right" if name in ("least", "most", "hidden") else "left"
        table.add_column(name, justify=side, no_wrap=name != "channel", overflow="fold")
    for row in zip(*cells.values(), strict=True):
        table.add_row(*map(escape, row))
    if len(listed) > rows:
        table.caption = f"… {len(listed) - rows} more, to {escape(listed[-1].channel.name)}; --rows shows them"
        table.caption_justify = "left"
    return table


def _number(q: Quantity, value: float) -> str:
    return f"{value:.4g}" if q.count > q.hidden else ""


def _thinned(course: str, width: int) -> str:
    """Every so many letters of a course, as many as there is room for."""
    if len(course) <= width:
        return course
    return "".join(course[i * len(course) // width] for i in range(width))


def _contacts(contacts: dict[str, Touching]) -> Table:
    table = Table(title="contact forces", title_justify="left", box=None, pad_edge=False, header_style="dim")
    table.add_column("bodies")
    table.add_column("touching", justify="right")
    table.add_column("largest", justify="right")
    for name, touching in contacts.items():
        share = f"{touching.on / touching.rows:.1%}"
        table.add_row(escape(name.replace("__", " + ")), share, f"{touching.peak:.3g} N")
    return table
