"""Laws from a recording: one door to the three estimators."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from vhydro.laws.as_model import Circumstances
from vhydro.laws.estimate import Estimate, ShootingConfig, first_states, shooting, sorted_by_motion, weak_estimate
from vhydro.laws.form import is_kinetic
from vhydro.laws.guards import Sorted, directions, labels, run_lengths
from vhydro.laws.held_out import MOST_EXCESS, Horizon, folds, predicted
from vhydro.laws.lasso import LassoConfig, lasso_law
from vhydro.laws.law import Law
from vhydro.laws.problem import Problem
from vhydro.laws.recording import Recording
from vhydro.laws.tracks import Tracks, prepared
from vhydro.library import Custom, Monomial, slope

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
    held_out: bool = True  # whether held-out episodes are predicted; without it no mode is marked by them
    shooting: ShootingConfig = field(default_factory=ShootingConfig)
    lasso: LassoConfig = field(default_factory=LassoConfig)


def recover(recording: Recording, problem: Problem, config: LawsConfig = LawsConfig()) -> Law:
    """The law of every mode. A mode that the data do not identify is marked so, with the reason."""
    refuse_unfit(recording, problem, 0 if config.estimator == "lasso" else config.shooting.bump)
    return recover_from(prepared(recording, problem), problem, config)


def recover_from(tracks: Tracks, problem: Problem, config: LawsConfig) -> Law:
    """The same, from a recording that is ready."""
    try:
        return _recovered(tracks, problem, config)
    except (np.linalg.LinAlgError, ZeroDivisionError, FloatingPointError) as error:
        raise ValueError(
            f"these data do not determine a law ({type(error).__name__}: {error}); expected motions that tell the "
            "candidate terms apart. Leave terms out of the library, ask for fewer modes, or give richer episodes."
        ) from error


def _recovered(tracks: Tracks, problem: Problem, config: LawsConfig) -> Law:
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


def law_of(found: Estimate, tracks: Tracks, problem: Problem, config: LawsConfig) -> Law:
    """An estimate as a law, with what is doubtful in it and how it was measured."""
    sorted_modes, _ = sorted_by_motion(tracks)
    theta, negative = _without_negative_friction(found)
    doubts = [*_problems(found, tracks, problem, config.shooting.lengths[0], sorted_modes.unexplained), *negative]
    horizons: tuple[Horizon, ...] = ()
    if config.held_out:
        horizons = _predicted(found, tracks, len(problem.modes))
        doubts += _unpredicted(found, horizons, doubts, problem)
    doubts = [*dict.fromkeys((*doubts, *_inherited(found, doubts, problem)))]
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
        horizons,
    )


def _predicted(found: Estimate, tracks: Tracks, modes: int) -> tuple[Horizon, ...]:
    """How the law predicts held-out windows; empty where its masses do not even let it be simulated."""
    kinetic = [i for i, e in enumerate(found.form.entries) if e.is_kinetic]
    thetas = [_physical(found, theta) for theta in found.folds]
    if not all((theta[kinetic] > 0).all() for theta in thetas):
        return ()
    offered = first_states(found.form, tracks, found.theta)
    offered += [] if found.states is None else [found.states]
    return predicted(found.form, thetas, tracks, modes, offered)


def _physical(found: Estimate, theta: np.ndarray) -> np.ndarray:
    """Parameters as the law has them: friction that gives energy counts as none."""
    return _without_negative_friction(found._replace(theta=theta))[0]


def _unpredicted(found: Estimate, horizons: tuple[Horizon, ...], doubts: list, problem: Problem):
    """Every mode whose law is not borne out by held-out episodes, with the horizon and the excess."""
    doubtful = {mode for mode, _ in doubts}
    for mode in range(len(problem.modes)):
        if mode in doubtful or mode in found.form.resting:
            continue
        excess = horizons[0].by_mode[mode] if horizons else None
        if excess is None:
            yield mode, "not checked on held-out data: too few episodes, or too short ones"
        elif excess > MOST_EXCESS:
            yield mode, exceeded(horizons[0], excess)


def exceeded(horizon: Horizon, excess: float) -> str:
    """Why a law is not borne out, in words."""
    return (
        f"over {horizon.seconds:.3g} s of held-out data it errs by {excess:.2g} times what sensor noise allows "
        f"({100 * horizon.error:.2g} % of how far things move)"
    )


def _inherited(found: Estimate, doubts: list, problem: Problem):
    """The doubts of the base law, for every mode that adds to it."""
    base = found.form.base
    if not found.form.additive or base not in {mode for mode, _ in doubts}:
        return
    for block in found.form.blocks:
        if block.mode not in {mode for mode, _ in doubts}:
            yield block.mode, f"it shares parameters with {problem.modes[base]}, which is not identified"


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
    n, actions = problem.positions, recording.actions.reshape(-1, recording.actions.shape[-1])
    still = np.ptp(actions, axis=0) <= 1e-9 * np.abs(actions).max(0, initial=0.0)
    for i in range(n):
        forces = problem.port[n + i]
        anchors = np.isfinite(forces) & (forces != 0)
        friction = problem.dissipation[i]
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
    """Which leading coefficient is not known to within half its size; empty where all are.

    Masses lead in every mode, those of the base in modes that add to it too; of a contact also its energy.
    """
    shared = (-1, block) if found.form.additive else (block,)
    for i, e in enumerate(found.form.entries):
        leading = (e.is_kinetic and e.block in shared) or (block >= 0 and e.block == block and e.kind == "energy")
        if leading and found.support[i] and not np.isfinite(found.theta[i]):
            return "a coefficient is not finite"
        if leading and e.is_kinetic and not found.theta[i] > 0:
            return f"its inverse mass is {found.theta[i]:.3g}, not positive"
        if leading and found.support[i] and errors[i] > VAGUE * abs(found.theta[i]):
            return f"a coefficient of its energy is {found.theta[i]:.3g} ± {errors[i]:.2g}"
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
