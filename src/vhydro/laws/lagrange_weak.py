"""Lagrange's equations in weak form: M(q), V(q) and friction from positions alone, inertia that couples included.

A bump φ turns `∫φ d/dt(∂T/∂v)` into `−∫φ' ∂T/∂v`, and for a constant inertia into `∫φ'' q` of the raw positions. Least
squares on that equation would be attenuated: every column of M carries the noise, the known input none. What is
minimised is the same residual in units of acceleration, `M(q)⁻¹ A θ`, whitened by what sensor noise leaves in `∫φ'' q`.
"""

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np

from vhydro.lagrangian import Friction, Inertia, LagrangeEntry, Lagrangian, Potential, Remainder, Shape
from vhydro.laws.tracks import Tracks
from vhydro.laws.weak import Bumps, bent, bumps

Kind = Literal["length", "angle"]
STEPS = 12  # of Gauss–Newton
FEWEST_SEEN = 0.5  # of the samples under a bump


class Candidates(NamedTuple):
    """What M, V and friction may be made of."""

    inertia: tuple[Inertia, ...]
    potential: tuple[Potential, ...]
    friction: tuple[Friction, ...]


def lagrange_candidates(kinds: tuple[Kind, ...]) -> Candidates:
    """The default terms of one or more positions: an angle gets sine and cosine, a length its powers.

    Angles may be absolute (`cos(q1 − q2)`) or of joint after joint (`cos(q2)` in M11 and M12).
    """
    n, axes = len(kinds), range(len(kinds))

    def powers(*which: int) -> Shape:
        return Shape(tuple(which.count(i) for i in axes))

    def wave(kind: Literal["sin", "cos"], *along: tuple[int, int], times: tuple[int, ...] = ()) -> Shape:
        turn = tuple(dict(along).get(i, 0) for i in axes)
        return Shape(tuple(times.count(i) for i in axes), kind, turn)

    inertia, potential, friction = [], [], []
    for i in axes:
        angle = kinds[i] == "angle"
        inertia.append(Inertia(i, i, powers()))
        if n == 1:
            own = [wave("cos", (i, 1)), wave("sin", (i, 1)), wave("cos", (i, 2))] if angle else []
            inertia += [Inertia(i, i, s) for s in (own or [powers(i), powers(i, i)])]
        own = [wave("sin", (i, 1)), wave("cos", (i, 1))] if angle else [powers(i, i, i), powers(i, i, i, i)]
        potential += [Potential(s) for s in (powers(i), powers(i, i), *own)]
        friction += [Friction(kind, i) for kind in ("viscous", "Coulomb", "quadratic")]
    for i, j in combinations(axes, 2):
        inertia.append(Inertia(i, j, powers()))
        potential.append(Potential(powers(i, j)))
        if kinds[i] == kinds[j]:
            friction.append(Friction("viscous", i, j))
        if kinds[i] == kinds[j] == "angle":
            turned = wave("cos", (j, 1))
            inertia += [Inertia(i, j, wave("cos", (i, 1), (j, -1))), Inertia(i, i, turned), Inertia(i, j, turned)]
            potential += [Potential(wave("cos", (i, 1), (j, k))) for k in (1, -1)]
        elif kinds[i] != kinds[j]:
            a, q = (i, j) if kinds[i] == "angle" else (j, i)
            inertia += [Inertia(i, j, wave("cos", (a, 1))), Inertia(i, j, wave("sin", (a, 1)))]
            inertia += [Inertia(a, a, powers(q)), Inertia(a, a, powers(q, q))]
            potential += [Potential(wave(w, (a, 1), times=(q,))) for w in ("cos", "sin")]
    return Candidates(tuple(inertia), tuple(potential), tuple(friction))


@dataclass(frozen=True)
class LagrangeRows:
    """The weak form's rows: `design @ theta` is 0 up to noise, theta having 1 in place of what a known input is."""

    form: Lagrangian
    design: np.ndarray  # (bumps, positions, entries)
    shapes: np.ndarray  # (bumps, inertia terms): at the middle of every bump
    scale: np.ndarray  # (positions,): what sensor noise leaves in ∫φ'' q
    where: np.ndarray  # (bumps, 2): episode and first sample
    half_width: int

    @property
    def number(self) -> int:
        return self.design.shape[0] * self.design.shape[1]

    def only(self, kept: np.ndarray) -> "LagrangeRows":
        """Some of the bumps."""
        return replace(self, design=self.design[kept], shapes=self.shapes[kept], where=self.where[kept])

    def masses(self, theta: np.ndarray) -> np.ndarray:
        """M under every bump: (bumps, positions, positions)."""
        out = np.zeros((len(self.design), *2 * (self.form.positions,)))
        for k, t in enumerate(self.form.inertia):
            out[:, t.row, t.column] += theta[k] * self.shapes[:, k]
            if t.row != t.column:
                out[:, t.column, t.row] += theta[k] * self.shapes[:, k]
        return out

    def residuals(self, theta: np.ndarray) -> np.ndarray | None:
        """(bumps, positions) in units of what noise leaves; None where M is not positive definite."""
        mass = self.masses(theta)
        if not np.isfinite(mass).all() or np.linalg.eigvalsh(mass)[:, 0].min() <= 0:
            return None
        return np.linalg.solve(mass, (self.design @ theta)[..., None])[..., 0] / self.scale

    def jacobian(self, theta: np.ndarray, active: np.ndarray) -> np.ndarray:
        """The residuals' slopes by the active parameters: (bumps · positions, active)."""
        inverse = np.linalg.inv(self.masses(theta))
        acceleration = inverse @ (self.design @ theta)[..., None]
        slopes = inverse @ self.design
        for k, t in enumerate(self.form.inertia):
            own = np.zeros((self.form.positions, self.form.positions))
            own[t.row, t.column] = own[t.column, t.row] = 1.0
            slopes[..., k] -= (inverse @ own @ acceleration)[..., 0] * self.shapes[:, k, None]
        return (slopes[..., active] / self.scale[:, None]).reshape(-1, int(active.sum()))


def lagrange_rows(form: Lagrangian, tracks: Tracks, on: np.ndarray, half_width: int) -> LagrangeRows:
    """The rows of all bumps that lie in what moves; `on` (episodes, times, contacts) is every contact's share."""
    phi, dt = bumps(half_width, tracks.dt), tracks.dt
    x = np.moveaxis(tracks.filled, -1, 0)
    z = tracks.states
    q, v = z[: form.positions], z[form.positions :]
    window = np.arange(0, x.shape[-1] - 2 * half_width, max(half_width // 2, 1))[:, None] + np.arange(
        2 * half_width + 1
    )
    design = np.zeros((x.shape[1], len(window), form.positions, len(form.entries)))
    for k, e in enumerate(form.entries):
        for axis in range(form.positions):
            design[..., axis, k] = _column(form, e, axis, x, q, v, tracks, on, window, phi)
    moves = np.isin(np.argmax(tracks.modes, -1), form.resting, invert=True)
    usable = np.asarray(moves & (tracks.modes.sum(-1) > 0))
    seen = np.asarray(np.isfinite(tracks.positions).all(-1))
    good = usable[:, window].all(-1) & (seen[:, window].mean(-1) > FEWEST_SEEN) & np.isfinite(design).all((2, 3))
    middle = window[:, half_width]
    shapes = np.stack([np.broadcast_to(t.shape.value(q), q[0].shape)[:, middle] for t in form.inertia], -1)
    episode, place = np.nonzero(good)
    scale = tracks.noise * np.sqrt(np.sum(phi.second**2)) * dt
    where = np.stack([episode, window[place, 0]], -1)
    return LagrangeRows(form, design[good], shapes[good], scale, where, half_width)


def _column(form: Lagrangian, e: LagrangeEntry, axis: int, x, q, v, tracks: Tracks, on, window, phi: Bumps):
    """One parameter's column in the equation of one position: (episodes, bumps)."""
    dt, t = tracks.dt, e.term
    nothing = np.zeros((x.shape[1], len(window)))

    def under(values: Any) -> np.ndarray:
        return np.broadcast_to(values, x[0].shape)[:, window] @ phi.value * dt

    if isinstance(t, Inertia):
        return _inertia(t, axis, x, q, v, window, phi, dt, nothing)
    if isinstance(t, Potential):
        return under(t.shape.slope(q, axis))
    if isinstance(t, Friction):
        weight = dict(t.weights).get(axis, 0.0)
        if not weight:
            return nothing
        if t.kind == "viscous":
            return -weight * sum(w * x[i][:, window] @ phi.first for i, w in t.weights) * dt
        return weight * under(t.force(v, form.creep))
    if isinstance(t, Remainder):
        return under(t.value(q, v)) if t.axis == axis else nothing
    if e.kind == "speed":  # of a friction whose column has it in it
        return nothing
    if e.kind == "port":
        return -tracks.actions[:, window[:, :-1], e.column] @ phi.held if e.axis == axis else nothing
    guard = form.blocks[e.block].guard
    weight = dict(guard.weights).get(axis, 0.0)
    if not weight:
        return nothing
    # In place of a surface's place the weak form has a constant force: `k (s − place)` is linear in k and k · place.
    felt = {"stiffness": guard.along(q), "damping": guard.along(v), "place": -np.ones_like(q[0])}[e.kind]
    return weight * under(on[..., e.block] * felt)


def _inertia(t: Inertia, axis: int, x, q, v, window, phi: Bumps, dt: float, nothing: np.ndarray) -> np.ndarray:
    """`−∫φ' ∂T/∂v − ∫φ ∂T/∂q` of one term of M; a constant one takes raw positions."""
    out = nothing.copy()
    pairs = {(t.row, t.column), (t.column, t.row)}
    for row, column in pairs:
        if row != axis:
            continue
        if t.shape.constant:
            out += bent(x[column][:, window], phi) * dt
        else:
            out -= (t.shape.value(q) * v[column])[:, window] @ phi.first * dt
    if not t.shape.constant:
        slope = t.shape.slope(q, axis)
        share = 0.5 if t.row == t.column else 1.0
        out -= share * np.broadcast_to(slope * v[t.row] * v[t.column], x[0].shape)[:, window] @ phi.value * dt
    return out


class LagrangeFit(NamedTuple):
    """Parameters on a support."""

    theta: np.ndarray
    support: np.ndarray
    cost: float

    def score(self, rows: LagrangeRows) -> float:
        """The extended BIC: smaller is better."""
        return rows.number * np.log(max(self.cost, 1e-300) / rows.number) + penalty(rows) * self.support.sum()


def penalty(rows: LagrangeRows) -> float:
    """The price of one parameter: it pays for the data's size and for how many were on offer."""
    return float(np.log(rows.number) + 2 * np.log(max(rows.form.optional.sum(), 1)))


def least_squares(rows: LagrangeRows, support: np.ndarray) -> np.ndarray:
    """Parameters to start from: least squares on the forces, attenuated as it is, with masses made positive."""
    form, known = rows.form, np.nan_to_num(rows.form.known)
    active = support & form.free
    columns = (rows.design / rows.scale[:, None]).reshape(-1, len(known))
    size = np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    theta = known.copy()
    theta[active] = np.linalg.lstsq(columns[:, active] / size[active], -columns @ known, rcond=1e-10)[0] / size[active]
    if rows.residuals(theta) is None:
        for k, t in enumerate(form.inertia):
            own = t.row == t.column and t.shape.constant
            if form.free[k]:
                theta[k] = max(abs(theta[k]), 1e-6) if own else 0.0
    return np.where(support, theta, known)


def gauss_newton(rows: LagrangeRows, theta: np.ndarray, support: np.ndarray, steps: int = STEPS) -> LagrangeFit:
    """The fit on a support, from parameters whose M is positive definite."""
    active, damping = support & rows.form.free, 1e-6
    theta = np.where(rows.form.free, np.where(support, theta, 0.0), rows.form.known)
    left = rows.residuals(theta)
    if left is None:
        theta = least_squares(rows, support)
        left = rows.residuals(theta)
        if left is None:
            return LagrangeFit(theta, support, np.inf)
    cost = float(np.sum(left**2))
    for _ in range(steps if active.any() else 0):
        slopes = rows.jacobian(theta, active)
        size = np.maximum(np.linalg.norm(slopes, axis=0), 1e-300)
        gram, right = (slopes / size).T @ (slopes / size), (slopes / size).T @ left.ravel()
        for _ in range(8):
            change = np.linalg.solve(gram + (damping + 1e-12) * np.eye(len(gram)), -right) / size
            tried = theta.copy()
            tried[active] += change
            after = rows.residuals(tried)
            if after is not None and np.sum(after**2) <= cost:
                break
            damping = 10 * damping + 1e-4
        else:
            break
        gain = cost - float(np.sum(after**2))
        theta, left, cost, damping = tried, after, cost - gain, 0.1 * damping
        if gain < 1e-6 * cost:
            break
    return LagrangeFit(theta, support, cost)


def selected(rows: LagrangeRows) -> LagrangeFit:
    """The best support found: backward elimination, then single additions, removals and exchanges, by BIC."""
    form = rows.form
    moved = np.abs(rows.design).max((0, 1)) > 0
    support = form.free & (moved | ~form.optional)
    now = gauss_newton(rows, least_squares(rows, support), support)
    needed = np.zeros_like(support)  # without which M would not be positive definite
    while (weakest := _weakest(rows, now, needed)) is not None:
        fewer = now.support.copy()
        fewer[weakest] = False
        tried = gauss_newton(rows, np.where(fewer, now.theta, 0.0), fewer, 5)
        needed[weakest] = not np.isfinite(tried.cost)
        now = now if needed[weakest] else tried
    for _ in range(20):
        others = [gauss_newton(rows, now.theta, s, 4) for s in _neighbours(form, now.support, moved)]
        physical = [o for o in others if np.isfinite(o.cost) and not _unphysical(form, o).any()]
        best = min(physical, key=lambda o: o.score(rows), default=now)
        if best.score(rows) >= now.score(rows) - 1e-6 and not _unphysical(form, now).any():
            break
        now = gauss_newton(rows, best.theta, best.support)
    return gauss_newton(rows, now.theta, now.support)


def _unphysical(form: Lagrangian, fit: LagrangeFit) -> np.ndarray:
    """Frictions and dampings that give energy, and masses that are not positive."""
    takes = np.array([e.kind in ("friction", "damping") for e in form.entries])
    return takes & fit.support & (fit.theta < 0)


def _weakest(rows: LagrangeRows, fit: LagrangeFit, needed: np.ndarray) -> int | None:
    """The entry that the fit misses least, if it costs more than it gains; a friction that gives energy before all."""
    active = fit.support & rows.form.free
    if not (active & rows.form.optional).any():
        return None
    slopes = rows.jacobian(fit.theta, active)
    size = np.maximum(np.linalg.norm(slopes, axis=0), 1e-300)
    inverse = np.linalg.pinv((slopes / size).T @ (slopes / size), rcond=1e-12, hermitian=True)
    spread = np.maximum(np.diag(inverse), 1e-300)
    wald = np.full(len(fit.theta), np.inf)
    wald[active] = (fit.theta[active] * size) ** 2 / spread / max(fit.cost / rows.number, 1e-300)
    wald = np.where(rows.form.optional & active & ~needed, wald, np.inf)
    negative = _unphysical(rows.form, fit) & rows.form.optional & ~needed
    if negative.any():
        return int(np.argmin(np.where(negative, wald, np.inf)))
    weakest = int(np.argmin(wald))
    return weakest if wald[weakest] < penalty(rows) else None


def _neighbours(form: Lagrangian, support: np.ndarray, moved: np.ndarray) -> list[np.ndarray]:
    """All supports one addition, removal or exchange of like terms away."""
    optional = form.optional & moved
    inside, outside = np.flatnonzero(optional & support), np.flatnonzero(optional & ~support)
    moves = [(i,) for i in (*inside, *outside)]
    moves += [(i, j) for i in inside for j in outside if form.entries[i].kind == form.entries[j].kind]
    out = np.tile(support, (len(moves), 1))
    for row, move in zip(out, moves, strict=True):
        row[list(move)] ^= True
    return list(out)


def share_past(surface: np.ndarray, place: float, sign: float) -> np.ndarray:
    """The share of every sample's own interval that is past a place: (episodes, times)."""
    depth = sign * (surface - place)
    half = 0.5 * (depth[:, 1:] + depth[:, :-1])
    before = np.concatenate([depth[:, :1], half], 1)
    after = np.concatenate([half, depth[:, -1:]], 1)

    def part(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        high, low = np.maximum(a, b), np.minimum(a, b)
        return np.clip(high / np.maximum(high - low, 1e-300), 0.0, 1.0) * (high > 0)

    return 0.5 * (part(before, depth) + part(depth, after))
