"""The columns that energy terms add to v̇, and the way back: from their coefficients to a law in physical units."""

from collections.abc import Callable
from dataclasses import dataclass
from math import perm, prod
from typing import NamedTuple

import numpy as np

from vhydro.laws.problem import Problem
from vhydro.library import Cosine, Custom, Monomial, Penetration, Sine, Term

DAMPING = -1  # among the sources of columns, where inputs are 0, 1, …

Source = Term | int  # of a column: an energy term, the damping, or an input


@dataclass(frozen=True)
class PeerLaw:
    """What the peer found. Energies are in physical units; a mode that could not be fitted has an empty one."""

    coefficients: tuple[dict[Term, float], ...]  # for each mode
    dissipation: np.ndarray  # (modes, positions)
    port: np.ndarray  # (modes, coordinates, inputs)
    acceleration: Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # mode, q, v, a; NaN if not fitted
    notes: tuple[str, ...]  # what could not be fitted, and why


class Row(NamedTuple):
    """A momentum's row in one mode: where its columns come from, and what it was fitted to be."""

    sources: tuple[Source, ...]
    coefficients: np.ndarray  # of v̇, the mass not yet known


def sources_of(problem: Problem, terms: tuple[Term, ...], i: int) -> tuple[Source, ...]:
    """What may act on coordinate i: every energy term, damping, and the inputs not known to leave it alone."""
    return (*terms, DAMPING, *np.flatnonzero(problem.port[problem.positions + i] != 0).tolist())


def columns(sources: tuple[Source, ...], i: int, q: np.ndarray, v: np.ndarray, a: np.ndarray) -> np.ndarray:
    """What each source of weight 1 adds to v̇_i: q, v and a of (samples, …) give (samples, sources)."""
    z = (*q.T, *v.T)

    def column(source: Source):
        if isinstance(source, int):
            return -v[:, i] if source == DAMPING else a[:, source]
        return force(source, i, z)

    return np.stack([np.broadcast_to(column(s), len(q)) for s in sources], -1)


def force(term: Term, i: int, z: tuple[np.ndarray, ...]):
    """`−∂θ/∂q_i + Σ_j v_j ∂²θ/∂v_i∂q_j` at z = (q, v); a `Penetration` counts as touching."""
    match term:
        case Monomial(powers):
            n = len(powers) // 2
            return sum(z[n + j] * _partial(powers, (n + i, j), z) for j in range(n)) - _partial(powers, (i,), z)
        case Sine(axis):
            return -np.cos(z[i]) if axis == i else 0.0
        case Cosine(axis):
            return np.sin(z[i]) if axis == i else 0.0
        case Penetration(axis, at, side, power):
            sign = 1.0 if side == "above" else -1.0
            return -sign * (sign * (z[i] - at)) ** (power - 1) if axis == i else 0.0
        case Custom(label=label):
            raise ValueError(
                f"the term {label!r} is a function of one's own, which the peer cannot be given; expected monomials, "
                "sines, cosines and penetrations. Leave it out of the peer's library."
            )


def _partial(powers: tuple[int, ...], axes: tuple[int, ...], z: tuple[np.ndarray, ...]):
    """The partial derivative of a monomial along every axis in turn."""
    times = [axes.count(k) for k in range(len(powers))]
    factor = prod(map(perm, powers, times))
    return factor * prod(z[k] ** (n - d) for k, (n, d) in enumerate(zip(powers, times, strict=True)) if n > d)


def peer_law(problem: Problem, rows: list[list[Row] | None], notes: list[str]) -> PeerLaw:
    """The rows as a law: every coefficient of v̇ times the mass that a known port or dissipation gives."""
    count, n = len(rows), problem.positions
    masses, why = _masses(problem, rows)
    energies, dissipation = [], np.zeros((count, n))
    port = np.tile(np.where(np.arange(2 * n)[:, None] < n, problem.port, 0.0), (count, 1, 1))
    for mode, fitted in enumerate(rows):
        found: dict[Term, list[float]] = {}
        for i, row in enumerate(fitted or ()):
            for source, c in zip(row.sources, masses[mode, i] * row.coefficients, strict=True):
                if source == DAMPING:
                    dissipation[mode, i] = c
                elif isinstance(source, int):
                    port[mode, n + i, source] = c
                elif c:
                    found.setdefault(source, []).append(float(c))
            if row.coefficients.any():
                found[kinetic(i, n)] = [0.5 / masses[mode, i]]
        energies.append({term: float(np.mean(c)) for term, c in found.items()})
    return PeerLaw(tuple(energies), dissipation, port, _field(rows), (*notes, *why))


def kinetic(i: int, n: int) -> Monomial:
    return Monomial(tuple(2 * (k == n + i) for k in range(2 * n)))


def _masses(problem: Problem, rows: list[list[Row] | None]) -> tuple[np.ndarray, list[str]]:
    """The mass of every mode and coordinate, and a note where no mode gives one."""
    masses = np.full((len(rows), problem.positions), np.nan)
    for mode, fitted in enumerate(rows):
        masses[mode] = [_mass(problem, row, i, mode) for i, row in enumerate(fitted)] if fitted else np.nan
    notes = []
    for i, name in enumerate(problem.coordinates[: problem.positions]):
        found = masses[np.isfinite(masses[:, i]), i]
        if not len(found):
            notes.append(f"{name}: no mode kept the known port or dissipation above 0; masses are 1, units arbitrary.")
        masses[np.isnan(masses[:, i]), i] = found[0] if len(found) else 1.0
    return masses, notes


def _mass(problem: Problem, row: Row, i: int, mode: int) -> float:
    """The mass that makes a known coefficient right, or NaN where the peer dropped it or gave it the wrong sign."""
    known = dict(enumerate(problem.port[problem.positions + i]))
    anchors = {j: g for j, g in known.items() if np.isfinite(g) and g != 0}
    if not anchors and mode == 0 and problem.dissipation[i] > 0:
        anchors = {DAMPING: problem.dissipation[i]}
    for source, value in anchors.items():
        inverse = row.coefficients[row.sources.index(source)] / value
        if inverse > 0:
            return 1 / inverse
    return np.nan


def _field(rows: list[list[Row] | None]):
    def acceleration(mode: int, q: np.ndarray, v: np.ndarray, a: np.ndarray) -> np.ndarray:
        fitted = rows[mode]
        if fitted is None:
            return np.full(q.shape, np.nan)
        return np.stack([columns(r.sources, i, q, v, a) @ r.coefficients for i, r in enumerate(fitted)], -1)

    return acceleration
