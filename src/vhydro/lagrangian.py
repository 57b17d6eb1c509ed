"""Lagrange's equations up to their parameters: `M(q) v̇ + Ṁ v − ½ ∂(vᵀ M v)/∂q + ∂V/∂q + friction = B a`.

M, V and friction are sums of candidate terms, one parameter each. What is written here is what is printed, simulated,
filtered with and planned on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

Columns = Any  # one array, or number, for each coordinate, parameter or contact: a sequence, or an array's first axis


@dataclass(frozen=True)
class Shape:
    """A function of the positions: `Π q_i^powers[i] · wave(Σ along[i] q_i)`; no wave leaves the powers alone."""

    powers: tuple[int, ...]
    wave: Literal["", "sin", "cos"] = ""
    along: tuple[int, ...] = ()

    @property
    def constant(self) -> bool:
        return not self.wave and not any(self.powers)

    def value(self, q: Columns) -> Any:
        """At positions, NumPy's or JAX's."""
        return self._power(q, self.powers) * self._waved(q, 0)

    def slope(self, q: Columns, axis: int) -> Any:
        """Its derivative along one position; 0.0 where it never depends on it."""
        out: Any = 0.0
        if self.powers[axis]:
            lowered = tuple(n - (i == axis) for i, n in enumerate(self.powers))
            out = out + self.powers[axis] * self._power(q, lowered) * self._waved(q, 0)
        if self.wave and self.along[axis]:
            out = out + self.along[axis] * self._power(q, self.powers) * self._waved(q, 1)
        return out

    def _power(self, q: Columns, powers: tuple[int, ...]) -> Any:
        out: Any = 1.0
        for x, n in zip(q, powers, strict=True):
            out = out * x**n if n else out
        return out

    def _waved(self, q: Columns, derivative: int) -> Any:
        """The wave, or its derivative by its argument."""
        if not self.wave:
            return 1.0
        angle = sum(k * x for k, x in zip(self.along, q, strict=True) if k)
        of = np if isinstance(angle, np.ndarray | float) else jnp
        if derivative:
            return of.cos(angle) if self.wave == "sin" else -of.sin(angle)
        return of.sin(angle) if self.wave == "sin" else of.cos(angle)

    def text(self, names: Sequence[str], *, latex: bool = False) -> str:
        """As it is written; empty for 1."""
        parts = [f"{x}^{n}" if n > 1 else x for x, n in zip(names, self.powers, strict=True) if n]
        if self.wave:
            parts.append(f"\\{self.wave}({_combination(names, self.along)})" if latex else self._wave_text(names))
        return " ".join(parts)

    def _wave_text(self, names: Sequence[str]) -> str:
        return f"{self.wave}({_combination(names, self.along)})".replace(" - ", " − ")

    def code(self, variables: Sequence[str]) -> str:
        """As an expression of C or Python; `sin` and `cos` are those of the language."""
        parts = [x for x, n in zip(variables, self.powers, strict=True) for _ in range(n)]
        if self.wave:
            angle = " + ".join(f"{k} * {x}" for x, k in zip(variables, self.along, strict=True) if k)
            parts.append(f"{self.wave}({angle})")
        return " * ".join(parts) or "1.0"


def _combination(names: Sequence[str], along: Sequence[int]) -> str:
    """`q1 - q2` and the like."""
    out = ""
    for name, k in zip(names, along, strict=True):
        if k:
            size = "" if abs(k) == 1 else f"{abs(k)} "
            out += f" {'-' if k < 0 else '+'} {size}{name}" if out else f"{'-' if k < 0 else ''}{size}{name}"
    return out


@dataclass(frozen=True)
class Surface:
    """A contact is on where a position, or the difference of two, is past a place, which is a parameter."""

    axis: int
    side: Literal["above", "below"]
    other: int | None = None  # the position that is taken off

    @property
    def sign(self) -> float:
        return 1.0 if self.side == "above" else -1.0

    def along(self, z: Columns) -> Any:
        """The coordinate, or of velocities its rate."""
        return z[self.axis] if self.other is None else z[self.axis] - z[self.other]

    @property
    def weights(self) -> tuple[tuple[int, float], ...]:
        """Along which positions it pushes, and which way."""
        return ((self.axis, 1.0),) if self.other is None else ((self.axis, 1.0), (self.other, -1.0))


def impulse_along(surface: Surface, positions: int) -> tuple[float, ...]:
    """An impulse of one along a surface: what it is on every position."""
    return tuple(dict(surface.weights).get(i, 0.0) for i in range(positions))


@dataclass(frozen=True)
class Reversal:
    """Where a velocity, or the difference of two, changes its sign."""

    positions: int
    axis: int
    other: int | None = None
    sign: float = 1.0

    def along(self, z: Columns) -> Any:
        """The velocity, or of rates its acceleration."""
        first = z[self.positions + self.axis]
        return first if self.other is None else first - z[self.positions + self.other]


@dataclass(frozen=True)
class Touch:
    """A contact: the mode it is, and its surface. It adds a spring and a damper along its own coordinate."""

    mode: int
    guard: Surface


@dataclass(frozen=True)
class Friction:
    """A force against a velocity, or against the difference of two: `c u`, `c sign u`, `c |u| u`, `c sign u e^−|u|/s`.

    The last is Stribeck's, what dry friction is more at a standstill than in motion; its s is a parameter of its own.
    """

    kind: Literal["viscous", "Coulomb", "quadratic", "Stribeck"]
    axis: int
    other: int | None = None
    speed: float | None = None  # of Stribeck's: where the search for s began

    @property
    def is_dry(self) -> bool:
        """Whether it changes its sign at once where the velocity does."""
        return self.kind in ("Coulomb", "Stribeck")

    @property
    def weights(self) -> tuple[tuple[int, float], ...]:
        return ((self.axis, 1.0),) if self.other is None else ((self.axis, 1.0), (self.other, -1.0))

    def along(self, v: Columns) -> Any:
        """The velocity that it acts against."""
        return v[self.axis] if self.other is None else v[self.axis] - v[self.other]

    def force(self, v: Columns, creep: Columns, speed: Any = None) -> Any:
        """What its parameter is multiplied by; below `creep` a velocity counts as none, gradually."""
        u = self.along(v)
        of = np if isinstance(u, np.ndarray | float) else jnp
        if self.kind == "viscous":
            return u
        if self.kind == "quadratic":
            return of.abs(u) * u
        sign = u / of.sqrt(u * u + creep[self.axis] ** 2)
        return sign if self.kind == "Coulomb" else sign * self.fading(u, self.speed if speed is None else speed)

    def fading(self, u: Any, speed: Any) -> Any:
        """`e^−|u|/s`."""
        of = np if isinstance(u, np.ndarray | float) else jnp
        return of.exp(-of.abs(u) / speed)

    def text(self, names: Sequence[str], *, latex: bool = False, speed: str = "s") -> str:
        u = names[self.axis] if self.other is None else f"({names[self.axis]} - {names[self.other]})"
        plain = u.strip("()")
        sign = f"\\operatorname{{sign}}({plain})" if latex else f"sign({plain})"
        fades = f"{sign} e^{{-|{plain}|/{speed}}}" if latex else f"{sign} exp(−|{plain}|/{speed})"
        out = {"viscous": u, "Coulomb": sign, "quadratic": f"|{plain}| {u}", "Stribeck": fades}[self.kind]
        return out if latex else out.replace(" - ", " − ")


@dataclass(frozen=True)
class Remainder:
    """`shape(q) v^power` against the motion along one position, of either sign: what no port-Hamiltonian law has."""

    axis: int
    shape: Shape
    power: int = 1

    def value(self, q: Columns, v: Columns) -> Any:
        """What its parameter is multiplied by."""
        return self.shape.value(q) * v[self.axis] ** self.power

    def text(self, q: Sequence[str], v: Sequence[str], *, latex: bool = False) -> str:
        u = v[self.axis] if self.power == 1 else f"{v[self.axis]}^{self.power}"
        return f"{self.shape.text(q, latex=latex)} {u}".strip()


@dataclass(frozen=True)
class Inertia:
    """`shape(q)` in row and column of M, and in column and row."""

    row: int
    column: int
    shape: Shape


@dataclass(frozen=True)
class Potential:
    """`shape(q)` in V."""

    shape: Shape


LagrangeTerm = Inertia | Potential | Friction | Remainder


class LagrangeEntry(NamedTuple):
    """One parameter."""

    kind: Literal["inertia", "potential", "friction", "speed", "remainder", "port", "stiffness", "damping", "place"]
    block: int = -1  # of a contact
    term: LagrangeTerm | None = None
    axis: int = 0  # of a port, or of the friction that a speed is of …
    column: int = 0  # … and the port's input
    is_kinetic: bool = False


@dataclass(frozen=True)
class Lagrangian:
    """Equations of motion up to their parameters; `entries` names each, in order. z is (positions, velocities)."""

    positions: int
    inputs: int
    base: int  # the mode that has no contact
    inertia: tuple[Inertia, ...]
    potential: tuple[Potential, ...]
    friction: tuple[Friction, ...]
    blocks: tuple[Touch, ...]
    known_inertia: tuple[float | None, ...]  # one for each term; None where estimated
    known_friction: tuple[float | None, ...]
    known_port: tuple[tuple[float | None, ...], ...]  # rows of the positions
    creep: tuple[float, ...]  # velocities that count as none for Coulomb friction
    resting: tuple[int, ...] = ()
    dry: tuple[int, ...] = ()  # entries of dry friction that are switched where a velocity reverses; others creep
    additive: bool = True
    remainder: tuple[Remainder, ...] = ()  # offered only where it was asked for

    @cached_property
    def entries(self) -> tuple[LagrangeEntry, ...]:
        out = [LagrangeEntry("inertia", term=t) for t in self.inertia]
        out += [LagrangeEntry("potential", term=t) for t in self.potential]
        out += [LagrangeEntry("friction", term=t) for t in self.friction]
        out += [LagrangeEntry("speed", axis=t.axis) for t in self.friction if t.kind == "Stribeck"]
        out += [LagrangeEntry("remainder", term=t) for t in self.remainder]
        axes = range(self.positions)
        out += [LagrangeEntry("port", axis=i, column=j) for i in axes for j in range(self.inputs)]
        for b in range(len(self.blocks)):
            out += [LagrangeEntry("stiffness", b), LagrangeEntry("damping", b), LagrangeEntry("place", b)]
        return tuple(out)

    @cached_property
    def places(self) -> dict[int, int]:
        """Where the place of every contact stands among the entries."""
        return {e.block: i for i, e in enumerate(self.entries) if e.kind == "place"}

    @cached_property
    def speeds(self) -> dict[int, int]:
        """Where the speed of every Stribeck friction stands among the entries, by where the friction does."""
        first = len(self.inertia) + len(self.potential)
        which = [first + i for i, t in enumerate(self.friction) if t.kind == "Stribeck"]
        return {i: first + len(self.friction) + k for k, i in enumerate(which)}

    @cached_property
    def known(self) -> np.ndarray:
        """The value of every entry that is known beforehand; NaN of the others."""
        given = [*self.known_inertia, *(None for _ in self.potential), *self.known_friction]
        given += [None] * (len(self.speeds) + len(self.remainder))
        given += [x for row in self.known_port for x in row]
        given += [None] * (3 * len(self.blocks))
        return np.array([np.nan if x is None else x for x in given], float)

    @property
    def free(self) -> np.ndarray:
        """Which entries are estimated."""
        return np.isnan(self.known)

    @cached_property
    def optional(self) -> np.ndarray:
        """Which entries the equations may do without."""
        own = {t for t in self.inertia if t.row == t.column and self._alone(t)}
        kinds = ("inertia", "potential", "friction", "remainder", "port", "damping")
        return np.array([e.kind in kinds and e.term not in own for e in self.entries]) & self.free

    def _alone(self, term: Inertia) -> bool:
        """Whether M has no other term along the diagonal where this one is."""
        return sum(t.row == t.column == term.row for t in self.inertia) == 1

    def of(self, kind: str, block: int = -1) -> list[int]:
        """Where the entries of one kind stand."""
        return [i for i, e in enumerate(self.entries) if e.kind == kind and e.block == block]

    def mass_matrix(self, theta: Columns, q: Columns) -> list[list[Any]]:
        """M at positions, as rows."""
        zero = 0.0 * q[0]
        out = [[zero for _ in range(self.positions)] for _ in range(self.positions)]
        for m, t in zip(theta, self.inertia, strict=False):
            part = m * t.shape.value(q)
            out[t.row][t.column] = out[t.row][t.column] + part
            if t.row != t.column:
                out[t.column][t.row] = out[t.column][t.row] + part
        return out

    def force(self, theta: Columns, on: Columns, q: Columns, v: Columns, action: Columns) -> list[Any]:
        """`M(q) v̇`: everything but the accelerations themselves, along every position."""
        n = self.positions
        out: list[Any] = [0.0 * q[i] for i in range(n)]
        for i, e in enumerate(self.entries):
            c, t = theta[i], e.term
            if isinstance(t, Inertia):
                self._add_bent(out, c, t, q, v)
            elif isinstance(t, Potential):
                for axis in range(n):
                    out[axis] = out[axis] - c * t.shape.slope(q, axis)
            elif isinstance(t, Friction):
                felt = c * self._rubbed(i, t, theta, on, v)
                for axis, w in t.weights:
                    out[axis] = out[axis] - w * felt
            elif isinstance(t, Remainder):
                out[t.axis] = out[t.axis] - c * t.value(q, v)
            elif e.kind == "port":
                out[e.axis] = out[e.axis] + c * action[e.column]
        for b, block in enumerate(self.blocks):
            k, c, place = (theta[self.of(kind, b)[0]] for kind in ("stiffness", "damping", "place"))
            push = on[b] * (k * (block.guard.along(q) - place) + c * block.guard.along(v))
            for axis, w in block.guard.weights:
                out[axis] = out[axis] - w * push
        return out

    @cached_property
    def switches(self) -> tuple[Surface | Reversal, ...]:
        """Everything that is on or off as things move: contacts, then the directions of dry friction."""
        return (*(b.guard for b in self.blocks), *(Reversal(self.positions, *way) for way in self._ways))

    @cached_property
    def _ways(self) -> tuple[tuple[int, int | None], ...]:
        """The velocities whose reversals switch dry friction: one may have several terms of it."""
        rubs = [self.entries[i].term for i in self.dry]
        return tuple(dict.fromkeys((t.axis, t.other) for t in rubs if isinstance(t, Friction)))

    def _rubbed(self, index: int, t: Friction, theta: Columns, on: Columns, v: Columns) -> Any:
        """What a friction's parameter is multiplied by; which way a dry one acts is what its switch says."""
        speed = theta[self.speeds[index]] if index in self.speeds else None
        if index not in self.dry or len(on) <= len(self.blocks):
            return t.force(v, self.creep, speed)
        way = 2.0 * on[len(self.blocks) + self._ways.index((t.axis, t.other))] - 1.0
        return way if speed is None else way * t.fading(t.along(v), speed)

    def _add_bent(self, out: list, m: Any, t: Inertia, q: Columns, v: Columns) -> None:
        """What one term of M adds beside the accelerations: `½ ∂(vᵀ M v)/∂q − Ṁ v`."""
        if t.shape.constant:
            return
        slopes = [t.shape.slope(q, axis) for axis in range(self.positions)]
        rate = sum(s * u for s, u in zip(slopes, v, strict=True))
        out[t.row] = out[t.row] - m * rate * v[t.column]
        if t.row != t.column:
            out[t.column] = out[t.column] - m * rate * v[t.row]
        share = 0.5 if t.row == t.column else 1.0
        for axis, s in enumerate(slopes):
            out[axis] = out[axis] + share * m * s * v[t.row] * v[t.column]

    def field(self, theta: Columns, on: Columns, z: Columns, action: Columns) -> tuple[Any, ...]:
        """ż with some of the contacts on."""
        n = self.positions
        q, v = z[:n], z[n:]
        return (*v, *solved(self.mass_matrix(theta, q), self.force(theta, on, q, v, action)))

    def stiffest(self, theta: np.ndarray) -> float:
        """The highest rate in rad/s that a contact makes things swing with, or dry friction that creeps stops them."""
        springs = [float(theta[self.of("stiffness", b)[0]]) for b in range(len(self.blocks))]
        masses = [
            float(theta[i])
            for i, t in enumerate(self.inertia)
            if t.row == t.column and t.shape.constant and theta[i] > 0
        ]
        lightest = min(masses, default=np.inf)
        dry = [
            float(theta[i]) / self.creep[e.term.axis]
            for i, e in enumerate(self.entries)
            if isinstance(e.term, Friction) and e.term.is_dry and i not in self.dry
        ]
        # Dry friction only slows things down: a step may be five times as long as for a spring.
        return float(max(np.sqrt(max([*springs, 0.0]) / lightest), 0.2 * max([*dry, 0.0]) / lightest))


def solved(matrix: list[list[Any]], right: list[Any]) -> list[Any]:
    """The solution of a small positive definite system, written out so that entries may be arrays of any shape."""
    rows, right = [list(row) for row in matrix], list(right)
    n = len(right)
    for i in range(n):
        for j in range(i + 1, n):
            factor = rows[j][i] / rows[i][i]
            rows[j] = [b - factor * a for a, b in zip(rows[i], rows[j], strict=True)]
            right[j] = right[j] - factor * right[i]
    out: list[Any] = [0.0] * n
    for i in reversed(range(n)):
        rest = sum((rows[i][j] * out[j] for j in range(i + 1, n)), 0.0)
        out[i] = (right[i] - rest) / rows[i][i]
    return out


def follows(form: Lagrangian, theta: Columns, q: Columns, surface: Surface) -> tuple[Any, ...]:
    """How all velocities follow an impulse of one along a surface."""
    impulse = [0.0 * q[0] + x for x in impulse_along(surface, form.positions)]
    return tuple(solved(form.mass_matrix(theta, q), impulse))
