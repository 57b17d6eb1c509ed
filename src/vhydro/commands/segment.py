"""`vhydro segment MODEL LOGS`: when each mode was on, in words, as tables and as a picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tyro.conf import Positional, arg

from vhydro.data import read
from vhydro.episodes import Episode
from vhydro.filter import Belief
from vhydro.fitted import Fitted, load
from vhydro.modes.readings import REGIMES, Readings
from vhydro.modes.segments import Segment, segments_of, write_segments
from vhydro.report.files import staged
from vhydro.report.timeline import Stretch, timeline_svg
from vhydro.views import ContactView

CONTACT = ("nothing touches", "something touches")
FILES = ("segments.json", "segments.csv", "timeline.svg", "posteriors.npz")


@dataclass(frozen=True)
class SegmentCommand:
    """Cut logs into segments of one mode each, with how sure the model is of them."""

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """A file that `vhydro fit` wrote."""
    logs: Annotated[Positional[Path], arg(metavar="LOGS")]
    """File or folder of episodes; the format is recognised from its content."""
    out: Path = Path("segments")
    """Folder for segments.json, segments.csv, timeline.svg and posteriors.npz."""
    seed: int = 0
    """Of the particles, for models that need them."""


def run_segment(config: SegmentCommand) -> list[list[Segment]]:
    """The segments of every log, after they were written."""
    fitted, logs = load(config.model), read(config.logs)
    with staged(config.out, FILES) as folder:
        beliefs, contacts = [], []
        for log in logs:
            beliefs.append(fitted.smooth(log, seed=config.seed))
            contacts.append(_contacts(fitted, log, beliefs[-1]))
        found = [segments_of(b.path, np.asarray(b.mode, np.float64)) for b in beliefs]
        _write(folder, fitted, logs.names, found, beliefs, contacts)
    rows = sum(len(b.path) for b in beliefs)
    print("\n".join(f"mode {i}: {name}" for i, name in enumerate(fitted.names)))
    print(f"{sum(map(len, found))} segments in {len(found)} logs, {rows:,} rows")
    if fitted.model.modes == 1:
        print("The model has one mode: there is nothing to tell apart.")
    print(config.out / "timeline.svg")
    return found


def _contacts(fitted: Fitted, log: Episode, belief: Belief) -> Readings | None:
    """What the modes say of contact, where the view tells it."""
    return fitted.contacts(log, belief) if isinstance(fitted.view, ContactView) else None


def _as_json(found: Readings) -> dict[str, Any]:
    """The readings of one log beside its modes, each as stretches with words."""
    words = {"touching": found.words, "contact": dict(enumerate(CONTACT)), "regime": dict(enumerate(REGIMES))}
    return {
        name: [
            {"start": s.start, "end": s.end, "is": words[name][int(codes[s.start])]}
            for s in segments_of(np.unique(codes, return_inverse=True)[1])
        ]
        for name, codes in zip(words, found[1:4], strict=True)
    }


def _write(
    folder: Path,
    fitted: Fitted,
    names: Sequence[str],
    found: Sequence[Sequence[Segment]],
    beliefs: Sequence[Belief],
    contacts: Sequence[Readings | None],
) -> None:
    dt = fitted.dt
    stretches = [[Stretch(s.start * dt, s.end * dt, s.mode, s.confidence) for s in log] for log in found]
    arrays = {
        "filtered": np.concatenate([b.moments.mode for b in beliefs]).astype(np.float32),
        "smoothed": np.concatenate([b.mode for b in beliefs]).astype(np.float32),
        "path": np.concatenate([b.path for b in beliefs]),
        "first_row": np.cumsum([0, *(len(b.path) for b in beliefs)]),
        "names": np.array(names),
    }
    np.savez_compressed(folder / "posteriors.npz", **arrays)
    (folder / "timeline.svg").write_text(timeline_svg(names, stretches, fitted.names), encoding="utf-8")
    readings = [_as_json(c) for c in contacts if c is not None]
    write_segments(folder / "segments", found, names, dt, fitted.names, readings)
