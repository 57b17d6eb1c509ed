"""Laws from a recording: one door to the three estimators."""

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from vhydro.lagrangian import Lagrangian
from vhydro.laws.estimate import Estimate, ShootingConfig, shooting, sorted_by_motion, weak_estimate
from vhydro.laws.form import is_kinetic
from vhydro.laws.guards import Sorted
from vhydro.laws.held_out import Horizon, folds
from vhydro.laws.lagrange import LagrangeConfig, lagrange_estimate, refuse_without_scale
from vhydro.laws.lagrange_law import AnyLaw, LagrangeLaw
from vhydro.laws.lasso import LassoConfig, lasso_law
from vhydro.laws.law import Law
from vhydro.laws.marks import (
    FEWEST_SAMPLES,
    circumstances_of,
    held_out_horizons,
    inherited,
    notes_of,
    positive_masses,
    problems_of,
    rigid,
    uncertain,
    undecided,
    unpredicted,
    unscaled,
    without_giving_friction,
    without_negative_friction,
)
from vhydro.laws.problem import Problem
from vhydro.laws.recording import Recording
from vhydro.laws.richer import (
    is_better,
    is_borne_out,
    remainder_note,
    stribeck_estimate,
    vague_speeds,
    with_remainder,
)
from vhydro.laws.tracks import Tracks, prepared
from vhydro.library import Custom, Monomial, slope

Estimator = Literal["shooting", "weak", "lasso", "lagrange"]
LEAST_SIZE, LARGEST_SIZE = 1e-30, 1e30  # of positions


@dataclass(frozen=True)
class LawsConfig:
    """How laws are fitted."""

    estimator: Estimator = "shooting"
    held_out: bool = True  # whether held-out episodes are predicted; without it no mode is marked by them
    shooting: ShootingConfig = field(default_factory=ShootingConfig)
    lasso: LassoConfig = field(default_factory=LassoConfig)
    lagrange: LagrangeConfig = field(default_factory=LagrangeConfig)
    remainder: bool = False  # whether forces that are not port-Hamiltonian are tried where no other law is borne out


def recover(recording: Recording, problem: Problem, config: LawsConfig = LawsConfig()) -> AnyLaw:
    """The law of every mode. A mode that the data do not identify is marked so, with the reason."""
    bump = 0 if config.estimator == "lasso" else config.shooting.bump
    refuse_unfit(recording, problem, bump, coupled=config.estimator == "lagrange")
    with determined():
        return _recovered(prepared(recording, problem), problem, config)


def recover_from(tracks: Tracks, problem: Problem, config: LawsConfig) -> Any:
    """The same, from a recording that is ready: a `Law`, or a `LagrangeLaw` where that is what is asked for."""
    with determined():
        return _recovered(tracks, problem, config)


@contextmanager
def determined():
    """Raises in words where arithmetic fails inside, for then the data do not determine a law."""
    try:
        yield
    except (np.linalg.LinAlgError, ZeroDivisionError, FloatingPointError) as error:
        raise ValueError(
            f"these data do not determine a law ({type(error).__name__}: {error}); expected motions that tell the "
            "candidate terms apart. Leave terms out of the library, ask for fewer modes, or give richer episodes."
        ) from error


def _recovered(tracks: Tracks, problem: Problem, config: LawsConfig) -> AnyLaw:
    if config.estimator == "lagrange":
        return _equations(tracks, problem, config)
    if config.remainder:
        raise ValueError(
            f"a remainder is asked of the {config.estimator!r} estimator, whose laws are port-Hamiltonian; expected "
            "estimator='lagrange', which can have one."
        )
    if config.estimator == "lasso" and problem.one_friction:
        raise ValueError(
            "one friction for all modes is asked of the 'lasso' estimator, which fits every mode for itself; expected "
            "estimator='weak' or 'shooting'. Take one of them, or leave one_friction out."
        )
    refuse_library(tracks, problem)
    if config.estimator != "shooting":
        _refuse_coupled_momenta(problem)
    if config.estimator == "lasso":
        found = _lasso_estimate(tracks, problem, config.lasso)
    elif config.estimator == "weak":
        found = weak_estimate(tracks, problem, config.shooting.bump)
    else:
        found = shooting(tracks, problem, config.shooting)
    return law_of(found, tracks, problem, config)


def _equations(tracks: Tracks, problem: Problem, config: LawsConfig) -> LagrangeLaw:
    """Lagrange's equations, with what more the data insist on."""
    found = lagrange_estimate(tracks, problem, config.lagrange)
    law = law_of(found, tracks, problem, config)
    if config.lagrange.refine and not is_borne_out(law, found, held_out=config.held_out):
        richer = stribeck_estimate(found, tracks, config.lagrange.shooting)
        if richer is not None and (vague := vague_speeds(richer)):
            moving = [m for m in range(len(problem.modes)) if m not in found.form.resting]
            law = replace(law, problems=(*law.problems, *((m, vague) for m in moving)))
        elif richer is not None:
            other = law_of(richer, tracks, problem, config)
            if not config.held_out or _predicts_better(other, law):
                found, law = richer, other
    if not config.remainder or is_borne_out(law, found, held_out=config.held_out):
        return law
    richer = lagrange_estimate(tracks, problem, config.lagrange, with_remainder)
    other = law_of(richer, tracks, problem, config)
    kept = any(other.support[i] for i in other.form.of("remainder"))
    insist = is_better(richer, found) and (not config.held_out or _predicts_better(other, law))
    if not (kept and insist):
        return law
    return replace(other, notes=(*other.notes, remainder_note(other, tracks)))


def _predicts_better(law: LagrangeLaw, other: LagrangeLaw) -> bool:
    """Whether a law errs less in held-out windows; one that could not be followed there errs more than any."""
    mine, its = (max((h.excess for h in one.held_out), default=np.inf) for one in (law, other))
    return mine < its


def _lasso_estimate(tracks: Tracks, problem: Problem, config: LassoConfig) -> Estimate:
    sorted_modes, base = sorted_by_motion(tracks)
    form, theta, support = lasso_law(tracks, problem, sorted_modes, base, config)
    # The Lasso gives no errors: NaN, and not 0, which would say that its numbers were given.
    unknown = np.diag(np.where(support & form.free, np.nan, 0.0))
    episodes, times = tracks.modes.shape[:2]
    samples = np.stack(np.meshgrid(np.arange(episodes), np.arange(times), indexing="ij"), -1).reshape(-1, 2)
    thetas = []
    for train, _ in folds(samples, np.ones(len(samples)), episodes, times):
        some = tracks._replace(modes=tracks.modes * train.reshape(episodes, times, 1))
        thetas.append(lasso_law(some, problem, sorted_modes, base, config)[1])
    return Estimate(form, theta, support, unknown, np.nan, folds=tuple(thetas))


def law_of(found: Estimate, tracks: Tracks, problem: Problem, config: LawsConfig) -> Any:
    """An estimate as a law, with what is doubtful in it and how it was measured."""
    sorted_modes, _ = sorted_by_motion(tracks)
    shooting = config.lagrange.shooting if config.estimator == "lagrange" else config.shooting
    odd = sorted_modes.unexplained
    if isinstance(found.form, Lagrangian):
        form = found.form
        odd = tuple(m for m in odd if m not in {b.mode for b in form.blocks})
        found, negative = without_giving_friction(found)
        theta = found.theta
        if not positive_masses(form, theta, tracks):
            negative += [(m, "its inertia is not positive everywhere") for m in range(len(problem.modes))]
    else:
        theta, negative = without_negative_friction(found)
    doubts = [*problems_of(found, tracks, problem, shooting.lengths[0], odd), *negative]
    horizons: tuple[Horizon, ...] = ()
    if config.held_out:
        horizons = held_out_horizons(found, tracks, len(problem.modes))
        doubts += unpredicted(found, horizons, doubts, problem)
    law = _unmarked(found, theta, tracks, problem, config.estimator, sorted_modes)
    impacts = dict(rigid(law))  # what else is doubtful in such a mode comes of it
    doubts = [*unscaled(law, tracks), *impacts.items(), *(d for d in doubts if d[0] not in impacts)]
    doubts += uncertain(law, found, tracks, doubts)
    doubts += [(mode, why) for mode, why in undecided(law, found.set_aside) if mode not in {m for m, _ in doubts}]
    doubts = [*dict.fromkeys((*doubts, *inherited(found, doubts, problem)))]
    return replace(law, problems=tuple(doubts), held_out=horizons)


def _unmarked(
    found: Estimate, theta: np.ndarray, tracks: Tracks, problem: Problem, estimator: str, sorted_modes: Sorted
) -> AnyLaw:
    """The law of an estimate, before anything in it is doubted."""
    parts = (
        found.support, found.covariance, estimator, None if np.isnan(found.chi_square) else found.chi_square,
        (), tuple(notes_of(found)), circumstances_of(found, tracks, sorted_modes),
    )  # fmt: skip
    if isinstance(found.form, Lagrangian):
        n = problem.positions
        rates = tuple(f"v_{name}" for name in problem.coordinates[:n])
        units = (*problem.units[:n], *(f"{unit}/s" if unit else "" for unit in problem.units[:n]))
        names = ((*problem.coordinates[:n], *rates), units, problem.inputs, problem.modes)
        return LagrangeLaw(*names, found.form, theta, *parts)
    return Law(problem.coordinates, problem.units, problem.inputs, problem.modes, found.form, theta, *parts)


def refuse_unfit(recording: Recording, problem: Problem, bump: int = 0, *, coupled: bool = False) -> None:
    """Raises where no law can be sought at all; `bump` is half the width of the weak form's, if it is used.

    Where inertia is `coupled` one known force or mass is enough for all positions.
    """
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
        size = float(np.abs(seen).max(initial=0.0))
        if size and not LEAST_SIZE < size < LARGEST_SIZE:
            raise ValueError(
                f"position {problem.coordinates[i]!r} reaches {size:.3g}; expected a size between {LEAST_SIZE:g} and "
                f"{LARGEST_SIZE:g}, whose powers are numbers. Give it in another unit."
            )
        if seen.size < FEWEST_SAMPLES or np.std(seen) <= 1e-12 * max(1.0, np.abs(seen).max()):
            raise ValueError(
                f"position {problem.coordinates[i]!r} is seen {seen.size} times and varies by "
                f"{np.std(seen) if seen.size else 0:.3g}; expected at least {FEWEST_SAMPLES} samples that differ. "
                "A thing that does not move has no law: give episodes in which it does."
            )
    if coupled:
        refuse_without_scale(problem, actions, recording.modes)
        return
    _refuse_no_scale(problem)
    _refuse_still_inputs(recording, problem)


def _refuse_no_scale(problem: Problem) -> None:
    n = problem.positions
    for i in range(n):
        known = [problem.dissipation[i], *problem.port[n + i], _mass(problem, i)]
        if not any(np.isfinite(k) and k != 0 for k in known):
            raise ValueError(
                f"nothing known about {problem.coordinates[i]!r} has the unit of a force; expected an input that is a "
                "force (a number in `port`), a known friction (in `dissipation`) or a known mass. Without one the mass "
                "has no scale: give one of them, for instance dissipation 1 to measure all forces in its unit."
            )


def _mass(problem: Problem, axis: int) -> float:
    """The mass that is known along a position; NaN where it is not."""
    return np.nan if problem.masses is None else float(problem.masses[axis])


def _sum_to_one(modes: np.ndarray) -> bool:
    total = modes.sum(-1)
    return bool((np.abs(total - 1) < 1e-3)[total != 0].all())


def _refuse_still_inputs(recording: Recording, problem: Problem) -> None:
    n, actions = problem.positions, np.concatenate([*recording.actions])
    still = np.ptp(actions, axis=0) <= 1e-9 * np.abs(actions).max(0, initial=0.0)
    for i in range(n):
        forces = problem.port[n + i]
        anchors = np.isfinite(forces) & (forces != 0)
        friction = problem.dissipation[i]
        if np.isfinite(_mass(problem, i)):
            continue
        if (still | ~anchors).all() and not (np.isfinite(friction) and friction):
            raise ValueError(
                f"no force along {problem.coordinates[i]!r} ever varies; expected an input that does, or a known "
                "friction. Without one the mass has no scale: give episodes with a varying input."
            )


def _refuse_coupled_momenta(problem: Problem) -> None:
    """Raises on a product of two momenta: to first order, as the weak form has it, its mass would come out wrong."""
    n = problem.positions
    for term in problem.library:
        if isinstance(term, Monomial) and np.count_nonzero(term.powers[n:]) > 1:
            raise ValueError(
                f"the library has {term.text(problem.coordinates)!r}, a coupled inertia, which this estimator cannot "
                "find; expected terms of one momentum. Leave it out and use estimator='lagrange', which finds M(q)."
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
        if isinstance(term, Custom) and np.nan_to_num(column.reshape(2 * n, -1)[n:]).any():
            raise ValueError(
                f"the term {term.label!r} depends on momenta; expected a term of one's own to be a function of the "
                "positions. Write momenta as monomials, or leave it out."
            )
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
