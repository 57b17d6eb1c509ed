"""The physical constants a law holds, with units and intervals."""

from dataclasses import replace
from math import exp, pi, sqrt
from typing import Any, NamedTuple

import numpy as np

from vhydro.laws.law import Law, Number
from vhydro.library import Cosine, Monomial, Penetration, Term

GRAVITY = 9.81  # m/s²: what turns a friction force into a friction coefficient


class Constant(NamedTuple):
    """A physical constant: its value, its standard error, its unit, and the modes whose laws it is read from."""

    value: float
    error: float
    unit: str
    modes: tuple[int, ...] = ()

    @property
    def interval(self) -> tuple[float, float]:
        return Number(self.value, self.error).interval


def constants(law: Law) -> dict[str, Constant]:
    """Every constant that the law of its modes determines; their errors by the delta method."""
    found = _found(law)
    picked = np.flatnonzero(law.support & law.form.free)
    if not len(picked):
        return {name: Constant(value, 0.0, unit, modes) for name, (value, unit, modes) in found.items()}
    spread = np.sqrt(np.nan_to_num(np.diag(law.covariance)))[picked]
    steps = np.where(spread > 0, 1e-3 * spread, 1e-6 * np.abs(law.theta[picked]) + 1e-12)
    slopes = {name: np.zeros(len(picked)) for name in found}
    for k, (i, step) in enumerate(zip(picked.tolist(), steps, strict=True)):
        moved = _found(_moved(law, i, step))
        for name in found:
            slopes[name][k] = (moved[name][0] - found[name][0]) / step if name in moved else np.nan
    inner = law.covariance[np.ix_(picked, picked)]
    return {
        name: Constant(value, float(np.sqrt(max(slopes[name] @ inner @ slopes[name], 0.0))), unit, modes)
        for name, (value, unit, modes) in found.items()
    }


def is_identified(law: Any, constant: Constant) -> bool:
    """Whether no mode that a constant is read from is doubtful."""
    return not any(mode in constant.modes for mode, _ in law.problems)


def _moved(law: Law, index: int, step: float) -> Law:
    theta = law.theta.copy()
    theta[index] += step
    return replace(law, theta=theta)


Found = dict[str, tuple[float, str, tuple[int, ...]]]  # value, unit and the modes it is read from


def _found(law: Law) -> Found:
    out: Found = {}
    for axis in range(law.positions):
        out |= _of_axis(law, axis)
    for block in law.form.blocks:
        if block.guard is not None:
            out |= _of_contact(law, block.mode, block.guard.axis)
        else:
            out |= _of_sliding(law, block.mode)
    return out


def _of_axis(law: Law, axis: int) -> Found:
    """Mass, friction and springs of the base law along one position."""
    energy, along = _values(law, law.form.base), _along(law, axis)
    angle = law.units[axis] == "rad"
    mass, read = 0.5 / energy[_square(law, law.positions + axis)], (law.form.base,)
    out: Found = {f"{'inertia' if angle else 'mass'}{along}": (mass, _unit(law, axis, "kg"), read)}
    friction = law.dissipation(law.form.base)[axis]
    if law.form.known_dissipation[axis] is None:
        out[f"friction{along}"] = (friction.value, _unit(law, axis, "N s/m"), read)
    if _square(law, axis) in energy:
        out[f"stiffness{along}"] = (2 * energy[_square(law, axis)], _unit(law, axis, "N/m"), read)
    if Cosine(axis) in energy:
        out[f"weight times length{along}"] = (-energy[Cosine(axis)], _unit(law, axis, "N"), read)
    return out


def _of_contact(law: Law, mode: int, axis: int) -> Found:
    """Place, stiffness, damping and restitution of a contact."""
    name, base = law.modes[mode], law.form.base
    energy = _values(law, mode)
    mass = 0.5 / energy[_square(law, law.positions + axis)]
    out: Found = {}
    springs = [(t, c) for t, c in energy.items() if isinstance(t, Penetration) and t.power == 2]
    more = [own.value - free.value for own, free in zip(law.dissipation(mode), law.dissipation(base), strict=True)]
    for i, added in enumerate(more):
        out[f"damping of {name}{_along(law, i)}"] = (added, _unit(law, i, "N s/m"), (base, mode))
    for term, stiffness in springs:
        out[f"stiffness of {name}"] = (stiffness, _unit(law, axis, "N/m"), (mode,))
        out[f"place of {name}"] = (term.at, law.units[axis], (mode,))
        ratio = law.dissipation(mode)[axis].value / (2 * sqrt(stiffness * mass)) if stiffness * mass > 0 else 1.0
        if 0 <= ratio < 1:
            out[f"restitution of {name}"] = (exp(-pi * ratio / sqrt(1 - ratio**2)), "1", (mode,))
    return out


def _of_sliding(law: Law, mode: int) -> Found:
    """Coulomb friction: half the constant force by which a mode differs from the base; what both share is another."""
    out: Found = {}
    both = (law.form.base, mode)
    for axis in range(law.positions):
        if not law.form.one_friction and law.form.known_dissipation[axis] is None and mode not in law.form.resting:
            own = law.dissipation(mode)[axis].value
            out[f"friction of {law.modes[mode]}{_along(law, axis)}"] = (own, _unit(law, axis, "N s/m"), (mode,))
        line = Monomial(tuple(int(i == axis) for i in range(2 * law.positions)))
        base, other = _values(law, law.form.base).get(line, 0.0), _values(law, mode).get(line, 0.0)
        if base or other:
            force = 0.5 * abs(base - other)
            mass = 0.5 / _values(law, mode)[_square(law, law.positions + axis)]
            out[f"sliding friction{_along(law, axis)}"] = (force, _unit(law, axis, "N"), both)
            out[f"constant force{_along(law, axis)}"] = (-0.5 * (base + other), _unit(law, axis, "N"), both)
            if _unit(law, axis, "N") == "N":  # a coefficient needs a weight, and a weight kilograms
                out[f"friction coefficient{_along(law, axis)}"] = (force / (mass * GRAVITY), "1", both)
    return out


OF_ANGLES = {"kg": "kg m²", "N s/m": "N m s/rad", "N/m": "N m/rad", "N": "N m"}


def _unit(law: Law, axis: int, unit: str) -> str:
    """The SI unit of a constant along a position, or along an angle; none where the position's or the force's is none.

    A momentum then has no unit either, and says so here.
    """
    if not law.units[law.positions + axis]:
        return ""
    return OF_ANGLES[unit] if law.units[axis] == "rad" else unit


def _values(law: Law, mode: int) -> dict[Term, float]:
    return {term: number.value for term, number in law.energy(mode).items()}


def _square(law: Law, index: int) -> Monomial:
    return Monomial(tuple(2 * (i == index) for i in range(2 * law.positions)))


def _along(law: Law, axis: int) -> str:
    return f" along {law.coordinates[axis]}" if law.positions > 1 else ""


def table(law: Any) -> str:
    """The constants as lines of text: name, value, interval and unit."""
    if not isinstance(law, Law):
        return law.table()
    return lines(law, constants(law)) or "no constant is determined\n"


def lines(law: Any, found: dict[str, Constant]) -> str:
    """Constants of a law, a line of text each."""
    width = max(map(len, found), default=0)
    rows = [
        f"{name:<{width}}  {c.value:11.6g}  {_written_interval(c)} {c.unit}".rstrip()
        + ("" if is_identified(law, c) else "  unidentified")
        for name, c in found.items()
    ]
    return "".join(f"{row}\n" for row in rows)


def _written_interval(constant: Constant) -> str:
    low, high = constant.interval
    return "(no interval)" if low != low else f"[{low:.6g}, {high:.6g}]"
