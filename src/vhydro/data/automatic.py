"""A description guessed from the names and shapes of arrays, for logs that come without one."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from vhydro.data.assembly import likely_group
from vhydro.data.description import Block, Description, Part, Reference
from vhydro.data.errors import DataError
from vhydro.data.tables import Table
from vhydro.episodes import Channel
from vhydro.units import si_unit

UNITS = {
    "_rad_s2": "rad/s²", "_rad_s": "rad/s", "_m_s2": "m/s²", "_m_s": "m/s", "_rad": "rad", "_deg": "°", "_Nm": "N m",
    "_N": "N", "_px": "px", "_mm": "mm", "_kg": "kg", "_m": "m", "_s": "s", "_V": "V", "_A": "A",
}  # fmt: skip
BRACKETED = re.compile(r"(.*\S)(?:\s*\(|\s+\[)([^\[\]()]+)[\])]")  # `x [mm]`, `force(N)`; `q[0]` is an index
OF_CLOCKS = {"_ms": 1e-3, "_us": 1e-6, "_ns": 1e-9}  # suffixes that mean a time on a clock only
TIMES = (
    "t", "time", "timestamp", "timestamps", "time_stamp", "stamp", "stamps", "clock", "seconds", "secs", "sec",
    "elapsed", "elapsed_time",
)  # fmt: skip
TRIALS = ("trial", "episode", "episode_index", "episode_id", "run")
ACTIONS = ("action", "actions", "u", "control", "controls", "command", "commands", "input", "inputs", "torque", "force")
RATES = ("fps", "rate", "rate_hz", "hz")
GUESSED = "No description beside the file: the meaning of its arrays was guessed from names and shapes."
SECONDS = (
    "Time taken as seconds, for nothing tells its unit: say it as time_unit in NAME.channels.json beside the file."
)
NO_RATE = "The file tells no rate: dt is 1. Say it with --rate, or in NAME.channels.json beside the file."
WIDEST = 10_000


def without_unit(name: str) -> tuple[str, str]:
    """A name without its unit, a suffix or in brackets, and the unit."""
    bracketed = BRACKETED.fullmatch(name)
    unit = bracketed[2].strip() if bracketed else ""
    if bracketed and not unit.isdigit() and (unit in UNITS.values() or si_unit(unit) is not None):
        return bracketed[1], unit
    for suffix, unit in UNITS.items():
        if name.endswith(suffix) and len(name) > len(suffix):
            return name.removesuffix(suffix), unit
    return name, ""


def named_with_units(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """For each name itself without its unit suffix, unless another then has the same, and its unit."""
    names = list(names)
    split = {name: (name, "") if is_axis(name, names) else without_unit(name) for name in names}
    short = Counter(s for s, _ in split.values())
    return {name: (s if short[s] == 1 else name, unit) for name, (s, unit) in split.items()}


def is_axis(name: str, names: Sequence[str]) -> bool:
    """Whether a name's end is no unit but one of several coordinates, as in `tool_px` beside `tool_py`."""
    return name.endswith("_px") and name[:-1] + "y" in names


def plain(name: str) -> str:
    return without_unit(name)[0].lower()


def clock_name(name: str) -> str:
    """A name as a clock's: without its unit, thousandths of a second included."""
    low = plain(name)
    return next((low.removesuffix(suffix) for suffix in OF_CLOCKS if low.endswith(suffix)), low)


def guessed_description(table: Table, names: Mapping[str, Sequence[str]], dt: float | None = None) -> Description:
    """What the arrays most likely mean; `names` are the column names of those arrays that have some.

    `dt`, in seconds, is of a file that tells neither a rate nor times.
    """
    numeric = {
        k: s for k, s in table.shapes.items() if len(s) in (1, 2) and min(s, default=0) > 0 and is_numeric(table, k)
    }
    scalars = [k for k, s in table.shapes.items() if s == () and table.dtype(k).kind in "biufU"]
    tables = {k: s for k, s in numeric.items() if k in names and len(s) == 2}
    if tables and "lengths" not in numeric and len({s[0] for s in numeric.values()}) > 1:
        parts, used = [table_part(k, names[k]) for k in tables], set(tables)
    else:
        part, used = equal_rows(table, numeric, names)
        parts = [part]
    parts, notes = rated(table, parts, scalars, dt)
    text = [k for k in table.shapes if k == "columns" or k.endswith("_columns")]
    rest = sorted(set(table.shapes) - used - set(scalars) - set(text))
    left = (f"Left out, for their shape fits nothing: {', '.join(rest[:12])}.",) if rest else ()
    return Description(tuple(parts), (GUESSED, *notes, *left))


def clock_of(names: Iterable[str]) -> str | None:
    """The name that is most likely a time, if one is."""
    times = [n for n in names if clock_name(n) in TIMES and is_of_time(n)]
    return min(times, key=lambda n: TIMES.index(clock_name(n)), default=None)


def is_of_time(name: str) -> bool:
    """Whether no unit says that a name is of something else: `T [K]` is a temperature."""
    unit = without_unit(name)[1]
    return not unit or (si_unit(unit) or (1.0, ""))[1] == "s"


def is_numeric(table: Table, key: str) -> bool:
    return table.dtype(key).kind in "biuf"


def table_part(key: str, names: Sequence[str]) -> Part:
    """A whole table as one kind of episode, by the names of its columns."""
    places = {name: Reference(key, i, i + 1) for i, name in enumerate(names)}
    return replace(named_part(places), name=key)


def named_part(places: Mapping[str, Reference]) -> Part:
    """A part whose columns are known by name."""
    clock = clock_of(places)
    time = None if clock is None else places[clock]
    trial = next((ref for name, ref in places.items() if plain(name) in TRIALS), None)
    rest = {name: ref for name, ref in places.items() if ref not in (time, trial)}
    commands = {n: r for n, r in rest.items() if is_action(n)} if len(rest) > 1 else {}
    shown = named_with_units(rest)
    observed = [one_channel(shown[n], r, "") for n, r in rest.items() if n not in commands]
    actions = [one_channel(shown[n], r, "action") for n, r in commands.items()]
    if not observed:
        observed, actions = actions, []
    unit = time_unit(next((name for name, ref in places.items() if ref == time), ""))
    return Part(tuple(observed), tuple(actions), time=time, time_unit=unit, trial=trial)


def time_unit(name: str) -> float | None:
    """How many seconds a unit of the time is, where its name says so, else None."""
    factor, unit = si_unit(without_unit(name)[1]) or (1.0, "")
    return (
        factor if unit == "s" else next((f for suffix, f in OF_CLOCKS.items() if name.lower().endswith(suffix)), None)
    )


def is_action(name: str) -> bool:
    low = plain(name)
    return low in ACTIONS or low.startswith(("action_", "action.", "u_", "u."))


def one_channel(shown: tuple[str, str], reference: Reference, group: str) -> Block:
    name, unit = shown
    return Block(reference, (Channel(name, group or likely_group(name), unit),))


def equal_rows(table: Table, numeric: Mapping[str, tuple[int, ...]], names: Mapping) -> tuple[Part, set[str]]:
    """Arrays of equal length side by side, divided by `lengths` if there is one."""
    lengths = "lengths" if "lengths" in numeric and table.dtype("lengths").kind in "iu" else None
    rows = int(np.sum(table.array("lengths"))) if lengths else common_rows(table, numeric)
    fits = {k: s for k, s in numeric.items() if s[0] == rows and k != lengths and s[1:] < (WIDEST,)}
    episodes = numeric["lengths"][0] if lengths else 1
    short = {k: s for k, s in numeric.items() if s[0] == rows - episodes and is_action(k)}
    time = clock_of(k for k in fits if len(fits[k]) == 1)
    trial = next((k for k in fits if plain(k) in TRIALS and len(fits[k]) == 1), None) if not lengths else None
    commands = [k for k in fits if is_action(k)] + list(short)
    taken = {time, trial, *commands}
    observed = [k for k in fits if k not in taken] or commands
    if not observed:
        raise no_channels(table)
    inputs = commands if observed is not commands else []
    shown, shapes = named_with_units([*observed, *commands]), fits | short
    part = Part(
        tuple(array_block(k, shapes[k], names.get(k), shown[k], "") for k in observed),
        tuple(array_block(k, shapes[k], names.get(k), shown[k], "action") for k in inputs),
        time=Reference(time) if time else None,
        time_unit=time_unit(time or ""),
        trial=Reference(trial) if trial else None,
        lengths=lengths,
    )
    return part, {*observed, *commands, *filter(None, (time, trial, lengths))}


def common_rows(table: Table, numeric: Mapping[str, tuple[int, ...]]) -> int:
    """The length that most arrays have; the longest of those."""
    counts = Counter(s[0] for k, s in numeric.items() if k != "lengths")
    if not counts:
        raise no_channels(table)
    return max(counts, key=lambda n: (counts[n], n))


def no_channels(table: Table) -> DataError:
    return DataError(
        table.file,
        found=f"arrays {dict(list(table.shapes.items())[:8])}",
        expected="arrays of numbers with a row for each time",
        remedy="Describe it in NAME.channels.json beside the file.",
    )


def array_block(
    key: str, shape: tuple[int, ...], names: Sequence[str] | None, shown: tuple[str, str], group: str
) -> Block:
    """All columns of an array, with the names known for them or numbered."""
    if len(shape) == 1 or (shape[1] == 1 and not names):
        return one_channel(shown, Reference(key), group)
    if names:
        pairs = named_with_units(names).values()
        return Block(Reference(key), tuple(Channel(f"{key}.{n}", group or likely_group(n), u) for n, u in pairs))
    short, unit = shown
    kind = group or likely_group(short)
    return Block(Reference(key), tuple(Channel(f"{short}_{i + 1}", kind, unit) for i in range(shape[1])))


def rated(
    table: Table, parts: list[Part], scalars: Sequence[str], given: float | None = None
) -> tuple[list[Part], tuple[str, ...]]:
    """The parts with a rate and with the file's single values as info."""
    dt = next((k for k in scalars if plain(k) == "dt"), None)
    fps = next((k for k in scalars if k.lower() in RATES), None)
    stated: float | str | None = dt
    if dt is None and fps is not None:
        stated = 1 / stated_rate(table, fps)
    info = {k: k for k in scalars if k not in (dt, fps)}
    timed = [
        replace(p, info_keys=info, dt=stated or given or 1.0, time=None)
        if stated or not p.time
        else replace(p, info_keys=info)
        for p in parts
    ]
    notes = [NO_RATE] if stated is None and given is None and any(p.time is None for p in parts) else []
    notes += [SECONDS] if any(p.time is not None and p.time_unit is None for p in timed) else []
    return timed, tuple(notes)


def stated_rate(table: Table, key: str) -> float:
    """The rate that a single value of the file tells, in Hz."""
    value = table.array(key)
    rate = float(value) if value.dtype.kind in "iuf" else 0.0
    if not np.isfinite(rate) or rate <= 0 or not np.isfinite(1 / rate):
        found = f"{value.item()!r}"[:40]
        raise DataError(table.file, key=key, found=found, expected="a positive number of rows per second")
    return rate
