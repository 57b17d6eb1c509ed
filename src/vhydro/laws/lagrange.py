"""Lagrange's equations from a recording: weak form, support by BIC, then multiple shooting on positions."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import numpy as np

from vhydro.lagrangian import Friction, Lagrangian, Surface, Touch
from vhydro.laws.estimate import Estimate, ShootingConfig, shot, sorted_by_motion
from vhydro.laws.guards import Sorted, labels, steady, surface_of, typical_run
from vhydro.laws.held_out import folds
from vhydro.laws.lagrange_weak import (
    Candidates,
    Kind,
    LagrangeFit,
    LagrangeRows,
    gauss_newton,
    lagrange_candidates,
    lagrange_rows,
    selected,
    share_past,
)
from vhydro.laws.problem import Problem
from vhydro.laws.recording import varying
from vhydro.laws.smoothing import local_polynomial, noise_gains, without_gaps
from vhydro.laws.tracks import Tracks

SMOOTHINGS = (3, 4, 6, 8, 12)  # samples: half-widths for velocities …
NEAR_CONTACTS = 6  # … and the widest where there are contacts, which more would smear
NARROWEST = 15  # samples: half a bump
ROOM = 0.3  # of a typical stretch of motion: half a bump is no wider
CREEP = 0.02  # of a velocity's spread: what counts as none for dry friction
PASSES = 3  # of putting contacts where their springs begin to push


@dataclass(frozen=True)
class LagrangeConfig:
    """How Lagrange's equations are found."""

    candidates: Candidates | None = None  # terms of M, V and friction; None: by the kinds of the positions
    bump: int | None = None  # samples: half the width of the weak form's bumps; None: by the noise
    refine: bool = True  # whether shooting follows the weak form
    shooting: ShootingConfig = field(default_factory=lambda: ShootingConfig(lengths=(60, 240)))


class Start(NamedTuple):
    """The weak form's equations."""

    rows: LagrangeRows
    fit: LagrangeFit


def refuse_without_scale(problem: Problem, actions: np.ndarray, modes: np.ndarray) -> None:
    """Raises where nothing fixes the unit of force, or where an input moves a position by itself."""
    n = problem.positions
    if np.nan_to_num(problem.port[:n], nan=1.0).any():
        raise ValueError(
            "an input moves a position by itself (a row of `port` above the momenta's); expected forces alone. Use the "
            "shooting estimator for a frame that is carried, or give positions in a frame at rest."
        )
    forces = np.nan_to_num(problem.port[n:]) * varying(actions, modes)
    masses = np.zeros(n) if problem.masses is None else np.nan_to_num(problem.masses)
    if not forces.any() and not masses.any() and not np.nan_to_num(problem.dissipation).any():
        raise ValueError(
            "no known force ever varies, and no mass is given; expected one of them. Without it every mass is known "
            "up to a factor only: give a varying input, or one mass (`masses` of the problem, --masses)."
        )


def lagrange_form(
    tracks: Tracks, problem: Problem, sorted_modes: Sorted, base: int, config: LagrangeConfig
) -> Lagrangian:
    """The equations up to their parameters: candidate terms, a spring and a damper for every contact."""
    n = problem.positions
    kinds: tuple[Kind, ...] = tuple("angle" if unit == "rad" else "length" for unit in problem.units[:n])
    terms = config.candidates or lagrange_candidates(kinds)
    masses = np.full(n, np.nan) if problem.masses is None else problem.masses
    # A mass that is given is all there is of that inertia.
    fixed = [t for t in terms.inertia if t.row == t.column and np.isfinite(masses[t.row]) and not t.shape.constant]
    terms = terms._replace(inertia=tuple(t for t in terms.inertia if t not in fixed))
    inertia = tuple(_known(masses[t.row]) if t.row == t.column and t.shape.constant else None for t in terms.inertia)
    viscous = tuple(
        _known(problem.dissipation[t.axis]) if t == Friction("viscous", t.axis) else None for t in terms.friction
    )
    touches = [Touch(m, g) for m, g in sorted(surfaces_of(tracks, sorted_modes, base).items())]
    creep = CREEP * np.nanstd(tracks.smooth.velocity, axis=(0, 1))
    return Lagrangian(
        n, len(problem.inputs), base, *terms, tuple(touches), inertia, viscous,
        tuple(tuple(map(_known, row)) for row in problem.port[n:]),
        tuple(map(float, np.maximum(creep, 1e-12))), sorted_modes.resting,
    )  # fmt: skip


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def surfaces_of(tracks: Tracks, sorted_modes: Sorted, base: int) -> dict[int, Surface]:
    """The surface of every mode that has one: along a position, or along the difference of two of the same unit."""
    out, weights = {}, steady(tracks.modes)
    for mode in range(tracks.modes.shape[-1]):
        if mode == base or mode in sorted_modes.resting or not weights[..., mode].any():
            continue
        found = surface_of(weights[..., mode], tracks.smooth.position, tracks.smooth.velocity)
        if found is not None:
            out[mode] = found[0]
    return out


def smoothed_for_velocities(tracks: Tracks, widest: int) -> tuple[Tracks, int]:
    """The tracks smoothed as little as predicts left-out samples best: what is smoothed more is biased at contacts."""
    ground = tracks.positions
    held_out = np.zeros(ground.shape[1], bool)
    held_out[1::3] = True
    kept = np.where(held_out[:, None], np.nan, ground)

    def error(half_width: int) -> float:
        guess = local_polynomial(kept, tracks.dt, half_width + 1).position
        return float(np.nanmean((guess - ground)[:, held_out] ** 2 / tracks.noise**2))

    widths = [h for h in SMOOTHINGS if h <= widest and 2 * h + 2 < ground.shape[1]] or [3]
    half_width = min(widths, key=error)
    smooth = without_gaps(local_polynomial(ground, tracks.dt, half_width), np.isfinite(ground), half_width)
    noise = tracks.noise * noise_gains(half_width, tracks.dt).velocity
    return tracks._replace(smooth=smooth, velocity_noise=noise), half_width


def weak_start(tracks: Tracks, form: Lagrangian, half_width: int) -> Start:
    """The weak form's equations, contacts put where their springs begin to push."""
    now = labels(tracks.modes)
    on = np.stack([(now == b.mode) * 1.0 for b in form.blocks], -1) if form.blocks else np.zeros((*now.shape, 0))
    rows = lagrange_rows(form, tracks, on, half_width)
    if rows.number < 2 * form.free.sum():
        raise ValueError(
            f"{rows.number} rows of the weak form for {form.free.sum()} parameters; expected more. Give longer "
            "episodes, fewer candidate terms, or a narrower `bump`."
        )
    fit = selected(rows)
    for _ in range(PASSES if form.blocks else 0):
        q = np.moveaxis(tracks.smooth.position, -1, 0)
        theta = in_places(form, fit.theta)
        shares = [
            share_past(np.nan_to_num(b.guard.along(q)), theta[form.places[i]], b.guard.sign)
            for i, b in enumerate(form.blocks)
        ]
        rows = lagrange_rows(form, tracks, np.stack(shares, -1), half_width)
        fit = selected(rows)
    return Start(rows, fit)


def in_places(form: Lagrangian, theta: np.ndarray) -> np.ndarray:
    """The parameters of the equations, from those of the weak form: there `k · place` stands for a place."""
    out = theta.copy()
    for b, i in form.places.items():
        stiffness = theta[form.of("stiffness", b)[0]]
        out[i] = theta[i] / stiffness if stiffness else 0.0
    return out


def lagrange_estimate(
    tracks: Tracks, problem: Problem, config: LagrangeConfig, changed: Callable[[Lagrangian], Lagrangian] | None = None
) -> Estimate:
    """The equations of motion of all modes; what is on offer may be `changed`."""
    sorted_modes, base = sorted_by_motion(tracks)
    form = lagrange_form(tracks, problem, sorted_modes, base, config)
    form = form if changed is None else changed(form)
    # Bumps have to fit into stretches of motion, and smoothing into bumps.
    moves = (tracks.modes.sum(-1) > 0) & ~np.isin(labels(tracks.modes), form.resting)
    room = int(ROOM * typical_run(moves))
    widest = min(NEAR_CONTACTS if form.blocks else max(SMOOTHINGS), max(min(SMOOTHINGS), room // 3))
    fine, smoothing = smoothed_for_velocities(tracks, widest)
    half_width = config.bump or min(max(NARROWEST, 3 * smoothing + 2), max(room, 5))
    start = weak_start(fine, form, half_width)
    theta, support = in_places(form, start.fit.theta), start.fit.support | ~form.free
    for b in range(len(form.blocks)):
        support[form.of("place", b)] = True
    dry = tuple(i for i in form.of("friction") if support[i] and _is_dry(form, i))
    form = replace(form, dry=dry)
    if not config.refine:
        return _unrefined(form, start, theta, support, fine)
    with jax.enable_x64(True):
        return shot(form, fine, theta, support, config.shooting)


def _unrefined(form: Lagrangian, start: Start, theta: np.ndarray, support: np.ndarray, tracks: Tracks) -> Estimate:
    """The weak form's own estimate, its errors those of overlapping bumps, with the parameters of every fold."""
    rows, fit, active = start.rows, start.fit, support & form.free
    slopes = rows.jacobian(fit.theta, active)
    covariance = np.zeros(2 * (len(theta),))
    size = np.maximum(np.linalg.norm(slopes, axis=0), 1e-300)
    inverse = np.linalg.pinv((slopes / size).T @ (slopes / size), rcond=1e-12, hermitian=True) / np.outer(size, size)
    # Bumps overlap by half: neighbours say about the same, and errors are larger by about the square root of two.
    covariance[np.ix_(active, active)] = 2.0 * max(fit.cost / rows.number, 1.0) * inverse
    for b, i in form.places.items():
        k = form.of("stiffness", b)[0]
        covariance[i, :], covariance[:, i] = 0.0, 0.0
        covariance[i, i] = covariance[k, k] * (theta[i] / theta[k]) ** 2 if theta[k] else 0.0
    length = np.full(len(rows.where), 2 * rows.half_width + 1)
    parts = folds(rows.where, length, *tracks.positions.shape[:2])
    fitted = [gauss_newton(rows.only(train), fit.theta, fit.support) for train, _ in parts if train.any()]
    thetas = tuple(in_places(form, one.theta) for one in fitted) if len(fitted) == len(parts) else ()
    return Estimate(form, theta, support, covariance, np.nan, folds=thetas)


def _is_dry(form: Lagrangian, index: int) -> bool:
    term = form.entries[index].term
    return isinstance(term, Friction) and term.is_dry
