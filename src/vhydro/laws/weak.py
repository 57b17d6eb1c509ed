"""The weak form, joint over modes: the law integrated against bumps that may span a switch.

With a bump φ of compact support, `∫φ v̇ = ∫φ'' x`, so positions are never differentiated. In units where
every mass is 1 each parameter of the law is one column; the known part of R or G then gives the masses.
Differs from the paper, which regresses estimated derivatives inside each mode.
"""

from dataclasses import dataclass

import numpy as np
from numpy.polynomial import Polynomial

from vhydro.laws.form import Entry, Form, momentum_degree
from vhydro.laws.tracks import Tracks
from vhydro.library import Custom, Monomial, Term, slope

BUMP_POWER = 7  # φ = (1 − s²)^power: smooth enough at its ends for sums to be exact integrals


@dataclass(frozen=True)
class Moments:
    """What least squares needs of the weak form's rows: each row has unit noise."""

    gram: np.ndarray  # (entries, entries)
    cross: np.ndarray  # (entries,)
    square: float
    rows: int


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


def moments(
    form: Form,
    tracks: Tracks,
    on: np.ndarray,
    moves: np.ndarray,
    places: np.ndarray,
    half_width: int,
    skipped: np.ndarray | None = None,
) -> Moments:
    """The weak form's normal equations, for every entry of the form in units of mass 1.

    `on` (episodes, times, blocks) says how much each block is on, `moves` (episodes, times) whether the base law
    holds at all, and `places` has one value for each entry. No row is centred on a sample that is `skipped`.
    """
    phi, dt, x, z = bumps(half_width, tracks.dt), tracks.dt, tracks.filled, tracks.states
    on = np.concatenate([moves[..., None], on], -1)
    starts = np.arange(0, x.shape[1] - 2 * half_width, max(half_width // 2, 1))
    window = starts[:, None] + np.arange(2 * half_width + 1)
    gram, cross, square, rows = np.zeros(2 * (len(form.entries),)), np.zeros(len(form.entries)), 0.0, 0
    for axis in range(form.positions):
        columns = [column(form, e, axis, x, z, tracks, on, places, window, phi) for e in form.entries]
        left, design = bent(x[:, window, axis], phi) * dt, np.stack(columns, -1)
        good = np.isfinite(left) & np.isfinite(design).all(-1)
        good &= skipped is None or ~skipped[:, window[:, half_width]]
        scale = tracks.noise[axis] * np.sqrt(np.sum(phi.second**2)) * dt
        a, b = design[good] / scale, left[good] / scale
        gram, cross, square, rows = gram + a.T @ a, cross + a.T @ b, square + b @ b, rows + len(b)
    return Moments(gram, cross, float(square), rows)


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
    return out


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
