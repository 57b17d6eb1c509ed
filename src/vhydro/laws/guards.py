"""Which modes are contacts, where their surfaces are, and which modes are at rest: read off the modes."""

from typing import NamedTuple

import numpy as np
from scipy.ndimage import correlate1d

from vhydro.lagrangian import Surface
from vhydro.laws.form import Guard
from vhydro.laws.smoothing import Smooth

MOST_ERROR = 0.25  # balanced error of a place that still counts as what separates a mode from the others
REST_SHARE = 0.05  # of the fastest mode's speed, below which a mode is at rest …
SHORTEST_REST = 6  # samples
SLOW_SHARE = 0.25  # … or below this, if noise alone could look as fast …
STILL_SHARE = 0.5  # … or below this, if it does, …
STILL = 1.25  # … and positions wander no further than this many times their noise, in variance, …
DOUBT = 3.0  # … or no further than by so many standard errors of it


class Sorted(NamedTuple):
    """What the modes are: contacts with their places, modes told apart otherwise, and modes at rest."""

    guards: dict[int, Guard | None]
    places: dict[int, float]
    resting: tuple[int, ...]
    unexplained: tuple[int, ...] = ()  # neither a surface nor a direction tells them from the others


def steady(modes: np.ndarray, half_width: int = 2) -> np.ndarray:
    """The mode weights averaged over a few samples, so that a single wrong label does not count."""
    kernel = np.ones(2 * half_width + 1)
    total = correlate1d(modes, kernel, axis=1, mode="nearest")
    whole = total.sum(-1, keepdims=True)
    return total / np.where(whole > 0, whole, 1.0) * (modes.sum(-1, keepdims=True) > 0)


def labels(modes: np.ndarray) -> np.ndarray:
    """The steadied most likely mode at every sample; −1 in padding."""
    return np.where(modes.sum(-1) > 0, np.argmax(steady(modes), -1), -1)


def run_lengths(on: np.ndarray) -> np.ndarray:
    """How many samples every stretch lasts in which `on` (episodes, times) is true."""
    edges = np.diff(np.pad(on, ((0, 0), (1, 1))).astype(int), axis=1)
    lengths = [np.flatnonzero(e < 0) - np.flatnonzero(e > 0) for e in edges]
    return np.concatenate([*lengths, np.zeros(0, int)])


def at_rest(modes: np.ndarray, velocity: np.ndarray, noise: np.ndarray, wander: np.ndarray) -> tuple[int, ...]:
    """The modes in which nothing moves; `noise` is the standard deviation of each velocity, `wander` of each mode."""
    weights = steady(modes)
    speeds = np.array([_speed(weights[..., m], velocity) for m in range(modes.shape[-1])])
    top = np.max(speeds[np.isfinite(speeds)], initial=0.0)
    slow = (speeds < SLOW_SHARE * top) & (speeds < 1.5 * noise.max())
    slow |= (speeds < STILL_SHARE * top) & (speeds < noise.max())
    slow &= wander < STILL
    # An impact passes through zero speed and does not stay there.
    lasts = np.array([typical_run(labels(modes) == m) >= SHORTEST_REST for m in range(modes.shape[-1])])
    return tuple(int(m) for m in np.flatnonzero(((speeds < REST_SHARE * top) | slow) & lasts))


def wander(modes: np.ndarray, position: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """How far positions are spread in a typical stay in every mode: their variance over the sensors', 1 at rest.

    So many standard errors less: what few samples say may be noise. A mode without a stay counts as one at rest.
    """
    now, out, least = labels(modes), np.ones(modes.shape[-1]), np.maximum(noise, 1e-12) ** 2
    for mode in range(modes.shape[-1]):
        stays = [
            position[episode, first + 2 : last - 2]  # labels may be late
            for episode, on in enumerate(now == mode)
            for first, last in np.flatnonzero(np.diff(np.pad(on.astype(int), 1))).reshape(-1, 2).tolist()
        ]
        seen = [stay[np.isfinite(stay).all(-1)] for stay in stays]
        spread = [np.max(np.var(stay, 0, ddof=1) / least) for stay in seen if len(stay) >= SHORTEST_REST]
        if spread:
            samples = sum(len(stay) for stay in seen if len(stay) >= SHORTEST_REST)
            out[mode] = np.median(spread) - DOUBT * np.sqrt(2 / samples)
    return out


def typical_run(on: np.ndarray) -> float:
    """The length of the stretch that a typical sample of a mode is in."""
    lengths = np.sort(run_lengths(on))
    return float(lengths[np.searchsorted(np.cumsum(lengths), 0.5 * lengths.sum())]) if len(lengths) else 0.0


def sort_modes(modes: np.ndarray, smooth: Smooth, base: int, resting: tuple[int, ...]) -> Sorted:
    """What every mode is, from where and how fast things were while it was on."""
    weights, now = steady(modes), labels(modes)
    guards: dict[int, Guard | None] = {}
    places: dict[int, float] = {}
    unexplained = []
    for mode in range(modes.shape[-1]):
        if mode == base or mode in resting:
            continue
        guard, place, error, ways = _told(weights[..., mode], smooth)
        if min(error, ways) > MOST_ERROR:  # of a rare mode wrong labels alone may weigh as much as its own do
            guard, place, error, ways = _told((now == mode) * 1.0, smooth)
        guards[mode] = guard if error < MOST_ERROR and error < ways else None
        if guards[mode] is not None:
            places[mode] = place
        elif ways > MOST_ERROR:
            unexplained.append(mode)
    return Sorted(guards, places, resting, tuple(unexplained))


def direction(modes: np.ndarray, velocity: np.ndarray, mode: int) -> tuple[int, float]:
    """The axis and sign along which a mode moves most surely."""
    weight, v = modes[..., mode, None], np.nan_to_num(velocity)
    mean, size = (weight * v).sum((0, 1)), (weight * np.abs(v)).sum((0, 1)) + 1e-12
    axis = int(np.argmax(np.abs(mean / size)))
    return axis, float(np.sign(mean[axis]) or 1.0)


def directions(modes: np.ndarray, velocity: np.ndarray, sliding: tuple[int, ...], base: int) -> list:
    """Mode, axis and sign of modes told apart by the way things go; of the base too, if it goes the other way."""
    out = [(mode, *direction(modes, velocity, mode)) for mode in sliding]
    axis, sign = direction(modes, velocity, base)
    return [*out, (base, axis, sign)] if (axis, -sign) in [one[1:] for one in out] else out


def _speed(weight: np.ndarray, velocity: np.ndarray) -> float:
    """The median speed while a mode is surely on: of its noise, hardly any."""
    sure = (weight > 0.9) & np.isfinite(velocity).all(-1)
    return float(np.median(np.abs(velocity[sure]).max(-1))) if sure.any() else np.inf


def _told(weight: np.ndarray, smooth: Smooth) -> tuple[Guard, float, float, float]:
    """The surface that best tells a mode from the others, its place, its error, and that of the best direction."""
    ways = min(_direction_error(weight, smooth.velocity[..., i]) for i in range(smooth.velocity.shape[-1]))
    return *_surface(weight, smooth.position), ways


def _surface(weight: np.ndarray, position: np.ndarray) -> tuple[Guard, float, float]:
    """The place on the axis and side that best tells a mode from the others, with its balanced error."""
    best: tuple[Guard, float, float] = (Guard(0, "above"), 0.0, np.inf)
    for axis in range(position.shape[-1]):
        for side in ("above", "below"):
            guard = Guard(axis, side)
            place, error = _threshold(weight, guard.sign * position[..., axis])
            if error < best[2]:
                best = guard, guard.sign * place, error
    return best


def surface_of(weight: np.ndarray, position: np.ndarray, velocity: np.ndarray) -> tuple[Surface, float] | None:
    """The surface that tells a mode from the others, along a position or the difference of two; None if none does."""
    n = position.shape[-1]
    lines = [(i, None) for i in range(n)] + [(i, j) for i in range(n) for j in range(n) if i < j]
    best: tuple[Surface, float, float] | None = None
    for i, j in lines:
        for side in ("above", "below"):
            surface = Surface(i, side, j)
            place, error = _threshold(weight, surface.sign * surface.along(np.moveaxis(position, -1, 0)))
            # A difference has to be clearly better than a position by itself.
            if best is None or error < (best[2] if j is None else 0.5 * best[2] - 1e-3):
                best = surface, surface.sign * place, error
    ways = min(_direction_error(weight, velocity[..., i]) for i in range(n))
    return best[:2] if best is not None and best[2] < min(MOST_ERROR, ways) else None


def _threshold(weight: np.ndarray, value: np.ndarray) -> tuple[float, float]:
    """The threshold with the least balanced error of `value > threshold` as a test for the mode."""
    use = np.isfinite(value)
    order = np.argsort(value[use])
    v, w = value[use][order], weight[use][order]
    inside, outside = max(w.sum(), 1e-12), max((1 - w).sum(), 1e-12)
    missed, false = np.cumsum(w), (1 - w).sum() - np.cumsum(1 - w)
    # The place is where as many are missed as are taken in; whether it tells them apart is asked of each side's share.
    place = v[int(np.argmin(missed + false))]
    return float(place), float(np.min(0.5 * (missed / inside + false / outside)))


def _direction_error(weight: np.ndarray, velocity: np.ndarray) -> float:
    """The balanced error of the sign of a velocity as a test for the mode."""
    use = np.isfinite(velocity)
    w, forward = weight[use], velocity[use] > 0
    inside, outside = max(w.sum(), 1e-12), max((1 - w).sum(), 1e-12)
    error = 0.5 * (w[~forward].sum() / inside + (1 - w)[forward].sum() / outside)
    return float(min(error, 1 - error))
