"""Laws from a recording: one door to the three estimators."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from vhydro.laws.as_model import Circumstances
from vhydro.laws.estimate import Estimate, ShootingConfig, shooting, sorted_by_motion, weak_estimate
from vhydro.laws.form import is_kinetic
from vhydro.laws.guards import Sorted, directions, labels, run_lengths
from vhydro.laws.lasso import LassoConfig, lasso_law
from vhydro.laws.law import Law
from vhydro.laws.problem import Problem
from vhydro.laws.recording import Recording
from vhydro.laws.tracks import Tracks, prepared
from vhydro.library import Monomial, slope

FEWEST_SAMPLES = 30  # of a mode, for its law to be sought
SHORTEST_CONTACT = 2.5  # samples: a spring whose contact is shorter leaves no trace between two of them
FEWEST_CONTACTS = 2
MISSPECIFIED = 1.05  # χ² above which sensor noise does not explain the misfit
VAGUE = 0.5  # relative standard error of a law's leading coefficient beyond which it is not identified
NEGATIVE = 3.0  # standard errors below 0, beyond which a friction is not merely noise
SET_ASIDE = 0.2  # share of windows that could not be followed

Estimator = Literal["shooting", "weak", "lasso"]


@dataclass(frozen=True)
class LawsConfig:
    """How laws are fitted."""

    estimator: Estimator = "shooting"
    shooting: ShootingConfig = field(default_factory=ShootingConfig)
    lasso: LassoConfig = field(default_factory=LassoConfig)


def recover(recording: Recording, problem: Problem, config: LawsConfig = LawsConfig()) -> Law:
    """The law of every mode. A mode that the data do not identify is marked so, with the reason."""
    refuse_unfit(recording, problem, 0 if config.estimator == "lasso" else config.shooting.bump)
    return recover_from(prepared(recording, problem), problem, config)


def recover_from(tracks: Tracks, problem: Problem, config: LawsConfig) -> Law:
    """The same, from a recording that is ready."""
    refuse_library(tracks, problem)
    if config.estimator == "lasso":
        sorted_modes, base = sorted_by_motion(tracks)
        form, theta, support = lasso_law(tracks, problem, sorted_modes, base, config.lasso)
        # The Lasso gives no errors: NaN, and not 0, which would say that its numbers were given.
        unknown = np.diag(np.where(support & form.free, np.nan, 0.0))
        found = Estimate(form, theta, support, unknown, np.nan)
    elif config.estimator == "weak":
        found = weak_estimate(tracks, problem, config.shooting.bump)
    else:
        found = shooting(tracks, problem, config.shooting)
    return law_of(found, tracks, problem, config)


def law_of(found: Estimate, tracks: Tracks, problem: Problem, config: LawsConfig) -> Law:
    """An estimate as a law, with what is doubtful in it and how it was measured."""
    sorted_modes, _ = sorted_by_motion(tracks)
    theta, negative = _without_negative_friction(found)
    doubts = [*_problems(found, tracks, problem, config.shooting.lengths[0], sorted_modes.unexplained), *negative]
    return Law(
        problem.coordinates,
        problem.units,
        problem.inputs,
        problem.modes,
        found.form,
        theta,
        found.support,
        found.covariance,
        config.estimator,
        None if np.isnan(found.chi_square) else found.chi_square,
        tuple(doubts),
        tuple(_notes(found)),
        _circumstances(found, tracks, sorted_modes),
    )


def _circumstances(found: Estimate, tracks: Tracks, sorted_modes: Sorted) -> Circumstances:
    """How a law was measured, and which way its directions go."""
    sliding = [b.mode for b in found.form.blocks if b.guard is None and b.mode not in sorted_modes.unexplained]
    ways = directions(tracks.modes, tracks.smooth.velocity, tuple(sliding), found.form.base)
    return Circumstances(
        tracks.dt,
        *(_floats(x) for x in (tracks.noise, tracks.velocity_noise, np.nanmean(tracks.positions, (0, 1)))),
        *(_floats(np.nanstd(x, (0, 1))) for x in (tracks.positions, tracks.smooth.velocity)),
        directions=tuple(ways),
    )


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(map(float, values))


def _without_negative_friction(found: Estimate) -> tuple[np.ndarray, list[tuple[int, str]]]:
    """The parameters with no friction below 0, and the modes where more than noise would have had it so."""
    form, theta, doubts = found.form, found.theta.copy(), []
    places = {(e.block, e.axis): i for i, e in enumerate(form.entries) if e.kind == "dissipation"}
    for block in range(-1, len(form.blocks)):
        shared = form.additive and block >= 0
        for axis in range(form.positions):
            own = places[block, axis]
            which = [own, places[-1, axis]] if shared else [own]
            total, error = theta[which].sum(), np.sqrt(np.maximum(found.covariance[np.ix_(which, which)].sum(), 0))
            if total < 0:
                theta[own] = -theta[places[-1, axis]] if shared else 0.0
            if total < -NEGATIVE * error:
                mode = form.base if block < 0 else form.blocks[block].mode
                doubts.append((mode, f"its friction is {total:.3g} ± {error:.2g}, which would give energy"))
    return theta, doubts


def refuse_unfit(recording: Recording, problem: Problem, bump: int = 0) -> None:
    """Raises where no law can be sought at all; `bump` is half the width of the weak form's, if it is used."""
    positions, actions, modes, dt = recording
    episodes, times = positions.shape[:2]
    n, m = problem.positions, len(problem.inputs)
    shapes = {"positions": (episodes, times, n), "actions": (episodes, times - 1, m)}
    shapes["modes"] = (episodes, times, len(problem.modes))
    for name, expected in shapes.items():
        found = getattr(recording, name).shape
        if found != expected:
            raise ValueError(
                f"the recording's {name} have shape {found}; expected {expected}. Match it to the problem."
            )
    if not (np.isfinite(dt) and dt > 0):
        raise ValueError(f"dt is {dt}; expected a positive number of seconds, the same for all samples.")
    if not np.isfinite(actions).all():
        raise ValueError("the actions hold a value that is not finite; expected numbers. Leave such episodes out.")
    if not (np.isfinite(modes).all() and (modes >= 0).all() and _sum_to_one(modes)):
        raise ValueError(
            "the modes are not weights; expected numbers of at least 0 whose sum is 1. Use one-hot labels."
        )
    if np.isinf(positions).any():
        raise ValueError("the positions hold an infinite value; expected numbers, NaN where hidden. Hide such samples.")
    if times <= 2 * bump:
        raise ValueError(
            f"the episodes have {times} samples; expected more than {2 * bump}, the width of a bump. Give longer "
            "episodes, or a narrower `bump`."
        )
    for i in range(n):
        seen = positions[..., i][np.isfinite(positions[..., i])]
        if seen.size < FEWEST_SAMPLES or np.std(seen) <= 1e-12 * max(1.0, np.abs(seen).max()):
            raise ValueError(
                f"position {problem.coordinates[i]!r} is seen {seen.size} times and varies by "
                f"{np.std(seen) if seen.size else 0:.3g}; expected at least {FEWEST_SAMPLES} samples that differ. "
                "A thing that does not move has no law: give episodes in which it does."
            )
    _refuse_no_scale(problem)
    _refuse_still_inputs(recording, problem)


def _refuse_no_scale(problem: Problem) -> None:
    n = problem.positions
    for i in range(n):
        known = [problem.dissipation[i], *problem.port[n + i]]
        if not any(np.isfinite(k) and k != 0 for k in known):
            raise ValueError(
                f"nothing known about {problem.coordinates[i]!r} has the unit of a force; expected an input that is a "
                "force (a number in `port`) or a known friction (in `dissipation`). Without one the mass has no scale: "
                "give one of them, for instance dissipation 1 to measure all forces in its unit."
            )


def _sum_to_one(modes: np.ndarray) -> bool:
    total = modes.sum(-1)
    return bool((np.abs(total - 1) < 1e-3)[total != 0].all())


def _refuse_still_inputs(recording: Recording, problem: Problem) -> None:
    n, still = problem.positions, recording.actions.std((0, 1)) == 0
    for i in range(n):
        forces = problem.port[n + i]
        anchors = np.isfinite(forces) & (forces != 0)
        friction = problem.dissipation[i]
        if (still | ~anchors).all() and not (np.isfinite(friction) and friction):
            raise ValueError(
                f"no force along {problem.coordinates[i]!r} ever varies; expected an input that does, or a known "
                "friction. Without one the mass has no scale: give episodes with a varying input."
            )


def refuse_library(tracks: Tracks, problem: Problem) -> None:
    """Raises where the library cannot tell its terms apart on these data."""
    library, n, names = problem.library, problem.positions, problem.coordinates
    for i in range(n):
        if sum(is_kinetic(t) and t.powers[n + i] == 2 for t in library if isinstance(t, Monomial)) != 1:
            raise ValueError(
                f"the library has not exactly one kinetic energy {names[n + i]}^2; expected one for every position. "
                "Add it, or remove its double."
            )
    # At the positions as they were seen: smoothing would step over a pole.
    z = np.concatenate([np.moveaxis(tracks.filled + tracks.carried, -1, 0), tracks.states[n:]])
    z = z[:, np.isfinite(z).all(0) & (tracks.modes.sum(-1) > 0)]
    slopes = [np.concatenate([np.broadcast_to(slope(t, i, z), z[0].shape) for i in range(2 * n)]) for t in library]
    for term, column in zip(library, slopes, strict=True):
        if not np.isfinite(column).all() or not column.any():
            share = 1 - np.isfinite(column).mean()
            raise ValueError(
                f"the slope of the term {term.text(names)!r} is not finite on {100 * share:.3g} % of the samples, "
                "or 0 on all; expected a term that acts everywhere. Leave it out, or give data where it exists."
            )
    columns = np.stack(slopes, -1)
    columns /= np.linalg.norm(columns, axis=0)
    size, vectors = np.linalg.eigh(columns.T @ columns)
    if size[0] < 1e-13 * size[-1]:
        joint = [t.text(names) for t, w in zip(library, vectors[:, 0], strict=True) if abs(w) > 1e-3]
        raise ValueError(
            f"the terms {', '.join(map(repr, joint))} cannot be told apart on these data: one is a combination of the "
            "others. Expected independent terms; leave one out."
        )


def _problems(found: Estimate, tracks: Tracks, problem: Problem, shortest: int, unexplained: tuple[int, ...]):
    """Every (mode, reason) for which a law is not identified.

    Almost any law can be bent to the shortest windows: what noise hides in one of them shows in a longer one, so a law
    that was followed through no other is not borne out by the positions.
    """
    now, form = labels(tracks.modes), found.form
    lacking = found.set_aside > SET_ASIDE * max(found.windows, 1)
    errors = np.sqrt(np.diag(found.covariance))
    for mode in range(len(problem.modes)):
        count = int((now == mode).sum())
        if count < FEWEST_SAMPLES:
            yield mode, f"only {count} samples, {FEWEST_SAMPLES} are needed"
            continue
        if mode in form.resting:
            continue
        if mode in unexplained:
            yield mode, "neither a surface nor a direction of motion tells it from the other modes"
            continue
        block = next((b for b, x in enumerate(form.blocks) if x.mode == mode), -1)
        if block >= 0 and form.blocks[block].guard is not None:
            runs = run_lengths(now == mode)
            if len(runs) < FEWEST_CONTACTS or np.median(runs) < SHORTEST_CONTACT:
                yield mode, f"{len(runs)} contacts of {np.median(runs):g} samples are too few or too short"
                continue
        vague = _vague(found, errors, block)
        if vague:
            yield mode, vague
        elif lacking:
            yield mode, f"{found.set_aside} of {found.windows} windows could not be followed"
        elif found.stopped_at == shortest:
            yield mode, f"nothing longer than windows of {shortest} samples could be followed"


def _vague(found: Estimate, errors: np.ndarray, block: int) -> str:
    """Which leading coefficient is not known to within half its size; empty where all are."""
    for i, e in enumerate(found.form.entries):
        leading = e.is_kinetic if block < 0 else e.block == block and e.kind == "energy"
        if leading and found.support[i] and not np.isfinite(found.theta[i]):
            return "a coefficient is not finite"
        if leading and found.support[i] and errors[i] > VAGUE * abs(found.theta[i]):
            return f"a coefficient of its energy is {found.theta[i]:.3g} ± {errors[i]:.2g}"
        if leading and e.is_kinetic and not found.theta[i] > 0:
            return f"its inverse mass is {found.theta[i]:.3g}, not positive"
    return ""


def _notes(found: Estimate):
    if found.chi_square > MISSPECIFIED + 3 * np.sqrt(2 / max(found.freedom, 1)):
        yield (
            f"χ² is {found.chi_square:.2f}: sensor noise does not explain the misfit. The library may lack a term, "
            "or the modes may be wrong; the intervals are widened by it."
        )
    if found.set_aside:
        yield f"{found.set_aside} of {found.windows} windows could not be followed and are left out."
    if found.stopped_at:
        yield f"It is fitted to windows of {found.stopped_at} samples: through longer ones it could not be followed."
