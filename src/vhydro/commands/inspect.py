"""`vhydro data inspect LOGS`: what logs hold, what every view would need of them, and a mapping to be edited."""

import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional, arg

from vhydro.commands.mapping import Naming, draft
from vhydro.data import read
from vhydro.data.inspection import Inspection, inspected, show
from vhydro.data.options import ReadOptions
from vhydro.episodes import Episode
from vhydro.outputs import write_whole
from vhydro.progress import quiet
from vhydro.report.files import plain
from vhydro.units import si_unit
from vhydro.usage import Incomplete, UsageError, at_least
from vhydro.views import AnyView, Choice, choose_view, view_of
from vhydro.views.needs import Need, needs

DIMENSIONLESS = re.compile(r"(^|\W|_)q[wxyz]$")  # a quaternion
SHOWN = 6  # names of a kind that are listed


@dataclass(frozen=True)
class InspectConfig:
    """Show what a log file or folder holds, and what every view would need of it."""

    logs: Annotated[Positional[Path], arg(metavar="LOGS")]
    """File or folder; the format is recognised from its content."""
    rows: int = 40
    """At most this many channels are listed."""
    write: Path | None = None
    """Write a mapping of what was found to this JSON file, to be edited and given to every verb with --mapping."""
    overwrite: bool = False
    """Replace the mapping that is there."""
    json: bool = False
    """Print one JSON document on stdout, and everything else on stderr."""
    naming: OmitArgPrefixes[Naming] = field(default_factory=Naming)
    reading: OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)

    def __post_init__(self):
        at_least("rows", self.rows, 1)
        if self.overwrite and self.write is None:
            raise UsageError("--overwrite without --write; there is nothing to replace. Give --write FILE, or neither.")


class Screen(Console):
    """A console that lets the command line say that nobody reads it any more."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def run_inspect(config: InspectConfig) -> Inspection:
    """What was found, after it was printed; it ends with status 1 if an episode could not be read."""
    if config.write is not None and config.write.exists() and not config.overwrite:
        raise FileExistsError(f"{config.write} is there already; expected a new file. Give another, or --overwrite.")
    found = inspected(config.naming.applied(read(config.logs, **vars(config.reading))))
    quiet()
    console = Screen()
    show(found, console, rows=config.rows)
    if found.first:
        for line in view_lines(found, config.naming, min(console.width, 100)):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        if config.write is not None:
            record = plain(draft(_view(config.naming, found.first), found.first[0]))
            write_whole(config.write, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
            console.print(f"{config.write}: edit it, then give --mapping {config.write} to any verb.", highlight=False)
    if found.unreadable:
        raise Incomplete(found)
    return found


def _view(naming: Naming, logs: Sequence[Episode]) -> AnyView:
    """The view that was named, or the one that `fit` would choose."""
    view = naming.chosen()
    if not isinstance(view, str):
        return view
    return choose_view(logs).view if view == "auto" else view_of(view, logs)


def view_lines(found: Inspection, naming: Naming, width: int) -> list[str]:
    """What is said of rate, units and gaps, what every view needs, and which one `fit` would take."""
    logs = found.first
    told = {"rate": _rate(found), "units": _units(logs[0]), "gaps": _gaps(found)}
    lines = ["", "what a fit would see"]
    lines += [line for name, text in told.items() for line in _wrapped(name, text, width)]
    for kind, every in needs(logs).items():
        lines += _wrapped(kind, "; ".join(_needed(n) for n in every if n.found or not n.optional), width)
    return lines + _wrapped("fit", _chosen(naming, logs), width)


def _wrapped(name: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=f"  {name:11}", subsequent_indent=13 * " ", break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def _needed(need: Need) -> str:
    if need.found:
        names = " ".join(need.found[:SHOWN])
        more = f" and {len(need.found) - SHOWN} more" if len(need.found) > SHOWN else ""
        return f"{need.what}: {names}{more} ✓"
    return f"{need.what}: none, {need.remedy}"


def chosen_view(naming: Naming, logs: Sequence[Episode]) -> Choice:
    """The view that `fit` would take of these logs, and why; an error says why it takes none."""
    named = naming.chosen()
    choice = choose_view(logs) if named == "auto" else Choice(_view(naming, logs), "as asked for")
    choice.view(logs[0])
    return choice


def _chosen(naming: Naming, logs: Sequence[Episode]) -> str:
    try:
        view, why = chosen_view(naming, logs)
        seen = view(logs[0])
    except ValueError as error:
        return f"cannot: {error}"
    because = f"for {why}" if naming.chosen() == "auto" else why
    size = f"{len(seen.channels)} channels and {len(seen.inputs)} inputs"
    return f"takes the {view.kind} view, {because}: {size}"


def _rate(found: Inspection) -> str:
    rates = ", ".join(f"{r:g} Hz" for r, _ in found.rates.most_common(4))
    return f"{rates} ✓" if len(found.rates) == 1 else f"{rates}: a fit wants one, fit them apart"


def _units(log: Episode) -> str:
    every = (*log.channels, *log.inputs)
    without = [c.name for c in every if not c.unit and not DIMENSIONLESS.search(c.name)]
    strange = [f"{c.name} in {c.unit}" for c in every if c.unit and si_unit(c.unit) is None]
    parts = [f"none told of {_some(without)}, taken as SI; tell them with --units {without[0]}=mm"] if without else []
    parts += [f"not known: {_some(strange)}, taken as they are"] if strange else []
    return "; ".join(parts) or "told of every channel ✓"


def _gaps(found: Inspection) -> str:
    longest = {name: q.gap for name, q in found.observations.items() if q.gap}
    if not longest:
        return "none ✓"
    name = max(longest, key=lambda n: longest[n])
    return f"in {len(longest)} of {len(found.observations)} channels; the longest {longest[name]} rows, {name}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
