"""The weak form, joint over modes: the law integrated against bumps that may span a switch.

With a bump φ of compact support, `∫φ v̇ = ∫φ'' x`, so positions are never differentiated. In units where
every mass is 1 each parameter of the law is one column; the known part of R or G then gives the masses.
Differs from the paper, which regresses estimated derivatives inside each mode.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.polynomial import Polynomial

from vhydro.laws.form import Entry, Form, momentum_degree
from vhydro.laws.support import solutions
from vhydro.laws.tracks import Tracks
from vhydro.library import Custom, Monomial, Term, slope

BUMP_POWER = 7  # φ = (1 − s²)^power: smooth enough at its ends for sums to be exact integrals


@dataclass(frozen=True)
class Rows:
    """The weak form's rows in the order of their bumps; a series is one position in one episode.

    A bump over something hidden leaves a row of zeros, so that neighbours stay neighbours.
    """

    design: np.ndarray  # (series, bumps, entries)
    left: np.ndarray  # (series, bumps): as `design`, in units of what sensor noise leaves in it
    seen: np.ndarray  # (series, bumps) bool
    acceleration: np.ndarray  # (series,): the mean acceleration under a bump that one such unit is
    overlap: np.ndarray  # (lags,): correlation of sensor noise between a row and the lag-th after it
    half_width: int  # samples: half the width of a bump …
    stride: int  # … and from one to the next

    @property
    def number(self) -> int:
        return int(self.seen.sum())

    @cached_property
    def gram(self) -> np.ndarray:
        return np.einsum("sbi,sbj->ij", self.design, self.design, optimize=True)

    @cached_property
    def cross(self) -> np.ndarray:
        return np.einsum("sbi,sb->i", self.design, self.left)

    @cached_property
    def square(self) -> float:
        return float(np.sum(self.left**2))

    def solution(self, support: np.ndarray) -> np.ndarray:
        """The least-squares parameters on a support, 0 outside: (entries,)."""
        return solutions(self.gram, self.cross, support[None])[0]

    def residuals(self, theta: np.ndarray) -> np.ndarray:
        """What the parameters leave over: (series, bumps)."""
        return self.left - self.design @ theta

    def only(self, kept: np.ndarray) -> "Rows":
        """The same with some of the rows (series, bumps) alone; zeros stand in for the others."""
        return replace(
            self, design=self.design * kept[..., None], left=self.left * kept, seen=self.seen & kept.astype(bool)
        )

    def between(self, first: float, last: float) -> "Rows":
        """The rows of a part of the recording, from one share of its bumps to another."""
        part = slice(round(first * self.left.shape[1]), round(last * self.left.shape[1]))
        return replace(self, design=self.design[:, part], left=self.left[:, part], seen=self.seen[:, part])


@dataclass(frozen=True)
class Bumps:
    """A bump and its derivatives on its samples, and its integrals over the intervals between them."""

    value: np.ndarray
    first: np.ndarray
    second: np.ndarray
    held: np.ndarray  # ∫φ over each interval: exact for an input that is held


def bumps(half_width: int, dt: float) -> Bumps:
    shape = Polynomial([1, 0, -1]) ** BUMP_POWER
    s, scale = np.linspace(-1, 1, 2 * half_width + 1), half_width * dt
    whole = np.diff(shape.integ()(s)) * scale
    return Bumps(shape(s), shape.deriv()(s) / scale, shape.deriv(2)(s) / scale**2, whole)


def rows(
    form: Form,
    tracks: Tracks,
    on: np.ndarray,
    moves: np.ndarray,
    places: np.ndarray,
    half_width: int,
    skipped: np.ndarray | None = None,
) -> Rows:
    """The weak form's rows, with a column for every entry of the form in units of mass 1.

    `on` (episodes, times, blocks) says how much each block is on, `moves` (episodes, times) whether the base law
    holds at all, and `places` has one value for each entry. No row is centred on a sample that is `skipped`.
    """
    phi, dt, x, z = bumps(half_width, tracks.dt), tracks.dt, tracks.filled, tracks.states
    on = np.concatenate([moves[..., None], on], -1)
    stride = max(half_width // 2, 1)
    window = np.arange(0, x.shape[1] - 2 * half_width, stride)[:, None] + np.arange(2 * half_width + 1)
    if len(window) == 0:
        raise ValueError(
            f"An episode has {x.shape[1]} samples, a bump {2 * half_width + 1}; expected at least one bump in it. "
            "Use narrower bumps or longer episodes."
        )
    scale = tracks.noise * np.sqrt(np.sum(phi.second**2)) * dt
    design, left = [], []
    for axis in range(form.positions):
        columns = [column(form, e, axis, x, z, tracks, on, places, window, phi) for e in form.entries]
        design.append(np.stack(columns, -1) / scale[axis])
        left.append(bent(x[:, window, axis], phi) * dt / scale[axis])
    a, b = np.concatenate(design), np.concatenate(left)
    seen = np.isfinite(b) & np.isfinite(a).all(-1)
    if skipped is not None:
        seen &= np.tile(~skipped[:, window[:, half_width]], (form.positions, 1))
    unit = np.repeat(scale / (phi.value.sum() * dt), len(x))
    lags = _overlap(phi.second, stride)
    return Rows(np.where(seen[..., None], a, 0.0), np.where(seen, b, 0.0), seen, unit, lags, half_width, stride)


def _overlap(second: np.ndarray, stride: int) -> np.ndarray:
    """The correlation of two sums of white noise under bumps one, two … strides apart."""
    lagged = np.correlate(second, second, "full")[len(second) - 1 :: stride]
    return lagged / lagged[0]


def bent(x: np.ndarray, phi: Bumps) -> np.ndarray:
    """Σφ'' x of every window, counted from its middle: a narrow bump's φ'' does not quite sum to 0."""
    return (x - x[..., x.shape[-1] // 2, None]) @ phi.second


def column(form: Form, e: Entry, axis: int, x, z, tracks: Tracks, on, places, window, phi: Bumps) -> np.ndarray:
    """One parameter's column in the equation of one position: (episodes, windows)."""
    n, dt = form.positions, tracks.dt
    share = on[..., e.block + 1]
    if e.kind == "place" or e.is_kinetic or (e.kind != "energy" and e.axis != axis):
        return np.zeros((z.shape[1], len(window)))
    if e.kind == "port":
        held = tracks.actions[:, window[:, :-1], e.column]
        return (held * 0.5 * (share[:, window[:, :-1]] + share[:, window[:, 1:]])) @ phi.held
    if e.kind == "dissipation":
        everywhere = e.block < 0 and share.all()
        return x[:, window, axis] @ phi.first * dt if everywhere else -(z[n + axis] * share)[:, window] @ phi.value * dt
    assert e.term is not None
    place = places[form.places[e.block]] if e.block in form.places else 0.0
    out = -(slope(e.term, axis, z, place) * share)[:, window] @ phi.value * dt
    # To first order a term of the momenta changes L = v²/2 − V by −θ(q, v).
    return out - (slope(e.term, n + axis, z) * share)[:, window] @ phi.first * dt if momentum_degree(e.term) else out


def masses(form: Form, theta: np.ndarray) -> np.ndarray:
    """The mass along every position, from what is known in units of force: (positions,), NaN without any."""
    out = np.full(form.positions, np.nan)
    for e, value, known in zip(form.entries, theta, form.known, strict=True):
        if e.block < 0 and e.kind in ("port", "dissipation") and np.isfinite(known) and known and value:
            # A port is the stronger anchor: it is listed after the dissipation and overwrites it.
            out[e.axis] = known / value
    given = [np.nan if m is None else m for m in form.known_masses] or [np.nan] * form.positions
    return np.where(np.isfinite(given), given, out)


def in_units_of_force(form: Form, theta: np.ndarray) -> np.ndarray:
    """The parameters of the law itself, from those in units of mass 1."""
    mass = masses(form, theta)
    out = theta.copy()
    for i, e in enumerate(form.entries):
        if e.kind in ("dissipation", "port"):
            out[i] = mass[e.axis] * theta[i]
        if e.kind == "energy":
            assert e.term is not None
            axis = term_axis(e.term, form.positions)
            out[i] = 0.5 / mass[axis] if e.is_kinetic else theta[i] * mass[axis] ** (1 - momentum_degree(e.term))
    return np.where(np.isfinite(form.known), form.known, out)


def term_axis(term: Term, positions: int) -> int:
    """The first position a term is about."""
    if isinstance(term, Monomial):
        return int(np.flatnonzero(term.powers)[0]) % positions
    return 0 if isinstance(term, Custom) else term.axis
