"""The contract of views: what a model sees of a raw log. A view is data: it is kept in the model's file."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from vhydro.episodes import Episode
from vhydro.units import in_si
from vhydro.usage import nearest

AXES = ("x", "y", "z")


class View(Protocol):
    """Maps a raw log to the log a model sees, in SI units. `kind` is its name in a file and on the command line."""

    kind: ClassVar[str]

    @property
    def channels(self) -> tuple[str, ...]:
        """The raw channels it needs."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """The raw inputs it needs."""
        ...

    def __call__(self, episode: Episode) -> Episode:
        """The log as a model sees it."""
        ...


def as_json(view: Any) -> dict[str, Any]:
    """A view as a record that JSON can hold."""
    return {"kind": view.kind, **asdict(view)}


def looked_up(view: Any, episode: Episode) -> Episode:
    """The log in SI units, if it has everything the view needs; otherwise an error that says how to name it."""
    names, commands = [c.name for c in episode.channels], [c.name for c in episode.inputs]
    lacks = [n for n in view.channels if n not in names] + [n for n in view.inputs if n not in commands]
    if lacks:
        where, near = episode.source or "the log", _meant(view, lacks[0], names, commands)
        meant = f" Did you mean {' or '.join(near)} for {lacks[0]}?" if near else ""
        raise ValueError(
            f"{where} does not show {_some(lacks)}, which the {view.kind} view reads; it has the channels "
            f"{_some(names)} and the inputs {_some(commands)}.{meant} Name what it has: {view.example}."
        )
    return in_si(episode)


def _meant(view: Any, lack: str, channels: Sequence[str], inputs: Sequence[str]) -> list[str]:
    """What a name that is not there may have been meant for: none of those that the view reads already."""
    side, read = (channels, view.channels) if lack in view.channels else (inputs, view.inputs)
    return nearest(lack, [name for name in side if name not in read])


def _some(names: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(names[:most]) or "none"
    return shown + (f", … ({len(names)} in all)" if len(names) > most else "")


def columns(episode: Episode, names: Sequence[str]) -> np.ndarray:
    """The named channels, (rows, names)."""
    return episode.select(list(names)).observations.astype(np.float64)


def commands(episode: Episode, names: Sequence[str]) -> np.ndarray:
    """The named inputs, (steps, names)."""
    mine = [c.name for c in episode.inputs]
    return episode.actions[:, [mine.index(n) for n in names]].astype(np.float64)


def only(log: Episode, channels: Sequence[str], inputs: Sequence[str]) -> Episode:
    """The log with these channels and inputs alone, in this order."""
    named = {c.name: c for c in log.inputs}
    chosen = log.select(list(channels))
    return replace(chosen, actions=commands(log, inputs), inputs=tuple(named[n] for n in inputs))


def as_tuples(value: Any) -> Any:
    """A record from JSON with tuples where it has lists."""
    if isinstance(value, Mapping):
        return {k: as_tuples(v) for k, v in value.items()}
    return tuple(as_tuples(v) for v in value) if isinstance(value, list) else value
