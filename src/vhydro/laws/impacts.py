"""Impacts shorter than a sample: where they are, the law of flight between them, restitution and the surface's place.

A bounce of one or two samples leaves no trace of a spring, only a velocity that has jumped. Jumps are found by
parabolas through the samples on either side. The law of flight comes from what is free of jumps and away from the
surface, where small bounces go unseen. Every jump is then read again with that law, and the speeds after regressed on
those before.
"""

from dataclasses import replace

import numpy as np
from scipy.stats import chi2

from vhydro.lagrangian import Surface
from vhydro.laws.bounces import Bounce, ImpactLaw, share
from vhydro.laws.jumps import Impacts, found_impacts
from vhydro.laws.lagrange_law import AnyLaw
from vhydro.laws.law import Number
from vhydro.laws.meetings import FEWEST_IMPACTS, Meeting, margin, meetings, taken, toward
from vhydro.laws.problem import Problem
from vhydro.laws.recording import Recording
from vhydro.laws.recover import LawsConfig, recover, refuse_unfit
from vhydro.laws.smoothing import sensor_noise

READ = 16  # samples on each side that an impact is read from …
FEWEST_READ = 6  # … and the fewest
BESIDE = 2  # … after those next to it, which may be touched by it
FITS = 3  # steps of Gauss and Newton
AROUND = 2  # samples around an impact that may be touched by it
UNUSUAL = 4.0  # robust standard deviations from the others, beyond which an impact is not one of them
UNEVEN = 0.03  # of two bodies' relative velocity: what one takes of its change, against what its inertia says
MOST_EXCESS = 2.0  # times what noise leaves in nine impacts of ten; one reading each, so more by chance than windows


def impact_law(
    recording: Recording,
    problem: Problem,
    config: LawsConfig = LawsConfig(estimator="lagrange"),  # noqa: B008 — immutable
    *,
    points: np.ndarray | None = None,
) -> ImpactLaw:
    """The law of flight and the surfaces bounced off, found from positions: impacts need no labels.

    Impacts are sought along every position, and along the difference of every two of the same unit: there two moving
    bodies meet. Or along `points` (episodes, times, points): heights of what may touch down, such as the corners of a
    body, of which the lowest is the one that does. The modes are not looked at.
    """
    valid, told = recording.modes.sum(-1) > 0, replace(problem, modes=("flight",))
    coupled = config.estimator == "lagrange"
    refuse_unfit(recording._replace(modes=valid[..., None] * 1.0), told, config.shooting.bump, coupled=coupled)
    if points is not None and points.shape[:2] != recording.positions.shape[:2]:
        raise ValueError(
            f"the points have shape {points.shape}; expected (episodes, times, points) with {valid.shape} first. "
            "Give the height of every point at every sample."
        )
    tracks = np.where(valid[..., None], recording.positions if points is None else points, np.nan)
    if points is None:
        met, jumps = meetings(tracks, problem.units, recording.dt)
        near = _touching(met, tracks, recording.dt)
    else:
        every = [found_impacts(x, recording.dt) for x in np.moveaxis(tracks, -1, 0)]
        jumps = [_of_lowest(one, points, k) for k, one in enumerate(every)]
        met = _of_points(jumps)
        near = _past(met, tracks, recording.dt)
    apart = valid & ~_beside(jumps, valid, 1)
    flying = apart & ~near & ~_beside(jumps, valid, AROUND)
    # What is not flight is hidden: noise is then that of flights, and no smoothing reaches across an impact.
    positions = np.where(flying[..., None], recording.positions, np.nan)
    flights = recording._replace(positions=positions, modes=flying[..., None] * 1.0)
    flight = recover(flights, told, config)
    bounces = []
    for one in met:
        read, uneven = one.impacts, ""
        if points is None:
            read, states = _read_again(read, recording, flight, one.surface, apart, near)
            this_way = toward(read, one.surface.sign)
            read, uneven = taken(read, this_way), _uneven(flight, one.surface, states[this_way])
        # Where too few of the impacts that were found could be read again, by what was found.
        enough = len(read.episode) >= FEWEST_IMPACTS
        bounce = _bounce(read if enough else one.impacts, one.surface, recording.positions.shape[0])
        bounces.append(replace(bounce, problem=bounce.problem or uneven))
    return ImpactLaw(flight, tuple(bounces), points is not None)


def _of_lowest(found: Impacts, points: np.ndarray, index: int) -> Impacts:
    """The impacts at which a point came down and was the lowest of all."""
    heights = np.where(np.isfinite(points), points, np.inf)
    around = [
        heights[e, max(s - 1, 0) : s + 3].min(0)
        for e, s in zip(found.episode.tolist(), found.sample.tolist(), strict=True)
    ]
    told = [np.isfinite(a[index]) and int(np.argmin(a)) == index for a in around]
    lowest = np.array(told, bool).reshape(len(found.episode))
    return taken(found, lowest & (found.before < 0) & (found.after > found.before))


def _beside(jumps: list[Impacts], valid: np.ndarray, around: int) -> np.ndarray:
    """Samples at most so far from an impact."""
    out = np.zeros_like(valid)
    for found in jumps:
        for e, s in zip(found.episode.tolist(), found.sample.tolist(), strict=True):
            out[e, max(s - around, 0) : s + 2 + around] = True
    return out


def _touching(met: list[Meeting], positions: np.ndarray, dt: float) -> np.ndarray:
    """Samples so near a surface that small bounces would go unseen."""
    columns, out = [*np.moveaxis(positions, -1, 0)], np.zeros(positions.shape[:2], bool)
    for one in met:
        track = one.surface.along(columns)
        out |= np.abs(track - one.place) < margin(one.impacts, track, dt)
    return out


def _of_points(jumps: list[Impacts]) -> list[Meeting]:
    """The surfaces that the points of a body share."""
    every, out = Impacts(*(np.concatenate(parts) for parts in zip(*jumps, strict=True))), []
    for surface in (Surface(0, "below"), Surface(0, "above")):
        here = taken(every, toward(every, surface.sign))
        if len(here.episode) >= FEWEST_IMPACTS:
            out.append(Meeting(surface, here, float(np.median(here.place))))
    return out


def _past(met: list[Meeting], points: np.ndarray, dt: float) -> np.ndarray:
    """Samples at which any point is past a surface that all share, or so near it that small bounces go unseen."""
    out = np.zeros(points.shape[:2], bool)
    for one in met:
        for track in np.moveaxis(points, -1, 0):
            out |= one.surface.sign * (track - one.place) > -margin(one.impacts, track, dt)
    return out


def _read_again(
    found: Impacts, recording: Recording, flight: AnyLaw, surface: Surface, apart: np.ndarray, near: np.ndarray
) -> tuple[Impacts, np.ndarray]:
    """The impacts with velocities and places from the law of flight, where enough flight is on either side; all
    positions at each and by how much their velocities change: (impacts, 2, positions).

    `apart` are samples beside no impact, `near` those so near a surface that small bounces go unseen: there a flight
    counts only as far as it leads away.
    """
    seen = np.isfinite(recording.positions).all(-1)
    ways = (_runs(found, apart, seen, near, way) for way in (-1, 1))
    runs = [np.array(r, int).reshape(-1, READ) for r in ways]
    both = ((runs[0] >= 0).sum(1) >= FEWEST_READ) & ((runs[1] >= 0).sum(1) >= FEWEST_READ)
    if not both.any():
        return taken(found, both), np.zeros((0, 2, recording.positions.shape[-1]))
    episode, sample = found.episode[both], found.sample[both]
    before, after = (
        _state_at(recording, flight, episode, sample, r[both], w) for r, w in zip(runs, (-1, 1), strict=True)
    )
    (q0, v0, a0), (q1, v1, a1) = ((surface.along(x.T) for x in side[:3]) for side in (before, after))
    noise = float(np.linalg.norm([sensor_noise(recording.positions)[i] for i, _ in surface.weights]))
    when = np.clip(-(q1 - q0) / np.where(v1 == v0, 1.0, v1 - v0), -2 * recording.dt, 2 * recording.dt)
    place = q0 + v0 * when + 0.5 * a0 * when**2
    read = Impacts(
        episode, sample, v0 + a0 * when, v1 + a1 * when, place, noise * np.hypot(before[3], after[3]) / np.sqrt(2)
    )
    followed = np.isfinite(read.before) & np.isfinite(read.after)
    changes = after[1] - before[1] + (after[2] - before[2]) * when[:, None]
    return taken(read, followed), np.stack([before[0], changes], 1)[followed]


def _uneven(flight: AnyLaw, surface: Surface, states: np.ndarray) -> str:
    """Why two bodies' impacts do not keep their momentum, by the law's inertia; empty where they do."""
    if surface.other is None or flight.problems or len(states) < FEWEST_IMPACTS:
        return ""
    relative = surface.along(states[:, 1].T)
    ratios = states[:, 1, surface.axis] / relative
    told = np.median([share(flight, surface, q)[surface.axis] for q in states[:, 0]])
    found, error = float(np.median(ratios)), 1.4826 * 1.2533 * np.median(np.abs(ratios - np.median(ratios)))
    if abs(found - told) <= UNEVEN + UNUSUAL * error / np.sqrt(len(ratios)):
        return ""
    return (
        f"momentum is not kept: one body takes {found:.2g} of a change of relative velocity, by its inertia {told:.2g}"
    )


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


def _bounce(found: Impacts, surface: Surface, episodes: int) -> Bounce:
    """The surface: speeds after its impacts regressed on those before."""
    kept = _alike(found)
    before, after = found.before[kept], found.after[kept]
    value = -float(before @ after / (before @ before))
    left = after + value * before
    error = float(np.sqrt(np.mean(left**2) / (before @ before)))
    place, spread = float(np.median(found.place[kept])), float(np.std(found.place[kept]))
    ratios = -after / before
    excess = _held_out(taken(found, kept), episodes)
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
    parts = Number(value, error), at, int(kept.sum()), (middle[0], middle[1]), excess, problem, surface.other
    return Bounce(surface.axis, surface.side, *parts)


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
