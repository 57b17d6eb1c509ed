"""Where friction shows itself: the force that a law without its friction leaves over, against velocity.

Of every sample the law's friction and its misfit, `M (law's acceleration − measured)`, are summed: a component-plus-
residual plot. Both are averaged under a bump, which is as wide as sensor noise asks for, so that no velocity or
acceleration has to be known at one moment. Bumps across a change of mode or of direction are left out, and contacts
where there is enough without them.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.ndimage import correlate1d, minimum_filter1d

from vhydro.commands.law_phase import Line, along_line, contacts, digits, directions, evenly, line_names
from vhydro.lagrangian import Friction
from vhydro.laws.form import is_kinetic, momentum_degree
from vhydro.laws.lagrange_law import AnyLaw, LagrangeLaw
from vhydro.laws.lagrange_writing import fading_speed
from vhydro.laws.law import Law, Number
from vhydro.laws.tracks import Tracks
from vhydro.laws.writing import summed
from vhydro.library import Monomial

HALF_WIDTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # samples of a bump
CLEAR = 0.15  # of the largest friction: noise below that lets it be seen …
SMALL = 0.01  # … and below that share of all forces a bump need not be wider
FEWEST, MOST = 100, 700  # bumps
BINS = 16
FORCE = {"m": "N", "rad": "N m"}


class Left(NamedTuple):
    """Bumps: their velocity, the force left there and the mode."""

    v: np.ndarray
    force: np.ndarray
    mode: np.ndarray
    seconds: float  # how wide each is


class Curve(NamedTuple):
    """The friction of a mode: where velocities have one sign only, which."""

    mode: int
    sign: float  # 0: both


def friction(law: AnyLaw, tracks: Tracks) -> list[dict[str, Any]]:
    """The picture of every position, and of every difference of two that has a friction of its own.

    Empty of several positions whose momenta are not masses times velocities, and of one that no input drives.
    """
    if isinstance(law, Law) and not _has_masses(law) and (law.positions > 1 or not law.inputs):
        return []
    measured = _measured(law, tracks)
    every = (_picture(law, tracks, line, measured) for line in friction_lines(law))
    return [one for one in every if one is not None]


def friction_lines(law: AnyLaw) -> list[Line]:
    """Along what friction may act: every position, and differences that the law has one for."""
    lines: list[Line] = [(i, None) for i in range(law.positions)]
    if isinstance(law, LagrangeLaw):
        lines += [(t.axis, t.other) for _, t in _rubs(law) if t.other is not None]
    return list(dict.fromkeys(lines))


def _rubs(law: LagrangeLaw, line: Line | None = None) -> list[tuple[int, Friction]]:
    """The friction terms that the law has, known ones too, with their places: all, or those along one line."""
    there = [(i, law.form.entries[i].term) for i in law.form.of("friction") if law.support[i] or not law.form.free[i]]
    return [(i, t) for i, t in there if isinstance(t, Friction) and line in (None, (t.axis, t.other))]


def friction_force(law: AnyLaw, mode: int, line: Line, v: np.ndarray) -> np.ndarray:
    """The law's friction against velocities along a line: positive where it acts against positive ones."""
    if isinstance(law, LagrangeLaw):
        return _of_equations(law, line, v)
    axis = line[0]
    return law.dissipation(mode)[axis].value * v + _dry(law, mode, axis)


def _of_equations(law: LagrangeLaw, line: Line, v: np.ndarray) -> np.ndarray:
    """The forces of the friction terms along one line alone."""
    own = [i for i, _ in _rubs(law, line)]
    theta, rates = np.zeros(len(law.theta)), [0.0 * v for _ in range(law.positions)]
    own += law.form.of("speed")
    theta[own] = law.theta[own]
    rates[line[0]] = v
    on: list[Any] = [0.0] * len(law.form.blocks)
    on += [0.5 * (1 + np.sign(way.along([*rates, *rates]))) for way in law.form.switches[len(on) :]]
    still, none = [0.0 * v for _ in rates], [0.0 * v for _ in law.inputs]
    return -np.asarray(law.form.force(theta, on, still, rates, none)[line[0]])


def _dry(law: Law, mode: int, axis: int) -> float:
    """The constant friction of a mode that goes one way: what its force differs by from the mean of both ways."""
    ways = {sign: m for m, along, sign in directions(law) if along == axis}
    if len(ways) < 2 or mode not in ways.values():
        return 0.0
    line = Monomial(tuple(int(i == axis) for i in range(2 * law.positions)))
    constant = {m: -law.energy(m)[line].value if line in law.energy(m) else 0.0 for m in ways.values()}
    return float(np.mean(list(constant.values()))) - constant[mode]


def curves(law: AnyLaw, line: Line, modes: np.ndarray) -> list[Curve]:
    """The frictions to draw, of modes that occur: contacts rub as the base does."""
    if isinstance(law, LagrangeLaw):
        return [Curve(law.form.base, 0.0)]
    signs = {m: sign for m, axis, sign in directions(law) if axis == line[0]}
    return [Curve(m, signs.get(m, 0.0)) for m in np.unique([_rubs_as(law, int(m)) for m in modes]).tolist()]


def _rubs_as(law: AnyLaw, mode: int) -> int:
    """The mode whose friction counts in a mode."""
    return law.form.base if isinstance(law, LagrangeLaw) or mode in [c[1] for c in contacts(law)] else mode


def _has_masses(law: Law) -> bool:
    """Whether momenta are masses times velocities in every mode that moves."""
    moving = [m for m in range(len(law.modes)) if m not in law.form.resting]
    return all(is_kinetic(t) or not momentum_degree(t) for m in moving for t in law.energy(m))


class Measured(NamedTuple):
    """Of every sample (episodes, times, positions): the force the law is off by, that it has, and the inertia."""

    misfit: np.ndarray
    force: np.ndarray
    inertia: np.ndarray


def _measured(law: AnyLaw, tracks: Tracks) -> Measured:
    """Second differences of positions against the law's accelerations, both times the law's inertia."""
    ground, actions, n = tracks.filled, tracks.actions, law.positions
    seen = np.full(ground.shape, np.nan)
    seen[:, 1:-1] = np.diff(ground, 2, axis=1) / tracks.dt**2
    held = np.full((*ground.shape[:2], actions.shape[-1]), np.nan)
    held[:, 1:-1] = 0.5 * (actions[:, 1:] + actions[:, :-1])  # what a second difference feels of held inputs
    q, v = np.split(np.moveaxis(tracks.states, 0, -1), 2, axis=-1)
    mode, said = _path(tracks), np.full(ground.shape, np.nan)
    weigh = np.full((*ground.shape, n), np.nan)
    for m in np.unique(mode[mode >= 0]).tolist():
        if m not in law.form.resting:
            on = mode == m
            said[on] = law.acceleration(m, q[on], v[on], held[on])
            weigh[on] = _inertia(law, m, q[on], v[on], held[on], said[on])
    forces = [(weigh @ x[..., None])[..., 0] for x in (said - seen, said)]
    return Measured(forces[0], forces[1], np.diagonal(weigh, axis1=-2, axis2=-1))


def _inertia(law: AnyLaw, mode: int, q, v, held, said) -> np.ndarray:
    """What an acceleration is multiplied by to be a force: (samples, positions, positions)."""
    if isinstance(law, LagrangeLaw):
        return law.mass_matrix(q)
    if _has_masses(law):
        energy, n = law.energy(mode), law.positions
        squares = [Monomial(tuple(2 * (i == n + axis) for i in range(2 * n))) for axis in range(n)]
        return np.tile(np.diag([0.5 / energy[square].value for square in squares]), (len(q), 1, 1))
    # Of a single position, whatever its energy is: what a force more changes.
    pushes = [float(g.value) if not carry.value else 0.0 for carry, g in zip(*law.port(mode), strict=True)]
    strongest = int(np.argmax(np.abs(pushes)))
    more = held + np.eye(len(pushes))[strongest]
    with np.errstate(divide="ignore", invalid="ignore"):
        return (pushes[strongest] / (law.acceleration(mode, q, v, more) - said))[..., None]


def _path(tracks: Tracks) -> np.ndarray:
    """The likeliest mode of every sample; −1 in padding."""
    return np.where(tracks.modes.sum(-1) > 0, tracks.modes.argmax(-1), -1)


def _picture(law: AnyLaw, tracks: Tracks, line: Line, measured: Measured) -> dict[str, Any] | None:
    v, axis = along_line(tracks.smooth.velocity, line), line[0]
    mode = _path(tracks)
    mode = np.where(np.isin(mode, law.form.resting), -1, mode)
    rubs = np.zeros(v.shape)
    for m in np.unique(mode[mode >= 0]).tolist():
        rubs[mode == m] = friction_force(law, _rubs_as(law, m), line, v[mode == m])
    if not np.isfinite(rubs + measured.misfit[..., axis]).any():
        return None
    largest = float(np.nanquantile(np.abs(rubs), 0.9))
    wanted = max(CLEAR * largest, SMALL * float(np.nanstd(measured.force[..., axis])))
    noise = float(np.nanmedian(measured.inertia[..., axis])) * tracks.noise[axis] / tracks.dt**2
    touching = [c[1] for c in contacts(law)]
    for left_out in (touching, []):  # a contact's own force is large, and the smallest error in it hides a friction
        kept = np.where(np.isin(mode, left_out), -1, mode)
        found = _bumps(v, rubs + measured.misfit[..., axis], kept, noise, wanted, tracks.dt)
        if found is not None and len(found.v) >= FEWEST:
            break
    return None if found is None else _drawn(law, line, found)


def _bumps(v, force, mode, noise: float, wanted: float, dt: float) -> Left | None:
    """Averages under the narrowest bumps that noise leaves a friction to be seen with, or narrower where those are few.

    None where there are none at all.
    """
    enough = [half for half in HALF_WIDTHS if noise * _roughness(half) <= wanted]
    found = None
    for half in reversed([half for half in HALF_WIDTHS if half <= min(enough, default=HALF_WIDTHS[-1])]):
        found = _averaged(v, force, mode, half, dt)
        if len(found.v) >= FEWEST:
            break
    return found if found is not None and len(found.v) else None


def _roughness(half: int) -> float:
    """What a bump leaves of unit noise in second differences."""
    return float(np.linalg.norm(np.diff(bump(half), 2, prepend=[0, 0], append=[0, 0])))


def bump(half: int) -> np.ndarray:
    """Weights of 2 · half + 1 samples, their sum 1, which end smoothly."""
    out = (1 - (np.arange(-half, half + 1) / (half + 1)) ** 2) ** 3
    return out / out.sum()


def _averaged(v: np.ndarray, force: np.ndarray, mode: np.ndarray, half: int, dt: float) -> Left:
    size, kernel = 2 * half + 1, bump(half)
    known = np.isfinite(v) & np.isfinite(force) & (mode >= 0)
    smooth = [correlate1d(np.where(known, x, 0.0), kernel, axis=1, mode="constant") for x in (v, force)]
    whole = np.zeros(v.shape, bool)
    for m in np.unique(mode[mode >= 0]).tolist():
        for sign in (-1.0, 1.0):
            alike = (known & (mode == m) & (sign * v > 0)).astype(np.uint8)
            whole |= minimum_filter1d(alike, size, axis=1, mode="constant", cval=0) > 0
    whole[:, np.arange(v.shape[1]) % max(half // 4, 1) != 0] = False
    return Left(smooth[0][whole], smooth[1][whole], mode[whole], size * dt)


def _drawn(law: AnyLaw, line: Line, found: Left) -> dict[str, Any]:
    low, high = np.quantile(found.v, (0.002, 0.998))
    inside = (found.v >= low) & (found.v <= high)
    floor, top = np.quantile(found.force, (0.005, 0.995))
    inside &= (found.force >= floor) & (found.force <= top)
    lines = [_curve(law, line, c, float(low), float(high)) for c in curves(law, line, found.mode)]
    lines = [c for c in lines if c is not None]
    size = float(max(top - floor, *(max(c["f"]) - min(c["f"]) for c in lines), 1e-12))
    keep = np.flatnonzero(inside)[evenly(int(inside.sum()), MOST)]
    known = law.units[law.positions + line[0]]
    return {
        **line_names(law, line), "force": FORCE.get(law.units[line[0]], "") if known else "",
        "v": digits(found.v[keep], high - low), "f": digits(found.force[keep], size),
        "mode": found.mode[keep].tolist(), "seconds": found.seconds, "medians": _medians(found, low, high, size),
        "curves": lines,
    }  # fmt: skip


def _medians(found: Left, low: float, high: float, size: float) -> dict[str, list]:
    """The median force in every bin of velocities of one sign that has enough bumps."""
    edge = max(abs(low), abs(high))
    bins = np.floor((found.v / edge + 1) * BINS / 2).astype(int)
    there = [bins == b for b in range(BINS) if (bins == b).sum() >= 5]
    v, f = (np.array([np.median(x[here]) for here in there]) for x in (found.v, found.force))
    return {"v": digits(v, high - low), "f": digits(f, size)}


def _curve(law: AnyLaw, line: Line, curve: Curve, low: float, high: float) -> dict[str, Any] | None:
    """The law's friction over the velocities that occur, with both sides of 0."""
    tiny = 1e-3 * max(abs(low), abs(high))
    sides = [np.linspace(low, -tiny, 12)] * (low < -tiny and curve.sign <= 0)
    sides += [np.linspace(tiny, high, 12)] * (high > tiny and curve.sign >= 0)
    if not sides:
        return None
    v = np.concatenate(sides)
    return {
        "mode": curve.mode, "v": v.tolist(), "f": friction_force(law, curve.mode, line, v).tolist(),
        "words": _words(law, line, curve),
    }  # fmt: skip


def _words(law: AnyLaw, line: Line, curve: Curve) -> str:
    """The friction as a formula of v."""
    if isinstance(law, LagrangeLaw):
        plain = [(i, replace(t, axis=0, other=None)) for i, t in _rubs(law, line)]
        return summed([(law.number(i), t.text(["v"], speed=fading_speed(law, i))) for i, t in plain])
    dry = _dry(law, curve.mode, line[0])
    pieces = [(Number(dry, 0.0), "")] * (dry != 0) + [(law.dissipation(curve.mode)[line[0]], "v")]
    return summed([(n._replace(value=float(f"{n.value:.4g}")), words) for n, words in pieces if n.value])
