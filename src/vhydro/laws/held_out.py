"""Is a law borne out by what it was not fitted to: windows of held-out episodes simulated through their contacts.

Of every window only the start is fitted; what is then left over is compared with what sensor noise alone would leave.
Nine windows in ten decide, not their mean: one start that was not found would outweigh all the others.
"""

from typing import NamedTuple

import jax
import numpy as np
from scipy.stats import chi2

from vhydro.laws.descent import Shooter, started
from vhydro.laws.form import AnyForm
from vhydro.laws.guards import labels
from vhydro.laws.shooting import substeps
from vhydro.laws.smoothing import local_polynomial
from vhydro.laws.tracks import Tracks
from vhydro.laws.windows import SHORTEST, cut

HORIZONS = (0.5, 1.0)  # s: the first decides, the second has to be clearly off
SHARE = 0.9  # of the windows that have to be explained
MOST_EXCESS = 1.4  # times what noise leaves in that share of the windows …
FURTHER_EXCESS = 3.0  # … and over the second horizon, where small errors of a right law have grown
NOT_REFINED = 1.3  # the same for a law that was not fitted to positions themselves
FOLDS = 3  # every episode is held out in one of them
LAST_PART = 0.75  # of a single episode: what comes after is held out
FEWEST_WINDOWS = 4
TOUCHED = 3  # samples of a mode in a window for it to be about that mode
MOST_SUBSTEPS = 64  # a law stiffer than that cannot be followed


class Horizon(NamedTuple):
    """How a law predicts held-out windows of one length: a share of them leaves at most `excess` times the noise."""

    seconds: float
    windows: int
    excess: float
    error: float  # of positions, relative to their spread: the same share of the windows is within it
    by_mode: tuple[float | None, ...]  # the excess of windows that are about each mode; None where there is none


def folds(where: np.ndarray, length: np.ndarray, episodes: int, times: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Which windows to fit and which to hold out, fold by fold.

    `where` is (windows, 2), episode and first sample; `length` (windows,) counts samples. Of a single episode the last
    part is held out, and windows that reach into it are in neither half.
    """
    if episodes > 1:
        turn = where[:, 0] % min(FOLDS, episodes)
        return [(turn != k, turn == k) for k in range(min(FOLDS, episodes))]
    edge = LAST_PART * times
    return [(where[:, 1] + length <= edge, where[:, 1] >= edge)]


def predicted(
    form: AnyForm, thetas: list[np.ndarray], tracks: Tracks, modes: int, states: list[np.ndarray]
) -> tuple[Horizon, ...]:
    """How the laws of every fold predict the windows that were held out of it; empty where nothing can be.

    `thetas` has one vector of parameters for each fold; `states` are (episodes, times, coordinates) to begin from.
    """
    if not thetas or not all(map(np.isfinite, np.concatenate([*thetas]))):
        return ()
    steps = max(substeps(form, theta, tracks.dt) for theta in thetas)
    if steps > MOST_SUBSTEPS:
        return ()
    with jax.enable_x64(True):
        found = [_horizon(form, thetas, tracks, modes, states, seconds, steps) for seconds in HORIZONS]
    return tuple(one for one in found if one is not None)


def _horizon(form, thetas, tracks: Tracks, modes: int, states, seconds: float, steps: int) -> Horizon | None:
    length = max(round(seconds / tracks.dt), 2 * SHORTEST)
    windows, where = cut(form, tracks, length)
    shooter = Shooter(form, windows, tracks.dt, steps)
    counts = shooter.used & (shooter.last >= 0.5 * length)
    if counts.sum() < FEWEST_WINDOWS:  # nothing lasts that long: what there is has to do, and is said
        counts = shooter.used
    seconds = tracks.dt * float(min(length, np.median(shooter.last[counts]))) if counts.any() else 0.0
    ratio, off = np.full(len(where), np.nan), np.full(len(where), np.nan)
    spread = np.nanstd(tracks.positions, axis=(0, 1))
    for theta, (_, held) in zip(thetas, folds(where, shooter.last, *tracks.positions.shape[:2]), strict=True):
        mine = held & counts
        if not mine.any():
            continue
        own = shooter.only(mine)
        course = own.course(theta, _starts(own, theta, [s[where[mine, 0], where[mine, 1]] for s in states]))
        here = slice(0, int(mine.sum()))
        ratio[mine] = course.misfit[here] / shooter.freedom[mine]
        left = np.where(own.windows.weights > 0, course.states[..., : form.positions] - own.windows.positions, 0.0)
        seen = np.maximum((own.windows.weights > 0).sum(1), 1)
        off[mine] = np.sqrt(np.max((left**2).sum(1) / seen / spread**2, -1))[here]
    judged = np.isfinite(ratio) | (counts & np.isfinite(off))
    ratio = np.where(np.isfinite(ratio), ratio, np.inf)
    if judged.sum() < FEWEST_WINDOWS:
        return None
    usual = _noise_alone(shooter.freedom[judged])
    present = _present(tracks, where, shooter.last, modes)
    each = [_of_mode(form, m, ratio, judged, present, usual) for m in range(modes)]
    return Horizon(seconds, int(judged.sum()), _share(ratio[judged]) / usual, _share(off[judged]), tuple(each))


def _noise_alone(freedom: np.ndarray) -> float:
    """What noise leaves in the same share of the windows."""
    typical = float(np.median(freedom))
    return float(chi2.ppf(SHARE, typical) / typical)


def _share(values: np.ndarray) -> float:
    """The value that the given share of the windows does not exceed."""
    return float(np.quantile(values, SHARE, method="inverted_cdf"))


def _starts(shooter: Shooter, theta: np.ndarray, offered: list[np.ndarray]) -> np.ndarray:
    """The starts that explain the windows best, from several to begin with."""
    padding = len(shooter.windows.positions) - len(offered[0])
    offered = [np.pad(s, ((0, padding), (0, 0))) for s in offered]
    misfit = np.stack([np.nan_to_num(shooter.course(theta, s).misfit, nan=np.inf) for s in offered])
    best = np.stack(offered)[np.argmin(misfit, 0), np.arange(len(offered[0]))]
    return started(shooter, theta, best, steps=8)


def _present(tracks: Tracks, where: np.ndarray, length: np.ndarray, modes: int) -> np.ndarray:
    """Which modes a window is about: (windows, modes)."""
    now = labels(tracks.modes)
    rows = [now[e, first : first + n] for (e, first), n in zip(where, length.tolist(), strict=True)]
    return np.array([[(row == m).sum() >= TOUCHED for m in range(modes)] for row in rows]).reshape(-1, modes)


def _of_mode(form: AnyForm, mode: int, ratio, judged, present, usual: float) -> float | None:
    """The excess of the windows about a mode: of the base those that are about nothing else, where there are some."""
    own = judged & present[:, mode]
    alone = own & (present.sum(1) == 1)
    chosen = alone if mode == form.base and alone.sum() >= FEWEST_WINDOWS else own
    return _share(ratio[chosen]) / usual if chosen.any() else None


def smoothed_states(tracks: Tracks, momenta: np.ndarray, half_widths: tuple[int, ...]) -> list[np.ndarray]:
    """States to start windows from, each (episodes, times, coordinates): smoothed a little, more, and much.

    `momenta` (positions,) is what a velocity is multiplied by.
    """
    ground = tracks.positions - tracks.carried
    others = [local_polynomial(ground, tracks.dt, h) for h in half_widths if 2 * h < ground.shape[1]]
    return [
        np.nan_to_num(np.concatenate([s.position + tracks.carried, momenta * s.velocity], -1))
        for s in (tracks.smooth, *others)
    ]
