"""The phase portraits of a law: recorded positions and velocities by mode, and which way the law takes them."""

from typing import Any, NamedTuple

import numpy as np

from vhydro.laws import as_model
from vhydro.laws.lagrange_law import AnyLaw
from vhydro.laws.tracks import Tracks

MOST_SAMPLES = 2000  # of a portrait
MOST_PORTRAITS = 8
ACROSS, UP = 15, 10  # streamlines along the axes
LENGTH, STEPS = 0.055, 6  # of a streamline, as a share of the axes, and its steps
INSIDE = (0.002, 0.998)  # quantiles of what is shown: a burst of sensor faults does not flatten the picture
Line = tuple[int, int | None]  # a position, or the difference of two


class Samples(NamedTuple):
    """Where things were and in which mode, without what was hidden: (samples, positions) and (samples,)."""

    q: np.ndarray
    v: np.ndarray  # ∂H/∂p: less what an input imposes on the position
    mode: np.ndarray


class Plane(NamedTuple):
    """A portrait's axes, the modes it is of, and the median position and inputs that the others are held at."""

    line: Line
    modes: tuple[int, ...]
    low: np.ndarray
    high: np.ndarray
    place: np.ndarray
    inputs: np.ndarray


def phase(law: AnyLaw, tracks: Tracks) -> list[dict[str, Any]]:
    """A portrait of every position, and of every difference of two that a contact is along.

    Modes between which the law switches by itself share a portrait; every other mode has its own.
    """
    samples, inputs = recorded(tracks), _median_inputs(tracks)
    if not len(samples.mode):
        return []
    lines = dict.fromkeys([(i, None) for i in range(law.positions)] + [line for line, *_ in contacts(law)])
    groups = [group for group in _groups(law) if np.isin(samples.mode, group).any()]
    wanted = [(line, group) for group in groups for line in lines][:MOST_PORTRAITS]
    return [_portrait(law, _plane(samples, line, group, inputs), samples) for line, group in wanted]


def recorded(tracks: Tracks) -> Samples:
    """Every sample that smoothing knows."""
    n = tracks.positions.shape[-1]
    states = np.moveaxis(tracks.states, 0, -1).reshape(-1, 2 * n)
    weight = tracks.modes.reshape(len(states), -1)
    known = np.isfinite(states).all(1) & (weight.sum(1) > 0)
    return Samples(states[known, :n], states[known, n:], weight[known].argmax(1))


def contacts(law: AnyLaw) -> list[tuple[Line, int, float, float]]:
    """Along what, mode, sign and place of every surface."""
    return [((g.axis, getattr(g, "other", None)), m, g.sign, place) for m, g, place in as_model.contacts(law)]


def directions(law: AnyLaw) -> tuple[tuple[int, int, float], ...]:
    """Mode, axis and sign of modes told apart by the way things go."""
    return law.circumstances.directions if law.circumstances else ()


def _groups(law: AnyLaw) -> list[tuple[int, ...]]:
    """Modes that share a portrait: those that the law switches between, then each of the others."""
    own = {law.form.base, *law.form.resting, *(c[1] for c in contacts(law)), *(d[0] for d in directions(law))}
    return [tuple(sorted(own)), *((m,) for m in range(len(law.modes)) if m not in own)]


def active(law: AnyLaw, q: np.ndarray, v: np.ndarray, along: Line) -> np.ndarray:
    """The mode that the law is in at states (samples, positions), by its directions and surfaces along a line."""
    mode = np.full(len(q), law.form.base)
    for m, axis, sign in directions(law):
        mode[sign * v[:, axis] > 0] = m
    depth = np.zeros(len(q))
    for (axis, other), m, sign, place in contacts(law):
        if other is not None and (axis, other) != along:
            continue  # where it is depends on a position that the portrait holds
        here = sign * (q[:, axis] - (0.0 if other is None else q[:, other]) - place)
        mode[here > depth], depth = m, np.maximum(here, depth)
    return mode


def along_line(values: np.ndarray, line: Line) -> np.ndarray:
    """One column of (…, positions), or the difference of two."""
    axis, other = line
    return np.asarray(values[..., axis] if other is None else values[..., axis] - values[..., other])


def line_names(law: AnyLaw, line: Line) -> dict[str, str]:
    """The name of a position or difference, its unit and that of its rate."""
    axis, other = line
    unit = law.units[axis]
    name = law.coordinates[axis] if other is None else f"{law.coordinates[axis]} − {law.coordinates[other]}"
    return {"name": name, "unit": unit, "rate": f"{unit}/s" if unit else ""}


def evenly(count: int, most: int) -> np.ndarray:
    """At most so many places among `count`, evenly."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).round().astype(int)


def digits(values: np.ndarray, size: float) -> list:
    """Numbers as a picture of this size shows them."""
    places = 4 - int(np.floor(np.log10(size))) if size > 0 else 6
    return (np.round(values, places) + 0.0).tolist()


def _median_inputs(tracks: Tracks) -> np.ndarray:
    there = tracks.modes[:, :-1].sum(-1) > 0
    return np.median(tracks.actions[there], 0) if there.any() else np.zeros(tracks.actions.shape[-1])


def _plane(samples: Samples, line: Line, modes: tuple[int, ...], inputs: np.ndarray) -> Plane:
    mine = np.isin(samples.mode, modes)
    seen = np.stack([along_line(x[mine], line) for x in (samples.q, samples.v)], -1)
    low, high = np.quantile(seen, INSIDE, axis=0)
    room = 0.06 * np.where(high > low, high - low, np.maximum(np.abs(high), 1.0))
    return Plane(line, modes, low - room, high + room, np.median(samples.q[mine], 0), inputs)


def _portrait(law: AnyLaw, plane: Plane, samples: Samples) -> dict[str, Any]:
    chosen = _chosen(samples, plane)
    size = plane.high - plane.low
    points = [along_line(x[chosen], plane.line) for x in (samples.q, samples.v)]
    surfaces = [
        {"mode": m, "sign": sign, "place": place}
        for line, m, sign, place in contacts(law)
        if line == plane.line and m in plane.modes
    ]
    return {
        **line_names(law, plane.line), "modes": list(plane.modes),
        "low": plane.low.tolist(), "high": plane.high.tolist(),
        "q": digits(points[0], size[0]), "v": digits(points[1], size[1]), "mode": samples.mode[chosen].tolist(),
        "surfaces": surfaces, "field": _field(law, plane), "held": _held(law, plane),
        "carried": bool(np.any(_carried(law, plane))),
    }  # fmt: skip


def _chosen(samples: Samples, plane: Plane) -> np.ndarray:
    """Samples to show: of every mode as many, and all of a mode that has few."""
    seen = np.stack([along_line(x, plane.line) for x in (samples.q, samples.v)], -1)
    inside = ((seen >= plane.low) & (seen <= plane.high)).all(1)
    of_mode = [np.flatnonzero(inside & (samples.mode == m)) for m in plane.modes]
    of_mode = [here for here in of_mode if len(here)]
    most, left = 0, MOST_SAMPLES
    for i, count in enumerate(sorted(map(len, of_mode))):
        most = max(most, left // (len(of_mode) - i))
        left -= min(count, most)
    return np.concatenate([here[evenly(len(here), most)] for here in of_mode]) if of_mode else np.zeros(0, int)


def _held(law: AnyLaw, plane: Plane) -> list[dict[str, Any]]:
    """What a portrait does not show and its arrows need: other positions and inputs, at their medians."""
    shown = plane.line[0]
    q = [(law.coordinates[i], plane.place[i], law.units[i]) for i in range(law.positions) if i != shown]
    u = [(name, value, "") for name, value in zip(law.inputs, plane.inputs, strict=True)]
    return [{"name": name, "value": float(f"{value:.3g}"), "unit": unit} for name, value, unit in (*q, *u)]


def _carried(law: AnyLaw, plane: Plane) -> np.ndarray:
    """How fast the inputs move every position by themselves: (positions,)."""
    n = law.positions
    known = law.form.known_port[:n] if len(law.form.known_port) == 2 * n else ()
    return np.array([[g or 0.0 for g in row] for row in known]) @ plane.inputs if known else np.zeros(n)


def _field(law: AnyLaw, plane: Plane) -> list[dict[str, Any]]:
    """Short streamlines of the law, each with the mode that it begins in."""
    size, edge = plane.high - plane.low, 0.5
    rows, columns = np.meshgrid(np.arange(UP), np.arange(ACROSS), indexing="ij")
    at = np.stack([(columns + 0.5 * (rows % 2) + 0.25) / ACROSS, (rows + edge) / UP], -1).reshape(-1, 2)
    lines, mode = [at], _mode_at(law, plane, plane.low + at * size)
    for _ in range(STEPS):
        half = at + 0.5 * LENGTH / STEPS * _heading(law, plane, at)
        at = at + LENGTH / STEPS * _heading(law, plane, half)
        lines.append(at)
    course = np.stack(lines, 1)  # (streamlines, points, 2)
    good = np.isfinite(course).all((1, 2)) & (np.abs(course - 0.5) <= 0.5).all((1, 2))
    good &= np.linalg.norm(course[:, -1] - course[:, 0], axis=-1) > 0.2 * LENGTH
    places = plane.low + course[good] * size
    return [
        {"mode": int(m), "q": digits(line[:, 0], size[0]), "v": digits(line[:, 1], size[1])}
        for m, line in zip(mode[good], places, strict=True)
        if m not in law.form.resting
    ]


def _states(law: AnyLaw, plane: Plane, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions and velocities (samples, positions) at places of the plane; all else rests where it usually is."""
    axis, other = plane.line
    q, v = np.tile(plane.place, (len(at), 1)), np.zeros((len(at), law.positions))
    q[:, axis] = at[:, 0] + (0.0 if other is None else plane.place[other])
    v[:, axis] = at[:, 1]
    return q, v


def _mode_at(law: AnyLaw, plane: Plane, at: np.ndarray) -> np.ndarray:
    if law.form.base not in plane.modes:
        return np.full(len(at), plane.modes[0])
    return active(law, *_states(law, plane, at), plane.line)


def _heading(law: AnyLaw, plane: Plane, at: np.ndarray) -> np.ndarray:
    """Which way the law goes at places of the unit square, with length 1 there."""
    size = plane.high - plane.low
    here = plane.low + at * size
    (q, v), mode = _states(law, plane, here), _mode_at(law, plane, here)
    push = np.tile(plane.inputs, (len(at), 1))
    rate = np.zeros((len(at), 2))
    with np.errstate(all="ignore"):
        for m in np.unique(mode):
            on = mode == m
            rate[on, 1] = along_line(law.acceleration(int(m), q[on], v[on], push[on]), plane.line)
        rate[:, 0] = here[:, 1] + along_line(_carried(law, plane), plane.line)
        rate = rate / size
        return rate / np.linalg.norm(rate, axis=1, keepdims=True)
