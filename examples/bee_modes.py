"""When a dancing bee turns one way, turns the other way and waggles: six dances filmed at 30 Hz, no label learned.

Data: where the bee is and by how much its heading changes from frame to frame, as the file has them, each scaled to
0 … 1 by dance. Model: in each mode the bee turns and shakes by some amount (`vhydro.learning.body`). The marked changes
are used for scoring alone; the file does not say what lies between them. (Oh, Rehg, Balch and Dellaert, 2008.)

    python examples/bee_modes.py bees.npz
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import jax
import numpy as np
import tyro

from vhydro.data import read
from vhydro.episodes import Channel, Episode, episode
from vhydro.learning.body import BodyFit, StepLaws, fit_body
from vhydro.modes import Scores, change_points, scores, segments_of
from vhydro.report.timeline import Stretch, timeline_svg
from vhydro.smoother import smooth_log
from vhydro_audits.baselines.segmenters import ar_hmm, changes, gaussian_hmm

DATA = Path(__file__).parents[1] / ".." / "shared" / "data" / "real" / "bees.npz"
SEEDS, MODES = 3, 3
BLOCK = 5  # frames: a sixth of a second, in which a bee waggles about twice
FAINT = 0.1  # of the usual size: below, shaking is not told apart
FLOOR = np.full(2, 0.3)  # standard deviations
TOLERANCES = (2, 5, 10)  # frames
TURN, SHAKE = 0, 1
CHANNELS = (Channel("bee.turn", "turning"), Channel("bee.shake", "shaking"))  # a noise for each
NAMES = ("waggles", "turns, heading falls", "turns, heading rises")
WAGGLE, FALLS, RISES = range(3)


class Fold(NamedTuple):
    """One dance, by what was learned from the others: a mode for each of its blocks, by method."""

    found: BodyFit
    smoothed: np.ndarray
    paths: dict[str, np.ndarray]


def blocks(dance: Episode) -> Episode:
    """How fast the bee turns in every block, and how strongly it shakes, head and body, in units of this dance.

    The file's scale is each dance's own: heading changes are counted from their median, for a bee turns both ways.
    """
    x, y, heading = dance.observations.astype(float).T
    step = np.stack([np.diff(x, prepend=x[0]), np.diff(y, prepend=y[0])], 1)
    turn = heading - np.median(heading)
    turn, step = turn / np.median(np.abs(turn)), step / np.median(np.linalg.norm(step, axis=1))
    parts = [_blocked(v) for v in (turn[:, None], step)]
    shake = sum(np.log(FAINT + np.sqrt(p.var(1).sum(1))) for p in parts)
    seen = np.stack([parts[0].mean(1)[:, 0], shake], 1)
    standard = (seen - np.median(seen, axis=0)) / seen.std(0)
    return episode(standard, dt=BLOCK * dance.dt, channels=CHANNELS, source=dance.source)


def _blocked(frames: np.ndarray) -> np.ndarray:
    """The frames of every whole block, (blocks, BLOCK, width)."""
    whole = len(frames) // BLOCK
    return frames[: whole * BLOCK].reshape(whole, BLOCK, -1)


def in_frames(path: np.ndarray, frames: int) -> np.ndarray:
    """The mode of every frame; those after the last whole block go on in its mode."""
    return np.pad(np.repeat(path, BLOCK), (0, frames - BLOCK * len(path)), mode="edge")


def meaning(found: BodyFit) -> np.ndarray:
    """What every mode is: the one that shakes most waggles, the others turn."""
    push, waggle = found.laws.push, int(found.laws.push[:, SHAKE].argmax())
    order = np.argsort(push[:, TURN])
    falls, rises = order[order != waggle]
    out = np.empty(MODES, int)
    out[[waggle, falls, rises]] = WAGGLE, FALLS, RISES
    return out


def fold(seen: Sequence[Episode], left_out: int, count: int, seed: int) -> Fold:
    """The dance left out, by what every method learns from the other five; of these ours keeps one to choose by."""
    order = np.random.default_rng((seed, left_out)).permutation([i for i in range(len(seen)) if i != left_out])
    known, test = [seen[i] for i in order], seen[left_out]
    laws = StepLaws(
        np.zeros((MODES, 2)), np.full((MODES, 2), np.nan)
    )  # what a bee does is up to it, not to its last step
    found = fit_body(known[1:], known[:1], laws, floor=FLOOR, own_noise=False, seed=seed)
    belief, what = smooth_log(found.model, test, key=jax.random.key(seed)), meaning(found)
    learn, apply = [e.observations for e in known], [test.observations]
    paths = {
        "ours": what[belief.path],
        "HMM": gaussian_hmm(learn, apply, MODES, seed=seed)[0],
        "AR-HMM": ar_hmm(learn, apply, MODES, seed=seed)[0],
        "ruptures*": changes(learn, apply, MODES, [count], seed=seed)[0],
    }
    return Fold(found, belief.mode[:, np.argsort(what)], paths)


def table(runs: dict[str, list[Scores]], ratio: dict[str, float]) -> str:
    """Scores of every method, mean and standard deviation over the seeds."""
    lines = [" " * 12 + "".join(f"{f'change ±{t}':>16}" for t in TOLERANCES) + f"{'purity':>16}   found / true changes"]
    for method, found in runs.items():
        values = [[s.change_points[t].f1 for s in found] for t in TOLERANCES] + [[s.purity for s in found]]
        cells = "".join(f"{np.mean(v):9.3f} ±{np.std(v):5.3f}" for v in values)
        lines.append(f"{method:12}{cells}{ratio[method]:23.2f}")
    return "\n".join(lines)


def described(found: BodyFit) -> str:
    """What every mode does, in standard deviations of a dance."""
    what = meaning(found)
    lines = [
        f"  {NAMES[what[m]]:22} turn {found.laws.push[m, TURN]:5.2f}   shake {found.laws.push[m, SHAKE]:5.2f}"
        for m in np.argsort(what)
    ]
    turn, shake = found.noise[0]
    return "\n".join([*lines, f"  {'noise, shared by all':22} turn {turn:5.2f}   shake {shake:5.2f}"])


def picture(dances: Sequence[Episode], truth: list[np.ndarray], folds: list[Fold]) -> str:
    """The marked changes as a bar of alternating greys, and ours under it."""
    names, bars = [], []
    for i, (dance, marked, one) in enumerate(zip(dances, truth, folds, strict=True), 1):
        ours = [
            s._replace(start=BLOCK * s.start, end=BLOCK * s.end) for s in segments_of(one.paths["ours"], one.smoothed)
        ]
        names += [f"dance {i}, marked", "ours"]
        bars.append([Stretch(s.start * dance.dt, s.end * dance.dt, 0, s.mode % 2) for s in segments_of(marked)])
        bars.append([Stretch(s.start * dance.dt, s.end * dance.dt, s.mode + 1, s.confidence) for s in ours])
    return timeline_svg(names, bars, ("marked by hand: paler and darker in turn", *NAMES))


def main(path: Annotated[Path, tyro.conf.Positional] = DATA, out: Path = Path("bee_modes.svg")) -> None:
    """Print scores of ours and of peers and write a picture."""
    dances = list(read(path))
    seen = [blocks(d) for d in dances]
    truth = [np.cumsum(d.labels["changepoint"] > 0) for d in dances]  # a number for each stretch between two changes
    counts = [len(change_points(t)) for t in truth]
    runs = [[fold(seen, i, n, seed) for i, n in enumerate(counts)] for seed in range(SEEDS)]
    every, ratio = {}, {}
    for method in runs[0][0].paths:
        paths = [[in_frames(f.paths[method], len(t)) for f, t in zip(r, truth, strict=True)] for r in runs]
        every[method] = [scores(p, truth, TOLERANCES) for p in paths]
        ratio[method] = np.mean([len(change_points(p)) for r in paths for p in r]) / np.mean(counts)
    print(described(runs[0][0].found), "\n")
    print(table(every, ratio))
    print(f"{len(dances)} dances, each left out once, {SEEDS} seeds, {MODES} modes for all.   * told how many changes")
    out.write_text(picture(dances, truth, runs[0]), encoding="utf-8")
    print(out)


if __name__ == "__main__":
    tyro.cli(main)
