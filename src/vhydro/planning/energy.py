"""How much energy a plan can put into a law: bounds that hold where positions carry no dissipation.

One storage function U ≥ ½ m v² for all modes: kinetic energy, the base law's potential, the springs of contacts.
Sliding friction is dissipation, not energy. Paper: Thm 4, the energy part. Differs: its constants need R ⪰ r I with
r > 0, and positions have none, so that C_E is infinite and α is 0; the forms here use friction on momenta alone.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import jax.numpy as jnp
import numpy as np

from vhydro.laws.as_model import masses
from vhydro.laws.form import is_kinetic
from vhydro.library import Monomial, Penetration, Term, slope

if TYPE_CHECKING:
    from vhydro.laws.law import Law

POINTS = 4001  # of a grid over each position of the region
RATES = np.concatenate([[0.0], np.geomspace(1e-3, 30.0, 60)])  # 1/s: the α that are tried


@dataclass(frozen=True)
class EnergyBound:
    """Bounds on the expected energy at the end of a plan, or when it leaves the region; `bound` is the least, in J."""

    start: float
    own_actions: float  # U₀ + cT + ∫ a²/4f
    root: float  # (√(U₀ + cT) + ∫ |a|/√2m)²
    general: float  # e^(−αT) U₀ + ∫ C(α) e^(−α(T−t)) dt for the best α
    rate: float  # that α
    theorem: tuple[float, float, float]  # r, C_E and α by the paper's own constants
    notes: tuple[str, ...]

    @property
    def bound(self) -> float:
        return min(self.own_actions, self.root, self.general)

    def chance_above(self, energy: float) -> float:
        """A bound on the chance that the energy ever reaches so much: what drives it only adds (a supermartingale)."""
        return min(1.0, self.own_actions / energy)


@dataclass(frozen=True)
class Storage:
    """One energy for all modes of a law, over a region of its positions."""

    mass: np.ndarray
    terms: tuple[tuple[Term, float], ...]  # of the potential
    least: float  # of the potential in the region
    most: float
    steepest: np.ndarray  # the largest slope of the potential along every position in the region
    friction: np.ndarray  # (modes, positions) on the velocities

    def __call__(self, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        """The energy of states (positions, …) and (positions, …)."""
        kinetic = 0.5 * np.tensordot(self.mass, v**2, axes=1)
        return kinetic + _potential(self.terms, q) - self.least


def storage(law: "Law", region: dict[str, tuple[float, float]]) -> Storage:
    """The one storage function of a law, or an error that says which mode has none."""
    n, mass = law.positions, masses(law)
    box = _box(law, region)
    sliding = {b.mode: b for b in law.form.blocks if b.guard is None}
    base = {t: c.value for t, c in law.energy(law.form.base).items() if not is_kinetic(t)}
    terms = dict(base)
    for mode, block in sliding.items():
        own = {t: c.value for t, c in law.energy(mode).items() if not is_kinetic(t)}
        apart = {t: own.get(t, 0.0) - base.get(t, 0.0) for t in {*own, *base}}
        line = Monomial(tuple(int(i == 0) for i in range(2 * n)))
        if n > 1 or any(abs(c) > 1e-9 for t, c in apart.items() if t != line):
            raise ValueError(
                f"mode {law.modes[block.mode]!r} differs from {law.modes[law.form.base]!r} by more than a constant "
                "force; expected sliding friction, or no energy serves both and a switch may create it."
            )
        _refuse_giving(law, mode, apart.get(line, 0.0))
        terms[line] = base.get(line, 0.0) + apart.get(line, 0.0) / 2  # the force that both directions share
    for block in law.form.blocks:
        if block.guard is not None:
            terms |= {t: c.value for t, c in law.energy(block.mode).items() if isinstance(t, Penetration)}
    kept = tuple((t, c) for t, c in terms.items() if c)
    grid, spacing = _grid(box)
    potential = _potential(kept, grid)
    steepest = np.stack([np.abs(_slope(kept, axis, grid)).max(initial=0.0) for axis in range(n)])
    between = float(steepest @ spacing) / 2  # by which the potential may pass its values on the grid
    friction = np.array(
        [[d.value for d in law.dissipation(m)] for m in range(len(law.modes)) if m not in law.form.resting]
    )
    return Storage(mass, kept, float(potential.min()) - between, float(potential.max()) + between, steepest, friction)


def _refuse_giving(law: "Law", mode: int, apart: float) -> None:
    """Raises if what tells two directions apart pushes the way things go."""
    ways = {m: sign for m, _, sign in (law.circumstances.directions if law.circumstances else ())}
    if mode not in ways:
        raise ValueError(f"nothing says which way mode {law.modes[mode]!r} moves; expected its direction, to tell "
                         "whether its friction takes energy.")  # fmt: skip
    if apart * ways[mode] < 0:  # H grows along the motion where friction takes energy
        raise ValueError(
            f"switching to {law.modes[mode]!r} gives energy: a force of {abs(apart) / 2:.3g} N along its own motion; "
            "expected one against it. The modes or their directions are wrong."
        )


def switch_rises(law: "Law", region: dict[str, tuple[float, float]]) -> list[tuple[str, str, float]]:
    """The changes of mode that raise the modes' own energy H − min H, each with the largest rise in the region, in J.

    A contact begins where its spring is slack and raises nothing. A mode at rest has no energy, and a direction's
    friction is a term of its H: those rise.
    """
    grid, _ = _grid(_box(law, region))
    own = []
    for mode in range(len(law.modes)):
        terms = tuple((t, c.value) for t, c in law.energy(mode).items() if not is_kinetic(t))
        values = _potential(terms, grid) if terms else np.zeros(grid.shape[1:])
        own.append(values - values.min())
    loose = [m for m in range(len(law.modes)) if not _touches(law, m)]
    pairs = [(i, j) for i in loose for j in loose if i != j and len(loose) > 1]
    rises = [(law.modes[i], law.modes[j], float((own[j] - own[i]).max())) for i, j in pairs]
    return [r for r in rises if r[2] > 1e-9 * max(1.0, max(x.max() for x in own))]


def energy_bound(
    law: "Law",
    actions: np.ndarray,
    dt: float,
    *,
    noise: np.ndarray | float,
    start: float,
    region: dict[str, tuple[float, float]],
    uses: Literal["one storage", "modes' own"] = "one storage",
) -> EnergyBound:
    """Bounds on the expected energy after these actions (steps, inputs), each held for dt seconds.

    `noise` is the process noise of every velocity, gathered in a second; `start` the expected energy at the start by
    `storage(law, region)`. The region is {name: (low, high)} of every position and, for the general form, of every
    `NAME velocity`; a path that leaves it has failed, and is bounded where it leaves.
    """
    if uses == "modes' own" and (rises := switch_rises(law, region)):
        before, after, joules = max(rises, key=lambda r: r[2])
        raise ValueError(
            f"switching from {before!r} to {after!r} raises the modes' own energy by up to {joules:.3g} J; expected "
            "switches that raise none. Use one storage for all modes."
        )
    held = storage(law, region)
    actions, seconds = np.atleast_2d(np.asarray(actions, np.float64)), len(actions) * dt
    heat = float(0.5 * held.mass @ np.broadcast_to(np.asarray(noise, np.float64) ** 2, held.mass.shape))  # c, in W
    push, carried = _pushes(law, actions)
    least, worst = held.friction.min(0), push.max(0)  # over modes
    notes = ["the theorem's own constants are r = 0 (positions carry no dissipation), C_E = ∞ and α = 0: no bound"]
    if (held.friction < 0).any():
        raise ValueError(
            f"the law has a friction of {held.friction.min():.3g}, which gives energy; expected none below 0."
        )
    own, root = np.inf, np.inf
    if carried.any():
        notes.append("an input moves a position, where R is 0: only the general form holds, inside the region")
    else:
        own = start + heat * seconds + dt * float(_over(worst**2, 4 * least).sum())
        impulse = dt * float(np.sqrt((worst**2).sum(1)).sum())
        root = (np.sqrt(start + heat * seconds) + impulse / np.sqrt(2 * held.mass.min())) ** 2
        if not np.isfinite(own):
            notes.append("a momentum has no friction in some mode: the form by own actions is infinite")
    general, rate = _general(law, held, push, carried, dt, heat, start, region)
    return EnergyBound(float(start), float(own), float(root), general, rate, (0.0, float("inf"), 0.0), tuple(notes))


def _general(law, held: Storage, push, carried, dt: float, heat: float, start: float, region) -> tuple[float, float]:
    """The general form for the best rate; infinite where the region does not bound velocities."""
    fastest = [max(map(abs, region.get(f"{q} velocity", (np.inf,)))) for q in law.coordinates[: law.positions]]
    best, at = np.inf, 0.0
    steps = push.shape[1]
    for rate in RATES:
        worst = np.stack(
            [_power(held.mass, d, p, np.array(fastest), rate) for d, p in zip(held.friction, push, strict=True)]
        )
        supply = worst.max(0) + carried @ held.steepest + heat + rate * (held.most - held.least)
        left = dt * np.arange(steps, 0, -1)
        weight = dt * np.ones(steps) if rate == 0 else (np.exp(-rate * (left - dt)) - np.exp(-rate * left)) / rate
        value = np.exp(-rate * steps * dt) * start + float(weight @ supply)
        if value < best:
            best, at = value, float(rate)
    return float(best), at


def _power(mass, friction, push, fastest, rate: float) -> np.ndarray:
    """sup over |v| ≤ fastest of −f v² + |push| |v| + rate ½ m v², summed over positions: (steps,)."""
    total = np.zeros(len(push))
    for i in range(len(mass)):
        bend = friction[i] - 0.5 * rate * mass[i]
        with np.errstate(invalid="ignore", divide="ignore"):
            top = np.where(bend > 0, np.minimum(push[:, i] / (2 * bend), fastest[i]), fastest[i])
            value = -bend * top**2 + push[:, i] * top
        total = total + np.where(np.isnan(value), 0.0 if bend == 0 else np.inf, np.maximum(value, 0.0))
    return total


def _pushes(law: "Law", actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The size of what inputs push every momentum with, (modes, steps, positions), and move positions by."""
    n = law.positions
    ports = [
        np.array([[g.value for g in row] for row in law.port(m)])
        for m in range(len(law.modes))
        if m not in law.form.resting
    ]
    push = np.stack([np.abs(actions @ port[n:].T) for port in ports])
    return push, np.stack([np.abs(actions @ port[:n].T) for port in ports]).max(0)


def _touches(law: "Law", mode: int) -> bool:
    return any(b.mode == mode and b.guard is not None for b in law.form.blocks)


def _over(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(above == 0, 0.0, above / below)


def _box(law: "Law", region: dict[str, tuple[float, float]]) -> list[tuple[float, float]]:
    lacking = [q for q in law.coordinates[: law.positions] if q not in region]
    if lacking:
        raise ValueError(f"the region says nothing of {', '.join(lacking)}; expected (low, high) of every position.")
    return [region[q] for q in law.coordinates[: law.positions]]


def _grid(box: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Points of the region, (positions, points), fewer along each of several positions; and their spacing."""
    count = POINTS if len(box) == 1 else round(POINTS ** (1 / len(box)) * 4)
    axes = [np.linspace(low, high, count) for low, high in box]
    mesh = np.stack([m.ravel() for m in np.meshgrid(*axes, indexing="ij")])
    return mesh, np.array([a[1] - a[0] for a in axes])


def _potential(terms, q: np.ndarray) -> np.ndarray:
    """Of positions (positions, …)."""
    out = np.zeros(q.shape[1:])
    for term, c in terms:
        out = out + c * _value(term, q)
    return out


def _value(term: Term, q: np.ndarray) -> np.ndarray:
    if isinstance(term, Monomial):
        return np.prod([q[i] ** p for i, p in enumerate(term.powers[: len(q)]) if p], axis=0)
    if isinstance(term, Penetration):
        return (
            np.maximum((q[term.axis] - term.at) * (1 if term.side == "above" else -1), 0.0) ** term.power / term.power
        )
    return np.asarray(term.value(jnp.asarray(np.concatenate([q, np.zeros_like(q)]))))


def _slope(terms, axis: int, q: np.ndarray) -> np.ndarray:
    out = np.zeros(q.shape[1:])
    z = np.concatenate([q, np.zeros_like(q)])
    for term, c in terms:
        pull = slope(term, axis, list(z))
        if isinstance(term, Penetration) and term.axis == axis:
            depth = (q[axis] - term.at) * (1 if term.side == "above" else -1)
            pull = np.where(depth > 0, pull, 0.0)
        out = out + c * pull
    return out
