"""`read(path)`: any log this package knows, recognised by its content."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from vhydro.data.dataset import Dataset, enough_memory, joined
from vhydro.data.errors import DataError
from vhydro.data.options import DEFAULT, ReadOptions
from vhydro.episodes import Episode
from vhydro.progress import counted
from vhydro.usage import UsageError, nearest

WILD = "*?["
RANGE = re.compile(r"(?P<only>\d{1,9})|(?P<first>\d{1,9})?:(?P<last>\d{1,9})?")
FOREIGN = {
    b"#ROSBAG V": ("a ROS 1 bag", "Turn it into MCAP with `mcap convert`."),
    b"SQLite format 3": ("an SQLite file, as older ROS 2 bags are", "Turn it into MCAP with `ros2 bag convert`."),
}
SAME_RATE = 1e-3  # relative difference of rates that are one
ALIKE = 0.01  # the same of rates that a user would call one


@runtime_checkable
class Reader(Protocol):
    """One format. `recognises` looks at content, never raises and never executes; `open` reads no more than it must."""

    name: str

    def recognises(self, path: Path) -> bool: ...

    def open(self, path: Path) -> Dataset: ...


@runtime_checkable
class ChoosingReader(Reader, Protocol):
    """A format that leaves something open, which options settle."""

    choices: tuple[str, ...]  # the fields of `ReadOptions` it looks at

    def open(self, path: Path, options: ReadOptions = DEFAULT) -> Dataset: ...


def readers() -> tuple[Reader, ...]:
    """Every format, the most particular first."""
    from vhydro.data import (
        aloha,
        arrow_tables,
        bridge,
        csv_logs,
        lerobot,
        maniskill,
        npz_logs,
        replay_buffer,
        robomimic,
        ros_bag,
    )

    return (
        maniskill.ManiSkill(), robomimic.Robomimic(), aloha.Aloha(), lerobot.LeRobot(), bridge.BridgeRlds(),
        bridge.BridgeNumpy(), ros_bag.RosBag(), replay_buffer.ReplayBuffer(), arrow_tables.ArrowTables(),
        npz_logs.Npz(), csv_logs.Csv(),
    )  # fmt: skip


def read(
    path: Path | str,
    *,
    topics: Sequence[str] = (),
    rate: float | int | None = None,
    episodes: Sequence[str | int] = (),
    only_rate: float | int | None = None,
) -> Dataset:
    """The episodes of a file, of a folder as a whole, or of all that a pattern such as `logs/*.mcap` matches.

    Nothing is read before it is asked for. `topics` are those of a ROS 2 bag that are meant, all that are understood
    if none is named. `rate`, in rows per second, is that of the clock they are put on, or of a file that tells none; a
    file that tells has to say the same. `episodes` are names, numbers from 0, or ranges of numbers such as "0:20".
    `only_rate` keeps those of this sampling rate in Hz; each is read once to see which it has.
    """
    if isinstance(topics, str) or isinstance(episodes, str):
        raise UsageError(f"topics are {topics!r}, episodes {episodes!r}; expected lists.")
    given, only = (None if r is None else float(r) for r in (rate, only_rate))
    path, options = Path(path), ReadOptions(tuple(topics), given, tuple(map(str, episodes)), only)
    if not path.exists() and any(c in str(path) for c in WILD):
        whole = _matching(path, options)
    else:
        whole = _whole(path, options)
    chosen = whole.take(chosen_episodes(whole, options.episodes)) if options.episodes else whole
    return chosen if only is None else of_rate(chosen, only)


def of_rate(dataset: Dataset, rate: float) -> Dataset:
    """The episodes of a sampling rate in Hz."""
    rates = [1 / e.dt for e in counted(dataset, "looking for the rate of episodes")]
    kept = [i for i, own in enumerate(rates) if abs(rate / own - 1) < ALIKE]
    if not kept:
        shown = ", ".join(f"{n} at {hertz}" for hertz, n in sorted(Counter(f"{r:.4g} Hz" for r in rates).items()))
        raise ValueError(
            f"no episode of {dataset.path} is at {rate:g} Hz; there are {shown}. Choose one of these with --only-rate."
        )
    return dataset.take(kept)


def _matching(pattern: Path, options: ReadOptions) -> Dataset:
    """Everything that a pattern matches, as one; a link that leaves the folder before it is not meant."""
    plain = next(i for i, part in enumerate(pattern.parts) if any(c in part for c in WILD))
    folder = Path(*pattern.parts[:plain])
    try:
        found = sorted(folder.glob(str(Path(*pattern.parts[plain:]))))
    except (ValueError, NotImplementedError) as error:
        raise DataError(
            pattern, found=f"no pattern ({error})", expected="a path, or one with * and ?", remedy="Check the pattern."
        ) from None
    top = folder.resolve()
    mine = [p for p in found if not p.is_symlink() or p.resolve().is_relative_to(top)]
    if not mine:
        raise DataError(pattern, found="nothing that matches", expected="files or folders", remedy="Check the pattern.")
    return joined([_whole(p, options) for p in mine], folder)


def chosen_episodes(dataset: Dataset, wanted: Sequence[str]) -> list[int]:
    """The numbers of the episodes that are meant, in the order they are named."""
    places = {name: i for i, name in enumerate(dataset.names)}
    found: list[int] = []
    for text in wanted:
        match = RANGE.fullmatch(text)
        if text in places:
            found.append(places[text])
        elif match is None or text == ":":
            names = ", ".join(dataset.names[:3])
            near = nearest(text, dataset.names)
            raise ValueError(
                f"{text!r} is no episode of {dataset.path}; expected a name such as {names}, a number from 0 to "
                f"{len(dataset) - 1}, or a range such as 0:20.{f' Did you mean {near[0]}?' if near else ''}"
            )
        elif match["only"] is not None:
            found.append(_numbered(dataset, int(match["only"])))
        else:
            found += range(len(dataset))[int(match["first"] or 0) : int(match["last"] or len(dataset))]
    if not found:
        raise ValueError(
            f"--episodes {' '.join(wanted)} holds none of the {len(dataset)} episodes of {dataset.path}; expected "
            f"numbers from 0 to {len(dataset) - 1}. Look at them with `vhydro data inspect`."
        )
    return list(dict.fromkeys(found))


def _numbered(dataset: Dataset, number: int) -> int:
    if number >= len(dataset):
        raise ValueError(
            f"episode {number} was asked for; {dataset.path} has {len(dataset)}; expected a number from 0 to "
            f"{len(dataset) - 1}. Look at them with `vhydro data inspect`."
        )
    return number


def _whole(path: Path, options: ReadOptions) -> Dataset:
    if not path.exists():
        raise DataError(path, found="nothing there", expected="a file or a folder", remedy="Check the path.")
    known = readers()
    reader = next((r for r in known if r.recognises(path)), None)
    if reader is not None:
        return _opened(reader, path, options)
    names = ", ".join(r.name for r in known)
    if not path.is_dir():
        size = path.stat().st_size
        found = f"{size} bytes that no reader recognises" if size else "an empty file"
        what, remedy = _foreign(path) if path.is_file() else ("no plain file", "")
        remedy = remedy or "Export the log as one of these; CSV is the simplest."
        raise DataError(path, found=what or found, expected=f"one of: {names}", remedy=remedy)
    parts, others = _recognised_below(path, known)
    if not parts:
        held = f"a folder of {others} files, none recognised" if others else "an empty folder"
        linked = any(p.is_symlink() for p in path.iterdir())
        remedy = "Links out of the folder are not followed: give what they lead to." if linked else "Check the path."
        raise DataError(path, found=held, expected=f"one of: {names}", remedy=remedy)
    return joined([_opened(reader, part, options) for reader, part in parts], path)


def _foreign(path: Path) -> tuple[str, str]:
    """What a file is that others read, and how it becomes one that is read here."""
    with path.open("rb") as file:
        head = file.read(16)
        size = int.from_bytes(head[:8], "little")
        file.seek(8)
        if b'"__metadata__":{"vhydro":' in file.read(min(size, 1 << 24)):
            return (
                "a model that `vhydro fit` wrote",
                "Give logs here; a model goes before them: `vhydro filter MODEL LOGS`.",
            )
    return next((told for start, told in FOREIGN.items() if head.startswith(start)), ("", ""))


def _opened(reader: Reader, path: Path, options: ReadOptions) -> Dataset:
    if options.topics and not (isinstance(reader, ChoosingReader) and "topics" in reader.choices):
        raise ValueError(
            f"topics were named for {path}, which is {reader.name}; expected a ROS 2 bag. Leave --topics out."
        )
    with enough_memory(path):
        dataset = reader.open(path, options) if isinstance(reader, ChoosingReader) else reader.open(path)
    if options.rate is None:
        return dataset
    notes = tuple(n for n in dataset.notes if n != dataset.assumed_rate)
    load = AtRate(dataset.load, options.rate, told=not dataset.assumed_rate)
    return replace(dataset, load=load, notes=notes, assumed_rate="")


@dataclass(frozen=True)
class AtRate:
    """Loads episodes that have this rate: by their own account, or because it was given where they tell none."""

    load: Callable[[int], Episode]
    rate: float
    told: bool

    def __call__(self, index: int) -> Episode:
        episode = self.load(index)
        if not self.told:
            return replace(episode, dt=1 / self.rate)
        if abs(episode.dt * self.rate - 1) > SAME_RATE:
            raise ValueError(
                f"{episode.source} has {1 / episode.dt:g} rows per second by its own account; expected {self.rate:g}, "
                "as was asked for. Leave the rate out: only bags are put on another clock. --only-rate HZ keeps the "
                "episodes of one rate."
            )
        return episode


def _recognised_below(
    folder: Path, known: tuple[Reader, ...], top: Path | None = None
) -> tuple[list[tuple[Reader, Path]], int]:
    """Every log in a folder, itself a file or a folder, with its reader; and how many files are none.

    A link that leaves the folder is none: whoever gave us the folder did not mean what lies elsewhere.
    """
    parts, others = [], 0
    top = folder.resolve() if top is None else top
    for path in sorted(p for p in folder.iterdir() if not p.name.startswith(".")):
        leaves = path.is_symlink() and not path.resolve().is_relative_to(top)
        reader = None if leaves else next((r for r in known if r.recognises(path)), None)
        if reader is not None:
            parts.append((reader, path))
        elif path.is_dir() and not path.is_symlink():
            inner, more = _recognised_below(path, known, top)
            parts, others = parts + inner, others + more
        else:
            others += 1
    return parts, others
