"""The default estimator: weak form, then hybrid multiple shooting on positions, supports compared by BIC."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from vhydro.lagrangian import Lagrangian
from vhydro.laws import weak
from vhydro.laws.descent import Fit, Normal, Shooter, descended, started
from vhydro.laws.first_masses import anchors, offered, with_mass
from vhydro.laws.form import AnyForm, Form, form_of, is_kinetic, momentum_degree
from vhydro.laws.guards import Sorted, at_rest, labels, run_lengths, sort_modes, wander
from vhydro.laws.held_out import folds, smoothed_states
from vhydro.laws.problem import Problem
from vhydro.laws.shooting import LARGEST_TURN, substeps
from vhydro.laws.support import Choice, best_subset
from vhydro.laws.tracks import Tracks
from vhydro.laws.weak_errors import covariance_in_units_of_force, robust_covariance
from vhydro.laws.windows import cut
from vhydro.library import Penetration
from vhydro.progress import counted

NOT_FOLLOWED = 0.25  # of the positions' spread: a window further off than that is not followed
LONGER_COSTS = 1.05  # times the misfit: longer windows that fit worse than that are not used
HOPELESS = 100.0  # times the misfit that noise alone would leave: a window further off says no more than that
START_SMOOTHINGS = (5, 12, 24)  # samples: half-widths offered as starts of the first windows


@dataclass(frozen=True)
class ShootingConfig:
    """How windows are followed and supports compared."""

    bump: int = 16  # samples: half the width of the weak form's bumps
    lengths: tuple[int, ...] = (60, 240, 960)  # samples in a window: short ones to come near, long ones to decide
    rounds: int = 6  # of choosing a support and fitting it, at the longest length
    worst: float = 5.0  # standard deviations above the usual misfit, beyond which a window is set aside
    largest_turn: float = LARGEST_TURN  # rad of the stiffest contact in one step of integration


class Estimate(NamedTuple):
    """A hybrid law's parameters with their uncertainty, and how well it fits."""

    form: AnyForm
    theta: np.ndarray
    support: np.ndarray  # which entries are part of the law
    covariance: np.ndarray  # (entries, entries); 0 for what is known or left out
    chi_square: float  # misfit over what sensor noise alone would leave
    windows: int = 0
    set_aside: int = 0  # windows no start of which the law could follow
    freedom: int = 1  # samples that the misfit is counted over
    stopped_at: int = 0  # the length of windows beyond which it could not be followed; 0: it could to the end
    folds: tuple[np.ndarray, ...] = ()  # the parameters without the held-out episodes of every fold
    states: np.ndarray | None = None  # (episodes, times, coordinates): where it was followed to


class Weak(NamedTuple):
    """The weak form's law, in units of mass 1, with its contacts' places."""

    form: Form
    choice: Choice
    places: np.ndarray
    rows: weak.Rows

    @property
    def score(self) -> float:
        """BIC of the weak form's rows, for comparing forms on the same positions: smaller is better."""
        theta, m = self.choice.theta, self.rows
        misfit = m.square - 2 * m.cross @ theta + theta @ m.gram @ theta
        return float(m.number * np.log(max(misfit, 1e-12) / m.number) + np.log(m.number) * self.choice.support.sum())


def base_mode(tracks: Tracks, resting: tuple[int, ...]) -> int:
    """The mode of the base law: of those that move, the one that is on the longest."""
    weight = tracks.modes.sum((0, 1))
    weight[list(resting)] = -1
    return int(np.argmax(weight))


def sorted_by_motion(tracks: Tracks) -> tuple[Sorted, int]:
    """What every mode is, and which is the base."""
    wanders = wander(tracks.modes, tracks.positions - tracks.carried, tracks.noise)
    resting = at_rest(tracks.modes, tracks.smooth.velocity, tracks.velocity_noise, wanders)
    base = base_mode(tracks, resting)
    own = tracks.smooth._replace(position=tracks.smooth.position + tracks.carried)
    return sort_modes(tracks.modes, own, base, resting), base


def weak_law(
    tracks: Tracks, problem: Problem, bump: int, *, momenta: bool = True, skipped: np.ndarray | None = None
) -> Weak:
    """The weak form's law; its contacts' places are moved once to where their springs begin to push."""
    sorted_modes, base = sorted_by_motion(tracks)
    form = form_of(problem, base, sorted_modes.guards, sorted_modes.resting)
    places = np.zeros(len(form.entries))
    for b, i in form.places.items():
        places[i] = sorted_modes.places[form.blocks[b].mode]
    now = labels(tracks.modes)
    on = np.stack([now == b.mode for b in form.blocks], -1) * 1.0 if form.blocks else np.zeros((*now.shape, 0))
    moves = ~np.isin(now, form.resting) * 1.0
    optional = np.array([e.kind == "energy" and not e.is_kinetic for e in form.entries])
    if not momenta:
        optional &= np.array([e.term is None or momentum_degree(e.term) == 0 for e in form.entries])
    powers = np.array([_power(e.term) for e in form.entries])
    first = weak.rows(form, tracks, on, moves, places, bump, skipped)
    places = _shifted(form, places, weak_choice(form, first, optional & (powers != 3)).theta, powers == 2, tracks)
    rows = weak.rows(form, tracks, on, moves, places, bump, skipped)
    return Weak(form, weak_choice(form, rows, optional), places, rows)


def weak_choice(form: Form, rows: weak.Rows, optional: np.ndarray) -> Choice:
    """The best subset of the weak form's columns, its penalty in units of the misfit it leaves."""
    always = np.array([e.kind in ("dissipation", "port") for e in form.entries]) & (form.known != 0)
    penalty = np.log(rows.number) + 2 * np.log(max(optional.sum(), 1))
    nothing = np.zeros_like(always)
    dense = best_subset(rows.gram, rows.cross, rows.square, 0.0, always=always | optional, optional=nothing)
    scale = max(dense.misfit, 1e-300) / rows.number
    return best_subset(
        rows.gram / scale, rows.cross / scale, rows.square / scale, penalty, always=always, optional=optional
    )


def _shifted(form: Form, places: np.ndarray, theta: np.ndarray, springs: np.ndarray, tracks: Tracks) -> np.ndarray:
    """The places moved to where constant force and spring together vanish, if that is near."""
    out = places.copy()
    reach = 0.1 * np.nanstd(tracks.positions, axis=(0, 1))
    for b, i in form.places.items():
        guard = form.blocks[b].guard
        assert guard is not None
        force = next(theta[j] for j, e in enumerate(form.entries) if e.block == b and _power(e.term) == 1)
        spring = next(theta[j] for j, e in enumerate(form.entries) if e.block == b and springs[j])
        if spring > 0 and abs(force / spring) < reach[guard.axis]:
            out[i] = places[i] - guard.sign * force / spring
    return out


def _power(term) -> int:
    return term.power if isinstance(term, Penetration) else 0


def first_guess(law: Weak, tracks: Tracks) -> tuple[np.ndarray, np.ndarray]:
    """Parameters and support to start shooting from: the weak form's, its contacts as plain springs.

    A spring that noise has washed out is replaced by the one whose half period the contacts last.
    """
    form = law.form
    theta = weak.in_units_of_force(form, law.choice.theta)
    mass = weak.masses(form, law.choice.theta)
    support = law.choice.support.copy()
    lasting = {b: _contact_time(tracks, block.mode) for b, block in enumerate(form.blocks) if block.guard}
    for i, e in enumerate(form.entries):
        if e.kind == "place":
            theta[i], support[i] = law.places[i], True
        if e.is_kinetic:
            support[i] = True
        if isinstance(e.term, Penetration):
            support[i] = e.term.power == 2
            theta[i] = max(theta[i], mass[e.term.axis] * (np.pi / lasting[e.block]) ** 2) if support[i] else 0.0
        if e.kind == "dissipation" and np.isnan(form.known[i]):
            theta[i] = max(theta[i], 0.0)
    return np.where(support, theta, 0.0), support


def _contact_time(tracks: Tracks, mode: int) -> float:
    """The median time a contact lasts."""
    lengths = run_lengths(labels(tracks.modes) == mode)
    return float(np.median(lengths)) * tracks.dt if len(lengths) else np.inf


def weak_estimate(tracks: Tracks, problem: Problem, bump: int) -> Estimate:
    """The weak form's law by itself; a term that does not help to predict held-out rows is left out."""
    law = weak_law(tracks, problem, bump)
    support = _borne_out(law, tracks)
    kept = law._replace(choice=law.choice._replace(support=support, theta=law.rows.solution(support)))
    solved = [train.solution(support) for train, _ in _row_folds(law.rows, tracks)]
    thetas = [_in_force(kept._replace(choice=kept.choice._replace(theta=theta))) for theta in solved]
    return as_estimate(kept)._replace(folds=tuple(thetas))


def _row_folds(found: weak.Rows, tracks: Tracks) -> list[tuple[weak.Rows, weak.Rows]]:
    """The rows to fit and those held out, fold by fold."""
    episodes, times = tracks.positions.shape[:2]
    series, count = found.left.shape
    where = np.stack(np.meshgrid(np.arange(series) % episodes, np.arange(count), indexing="ij"), -1).reshape(-1, 2)
    where[:, 1] *= found.stride
    parts = folds(where, np.full(len(where), 2 * found.half_width + 1), episodes, times)
    return [(found.only(a.reshape(series, count)), found.only(b.reshape(series, count))) for a, b in parts]


def _borne_out(law: Weak, tracks: Tracks) -> np.ndarray:
    """The support without the energies that improve the fit and not the prediction of held-out rows."""
    parts, support = _row_folds(law.rows, tracks), law.choice.support.copy()
    energy = np.array([e.kind == "energy" and not e.is_kinetic for e in law.form.entries])

    def error(tried: np.ndarray) -> float:
        return float(sum(np.sum(held.residuals(train.solution(tried)) ** 2) for train, held in parts))

    while (pool := np.flatnonzero(support & energy)).size and min(held.number for _, held in parts) > 0:
        tried = np.tile(support, (len(pool), 1))
        tried[np.arange(len(pool)), pool] = False
        errors = [error(t) for t in tried]
        if min(errors) > error(support):
            break
        support = tried[int(np.argmin(errors))]
    return support


def as_estimate(law: Weak) -> Estimate:
    """A weak form's law in units of force, with errors."""
    form, theta = law.form, _in_force(law)
    support = law.choice.support | np.array([e.kind == "place" or e.is_kinetic for e in form.entries])
    found = robust_covariance(law.rows, law.choice.support)
    covariance = covariance_in_units_of_force(form, law.choice.theta, found)
    return Estimate(form, np.where(support, theta, 0.0), support, covariance, np.nan)


def _in_force(law: Weak) -> np.ndarray:
    """The parameters in units of force, with the contacts' places."""
    theta = weak.in_units_of_force(law.form, law.choice.theta)
    return np.where([e.kind == "place" for e in law.form.entries], law.places, theta)


def shooting(tracks: Tracks, problem: Problem, config: ShootingConfig) -> Estimate:
    """The law of every mode from positions alone: the default estimator."""
    law = weak_law(tracks, problem, config.bump, momenta=False)
    with jax.enable_x64(True):
        theta, support = first_guess(with_sure_masses(law, tracks, config), tracks)
        return shot(law.form, tracks, theta, support, config)


def with_sure_masses(law: Weak, tracks: Tracks, config: ShootingConfig) -> Weak:
    """The same; of a mass that noise leaves in doubt, the one whose windows are followed best."""
    for axis, anchor in anchors(law.form, law.rows, law.choice.theta, law.choice.support):
        found = weak.masses(law.form, law.choice.theta)[axis]
        tried = [law] if found > 0 else []
        for mass in offered(law.form, tracks, anchor):
            value = law.form.known[anchor] / mass
            theta = with_mass(law.rows, law.choice.theta, law.choice.support, anchor, value)
            tried.append(law._replace(choice=law.choice._replace(theta=theta)))
        law = min(tried, key=lambda one: _first_misfit(one, tracks, config), default=law)
    return law


def _first_misfit(law: Weak, tracks: Tracks, config: ShootingConfig) -> float:
    """How badly the shortest windows are followed from a first guess, a hopeless one no worse than any such."""
    theta, _ = first_guess(law, tracks)
    windows, where = cut(law.form, tracks, config.lengths[0])
    shooter = Shooter(law.form, windows, tracks.dt, substeps(law.form, theta, tracks.dt, config.largest_turn))
    starts = first_states(law.form, tracks, theta)[0][where[:, 0], where[:, 1]]
    misfit = shooter.course(theta, started(shooter, theta, starts, steps=3)).misfit / np.maximum(shooter.freedom, 1)
    return float(np.mean(np.minimum(misfit[shooter.used], HOPELESS))) if shooter.used.any() else np.inf


class Stage(NamedTuple):
    """A fit at one length of window."""

    fit: Fit
    kept: Shooter  # the windows that were followed
    whole: Shooter
    where: np.ndarray

    @property
    def chi_square(self) -> float:
        return _misfit(self.kept, self.fit) / max(self.kept.freedom.sum(), 1)

    @property
    def share_kept(self) -> float:
        return float(self.kept.used.sum() / max(self.whole.used.sum(), 1))


def shot(form: AnyForm, tracks: Tracks, theta, support, config: ShootingConfig, *, select: bool = True) -> Estimate:
    """The estimate that shooting reaches from a first guess, through windows as long as the law can follow."""
    states = first_states(form, tracks, theta)
    best: Any = None  # the last stage that could be trusted
    reached = 0  # its length
    for length in counted(config.lengths, "finding laws: lengths of windows"):
        stage, chosen = _stage(form, tracks, theta, support, states, length, config), support
        last = length == config.lengths[-1]
        if select and (last or (best is not None and _is_worse(stage, best))):
            fit, chosen = _selected(stage.kept, stage.fit, support, config.rounds)
            stage = stage._replace(fit=fit)
        if best is not None and _is_worse(stage, best):
            break
        best, reached, theta, support = stage, length, stage.fit.theta, chosen
        states = [_followed(states[0], stage)]
    else:
        return _estimate(form, best, support, states[0], select)
    fit, support = _selected(best.kept, best.fit, support, config.rounds) if select else (best.fit, support)
    return _estimate(form, best._replace(fit=fit), support, states[0], select)._replace(stopped_at=reached)


def _is_worse(stage: Stage, than: Stage) -> bool:
    """Whether longer windows fit so much worse that the law, or their starts, cannot be trusted that far."""
    worse = stage.chi_square > LONGER_COSTS * max(than.chi_square, 1.0)
    return bool(worse or stage.share_kept < 0.8 * than.share_kept)


def _stage(form: AnyForm, tracks: Tracks, theta, support, states: list[np.ndarray], length: int, config) -> Stage:
    windows, where = cut(form, tracks, length)
    if not (windows.weights > 0).any():
        raise ValueError(
            "no stretch of the log stays in one mode long enough to be followed; expected at least 8 samples in a row. "
            "Give labels that last longer, or fewer modes."
        )
    shooter = Shooter(form, windows, tracks.dt, substeps(form, theta, tracks.dt, config.largest_turn))
    offered = [s[where[:, 0], where[:, 1]] for s in states]
    misfit = np.stack([shooter.course(theta, starts).misfit for starts in offered])
    starts = np.stack(offered)[np.argmin(misfit, 0), np.arange(len(where))]
    starts = started(shooter, theta, starts, steps=6 if len(states) > 1 else 3)
    return Stage(*_rescued(shooter, theta, support, starts, config), shooter, where)


def _rescued(shooter: Shooter, theta, support, starts, config: ShootingConfig) -> tuple[Fit, Shooter]:
    """The fit to the windows that can be followed; those set aside are tried once more with the law it found."""
    active = support & shooter.form.free
    kept = shooter.without(_lost(shooter, theta, starts))
    fit = descended(kept, theta, active, starts)
    if not kept.used.any():
        raise ValueError(
            "no stretch of the log could be followed by a law of its modes; expected motion that forces explain. "
            "What bounces off hard things within a sample is found by `impact_law`."
        )
    for _ in range(2):
        again = started(shooter, fit.theta, fit.starts, steps=4)
        dropped = _hopeless(shooter, fit.theta, again, config)
        if (shooter.used & ~dropped == kept.used).all():
            break
        kept = shooter.without(dropped)
        fit = descended(kept, fit.theta, active, again)
    return fit, kept


def _selected(shooter: Shooter, fit: Fit, support: np.ndarray, rounds: int) -> tuple[Fit, np.ndarray]:
    """The fit on the best support found: the linearised problem proposes, the misfit itself decides by BIC."""
    form, freedom = shooter.form, float(max(shooter.freedom.sum() - support.sum(), 1))
    for _ in range(rounds):
        scale = _misfit(shooter, fit) / freedom
        chosen = _choice(form, fit, _curvature(shooter, fit, form.free), scale, freedom)
        if (chosen.support == support[form.free]).all():
            break
        theta, other = _adopted(form, fit.theta, support, chosen)
        tried = descended(shooter, theta, other & form.free, fit.starts)
        if _gives_energy(form, tried.theta, other):
            break
        penalty = _penalty(form, freedom) * (int(other.sum()) - int(support.sum()))
        if (_misfit(shooter, tried) - _misfit(shooter, fit)) / scale + penalty >= 0:
            break
        fit, support = tried, other
    return fit, support


def _curvature(shooter: Shooter, fit: Fit, picked: np.ndarray) -> Normal:
    """The normal equations at a fit."""
    return shooter.normal(fit.theta, np.flatnonzero(picked), fit.starts, np.zeros(len(fit.starts)))


def _misfit(shooter: Shooter, fit: Fit) -> float:
    return float(fit.course.misfit[shooter.used].sum())


def _penalty(form: AnyForm, freedom: float) -> float:
    """The extended BIC's price of one entry: it pays for the data's size and for how many were on offer."""
    return float(np.log(freedom) + 2 * np.log(max(form.optional.sum(), 1)))


def first_states(form: AnyForm, tracks: Tracks, theta: np.ndarray) -> list[np.ndarray]:
    """States to start windows from, each (episodes, times, coordinates): smoothed a little, more, and much."""
    if isinstance(form, Lagrangian):
        return smoothed_states(tracks, np.ones(form.positions), START_SMOOTHINGS)
    moving = [(i, e.term) for i, e in enumerate(form.entries) if is_kinetic(e.term)]
    kinetic = {term.powers.index(2) - form.positions: theta[i] for i, term in moving}
    mass = np.array([0.5 / kinetic[axis] for axis in range(form.positions)])
    return smoothed_states(tracks, mass, START_SMOOTHINGS)


def _followed(states: np.ndarray, stage: Stage) -> np.ndarray:
    """The states with those of every window that was followed put in."""
    out = states.copy()
    for (episode, first), path, length in zip(stage.where, stage.fit.course.states, stage.kept.last, strict=True):
        out[episode, first : first + length] = path[:length]
    return out


def _lost(shooter: Shooter, theta: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Which windows are not followed at all: off by a good part of how far things move."""
    seen = shooter.windows.weights > 0
    spread = np.std(shooter.windows.positions, axis=(0, 1), where=seen)
    off = (shooter.course(theta, starts).states[..., : shooter.form.positions] - shooter.windows.positions) / spread
    return ~(np.sqrt(np.mean(off**2, (1, 2), where=seen | ~seen.any((1, 2), keepdims=True))) < NOT_FOLLOWED)


def _hopeless(shooter: Shooter, theta: np.ndarray, starts: np.ndarray, config: ShootingConfig) -> np.ndarray:
    """Which windows no start was found for."""
    ratio = shooter.course(theta, starts).misfit / np.maximum(shooter.freedom, 1)
    usual = np.median(ratio[shooter.used]) if shooter.used.any() else 1.0
    return ~(ratio <= max(usual, 1.0) * (1 + config.worst * np.sqrt(2 / np.maximum(shooter.freedom, 1))))


def _choice(form: AnyForm, fit: Fit, normal: Normal, scale: float, freedom: float) -> Choice:
    """The support that the linearised problem asks for, every subset tried."""
    theta, optional = fit.theta[form.free], form.optional[form.free]
    gram, cross = normal.gram / scale, (normal.cross + normal.gram @ theta) / scale
    square = freedom + float(2 * normal.cross @ theta + theta @ normal.gram @ theta) / scale
    takes, always = _takes_energy(form)[form.free], ~optional
    while True:
        chosen = best_subset(gram, cross, square, _penalty(form, freedom), always=always, optional=optional)
        negative = takes & optional & (chosen.theta < 0)
        if not negative.any():
            return chosen
        optional = optional & ~negative


def _takes_energy(form: AnyForm) -> np.ndarray:
    """Which entries are frictions or dampings that a law may do without, and that may not be below 0."""
    if not isinstance(form, Lagrangian):
        return np.zeros(len(form.entries), bool)
    return np.array([e.kind in ("friction", "damping") for e in form.entries]) & form.optional


def _gives_energy(form: AnyForm, theta: np.ndarray, support: np.ndarray) -> bool:
    return bool((_takes_energy(form) & support & (theta < 0)).any())


def _adopted(form: AnyForm, theta: np.ndarray, support: np.ndarray, chosen: Choice) -> tuple[np.ndarray, np.ndarray]:
    theta, support = theta.copy(), support.copy()
    theta[form.free], support[form.free] = chosen.theta, chosen.support
    return theta, support


def _estimate(form: AnyForm, stage: Stage, support: np.ndarray, states: np.ndarray, select: bool) -> Estimate:
    stage, support, thetas = _borne_out_by_folds(form, stage, support, states.shape, select)
    fit, active = stage.fit, support & form.free
    chi_square = _misfit(stage.kept, fit) / max(stage.kept.freedom.sum() - support.sum(), 1)
    covariance = np.zeros(2 * (len(form.entries),))
    inverse = np.linalg.pinv(_curvature(stage.kept, fit, active).gram, rcond=1e-14, hermitian=True)
    covariance[np.ix_(active, active)] = inverse * max(chi_square, 1.0)
    count, used = int(stage.whole.used.sum()), int(stage.kept.used.sum())
    freedom = int(stage.kept.freedom.sum())
    return Estimate(
        form, fit.theta, support, covariance, float(chi_square), count, count - used, freedom,
        folds=tuple(thetas), states=_followed(states, stage),
    )  # fmt: skip


class Quadratic(NamedTuple):
    """The misfit of some windows near a fit, as a function of a change of the parameters; their starts follow."""

    gram: np.ndarray
    cross: np.ndarray

    def misfit(self, change: np.ndarray) -> float:
        return float(change @ self.gram @ change - 2 * self.cross @ change)

    def change(self, theta: np.ndarray, without: int | None = None) -> np.ndarray:
        """The change to the least misfit; one parameter is put to 0 if so asked."""
        rest = np.arange(len(theta)) != (-1 if without is None else without)
        out = np.where(rest, 0.0, -theta)
        gram, right = self.gram[np.ix_(rest, rest)], (self.cross - self.gram @ out)[rest]
        size = np.sqrt(np.maximum(np.diag(gram), 1e-300))
        out[rest] = np.linalg.pinv(gram / np.outer(size, size), rcond=1e-12, hermitian=True) @ (right / size) / size
        return out


def _borne_out_by_folds(
    form: AnyForm, stage: Stage, support: np.ndarray, shape, select: bool
) -> tuple[Stage, np.ndarray, list]:
    """The stage without terms that do not help to predict held-out windows, its support, and every fold's parameters.

    One step of Gauss–Newton from the fit to all windows leads to the fit without some of them.
    """
    parts = folds(stage.where, stage.kept.last, *shape[:2])
    optional = form.optional & np.array([e.kind != "port" for e in form.entries])
    while True:
        active = support & form.free
        theta, halves = stage.fit.theta[active], _halves(stage, active, parts)
        pool = np.flatnonzero((support & optional)[active]).tolist()
        tested = all((held & stage.kept.used).any() for _, held in parts)
        gains = [sum(h.misfit(t.change(theta, j)) - h.misfit(t.change(theta)) for t, h in halves) for j in pool]
        if not select or not tested or not gains or min(gains) > 0:
            break
        support = support.copy()
        support[np.flatnonzero(active)[pool[int(np.argmin(gains))]]] = False
        fit = descended(stage.kept, np.where(support, stage.fit.theta, 0.0), support & form.free, stage.fit.starts)
        stage = stage._replace(fit=fit)
    thetas = [stage.fit.theta.copy() for (train, _) in parts if (train & stage.kept.used).any()]
    for own, (train, _) in zip(thetas, halves, strict=False):
        own[active] += train.change(theta)
    return stage, support, thetas if len(thetas) == len(parts) else []


def _halves(stage: Stage, active: np.ndarray, parts) -> list[tuple[Quadratic, Quadratic]]:
    """The misfit of the windows to fit and of those held out, fold by fold."""

    def of(windows: np.ndarray) -> Quadratic:
        return Quadratic(*_curvature(stage.kept.without(~windows), stage.fit, active)[:2])

    held = [of(part) for _, part in parts]
    if len(parts) == 1:
        return [(of(parts[0][0]), held[0])]
    gram, cross = sum(h.gram for h in held), sum(h.cross for h in held)  # every window is held out in one fold
    return [(Quadratic(gram - h.gram, cross - h.cross), h) for h in held]
