"""Impacts shorter than a sample: where they are, the law of flight between them, restitution and the surface's place.

A bounce of one or two samples leaves no trace of a spring, only a velocity that has jumped. Jumps are found by
parabolas through the samples on either side. The law of flight comes from what is free of jumps and away from the
surface, where small bounces go unseen. Every jump is then read again with that law, and the speeds after regressed on
those before.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2

from vhydro.laws.bounces import Bounce, ImpactLaw
from vhydro.laws.lagrange_law import AnyLaw
from vhydro.laws.law import Number
from vhydro.laws.problem import Problem
from vhydro.laws.recording import Recording
from vhydro.laws.recover import LawsConfig, recover, refuse_unfit
from vhydro.laws.smoothing import sensor_noise

EACH_SIDE = (8, 12, 20)  # samples of a parabola: where noise is small, where it is not, and where it is large
SEEN = 0.6  # of them that have to be
QUIET, LOUD = 0.004, 0.02  # of a position's spread: noise that counts as small, and as large
SURE = 7.0  # standard deviations of a velocity's jump
READ = 16  # samples on each side that an impact is read from …
FEWEST_READ = 6  # … and the fewest
BESIDE = 2  # … after those next to it, which may be touched by it
FITS = 3  # steps of Gauss and Newton
FEWEST_IMPACTS = 6
AROUND = 2  # samples around an impact that may be touched by it
NEAR = 0.03  # of a position's spread: too near a surface for a flight to be told from small bounces
UNUSUAL = 4.0  # robust standard deviations from the others, beyond which an impact is not one of them
MOST_EXCESS = 2.0  # times what noise leaves in nine impacts of ten; one reading each, so more by chance than windows


class Impacts(NamedTuple):
    """Impacts along one coordinate; each is between a sample and the next."""

    episode: np.ndarray  # (impacts,)
    sample: np.ndarray  # (impacts,): the last one before
    before: np.ndarray  # (impacts,): velocity
    after: np.ndarray
    place: np.ndarray
    error: np.ndarray  # (impacts,): standard error of a velocity


def impact_law(
    recording: Recording,
    problem: Problem,
    config: LawsConfig = LawsConfig(estimator="lagrange"),  # noqa: B008 — immutable
    *,
    points: np.ndarray | None = None,
) -> ImpactLaw:
    """The law of flight and the surfaces bounced off, found from positions: impacts need no labels.

    Impacts are sought along every position, or along `points` (episodes, times, points): heights of what may touch
    down, such as the corners of a body, of which the lowest is the one that does. The modes are not looked at.
    """
    valid, told = recording.modes.sum(-1) > 0, replace(problem, modes=("flight",))
    coupled = config.estimator == "lagrange"
    refuse_unfit(recording._replace(modes=valid[..., None] * 1.0), told, config.shooting.bump, coupled=coupled)
    if points is not None and points.shape[:2] != recording.positions.shape[:2]:
        raise ValueError(
            f"the points have shape {points.shape}; expected (episodes, times, points) with {valid.shape} first. "
            "Give the height of every point at every sample."
        )
    columns = [*np.moveaxis(recording.positions, -1, 0)] if points is None else [*np.moveaxis(points, -1, 0)]
    jumps = [found_impacts(np.where(valid, x, np.nan), recording.dt) for x in columns]
    if points is not None:
        jumps = [_of_lowest(one, points, k) for k, one in enumerate(jumps)]
    apart = valid & ~_beside(jumps, valid, 1)
    near = _touching(jumps, columns, valid, recording.dt, points is not None)
    flying = apart & ~near & ~_beside(jumps, valid, AROUND)
    # What is not flight is hidden: noise is then that of flights, and no smoothing reaches across an impact.
    positions = np.where(flying[..., None], recording.positions, np.nan)
    flights = recording._replace(positions=positions, modes=flying[..., None] * 1.0)
    flight = recover(flights, told, config)
    bounces: list[Bounce] = []
    if points is None:
        for axis, one in enumerate(jumps):
            read = _read_again(one, recording, flight, axis, apart, near)
            bounces += _bounces(read, one, axis, recording.positions.shape[0])
    else:
        every = Impacts(*(np.concatenate(parts) for parts in zip(*jumps, strict=True)))
        bounces += _bounces(every, every, 0, recording.positions.shape[0])
    return ImpactLaw(flight, tuple(bounces), points is not None)


def found_impacts(track: np.ndarray, dt: float) -> Impacts:
    """Where the velocity of a coordinate (episodes, times) jumps by more than noise explains."""
    noise = float(sensor_noise(track[..., None])[0])
    spread = float(np.nanstd(track))
    side = EACH_SIDE[int(noise >= QUIET * spread) + int(noise >= LOUD * spread)]
    left, right, gain = _one_sided(track, dt, side)
    jump = np.abs(right[..., 1] - left[..., 1])
    # Where noise is small, parabolas leave more than it: what they leave in most places is no impact either.
    usual = 1.4826 * float(np.nanmedian(jump)) / np.sqrt(2) if np.isfinite(jump).any() else 0.0
    error = np.maximum(noise * gain / np.sqrt(2), max(usual, 1e-12 * spread / dt))
    size = jump / (np.sqrt(2) * error)
    size = np.where(np.isfinite(size), size, 0.0)
    episode, sample = np.nonzero((size > SURE) & (size >= _largest_near(size, side)))
    a, b = left[episode, sample], right[episode, sample]
    # Where the two parabolas meet: there both velocities are read.
    gap = np.where(b[:, 1] == a[:, 1], 1.0, b[:, 1] - a[:, 1])
    when = np.clip(-(b[:, 0] - a[:, 0]) / gap, -1.5 * dt, 1.5 * dt)
    before, after = (x[:, 1] + 2 * x[:, 2] * when for x in (a, b))
    place = a[:, 0] + a[:, 1] * when + a[:, 2] * when**2
    return Impacts(episode, sample, before, after, place, error[episode, sample])


def _one_sided(track: np.ndarray, dt: float, side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parabolas through the samples before and after the middle of every interval: (episodes, times, 3), and how much
    noise they leave in the difference of their velocities: (episodes, times). Counted from that middle; NaN where too
    few samples are seen.
    """
    seen, length = np.isfinite(track), track.shape[1]
    windows = np.lib.stride_tricks.sliding_window_view(np.where(seen, track, 0.0), side, axis=1)
    masks = np.lib.stride_tricks.sliding_window_view(seen * 1.0, side, axis=1)
    left, right = np.full((*track.shape, 4), np.nan), np.full((*track.shape, 4), np.nan)
    left[:, side - 1 :] = _parabolas(windows[..., ::-1], masks[..., ::-1], -dt)
    right[:, : length - side] = _parabolas(windows, masks, dt)[:, 1:]
    return left[..., :3], right[..., :3], np.sqrt(left[..., 3] + right[..., 3])


def _parabolas(values: np.ndarray, seen: np.ndarray, dt: float) -> np.ndarray:
    """Parabolas from half a step on, by least squares: three coefficients and the variance that unit noise leaves in
    the second; NaN where too few samples are seen. Both arrays are (…, samples).
    """
    side = values.shape[-1]
    times = (np.arange(side) + 0.5) / side
    whole = np.linalg.pinv(np.stack([np.ones(side), times, times**2], 1))
    unit = 1 / (side * dt)
    scale = np.array([1.0, unit, unit**2, unit**2])
    out = np.concatenate([values @ whole.T, np.full((*values.shape[:-1], 1), whole[1] @ whole[1])], -1)
    gaps = ~(seen.all(-1))
    if gaps.any():
        mask = seen[gaps]
        normal = (mask @ (times[:, None] ** np.arange(5)))[:, np.arange(3)[:, None] + np.arange(3)]
        enough = mask.sum(1) >= SEEN * side
        inverse = np.linalg.inv(np.where(enough[:, None, None], normal, np.eye(3)))
        fit = inverse @ ((values[gaps] * mask) @ (times[:, None] ** np.arange(3)))[..., None]
        some = np.concatenate([fit[..., 0], inverse[:, 1, 1:2]], -1)
        out[gaps] = np.where(enough[:, None], some, np.nan)
    return out * scale


def _largest_near(size: np.ndarray, side: int) -> np.ndarray:
    from scipy.ndimage import maximum_filter1d

    return maximum_filter1d(size, side + 1, axis=1)


def _of_lowest(found: Impacts, points: np.ndarray, index: int) -> Impacts:
    """The impacts at which a point came down and was the lowest of all."""
    around = [
        np.nanmin(points[e, max(s - 1, 0) : s + 3], 0)
        for e, s in zip(found.episode.tolist(), found.sample.tolist(), strict=True)
    ]
    lowest = np.array([int(np.nanargmin(a)) == index for a in around], bool).reshape(len(found.episode))
    keep = lowest & (found.before < 0) & (found.after > found.before)
    return Impacts(*(x[keep] for x in found))


def _beside(jumps: list[Impacts], valid: np.ndarray, around: int) -> np.ndarray:
    """Samples at most so far from an impact."""
    out = np.zeros_like(valid)
    for found in jumps:
        for e, s in zip(found.episode.tolist(), found.sample.tolist(), strict=True):
            out[e, max(s - around, 0) : s + 2 + around] = True
    return out


def _touching(jumps: list[Impacts], columns: list[np.ndarray], valid: np.ndarray, dt: float, shared: bool):
    """Samples so near a surface that small bounces would go unseen; points of one body share their surfaces."""
    out = np.zeros_like(valid)
    every = Impacts(*(np.concatenate(parts) for parts in zip(*jumps, strict=True)))
    for found, track in zip(jumps, columns, strict=True):
        for sign in (-1.0, 1.0):
            pool = every if shared else found
            toward = _toward(pool, sign)
            if toward.sum() >= FEWEST_IMPACTS:
                # A surface is known to about half of what things move from sample to sample.
                coarse = 0.5 * dt * float(np.median(np.abs(pool.before[toward])))
                surface, margin = float(np.median(pool.place[toward])), NEAR * np.nanstd(track) + coarse
                past = sign * (track - surface) > -margin if shared else np.abs(track - surface) < margin
                out |= np.where(np.isfinite(track), past, False)
    return out


def _read_again(found: Impacts, recording: Recording, flight: AnyLaw, axis: int, apart, near) -> Impacts:
    """The impacts with velocities and places from the law of flight, where enough flight is on either side.

    `apart` are samples beside no impact, `near` those so near a surface that small bounces go unseen: there a flight
    counts only as far as it leads away.
    """
    seen = np.isfinite(recording.positions).all(-1)
    ways = (_runs(found, apart, seen, near, way) for way in (-1, 1))
    runs = [np.array(r, int).reshape(-1, READ) for r in ways]
    both = ((runs[0] >= 0).sum(1) >= FEWEST_READ) & ((runs[1] >= 0).sum(1) >= FEWEST_READ)
    if not both.any():
        return Impacts(*(x[:0] for x in found))
    episode, sample = found.episode[both], found.sample[both]
    before, after = (
        _state_at(recording, flight, episode, sample, r[both], w) for r, w in zip(runs, (-1, 1), strict=True)
    )
    (q0, v0, a0), (q1, v1, a1) = ((x[:, axis] for x in side[:3]) for side in (before, after))
    noise = float(sensor_noise(recording.positions)[axis])
    when = np.clip(-(q1 - q0) / np.where(v1 == v0, 1.0, v1 - v0), -2 * recording.dt, 2 * recording.dt)
    place = q0 + v0 * when + 0.5 * a0 * when**2
    read = Impacts(
        episode, sample, v0 + a0 * when, v1 + a1 * when, place, noise * np.hypot(before[3], after[3]) / np.sqrt(2)
    )
    followed = np.isfinite(read.before) & np.isfinite(read.after)
    return Impacts(*(x[followed] for x in read))


def _runs(found: Impacts, apart, seen, near, way: int) -> list[np.ndarray]:
    """The samples that every impact is read from on one side of it, outwards: (impacts, READ), −1 where none is."""
    out = []
    for e, s in zip(found.episode.tolist(), found.sample.tolist(), strict=True):
        first = s - BESIDE if way < 0 else s + 1 + BESIDE
        stop = max(first - READ, -1) if way < 0 else min(first + READ, apart.shape[1])
        run, away = np.full(READ, -1), False
        for i, k in enumerate(range(first, stop, way)):
            if not apart[e, k] or (away and near[e, k]):
                break
            away = away or not near[e, k]
            run[i] = k if seen[e, k] else -1
        out.append(run if away else np.full(READ, -1))
    return out


def _state_at(recording: Recording, flight: AnyLaw, episode, sample, run: np.ndarray, way: int):
    """Positions, velocities and accelerations at the middle of every impact's interval, on one side of it, and what a
    position's noise leaves in a velocity: the flight through the samples of `run`, by Gauss and Newton.
    """
    n, dt, seen = recording.positions.shape[-1], recording.dt, run >= 0
    there = np.where(seen[..., None], recording.positions[episode[:, None], run], 0.0)
    columns = np.stack([np.ones(READ), way * dt * (BESIDE + 0.5 + np.arange(READ))], -1) * seen[..., None]
    line = np.linalg.pinv(columns)
    state = np.concatenate([*np.moveaxis(line @ there, 1, 0)], -1)
    actions = [recording.actions[episode, _inside(sample + way * j, recording)] for j in range(BESIDE + READ)]
    size = np.nanstd(recording.positions, (0, 1))
    nudge = 1e-4 * np.concatenate([size, size / (READ * dt)])
    with np.errstate(all="ignore"):  # a law may lose its way; its impacts are then not read
        for _ in range(FITS):
            tried = state + np.concatenate([np.zeros((1, 2 * n)), np.diag(nudge)])[:, None]
            paths = _flown(flight, tried, actions, way * dt) * seen[..., None]
            slopes = np.moveaxis(paths[1:] - paths[0], 0, -1).reshape(len(run), -1, 2 * n)
            left = (there - paths[0]).reshape(len(run), -1, 1)
            lost = ~(np.isfinite(slopes).all((1, 2)) & np.isfinite(left).all((1, 2)))
            slopes[lost], left[lost] = 0.0, np.nan
            state = state + (np.linalg.pinv(slopes) @ left)[..., 0] * nudge
        rate = flight.acceleration(0, state[:, :n], state[:, n:], actions[0])
    return state[:, :n], state[:, n:], rate, np.linalg.norm(line[:, 1], axis=-1)


def _inside(sample: np.ndarray, recording: Recording) -> np.ndarray:
    return np.clip(sample, 0, recording.actions.shape[1] - 1)


def _flown(flight: AnyLaw, states: np.ndarray, actions: list[np.ndarray], dt: float) -> np.ndarray:
    """Positions at the samples that an impact is read from, flown from (tries, impacts, positions and velocities) with
    inputs held: half a step, then whole ones. Backwards where `dt` is negative.
    """
    tries, impacts, n = states.shape[0], states.shape[1], states.shape[2] // 2
    z, out = states.reshape(-1, 2 * n), []

    def rate(z: np.ndarray, action: np.ndarray) -> np.ndarray:
        return np.concatenate([z[:, n:], flight.acceleration(0, z[:, :n], z[:, n:], action)], -1)

    for j, action in enumerate(actions):
        held, h = np.tile(action, (tries, 1)), dt if j else 0.5 * dt
        first = rate(z, held)
        second = rate(z + 0.5 * h * first, held)
        third = rate(z + 0.5 * h * second, held)
        z = z + h / 6 * (first + 2 * second + 2 * third + rate(z + h * third, held))
        if j >= BESIDE:
            out.append(z[:, :n].reshape(tries, impacts, n))
    return np.stack(out, 2)


def _toward(found: Impacts, sign: float) -> np.ndarray:
    """The impacts that stop a motion one way; what is merely lifted off, let go or slowed down is none."""
    stopped = sign * found.after < 0.5 * sign * found.before
    return (sign * found.before > 3 * found.error) & stopped & np.isfinite(found.after)


def _bounces(read: Impacts, found: Impacts, axis: int, episodes: int) -> list[Bounce]:
    """A surface for each direction from which things come often enough; where too few of the impacts that were found
    could be read again, by what was found.
    """
    out = []
    for side, sign in (("below", -1.0), ("above", 1.0)):
        both = (Impacts(*(x[_toward(one, sign)] for x in one)) for one in (read, found))
        here = next((one for one in both if len(one.episode) >= FEWEST_IMPACTS), None)
        if here is not None:
            out.append(_bounce(here, axis, side, episodes))
    return out


def _bounce(found: Impacts, axis: int, side: str, episodes: int) -> Bounce:
    kept = _alike(found)
    before, after = found.before[kept], found.after[kept]
    value = -float(before @ after / (before @ before))
    left = after + value * before
    error = float(np.sqrt(np.mean(left**2) / (before @ before)))
    place, spread = float(np.median(found.place[kept])), float(np.std(found.place[kept]))
    ratios = -after / before
    excess = _held_out(Impacts(*(x[kept] for x in found)), episodes)
    problem = ""
    if not 0 <= value <= 1:
        problem = f"its restitution is {value:.3g}, not between 0 and 1"
    elif excess is None:
        problem = "not checked on held-out data: its impacts are in too few episodes"
    elif excess > MOST_EXCESS:
        problem = f"one restitution errs by {excess:.2g} times what noise allows in held-out impacts"
    elif error > 0.5 * max(value, 0.05):
        problem = f"its restitution is {value:.3g} ± {error:.2g}"
    middle = tuple(float(x) for x in np.quantile(ratios, [0.25, 0.75]))
    at = Number(place, 1.2533 * spread / np.sqrt(kept.sum()))
    return Bounce(axis, side, Number(value, error), at, int(kept.sum()), (middle[0], middle[1]), excess, problem)


def _alike(found: Impacts) -> np.ndarray:
    """Impacts at the surface where most are, with a restitution like most others'."""

    def usual(values: np.ndarray) -> np.ndarray:
        centre = np.median(values)
        scale = 1.4826 * np.median(np.abs(values - centre)) + 1e-12
        return np.abs(values - centre) <= UNUSUAL * scale

    near = usual(found.place)
    ratio = -found.after / found.before
    out = near.copy()
    out[near] = usual(ratio[near])
    return out


def _held_out(found: Impacts, episodes: int) -> float | None:
    """How speeds after held-out impacts are predicted by the restitution of the others."""
    folds = min(3, episodes)
    if folds < 2:
        return None
    errors = []
    for k in range(folds):
        held = found.episode % folds == k
        if not held.any() or held.all():
            continue
        before, after = found.before[~held], found.after[~held]
        value = -(before @ after) / (before @ before)
        scale = found.error[held] * np.sqrt(1 + value**2)
        errors.append(((found.after[held] + value * found.before[held]) / scale) ** 2)
    values = np.concatenate(errors) if errors else np.zeros(0)
    if len(values) < FEWEST_IMPACTS:
        return None
    return float(np.quantile(values, 0.9, method="inverted_cdf") / chi2.ppf(0.9, 1))
