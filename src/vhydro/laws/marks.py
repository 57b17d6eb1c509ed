"""What is doubtful in a law, and why: every mode that the data do not identify, with the reason in words."""

from dataclasses import replace

import numpy as np

from vhydro.lagrangian import Friction, Inertia, LagrangeEntry, Lagrangian, Potential, Surface, impulse_along
from vhydro.laws.as_model import Circumstances, contacts
from vhydro.laws.estimate import Estimate, first_states
from vhydro.laws.form import Form, Guard, is_kinetic
from vhydro.laws.guards import Sorted, directions, labels, run_lengths
from vhydro.laws.held_out import FURTHER_EXCESS, MOST_EXCESS, NOT_REFINED, Horizon, predicted
from vhydro.laws.lagrange_law import AnyLaw
from vhydro.laws.law import Law
from vhydro.laws.problem import Problem
from vhydro.laws.recording import varying
from vhydro.laws.tracks import Tracks
from vhydro.library import Penetration

FEWEST_SAMPLES = 30  # of a mode, for its law to be sought
SHORTEST_CONTACT = 2.5  # samples: a spring whose contact is shorter leaves no trace between two of them
RIGID = 1.5  # samples: of a spring that throws things back faster nothing is seen but the velocity that has jumped
FEWEST_CONTACTS = 2
DECIDED = 5.0  # standard errors of a term in a law not fitted to positions, which noise bends by more than they say …
DECIDED_BY_SOME = 10.0  # … and in one fitted to what could be followed, where something could not
IMPACTS = "an impact, whose restitution `vhydro laws find` or `impact_law` finds"
MISSPECIFIED = 1.05  # χ² above which sensor noise does not explain the misfit
VAGUE = 0.5  # relative standard error of a law's leading coefficient beyond which it is not identified
NEGATIVE = 3.0  # standard errors below 0, beyond which a friction is not merely noise
UNSURE = 0.04  # of the spread of a mode's accelerations: a law whose own errors leave more is not identified
MOST_SAMPLES = 400  # of a mode, for that
LEAST_SPREAD = 0.1  # of the largest acceleration: less, as of free fall, counts as this much
SET_ASIDE = 0.2  # share of windows that could not be followed


def held_out_horizons(found: Estimate, tracks: Tracks, modes: int) -> tuple[Horizon, ...]:
    """How the law predicts held-out windows; empty where its masses do not even let it be simulated."""
    kinetic = [i for i, e in enumerate(found.form.entries) if e.is_kinetic]
    thetas = [_physical(found, theta) for theta in found.folds]
    if not all((theta[kinetic] > 0).all() for theta in thetas):
        return ()
    if isinstance(found.form, Lagrangian) and not all(positive_masses(found.form, t, tracks) for t in thetas):
        return ()
    offered = first_states(found.form, tracks, found.theta)
    offered += [] if found.states is None else [found.states]
    return predicted(found.form, thetas, tracks, modes, offered)


def _physical(found: Estimate, theta: np.ndarray) -> np.ndarray:
    """Parameters as the law has them: friction that gives energy counts as none."""
    if isinstance(found.form, Lagrangian):
        takes = [e.kind in ("friction", "damping") for e in found.form.entries]
        return np.where(takes, np.maximum(theta, 0.0), theta)
    return without_negative_friction(found._replace(theta=theta))[0]


def unpredicted(found: Estimate, horizons: tuple[Horizon, ...], doubts: list, problem: Problem):
    """Every mode whose law is not borne out by held-out episodes, with the horizon and the excess."""
    doubtful = {mode for mode, _ in doubts}
    near, far = next(iter(horizons), None), next(iter(horizons[:0:-1]), None)
    # Of a law that was not fitted to positions noise bends the coefficients, which long windows show.
    most = NOT_REFINED if np.isnan(found.chi_square) else FURTHER_EXCESS
    for mode in range(len(problem.modes)):
        if mode in doubtful or mode in found.form.resting:
            continue
        excess = None if near is None else near.by_mode[mode]
        further = None if far is None else far.by_mode[mode]
        if near is None or excess is None:
            yield mode, "not checked on held-out data: too few episodes, or too short ones"
        elif excess > MOST_EXCESS:
            yield mode, exceeded(near, excess)
        elif far is not None and further is not None and further > most:
            yield mode, exceeded(far, further)


def uncertain(law: AnyLaw, found: Estimate, tracks: Tracks, doubts: list):
    """Every mode whose accelerations the law's own errors leave too wide, with by how much."""
    now, generator = labels(tracks.modes), np.random.default_rng(0)
    q, v = tracks.smooth.position + tracks.carried, tracks.smooth.velocity
    there = np.isfinite(q).all(-1) & np.isfinite(v).all(-1)
    there = there & (np.arange(now.shape[1]) < tracks.actions.shape[1])  # nothing acts after the last sample
    for mode in range(len(law.modes)):
        if mode in {m for m, _ in doubts} or mode in found.form.resting:
            continue
        places = np.argwhere((now == mode) & there)
        rows, times = generator.permutation(places)[:MOST_SAMPLES].T
        at = q[rows, times], v[rows, times], tracks.actions[rows, times]
        share = _unsure(law, found, mode, at)
        if not share <= UNSURE:
            yield mode, f"its errors leave its accelerations uncertain by {100 * share:.2g} % of their spread"


def _unsure(law: AnyLaw, found: Estimate, mode: int, at: tuple) -> float:
    """One standard error of a mode's accelerations over their spread, the largest of all positions.

    Less spread than a share of the accelerations themselves counts as that share.
    """
    own = law.acceleration(mode, *at)
    changes = [replace(law, theta=law.theta + d).acceleration(mode, *at) - own for d in _deviations(found)]
    variance = np.sum(np.square(changes), 0).mean(0) if changes else np.zeros(own.shape[1])
    spread = np.maximum(own.std(0), LEAST_SPREAD * np.abs(own).max(0))
    return float(np.max(np.sqrt(variance) / np.maximum(spread, 1e-300)))


def _deviations(found: Estimate) -> list[np.ndarray]:
    """Changes of the parameters whose squares sum to their covariance; of the folds where an estimator has none."""
    if np.isfinite(found.covariance).all():
        sizes, ways = np.linalg.eigh(found.covariance)
        return [np.sqrt(s) * w for s, w in zip(sizes, ways.T, strict=True) if s > 0]
    scale = np.sqrt((len(found.folds) - 1) / max(len(found.folds), 1)) if len(found.folds) > 1 else 0.0
    return [scale * (theta - np.mean(found.folds, 0)) for theta in found.folds]


def exceeded(horizon: Horizon, excess: float) -> str:
    """Why a law is not borne out, in words."""
    return (
        f"over {horizon.seconds:.3g} s of held-out data it errs by {excess:.2g} times what sensor noise allows "
        f"({100 * horizon.error:.2g} % of how far things move)"
    )


def inherited(found: Estimate, doubts: list, problem: Problem):
    """The doubts of the base law, for every mode that adds to it."""
    base, doubtful = found.form.base, {mode for mode, _ in doubts}
    if not found.form.additive or base not in doubtful:
        return
    for mode in range(len(problem.modes)):
        if mode not in doubtful and mode not in found.form.resting:
            yield mode, f"it shares parameters with {problem.modes[base]}, which is not identified"


def circumstances_of(found: Estimate, tracks: Tracks, sorted_modes: Sorted) -> Circumstances:
    """How a law was measured, and which way its directions go."""
    sliding = [b.mode for b in found.form.blocks if b.guard is None and b.mode not in sorted_modes.unexplained]
    if isinstance(found.form, Lagrangian):
        sliding = []  # friction itself says which way it acts
    ways = directions(tracks.modes, tracks.smooth.velocity, tuple(sliding), found.form.base)
    return Circumstances(
        tracks.dt,
        *(_floats(x) for x in (tracks.noise, tracks.velocity_noise, np.nanmean(tracks.positions, (0, 1)))),
        *(_floats(np.nanstd(x, (0, 1))) for x in (tracks.positions, tracks.smooth.velocity)),
        directions=tuple(ways),
    )


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(map(float, values))


def without_negative_friction(found: Estimate) -> tuple[np.ndarray, list[tuple[int, str]]]:
    """The parameters with no friction below 0, and the modes where more than noise would have had it so."""
    form, theta, doubts = found.form, found.theta.copy(), []
    assert isinstance(form, Form)
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


def without_giving_friction(found: Estimate) -> tuple[Estimate, list[tuple[int, str]]]:
    """Lagrange's equations without friction or damping below 0, and the modes where more than noise would have it."""
    form, theta, support, doubts = found.form, found.theta.copy(), found.support.copy(), []
    assert isinstance(form, Lagrangian)
    for i, e in enumerate(form.entries):
        if e.kind not in ("friction", "damping") or not (support[i] and form.free[i] and theta[i] < 0):
            continue
        error = float(np.sqrt(max(found.covariance[i, i], 0.0)))
        if not theta[i] >= -NEGATIVE * error:
            mode = form.base if e.block < 0 else form.blocks[e.block].mode
            doubts.append((mode, f"its {e.kind} is {theta[i]:.3g} ± {error:.2g}, which would give energy"))
        theta[i], support[i] = 0.0, False
    return found._replace(theta=theta, support=support), doubts


def problems_of(found: Estimate, tracks: Tracks, problem: Problem, shortest: int, unexplained: tuple[int, ...]):
    """Every (mode, reason) for which a law is not identified.

    Almost any law can be bent to the shortest windows: what noise hides in one of them shows in a longer one, so a law
    that was followed through no other is not borne out by the positions.
    """
    now, form = labels(tracks.modes), found.form
    lacking = found.set_aside > SET_ASIDE * max(found.windows, 1)
    errors = np.sqrt(np.diag(found.covariance))
    for mode in range(len(problem.modes)):
        count, runs = int((now == mode).sum()), run_lengths(now == mode)
        if mode != form.base and len(runs) >= FEWEST_CONTACTS and np.median(runs) < SHORTEST_CONTACT:
            yield mode, f"{len(runs)} contacts of {np.median(runs):g} samples are too short for a spring: {IMPACTS}"
            continue
        if count < FEWEST_SAMPLES:
            yield mode, f"only {count} samples, {FEWEST_SAMPLES} are needed"
            continue
        if mode in form.resting:
            continue
        if mode in unexplained:
            yield mode, "neither a surface nor a direction of motion tells it from the other modes"
            continue
        block = next((b for b, x in enumerate(form.blocks) if x.mode == mode), -1)
        if block >= 0 and form.blocks[block].guard is not None and len(runs) < FEWEST_CONTACTS:
            yield mode, f"{len(runs)} contact is too few"
            continue
        vague = (_vague_equations if isinstance(form, Lagrangian) else _vague)(found, errors, block)
        if vague:
            yield mode, vague
        elif lacking:
            yield mode, f"{found.set_aside} of {found.windows} windows could not be followed"
        elif found.stopped_at == shortest:
            yield mode, f"nothing longer than windows of {shortest} samples could be followed"


def rigid(law: AnyLaw):
    """Every mode whose spring would throw things back between two samples: its stiffness cannot have been seen."""
    seen = law.circumstances
    if seen is None:
        return
    for mode, guard, _ in contacts(law):
        axes = [a for a in (guard.axis, getattr(guard, "other", None)) if a is not None]
        speed, mass = float(np.hypot.reduce([seen.velocity_spread[a] for a in axes])), _mass(law, guard)
        if not speed > 0:
            continue
        depths = [(p * mass * speed**2 / (2 * c)) ** (1 / p) for p, c in _springs(law, mode) if c * mass > 0]
        lasts = 3 * min(depths, default=np.inf) / (speed * seen.dt)  # samples in and out again, whatever the power
        if lasts < RIGID:
            yield (
                mode,
                f"its spring would throw things back within {lasts:.2g} samples, too fast to be seen: {IMPACTS}",
            )


def undecided(law: AnyLaw, set_aside: int):
    """Every mode with a term that may as well not be there: of a law not fitted to positions, whose terms noise
    bends, or from whose windows some were set aside, which may have bent the rest.
    """
    enough = DECIDED if law.chi_square is None else DECIDED_BY_SOME
    for mode in range(len(law.modes)) if law.chi_square is None or set_aside else ():
        if isinstance(law, Law):
            found = {t.text(law.coordinates): n for t, n in law.energy(mode).items()}
        else:
            found = {name: n for name, n in law.terms(mode).items() if name != "place"}
        doubtful = {name: n for name, n in found.items() if abs(n.value) < enough * n.error}
        if doubtful:
            name, n = min(doubtful.items(), key=lambda one: abs(one[1].value) / one[1].error)
            yield mode, f"whether it has {name!r} is not decided: {n.value:.3g} ± {n.error:.2g}"


def unscaled(law: AnyLaw, tracks: Tracks):
    """Every mode of a law in which nothing fixes the unit of force along some position: its inertia, springs and
    friction are then known up to one factor. Positions that the law couples share what one of them has.
    """
    if isinstance(law, Law):
        return  # each of its positions has something given, or it was refused
    form, n = law.form, law.positions
    group, fixed = list(range(n)), np.zeros(n, bool)
    varies = varying(tracks.actions, tracks.modes)
    for i, e in enumerate(form.entries):
        axes = _axes(e, form)
        if not (law.support[i] and law.theta[i] and axes):
            continue
        group = [group[axes[0]] if g in {group[a] for a in axes} else g for g in group]
        given = not form.free[i] and e.kind in ("inertia", "friction")
        fixed[axes[0]] |= given or (e.kind == "port" and not form.free[i] and varies[e.column])
    known = {group[a] for a in np.flatnonzero(fixed).tolist()}
    loose = [law.coordinates[a] for a in range(n) if group[a] not in known]
    for mode in range(len(law.modes)) if loose else ():
        if mode not in form.resting:
            yield mode, f"nothing fixes the unit of force along {loose[0]}: give its mass, or a force on it that varies"


def _axes(e: LagrangeEntry, form: Lagrangian) -> list[int]:
    """The positions that an entry is of."""
    if isinstance(e.term, Inertia):
        return sorted({e.term.row, e.term.column})
    if isinstance(e.term, Potential):
        shape = e.term.shape
        return [a for a, of in enumerate(zip(shape.powers, shape.along or shape.powers, strict=True)) if any(of)]
    if isinstance(e.term, Friction):
        return [a for a, _ in e.term.weights]
    if e.block >= 0:
        return [a for a, _ in form.blocks[e.block].guard.weights]
    return [e.axis]


def _mass(law: AnyLaw, guard: Guard | Surface) -> float:
    """The mass that meets a surface where things usually are; below 0 where the law has none."""
    if isinstance(law, Law):
        energy, p = law.energy(law.form.base), law.positions + guard.axis
        inverse = sum(2 * n.value for t, n in energy.items() if is_kinetic(t) and t.powers[p] == 2)
        return 1 / inverse if inverse else -1.0
    assert law.circumstances is not None  # no law is judged without what it was found in …
    assert isinstance(guard, Surface)  # … and this form has no other
    matrix = np.array(law.form.mass_matrix(law.theta, law.circumstances.position_mean), float)
    along = np.array(impulse_along(guard, law.positions))
    return 1 / float(along @ np.linalg.pinv(matrix) @ along)


def _springs(law: AnyLaw, mode: int) -> list[tuple[int, float]]:
    """The springs of a contact: the power p and the coefficient c of an energy c x^p / p."""
    if isinstance(law, Law):
        return [(t.power, n.value) for t, n in law.energy(mode).items() if isinstance(t, Penetration)]
    block = law.contact(mode)
    return [] if block is None else [(2, float(law.theta[i])) for i in law.form.of("stiffness", block)]


def positive_masses(form: Lagrangian, theta: np.ndarray, tracks: Tracks) -> bool:
    """Whether M is positive definite wherever things were."""
    q = np.moveaxis(tracks.smooth.position, -1, 0)
    q = [x[np.isfinite(tracks.smooth.position).all(-1)] for x in q]
    rows = [[np.broadcast_to(x, q[0].shape) for x in row] for row in form.mass_matrix(theta, q)]
    matrices = np.moveaxis(np.array(rows), -1, 0)
    return bool(np.isfinite(matrices).all() and np.linalg.eigvalsh(matrices)[:, 0].min() > 0)


def _vague_equations(found: Estimate, errors: np.ndarray, block: int) -> str:
    """Which inertia, or which spring of a contact, is not known to within half its size; empty where all are."""
    assert isinstance(found.form, Lagrangian)
    for i, e in enumerate(found.form.entries):
        leading = isinstance(e.term, Inertia) or e.kind == "speed" or (e.kind == "stiffness" and e.block == block)
        if not (leading and found.support[i]):
            continue
        if not np.isfinite(found.theta[i]):
            return "a coefficient is not finite"
        if errors[i] > VAGUE * abs(found.theta[i]):
            what = {"stiffness": "its spring", "speed": "the speed of its Stribeck friction"}
            what = what.get(e.kind, "a term of its inertia")
            return f"{what} is {found.theta[i]:.3g} ± {errors[i]:.2g}"
        if e.kind in ("stiffness", "speed") and found.theta[i] <= 0:
            return (
                f"its {'spring' if e.kind == 'stiffness' else 'Stribeck speed'} is {found.theta[i]:.3g}, not positive"
            )
    return ""


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


def notes_of(found: Estimate):
    if found.chi_square > MISSPECIFIED + 3 * np.sqrt(2 / max(found.freedom, 1)):
        yield (
            f"χ² is {found.chi_square:.2f}: sensor noise does not explain the misfit. The library may lack a term, "
            "or the modes may be wrong; the intervals are widened by it."
        )
    if found.set_aside:
        yield f"{found.set_aside} of {found.windows} windows could not be followed and are left out."
    if found.stopped_at:
        yield f"It is fitted to windows of {found.stopped_at} samples: through longer ones it could not be followed."
