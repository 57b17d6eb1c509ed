"""The folder of a run: what fit, filter, segment, laws and plan wrote there, read for its page and its viewer."""

import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vhydro.printable import printable, printable_json
from vhydro.usage import UsageError

PER_ROW = ("mean", "low", "high", "modes", "certified", "bound", "surprise", "observations", "hidden", "faults",
           "mixing", "certificate", "hand")  # fmt: skip
PER_CHANNEL = ("mean", "low", "high", "surprise", "observations", "hidden", "faults")
BAD = (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, zipfile.BadZipFile)


class Cut(NamedTuple):
    """A segment: rows from `start` up to `end`, its mode, and how sure the model is of it."""

    start: int
    end: int
    mode: int
    confidence: float | None


@dataclass(frozen=True)
class RunEpisode:
    """One log of a run: its arrays by row where it was filtered, its segments and its path where it was cut."""

    name: str
    rows: int
    signals: dict[str, np.ndarray] = field(default_factory=dict)
    segments: tuple[Cut, ...] = ()
    path: np.ndarray | None = None
    summary: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """Everything that the folder of a run holds; what is not there is None or empty, and `unread` could not be read."""

    name: str
    place: str = "RUN"  # the folder as it was given
    dt: float = 0.0
    modes: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    surprise_limit: tuple[float, ...] = ()
    episodes: tuple[RunEpisode, ...] = ()
    fit: dict[str, Any] | None = None
    filtered: dict[str, Any] | None = None  # the summary of `vhydro filter`
    segmented: dict[str, Any] | None = None  # segments.json without its episodes
    law: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    unread: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()  # results of another model than the one in the folder
    inside: tuple[str, ...] = ()  # folders of further runs in this one
    above: bool = False  # whether the folder is in that of another run


def read_run(folder: Path) -> Run:
    """What the folder holds. A file that is damaged is named in `unread`, and the others are read all the same."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"there is no folder {folder}; expected a run, as `vhydro fit LOGS --out RUN` writes it."
        )
    unread: list[str] = []

    def maybe(name: str, reader: Callable[[Path], Any]) -> Any:
        try:
            return reader(folder / name) if (folder / name).is_file() else None
        except BAD as error:
            unread.append(f"{name} could not be read ({printable(f'{type(error).__name__}: {error}')}): write it again")
            return None

    fit, filtered, law, plan = (maybe(n, _document) for n in ("fit.json", "summary.json", "laws.json", "plan.json"))
    filtered = filtered if filtered and "logs" in filtered else None  # of another program
    beliefs = maybe("beliefs.npz", _beliefs) if filtered else None
    segments, paths = maybe("segments.json", _segments), maybe("posteriors.npz", _paths)
    if not any((fit, beliefs, segments, law, plan)):
        raise FileNotFoundError(
            f"{folder} holds no result of fit, filter, segment, laws or plan{f' ({unread[0]})' if unread else ''}; "
            "expected the folder of a run. Make one with `vhydro fit LOGS --out RUN`."
        )
    modes = next((tuple(map(str, d["modes"])) for d in (fit, filtered, segments) if d and d.get("modes")), ())
    dt = next((float(d["dt"]) for d in (fit, filtered, segments) if d and d.get("dt")), 0.0)
    named = beliefs or {}
    parts: dict[str, Any] = {"fit.json": fit, "summary.json": filtered, "posteriors.npz": paths, "laws.json": law}
    return Run(
        name=printable(folder.resolve().name), place=printable(str(folder)), dt=dt, modes=modes,
        channels=tuple(named.get("channels", ())), units=tuple(named.get("units", ())),
        groups=tuple(named.get("groups", ())), surprise_limit=tuple(named.get("surprise_limit", ())),
        episodes=tuple(_episodes(beliefs, filtered, segments, paths)), fit=fit, filtered=filtered,
        segmented=segments, law=law or (fit or {}).get("law"), plan=plan, unread=tuple(unread),
        stale=_stale(parts | {"plan.json": plan}), inside=_runs_in(folder), above=_is_run(folder.resolve().parent),
    )  # fmt: skip


def _is_run(folder: Path) -> bool:
    return (folder / "fit.json").is_file() and (folder / "index.html").is_file()


def _runs_in(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(f.name for f in folder.iterdir() if f.is_dir() and f.name.isprintable() and _is_run(f)))


def _document(path: Path) -> dict[str, Any]:
    value = printable_json(json.loads(path.read_text("utf-8")))
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, expected names and values")
    return value


def _beliefs(path: Path) -> dict[str, Any]:
    """The arrays of beliefs.npz; what every row has is checked to be there for every row."""
    with np.load(path, allow_pickle=False) as held:
        out: dict[str, Any] = {k: held[k] for k in held.files if k in PER_ROW or k in ("first_row", "surprise_limit")}
        for name in ("names", "channels", "mode_names", "units", "groups"):
            out[name] = [printable(str(x)) for x in held[name]] if name in held.files else []
    rows, channels = int(out["first_row"][-1]), len(out["channels"])
    out["units"] = out["units"] or [""] * channels
    out["groups"] = out["groups"] or [""] * channels
    for name in PER_ROW:
        shape = out[name].shape if name in out else (rows, channels)
        if shape[0] != rows or (name in PER_CHANNEL and shape != (rows, channels)):
            raise ValueError(f"{name} has the shape {shape}, expected {rows} rows")
    out["surprise_limit"] = [float(x) for x in out.get("surprise_limit", ())]
    return out


def _segments(path: Path) -> dict[str, Any]:
    document = _document(path)
    if "episodes" not in document:
        raise ValueError("it has no episodes")
    cuts = {
        str(e["name"]): tuple(
            Cut(int(s["start"]), int(s["end"]), int(s["mode"]), s["confidence"] and float(s["confidence"]))
            for s in e["segments"]
        )
        for e in document["episodes"]
    }  # fmt: skip
    return {k: v for k, v in document.items() if k != "episodes"} | {"cuts": cuts}


def _paths(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as held:
        rows, every = held["first_row"], held["path"]
        names = [printable(str(n)) for n in held["names"]]
        model = str(held["model"]) if "model" in held.files else ""
    return {"model": model, "paths": {n: every[a:b] for n, a, b in zip(names, rows[:-1], rows[1:], strict=True)}}


def _episodes(beliefs: dict | None, filtered: dict | None, segments: dict | None, paths: dict | None):
    """Every log that was filtered or cut; what two verbs say of one log is of one log if it has as many rows."""
    cuts = dict((segments or {}).get("cuts", {}))
    tracks = (paths or {}).get("paths", {})
    if beliefs is not None:
        said = {row.get("name"): row for row in (filtered or {}).get("logs", ())}
        for name, first, end in zip(beliefs["names"], beliefs["first_row"][:-1], beliefs["first_row"][1:], strict=True):
            own, rows = cuts.get(name, ()), int(end - first)
            fits = bool(own) and own[-1].end == rows
            if fits:
                cuts.pop(name)
            signals = {k: beliefs[k][first:end] for k in PER_ROW if k in beliefs}
            path = tracks.get(name) if fits and len(tracks.get(name, ())) == rows else None
            yield RunEpisode(name, rows, signals, own if fits else (), path, said.get(name, {}))
    for name, own in cuts.items():
        path = tracks.get(name)
        yield RunEpisode(name, own[-1].end if own else 0, {}, own, path)


def _stale(documents: dict[str, dict | None]) -> tuple[str, ...]:
    """The files that are of another model than fit.json."""
    known = (documents["fit.json"] or {}).get("model")
    return tuple(n for n, d in documents.items() if known and d and d.get("model") not in (None, "", known))


def chosen(episodes: Sequence[RunEpisode], asked: Sequence[str]) -> list[RunEpisode]:
    """The episodes that were asked for, by name, by number from 0, or as a range such as 20:40; all if none was."""
    if not asked:
        return list(episodes)
    names = {e.name: e for e in episodes}
    out: list[RunEpisode] = []
    for word in asked:
        first, colon, end = word.partition(":")
        if word in names:
            out.append(names[word])
        elif first.isdigit() and int(first) < len(episodes) and (not colon or end.isdigit()):
            out += episodes[int(first) : int(end) if colon else int(first) + 1]
        else:
            raise UsageError(
                f"there is no episode {word!r}; expected a name, a number below {len(episodes)}, or a range such as "
                f"0:{len(episodes)}."
            )
    return out
