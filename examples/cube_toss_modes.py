"""When a real cube flies, is struck, slides or rolls, and rests: 400 tosses filmed by motion capture, no label learned.

Data: poses of the cube, through the body view. Model: the next step is a share of the last and a push. Two laws are
known beforehand, from physics: what rests keeps nothing, what flies keeps all and falls. The others are learned.
Truth, for scoring alone, is read off the heights of the cube's corners, which no method sees. (ContactNets, CoRL 2020.)

    python examples/cube_toss_modes.py cube_tosses.npz
"""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, NamedTuple

import jax
import numpy as np
import tyro
from scipy.spatial.transform import Rotation

from vhydro.data import read
from vhydro.episodes import Episode
from vhydro.filter import Belief
from vhydro.learning.body import BodyFit, StepLaws, fit_body
from vhydro.modes import Scores, change_points, scores, segments_of
from vhydro.report.timeline import Stretch, timeline_svg
from vhydro.smoother import smooth_log
from vhydro.views import body_view
from vhydro_audits.baselines.segmenters import ar_hmm, changes, gaussian_hmm
from vhydro_audits.labels import without_short_runs

DATA = Path(__file__).parents[1] / ".." / "shared" / "data" / "real" / "cube_tosses.npz"
G = 9.81  # m/s²
SEEDS = 3
TEST, TRAIN, VALIDATION = 80, 48, 16  # tosses; the test ones are the last of the file, whatever the seed
FLOOR = np.repeat([2e-5, 2e-4], 3)  # m and rad: by how much the pose of a cube that lies still jitters in a step
# The truth's constants.
CLEARANCE = 0.002  # m: nine in ten resting corners are within a third of that
ARRIVAL = np.sqrt(2 * G * CLEARANCE)  # m/s: a corner that comes faster has fallen further than the clearance
IMPACT = 3  # rows from touching down
STILL = 0.02  # m/s, of the fastest corner: twice the jitter of a resting cube
FLAT = 3  # corners on the table: on an edge or a corner the cube rolls, on a face it slides
REST, FLIGHT, SLIDE, STRUCK, ROLL = range(5)
NAMES = ("rests", "flies", "slides", "is struck", "rolls")
TOGETHER = ("rests", "flies", "slides or rolls", "is struck")
SHOWN = 8  # tosses in the picture
BLUR = 5 * FLOOR  # sizes below are alike to the peers that look at log sizes

Paths = dict[str, list[np.ndarray]]


class Run(NamedTuple):
    """What one seed gave: our modes, what each of them is, and the paths of every method."""

    found: BodyFit
    meaning: np.ndarray
    posterior: list[Belief]
    paths: Paths


def truths(episodes: Sequence[Episode], apart: bool) -> list[np.ndarray]:
    """The mode of every row of every toss, from corner heights and speeds."""
    corners = [_corners(e) for e in episodes]
    table = np.median([c[-5:, :, 2].min(1).mean() for c in corners])
    return [_truth(c - [0.0, 0.0, table], e.dt, apart) for c, e in zip(corners, episodes, strict=True)]


def _corners(episode: Episode) -> np.ndarray:
    """The places of the eight corners, (rows, 8, 3)."""
    body = float(episode.info["half_width"]) * np.array(list(product((-1, 1), repeat=3)))
    turned = Rotation.from_quat(episode.observations[:, 3:7], scalar_first=True).as_matrix()
    return episode.observations[:, None, :3] + np.einsum("tij,kj->tki", turned, body)


def _truth(corners: np.ndarray, dt: float, apart: bool) -> np.ndarray:
    moved = np.diff(corners, axis=0, prepend=corners[:1]) / dt
    down = corners[..., 2] < CLEARANCE
    fall = np.maximum(-moved[..., 2], np.roll(-moved[..., 2], 1, 0))  # a step may end midway: or the one before
    touching = (down & ~np.roll(down, 1, 0) & (fall > ARRIVAL)).any(1)
    touching[0] = False  # nothing comes before the first row
    struck = np.convolve(touching, np.ones(IMPACT))[: len(down)] > 0
    still = np.linalg.norm(moved, axis=2).max(1) < STILL
    moving = np.where(apart & (down.sum(1) < FLAT), ROLL, SLIDE)
    modes = np.where(struck, STRUCK, np.where(~down.any(1), FLIGHT, np.where(still, REST, moving)))
    return without_short_runs(modes[1:], 2)  # row 0 is before the first step


def laws(modes: int, dt: float) -> StepLaws:
    """What is known of the modes: one that rests, one that flies; along the ground no direction is special."""
    keep, push = np.full((modes, 6), np.nan), np.zeros((modes, 6))
    keep[REST], keep[FLIGHT] = 0.0, 1.0
    push[FLIGHT, 2], push[2:, 2] = -G * dt**2, np.nan
    return StepLaws(keep, push)


def ordered(found: BodyFit) -> np.ndarray:
    """What every mode is: of those learned, the quietest slides, the one that nothing foretells is struck."""
    learned = np.argsort(found.noise[2:, 2]) + 2
    meaning = np.arange(len(found.share))
    meaning[learned] = (SLIDE, ROLL, STRUCK) if len(learned) == 3 else (SLIDE, STRUCK)
    return meaning


def magnitudes(steps: Episode) -> np.ndarray:
    """Log sizes of the steps and of their changes: kinematic features as HMMs are usually given."""
    y = steps.observations / BLUR
    both = np.concatenate([y, np.diff(y, axis=0, prepend=y[:1])], 1)
    parts = np.split(both, [2, 3, 6, 8, 9], axis=1)
    return np.log1p(np.stack([np.linalg.norm(p, axis=1) for p in parts], 1))


def peers(known: Sequence[Episode], test: Sequence[Episode], modes: int, counts: list[int], seed: int) -> Paths:
    """The paths of every peer; `known` are the tosses that ours learns from and chooses by, all of them."""
    out: Paths = {}
    for name, features in (("steps", lambda e: e.observations), ("log sizes", magnitudes)):
        seen, unseen = [features(e) for e in known], [features(e) for e in test]
        out[f"HMM, {name}"] = gaussian_hmm(seen, unseen, modes, seed=seed)
        if name == "steps":  # sizes do not follow from one another
            out[f"AR-HMM, {name}"] = ar_hmm(seen, unseen, modes, seed=seed)
        out[f"ruptures*, {name}"] = changes(seen, unseen, modes, counts, seed=seed)
    return out


def table(runs: dict[str, list[Scores]]) -> str:
    """Scores of every method, mean and standard deviation over the seeds."""
    columns: dict[str, Callable[[Scores], float]] = {
        "ARI": lambda s: s.ari,
        "mode F1": lambda s: s.mode_f1,
        "change ±2": lambda s: s.change_points[2].f1,
        "change ±5": lambda s: s.change_points[5].f1,
        "purity": lambda s: s.purity,
        "extra segments": lambda s: s.over_segmentation,
    }
    lines = [" " * 22 + "".join(f"{name:>16}" for name in columns)]
    for method, found in runs.items():
        values = [[score(s) for s in found] for score in columns.values()]
        lines.append(f"{method:22}" + "".join(f"{np.mean(v):9.3f} ±{np.std(v):5.3f}" for v in values))
    return "\n".join(lines)


def described(run: Run, dt: float, apart: bool) -> str:
    """What every mode keeps of a step, how it is pushed, and what it leaves unexplained, in units of a person."""
    lines = ["             keeps: level  upright  turning   push, m/s²   left over, m/s²: level  upright   share"]
    found, names = run.found, NAMES if apart else TOGETHER
    for mode in np.argsort(run.meaning):
        keep, noise = found.laws.keep[mode, [0, 2, 3]], found.noise[mode, [0, 2]] / dt**2
        push = found.laws.push[mode, 2] / dt**2
        lines.append(
            f"  {names[run.meaning[mode]]:16}{keep[0]:9.2f}{keep[1]:9.2f}{keep[2]:9.2f}{push:13.2f}"
            f"{noise[0]:25.1f}{noise[1]:9.1f}{found.share[mode]:8.2f}"
        )
    return "\n".join(lines)


def picture(truth: list[np.ndarray], run: Run, dt: float, apart: bool) -> str:
    """Truth and ours, bar under bar."""
    names, bars = [], []
    for i, (true, ours) in enumerate(zip(truth[:SHOWN], run.posterior, strict=False), 1):
        mine = [s._replace(mode=int(run.meaning[s.mode])) for s in segments_of(ours.path, ours.mode)]
        names += [f"test toss {i}, corners", "ours"]
        for bar in (segments_of(true), mine):
            bars.append([Stretch(s.start * dt, s.end * dt, s.mode, s.confidence) for s in bar])
    return timeline_svg(names, bars, NAMES if apart else TOGETHER)


def run_of(steps: Sequence[Episode], modes: int, counts: list[int], seed: int) -> Run:
    """One seed: it draws the tosses that are learned from, and the starts."""
    order, test = np.random.default_rng(seed).permutation(len(steps) - TEST), steps[-TEST:]
    known = [steps[i] for i in order[: TRAIN + VALIDATION]]
    given = laws(modes, steps[0].dt)
    found = fit_body(known[:TRAIN], known[TRAIN:], given, floor=FLOOR, own_noise=True, seed=seed)
    posterior = [smooth_log(found.model, e, key=jax.random.key(seed)) for e in test]
    paths = {"ours": [p.path for p in posterior], **peers(known, test, modes, counts, seed)}
    return Run(found, ordered(found), posterior, paths)


def main(
    path: Annotated[Path, tyro.conf.Positional] = DATA, apart: bool = False, out: Path = Path("cube_toss_modes.svg")
) -> None:
    """Print scores of ours and of peers and write a picture; `--apart` tells rolling from sliding, as a fifth mode."""
    episodes = list(read(path))
    view = body_view(episodes)
    truth, steps = truths(episodes, apart)[-TEST:], [view(e) for e in episodes]
    dt, modes, counts = episodes[0].dt, 5 if apart else 4, [len(change_points(t)) for t in truth]
    runs = [run_of(steps, modes, counts, seed) for seed in range(SEEDS)]
    print(described(runs[0], dt, apart), "\n")
    print(table({method: [scores(r.paths[method], truth) for r in runs] for method in runs[0].paths}))
    print(f"{TEST} test tosses, {SEEDS} seeds, {modes} modes for all.   * told how many changes every test toss has")
    out.write_text(picture(truth, runs[0], dt, apart), encoding="utf-8")
    print(out)


if __name__ == "__main__":
    tyro.cli(main)
