"""`vhydro segment MODEL LOGS`: when each mode was on, in words, as tables and as a picture."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from tyro.conf import OmitArgPrefixes, Positional, arg

from vhydro.data import read
from vhydro.data.options import ReadOptions
from vhydro.episodes import Episode
from vhydro.filter import Belief
from vhydro.fitted import Fitted, load
from vhydro.modes.readings import standing
from vhydro.modes.segments import Segment, segments_of, write_segments
from vhydro.report.files import staged
from vhydro.report.timeline import Stretch, timeline_svg
from vhydro.views import ContactView

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
    reading: OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)
    seed: int = 0
    """Of the particles, for models that need them."""


def run_segment(config: SegmentCommand) -> list[list[Segment]]:
    """The segments of every log, after they were written."""
    fitted, logs = load(config.model), read(config.logs, **vars(config.reading))
    with staged(config.out, FILES) as folder:
        beliefs, stands = [], []
        for log in logs:
            beliefs.append(fitted.smooth(log, seed=config.seed))
            stands.append(_standing(fitted, log, beliefs[-1]))
        found = [segments_of(b.path, np.asarray(b.mode, np.float64)) for b in beliefs]
        _write(folder, fitted, logs.names, found, beliefs, stands)
    rows = sum(len(b.path) for b in beliefs)
    print("\n".join(f"mode {i}: {name}" for i, name in enumerate(fitted.names)))
    print(f"{sum(map(len, found))} segments in {len(found)} logs, {rows:,} rows")
    if fitted.model.modes == 1:
        print("The model has one mode: there is nothing to tell apart.")
    print(config.out / "timeline.svg")
    return found


def _standing(fitted: Fitted, log: Episode, belief: Belief) -> np.ndarray | None:
    """Which bodies stand on something new in every row, where the view tells it."""
    if not isinstance(fitted.view, ContactView) or fitted.couples is None:
        return None
    return standing(belief.path, fitted.couples, fitted.view, fitted.see(log))


def _write(
    folder: Path,
    fitted: Fitted,
    names: Sequence[str],
    found: Sequence[Sequence[Segment]],
    beliefs: Sequence[Belief],
    stands: Sequence[np.ndarray | None],
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
    if isinstance(fitted.view, ContactView) and all(s is not None for s in stands):
        arrays |= {"standing": np.concatenate(stands), "bodies": np.array(list(fitted.view.bodies))}  # pyright: ignore[reportArgumentType, reportCallIssue]
    np.savez_compressed(folder / "posteriors.npz", **arrays)
    (folder / "timeline.svg").write_text(timeline_svg(names, stretches, fitted.names), encoding="utf-8")
    write_segments(folder / "segments", found, names, dt, fitted.names)
