"""`vhydro learn DATA` finds the contact modes of robot logs; `vhydro segment MODEL DATA` says when each was on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from tyro.conf import Positional

from vhydro.data import read
from vhydro.data.dataset import Dataset
from vhydro.episodes import Episode
from vhydro.model import HybridModel
from vhydro.modes.learn import AUTO, Learned, learned
from vhydro.modes.posterior import ModePosterior, mode_posterior
from vhydro.modes.readings import standing
from vhydro.modes.segments import Segment, segments_of, write_segments
from vhydro.modes.view import MACHINE, ContactView, view_from_json
from vhydro.report.files import staged
from vhydro.report.timeline import Stretch, timeline_svg
from vhydro.storage import load_model, save

VALIDATION = 5  # every fifth log chooses between starts and numbers of modes


@dataclass(frozen=True)
class LearnCommand:
    """Find the contact modes of robot logs, without labels, and keep them as a model."""

    data: Positional[Path]
    """File or folder of at least two episodes; the format is recognised from its content."""
    out: Path = Path("contact.safetensors")
    """The model file, for `vhydro segment`."""
    modes: int | Literal["auto"] = AUTO
    """How many modes; auto: the most that all couple different things and that held-out logs speak for."""
    seed: int = 0


@dataclass(frozen=True)
class SegmentCommand:
    """Cut logs into segments of one contact mode each, with how sure the model is of them."""

    model: Positional[Path]
    """A model file, as `vhydro learn` writes it; or any saved hybrid model, whose channels the logs must have."""
    data: Positional[Path]
    """File or folder of episodes; the format is recognised from its content."""
    out: Path = Path("segments")
    """Folder for segments.json, segments.csv, timeline.svg and posteriors.npz."""
    seed: int = 0
    """Of the particles, for models that need them."""


def run_learn(config: LearnCommand) -> Learned:
    """The model, after it was printed and kept."""
    episodes = [e.unlabelled() for e in read(config.data)]
    if len(episodes) < 2:
        raise ValueError(
            f"{config.data} has {len(episodes)} episode; expected at least two, one to learn from and one to choose by."
        )
    _one_step((e.dt for e in episodes), "Learn a model of each kind by itself: modes are of what happens in one step.")
    order = np.random.default_rng(config.seed).permutation(len(episodes))
    held = order[: max(1, len(order) // VALIDATION)]
    train = [e for i, e in enumerate(episodes) if i not in held]
    found = learned(train, [episodes[i] for i in held], config.modes, seed=config.seed)
    notes = {
        "view": found.view.as_json(), "contacts": list(found.contacts), "couples": found.couples.tolist(),
        "dt": episodes[0].dt,
    }  # fmt: skip
    save(config.out, notes=notes, model=found.model)
    print(_words(found))
    print(config.out)
    return found


def _words(found: Learned) -> str:
    lines = [f"mode {i}: {words}" for i, words in enumerate(found.contacts)]
    if len(found.tried) > 1:
        lines += ["", "modes  held-out log likelihood a row  different couplings"]
        lines += [f"{t.modes:5}  {t.validation:29.3f}  {t.different:19}" for t in found.tried]
    if len(found.contacts) == 1:
        lines.append("One mode: the logs give no evidence for more.")
    elif found.collapsed:
        which = ", ".join(str(m) for m in found.collapsed)
        lines.append(f"Collapsed: mode {which} hardly occurs, or couples the same as another. Ask for fewer modes.")
    return "\n".join(lines)


def run_segment(config: SegmentCommand) -> list[list[Segment]]:
    """The segments of every log, after they were written."""
    known = _model(config.model)
    model, words = known.model, known.words
    logs = read(config.data)
    with staged(config.out) as folder:
        found, stand, dt = _posteriors(known, logs, jax.random.key(config.seed))
        segments = [segments_of(f.path, f.smoothed) for f in found]
        _write(folder, logs.names, segments, found, stand, known, dt)
    rows = sum(len(f.path) for f in found)
    print("\n".join(f"mode {i}: {w}" for i, w in enumerate(words)))
    print(f"{sum(map(len, segments))} segments in {len(found)} logs, {rows:,} rows")
    if model.modes == 1:
        print("The model has one mode: there is nothing to tell apart.")
    print(config.out / "timeline.svg")
    return segments


class Known(NamedTuple):
    """What a model file says: the model, and of a contact model how it sees logs and what its modes couple."""

    model: HybridModel
    words: list[str]
    view: ContactView | None = None
    couples: np.ndarray | None = None
    dt: float | None = None  # of the logs that it was learned from


def _model(path: Path) -> Known:
    model, notes = load_model(path)
    words = notes.get("contacts", [])
    named = words if len(words) == model.modes else [f"mode {i}" for i in range(model.modes)]
    view = view_from_json(notes["view"]) if "view" in notes else None
    couples = np.asarray(notes["couples"], bool) if "couples" in notes else None
    return Known(model, [str(w) for w in named], view, couples, notes.get("dt"))


def _posteriors(
    known: Known, logs: Dataset, key: PRNGKeyArray
) -> tuple[list[ModePosterior], list[np.ndarray] | None, float]:
    """The modes of every log, which bodies stand on something new where the model can tell, and the time step."""
    found, stand, steps = [], [], set()
    for i in range(len(logs)):
        episode = _seen(logs[i].unlabelled(), known.model, known.view)
        steps.add(episode.dt)
        found.append(mode_posterior(known.model, episode, key=jax.random.fold_in(key, i)))
        if known.view is not None and known.couples is not None:
            stand.append(standing(found[-1].path, known.couples, known.view, episode))
    step = _one_step(steps, "Segment each kind by itself.")
    if known.dt is not None and abs(step - known.dt) > 1e-6 * known.dt:
        raise ValueError(
            f"the logs have steps of {step:g} s; expected {known.dt:g} s, as those that the model was learned from. "
            "Its modes are of what happens in one step: learn a model of these logs."
        )
    return found, stand or None, step


def _one_step(steps: Iterable[float], remedy: str) -> float:
    """The time step of all logs."""
    known = sorted(steps)
    if known[-1] > (1 + 1e-6) * known[0]:
        raise ValueError(f"the logs have steps of {known[0]:g} to {known[-1]:g} s; expected one for all. {remedy}")
    return float(known[0])


def _seen(episode: Episode, model: HybridModel, view: ContactView | None) -> Episode:
    """The log as the model sees it."""
    wanted = set(model.channels) if view is None else {f"{body}.x" for body in view.places}
    if missing := wanted - {c.name for c in episode.channels}:
        raise ValueError(
            f"{episode.source or 'a log'} does not show {', '.join(sorted(missing))}, which the model was learned "
            "from; expected logs of the same task. Learn a model of these logs, or give logs of its task."
        )
    seen = episode.select(list(model.channels)) if view is None else view(episode)
    bodies = [i for i, c in enumerate(seen.channels) if view is None or c.group not in MACHINE]
    if not seen.observed[:, bodies].any():
        raise ValueError(
            f"{episode.source or 'a log'} hides every reading that the model knows; expected some, for there is "
            "nothing to tell modes by. Leave it out."
        )
    return seen


def _write(
    folder: Path,
    names: Sequence[str],
    segments: Sequence[Sequence[Segment]],
    found: Sequence[ModePosterior],
    stand: Sequence[np.ndarray] | None,
    known: Known,
    dt: float,
) -> None:
    stretches = [[Stretch(s.start * dt, s.end * dt, s.mode, s.confidence) for s in log] for log in segments]
    arrays = {
        "filtered": np.concatenate([f.filtered for f in found]).astype(np.float32),
        "smoothed": np.concatenate([f.smoothed for f in found]).astype(np.float32),
        "path": np.concatenate([f.path for f in found]),
        "first_row": np.cumsum([0, *(len(f.path) for f in found)]),
        "names": np.array(names),
    }
    if stand is not None and known.view is not None:
        arrays |= {"standing": np.concatenate(stand), "bodies": np.array(known.view.bodies)}
    np.savez_compressed(folder / "posteriors.npz", **arrays)
    (folder / "timeline.svg").write_text(timeline_svg(names, stretches, known.words), encoding="utf-8")
    write_segments(folder / "segments", segments, names, dt, known.words)
