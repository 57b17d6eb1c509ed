"""Channel descriptions: a small JSON file that says what the arrays or columns of a log mean.

`NAME.channels.json` beside `NAME.npz`, `NAME.csv` or any other, or `channels.json` for every file of a folder:

    {"dt": 0.01,
     "episodes": {"lengths": "lengths"},
     "observations": [{"key": "q", "names": ["arm.joint_1", "arm.joint_2"], "units": "rad", "group": "joints"}],
     "actions": [{"key": "u", "names": ["arm.torque_1", "arm.torque_2"], "units": "N m", "scale": "gain"}],
     "labels": {"contact": "touching"}, "info": {"robot": "Panda", "mass": {"key": "m"}}}

A key is the name of an array or column, or of some columns of an array: `table[2]`, `table[1:4]`. Instead of `dt`
(seconds, or the key of a number) there can be `time`, a key with time stamps, in seconds unless `time_unit` says ms,
us or ns. `episodes` is `{"lengths": KEY}`, `{"trial": KEY}` or `{"each": [NAME, …]}`; with `each`, `{episode}` in a
key stands for the name. Several kinds of episode in one file are `parts`: a list of such descriptions, each with a
`name`. Of ROS 2 bags, whose keys are topics, of ALOHA files and of Zarr stores any entry may be left out.
"""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from vhydro.data.assembly import likely_group, translated
from vhydro.data.errors import DataError
from vhydro.episodes import Channel

TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
REFERENCE = re.compile(r"(?P<key>.+?)(?:\[(?P<first>\d{1,6})(?::(?P<last>\d{1,6}))?\])?", re.DOTALL)
KNOWN = ("name", "dt", "time", "time_unit", "episodes", "observations", "actions", "labels", "info")


@dataclass(frozen=True)
class Reference:
    """An array or column, or some columns of an array."""

    key: str
    first: int | None = None
    last: int | None = None  # exclusive

    @classmethod
    def parsed(cls, text: str) -> "Reference":
        match = REFERENCE.fullmatch(text)
        if match is None or match["first"] is None:
            return cls(text)
        first = int(match["first"])
        return cls(match["key"], first, int(match["last"]) if match["last"] else first + 1)

    def of(self, episode: str) -> "Reference":
        return Reference(self.key.replace("{episode}", episode), self.first, self.last)


@dataclass(frozen=True)
class Block:
    """Columns that become channels; `scale` is a number or the key of one."""

    reference: Reference
    channels: tuple[Channel, ...]
    scale: float | str = 1.0


@dataclass(frozen=True)
class Part:
    """Episodes of one kind."""

    observations: tuple[Block, ...]
    actions: tuple[Block, ...] = ()
    labels: Mapping[str, Reference] = field(default_factory=dict)
    info: Mapping[str, str | float | bool] = field(default_factory=dict)  # constants
    info_keys: Mapping[str, str] = field(default_factory=dict)  # single numbers of the file
    dt: float | str | None = None
    time: Reference | None = None
    time_unit: float | None = 1.0  # seconds; None where nothing says it and seconds are a guess
    lengths: str | None = None
    names: str | None = None  # of the episodes, with lengths
    trial: Reference | None = None
    each: tuple[str, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Description:
    """What the arrays of a file mean."""

    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()
    ranks: Mapping[str, int] = field(default_factory=dict)  # of a known public file: every array and its rank
    origin: str = ""


def beside(path: Path, *, partial: bool = False) -> Description | None:
    """The description that lies beside a file, if there is one; a partial one may leave out dt and observations."""
    for file in (path.with_name(f"{path.stem}.channels.json"), path.with_name("channels.json")):
        if file.is_file():
            with translated(file, "a channel description in JSON"):
                record = json.loads(file.read_text("utf-8"))
            return description(record, file, partial=partial)
    return None


def overlaid(usual: Description, path: Path, given: float | None, assumed: float, note: str) -> Description:
    """A format's own description with what lies beside a file put over it; `given` is a dt that was asked for.

    Where nothing tells dt it is `assumed`, and `note` says so.
    """
    said = beside(path, partial=True)
    part, told = usual.parts[0], Part(()) if said is None else said.parts[0]
    if said is not None and len(said.parts) > 1:
        raise DataError(path, key=said.origin, found=f"{len(said.parts)} parts", expected="one, as this format has")
    if told.observations:
        part = replace(part, observations=tuple(grouped(b) for b in told.observations))
    named = ("actions", "labels", "info", "info_keys", "time", "lengths", "names", "trial", "name")
    part = replace(part, **{field: getattr(told, field) for field in named if getattr(told, field)})
    dt = given or told.dt or (None if part.time else part.dt)
    notes = (*usual.notes, *(said.notes if said else ()), *(() if dt or part.time else (note,)))
    time = None if given or told.dt else part.time
    return Description((replace(part, dt=dt or (None if time else assumed), time=time),), notes)


def grouped(block: Block) -> Block:
    """The block with groups by the names of its channels where none are told."""
    channels = tuple(replace(c, group=c.group or likely_group(c.name)) for c in block.channels)
    return replace(block, channels=channels)


def description(record, file: Path, *, partial: bool = False) -> Description:
    """The description in a JSON record, or a `DataError` naming the entry that is wrong."""
    wrong = Wrong(file)
    record = wrong.unless(isinstance(record, dict), record, "", "a JSON object")
    parts = record.get("parts")
    shared = {"parts", "notes", "arrays", "title"}
    if parts is None:
        parts = [{k: v for k, v in record.items() if k not in shared}]
    elif unknown := sorted(set(record) - shared):
        wrong(unknown, "parts", f"{', '.join(unknown)} inside each part")
    wrong.unless(isinstance(parts, list) and parts, parts, "parts", "a list of at least one description")
    notes = record.get("notes", [])
    wrong.unless(isinstance(notes, list), notes, "notes", "a list of sentences")
    ranks = record.get("arrays", {})
    fine = isinstance(ranks, dict) and all(isinstance(v, int) for v in ranks.values())
    wrong.unless(fine, ranks, "arrays", "an object of NAME: RANK")
    return Description(
        parts=tuple(part(p, wrong, f"parts[{i}]." if len(parts) > 1 else "", partial) for i, p in enumerate(parts)),
        notes=tuple(str(n) for n in notes),
        ranks=ranks,
        origin=str(record.get("title", "")) or file.name,
    )


@dataclass(frozen=True)
class Wrong:
    """Raises the `DataError` of an entry."""

    file: Path

    def __call__(self, found, key: str, expected: str) -> NoReturn:
        raise DataError(self.file, key=key, found=f"{found!r}"[:200], expected=expected, remedy="Correct this entry.")

    def unless(self, fine, found, key: str, expected: str):
        return found if fine else self(found, key, expected)


def part(record, wrong: Wrong, at: str, partial: bool = False) -> Part:
    """One kind of episode; a partial one has empty fields, groups among them, where nothing is said."""
    wrong.unless(isinstance(record, dict), record, at.rstrip("."), "a JSON object")
    if unknown := sorted(set(record) - set(KNOWN)):
        wrong(unknown, at + unknown[0], f"one of {', '.join(KNOWN)}")
    dt, time = record.get("dt"), record.get("time")
    clocks = [x for x in (dt, time) if x is not None]
    fine = len(clocks) == 1 or (partial and not clocks)
    wrong.unless(fine, [dt, time], at + "dt", "either dt (seconds or a key) or time (a key)")
    number = is_finite(dt) and dt > 0
    wrong.unless(dt is None or isinstance(dt, str) or number, dt, at + "dt", "a positive number of seconds, or a key")
    wrong.unless(time is None or isinstance(time, str), time, at + "time", "a key")
    unit = record.get("time_unit", "s")
    wrong.unless(
        isinstance(unit, str) and unit in TIME_UNITS, unit, at + "time_unit", f"one of {', '.join(TIME_UNITS)}"
    )
    told = record.get("observations", [] if partial else None)
    observed = blocks(told, wrong, at + "observations", "" if partial else "object")
    wrong.unless(observed or partial, told, at + "observations", "at least one block of channels")
    labels = keys(record.get("labels", {}), wrong, at + "labels")
    constants, info_keys = info(record.get("info", {}), wrong, at + "info")
    return Part(
        observations=observed,
        actions=blocks(record.get("actions", []), wrong, at + "actions", "action"),
        labels={name: Reference.parsed(key) for name, key in labels.items()},
        info=constants,
        info_keys=info_keys,
        dt=dt if dt is None or isinstance(dt, str) else float(dt),
        time=Reference.parsed(time) if time else None,
        time_unit=TIME_UNITS[unit],
        name=str(record.get("name", "")),
        **division(record.get("episodes", {}), wrong, at + "episodes"),
    )


def division(record, wrong: Wrong, at: str) -> dict:
    """How episodes are divided, as fields of a `Part`."""
    expected = '{"lengths": KEY, "names": KEY}, {"trial": KEY} or {"each": [NAME, …]}'
    wrong.unless(
        isinstance(record, dict) and set(record) <= {"lengths", "names", "trial", "each"}, record, at, expected
    )
    wrong.unless(len(set(record) - {"names"}) <= 1, record, at, f"only one of {expected}")
    each = record.get("each", [])
    wrong.unless(isinstance(each, list) and all(isinstance(n, str) for n in each), each, at, expected)
    for key in ("lengths", "names", "trial"):
        wrong.unless(isinstance(record.get(key, ""), str), record.get(key), f"{at}.{key}", "a key")
    trial = record.get("trial")
    return {
        "lengths": record.get("lengths"),
        "names": record.get("names"),
        "trial": Reference.parsed(trial) if trial else None,
        "each": tuple(each),
    }


def blocks(records, wrong: Wrong, at: str, group: str) -> tuple[Block, ...]:
    wrong.unless(isinstance(records, list), records, at, "a list of blocks, each with a key")
    return tuple(block(r, wrong, f"{at}[{i}]", group) for i, r in enumerate(records))


def block(record, wrong: Wrong, at: str, group: str) -> Block:
    """One block of channels."""
    fine = isinstance(record, dict) and set(record) <= {"key", "names", "units", "group", "scale"}
    wrong.unless(fine, record, at, "a JSON object with key, names, and perhaps units, group, scale")
    key, names = record.get("key"), record.get("names")
    if not isinstance(key, str) or not key:
        wrong(key, f"{at}.key", "the name of an array or column")
    named = [key] if names is None else names
    fine = isinstance(named, list) and named and all(isinstance(n, str) and n for n in named)
    wrong.unless(fine, names, f"{at}.names", "a list of channel names, one for each column")
    units = record.get("units", "")
    units = [units] * len(named) if isinstance(units, str) else units
    fine = isinstance(units, list) and len(units) == len(named) and all(isinstance(u, str) for u in units)
    wrong.unless(fine, record.get("units"), f"{at}.units", f"one unit, or a list of {len(named)}")
    scale = record.get("scale", 1.0)
    wrong.unless(isinstance(scale, str) or is_finite(scale), scale, f"{at}.scale", "a number, or the key of one")
    kind = wrong.unless(
        isinstance(record.get("group", group), str), record.get("group", group), f"{at}.group", "a name"
    )
    channels = tuple(Channel(n, kind, u) for n, u in zip(named, units, strict=True))
    return Block(Reference.parsed(key), channels, scale if isinstance(scale, str) else float(scale))


def is_finite(value) -> bool:
    """Whether it is a number that a float can hold; JSON also knows NaN, Infinity and integers of any length."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def keys(record, wrong: Wrong, at: str) -> dict[str, str]:
    fine = isinstance(record, dict) and all(isinstance(v, str) for v in record.values())
    return wrong.unless(fine, record, at, "an object of NAME: KEY")


def info(record, wrong: Wrong, at: str) -> tuple[dict, dict]:
    """Constants, and keys of single numbers, written `{"key": KEY}`."""
    wrong.unless(isinstance(record, dict), record, at, "an object")
    constants, references = {}, {}
    for name, value in record.items():
        if isinstance(value, dict):
            fine = set(value) == {"key"} and isinstance(value["key"], str)
            references[name] = wrong.unless(fine, value, f"{at}.{name}", '{"key": KEY}') and value["key"]
        else:
            fine = isinstance(value, str | int | float | bool)
            constants[name] = wrong.unless(fine, value, f"{at}.{name}", 'a constant, or {"key": KEY}')
    return constants, references
