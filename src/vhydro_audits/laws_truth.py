"""The four systems with known equations as law problems, what sensors make of them, and how answers are scored."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import jax
import numpy as np
from scipy.optimize import linear_sum_assignment

from vhydro import systems
from vhydro.laws.constants import constants
from vhydro.laws.form import Form, Guard, form_of, is_kinetic
from vhydro.laws.law import Law
from vhydro.laws.problem import Problem, candidates
from vhydro.laws.recording import Recording
from vhydro.library import Library, Penetration, Term, slope

SYSTEMS = {
    "puck": systems.Puck(),
    "block": systems.Block(),
    "pendulum": systems.Pendulum(),
    "pushing": systems.Pushing(),
}
DERIVED = ("restitution", "friction of ")  # of other constants; the mode that the latter names hangs on the base mode
GUARDS: dict[str, dict[int, Guard | None]] = {
    "puck": {1: Guard(0, "below"), 2: Guard(0, "above")},
    "block": {2: None},
    "pendulum": {1: Guard(0, "below"), 2: Guard(0, "above")},
    "pushing": {1: Guard(0, "below")},
}
PLACES = {"puck": {1: -1.0, 2: 1.0}, "pendulum": {1: -1.0, 2: 1.0}, "pushing": {1: 0.0}, "block": {}}
WRONG_FIELD = 0.1  # vector-field NRMSE beyond which a law is wrong
PRESENT = 0.01  # of a mode's force: a term that contributes less does not count as found, for every method alike


def problem_of(task: str) -> Problem:
    """What every method is told: coordinates, candidate terms, and the one thing known in units of force."""
    law = systems.law(SYSTEMS[task])
    n = law.positions
    if task == "pushing":  # no input is a force here: the table's friction, measured beforehand, gives the scale
        port = np.array([[-1.0, 0.0], [0.0, 0.0], [np.nan, 0.0], [0.0, np.nan]])
        dissipation = np.full(n, SYSTEMS[task].friction)
    else:
        port, dissipation = np.array([[0.0], [1.0]]), np.full(n, np.nan)
    kinds: tuple[Literal["length", "angle"], ...] = tuple(
        "angle" if unit == "rad" else "length" for unit in law.units[:n]
    )
    return Problem(law.coordinates, law.units, law.inputs, law.modes, candidates(kinds), dissipation, port)


@dataclass(frozen=True)
class Trial:
    """One simulated log and what sensors made of it."""

    truth: systems.Simulation
    recording: Recording


def trial(
    task: str, seed: int, noise: float, missing: float, flips: float, *, episodes: int, steps: int, dt: float
) -> Trial:
    """A log of a system with noisy positions, missing samples and flipped labels, all drawn from the seed.

    Noise, gaps and flips of one seed are the same at every level, so that levels are compared like for like.
    """
    truth = systems.simulate(SYSTEMS[task], episodes, steps, dt, key=jax.random.key(seed))
    modes, n = len(systems.law(SYSTEMS[task]).modes), systems.law(SYSTEMS[task]).positions
    generator = np.random.default_rng([seed, sorted(SYSTEMS).index(task)])
    clean = truth.states[..., :n]
    positions = clean + noise * clean.std((0, 1)) * generator.standard_normal(clean.shape)
    positions[generator.random(clean.shape[:2]) < missing] = np.nan
    flipped = generator.random(truth.modes.shape) < flips
    other = (truth.modes + generator.integers(1, modes, truth.modes.shape)) % modes
    labels = np.where(flipped, other, truth.modes)
    return Trial(truth, Recording(positions, truth.actions, np.eye(modes)[labels], dt))


@cache
def held_out(task: str, seed: int, steps: int, dt: float) -> systems.Simulation:
    """States to judge vector fields on, which no method has seen."""
    return systems.simulate(SYSTEMS[task], 5, steps, dt, key=jax.random.key(1_000_000 + seed))


def true_law(task: str) -> Law:
    """The exact law of a system in the form that laws are recovered in."""
    problem, law = problem_of(task), systems.law(SYSTEMS[task])
    base, resting = (1, (0,)) if task == "block" else (0, ())
    form = form_of(problem, base, GUARDS[task], resting)
    theta = np.array([_true_entry(form, i, law, PLACES[task]) for i in range(len(form.entries))])
    support = (theta != 0) | np.array([e.kind in ("dissipation", "place") for e in form.entries])
    covariance = np.diag(np.where(support & form.free, 1e-30, 0.0))
    return Law(
        problem.coordinates, problem.units, problem.inputs, problem.modes, form, theta, support, covariance, "truth"
    )


def _true_entry(form: Form, index: int, law: systems.Law, places: dict[int, float]) -> float:
    e = form.entries[index]
    mode = form.base if e.block < 0 else form.blocks[e.block].mode
    row = law.positions + e.axis
    if e.kind == "place":
        return places[mode]
    if e.kind == "energy":
        own = {_bare(t): c for t, c in law.energies[mode].items()}.get(_bare(e.term), 0.0)
        shared = e.block >= 0 and not isinstance(e.term, Penetration)
        return own - (
            {_bare(t): c for t, c in law.energies[form.base].items()}.get(_bare(e.term), 0.0) if shared else 0.0
        )
    value = law.dissipation[mode][row, row] if e.kind == "dissipation" else law.port[mode][row, e.column]
    free = law.dissipation[form.base][row, row] if e.kind == "dissipation" else law.port[form.base][row, e.column]
    return float(value - (free if e.block >= 0 else 0.0))


def _bare(term: Any) -> Any:
    """The term without the place of its surface, which is a parameter of its own."""
    return replace(term, at=0.0) if isinstance(term, Penetration) else term


Coefficients = dict[Term, float]


@dataclass(frozen=True)
class Answer:
    """What a method says: coefficients of every true mode (None where it has none), its field, its constants."""

    coefficients: tuple[Coefficients, ...] | None
    acceleration: Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    constants: dict[str, tuple[float, float | None]] | None
    chi_square: float | None = None
    status: str = "identified"


def answer_of(law: Law, modes: list[int], task: str) -> Answer:
    """A recovered law as an answer; `modes[m]` is the recovered mode that stands for true mode m."""
    names = list(law.modes)
    for true, name in enumerate(systems.law(SYSTEMS[task]).modes):
        names[modes[true]] = name
    found: dict[str, tuple[float, float | None]] = {}
    with suppress(KeyError, ZeroDivisionError, FloatingPointError):
        found = {n: (c.value, c.error) for n, c in constants(replace(law, modes=tuple(names))).items()}
    coefficients = tuple({_bare(t): c.value for t, c in law.energy(m).items()} for m in modes)
    troubles = "; ".join(f"{names[m]}: {why}" for m, why in law.problems)
    return Answer(
        coefficients, lambda m, *x: law.acceleration(modes[m], *x), found, law.chi_square, troubles or "identified"
    )


def matched(labels: np.ndarray, truth: np.ndarray, modes: int) -> tuple[list[int], float]:
    """For every true mode the recovered one that shares most samples with it, one to one, and the share that agrees."""
    common = np.array([[np.sum((labels == i) & (truth == j)) for j in range(modes)] for i in range(modes)])
    rows, columns = linear_sum_assignment(-common)
    order = [int(i) for i in rows[np.argsort(columns)]]
    return order, float(common[rows, columns].sum() / common.sum())


def scored(answer: Answer, task: str, seed: int, steps: int, dt: float) -> dict[str, Any]:
    """The metrics of an answer; null where a method has no such thing."""
    law, test = systems.law(SYSTEMS[task]), held_out(task, seed, steps, dt)
    n = law.positions
    states, actions, modes = test.states[:, :-1], test.actions, test.modes[:, :-1]
    out: dict[str, Any] = {"vector_field_nrmse": _nrmse(answer, law, states, actions, modes)}
    out |= {"chi_square": answer.chi_square, "status": answer.status}
    out |= dict.fromkeys(("support_f1", "support_precision", "coefficient_error", "physical_constant_error"))
    out |= {"terms": [], "constants": []}
    if answer.coefficients is not None:
        truth = [{_bare(t): c for t, c in e.items()} for e in law.energies]
        sizes = [_force_sizes(task, m, states[modes == m], n) for m in range(len(law.modes))]
        kept = [_present(answer.coefficients[m], sizes[m]) for m in range(len(law.modes))]
        out["support_f1"] = float(np.mean([_f1(set(truth[m]), kept[m]) for m in range(len(truth))]))
        out["support_precision"] = float(np.mean([_precision(set(truth[m]), kept[m]) for m in range(len(truth))]))
        pairs = [(t, answer.coefficients[m]) for m, t in enumerate(truth) if t]
        out["coefficient_error"] = float(np.mean([_relative(t, found) for t, found in pairs]))
        out["terms"] = _terms(task, law, truth, answer.coefficients)
    if answer.constants is not None:
        true = {k: v for k, v in constants(true_law(task)).items() if abs(v.value) > 1e-9 and not k.startswith(DERIVED)}
        off = [abs(answer.constants.get(k, (np.inf,))[0] - v.value) / abs(v.value) for k, v in true.items()]
        # A constant that was not found, or found with the wrong sign or size, is wholly wrong: an error of 1.
        out["physical_constant_error"] = float(np.mean(np.minimum(off, 1.0)))
        out["constants"] = [_constant(k, v, answer.constants.get(k)) for k, v in true.items()]
    return out | {"confident_wrong": confident_wrong(out)}


def confident_wrong(record: dict[str, Any]) -> float:
    """1 where an answer carries no mark though a term is wrong or its field off by more than a tenth; else 0.

    A method without marks is confident always.
    """
    wrong_terms = record["support_f1"] is not None and record["support_f1"] < 1
    wrong = wrong_terms or not record["vector_field_nrmse"] <= WRONG_FIELD
    return float(wrong and record["status"] == "identified")


def _constant(name: str, true, found) -> dict[str, Any]:
    value, error = found if found else (None, None)
    return {"name": name, "unit": true.unit, "true": true.value, "estimate": value, "error": error}


def _nrmse(answer: Answer, law: systems.Law, states, actions, modes) -> float:
    n, errors, sizes = law.positions, [], []
    for m, energy in enumerate(law.energies):
        here = modes == m
        if not here.any():
            continue
        z, a = states[here], actions[here]
        rate = np.stack(law.velocity(m, tuple(z.T), tuple(a.T)), -1) if energy else np.zeros_like(z)
        inverse_mass = _inverse_masses(law)
        v = z[:, n:] * inverse_mass
        true = rate[:, n:] * inverse_mass
        found = np.nan_to_num(answer.acceleration(m, z[:, :n], v, a), nan=0.0, posinf=1e9, neginf=-1e9)
        errors.append(found - true)
        sizes.append(true)
    error, size = np.concatenate(errors), np.concatenate(sizes)
    return float(np.sqrt(np.mean(error**2)) / np.std(size))


def _inverse_masses(law: systems.Law) -> np.ndarray:
    moving = next(e for e in law.energies if e)
    n = law.positions
    return np.array(
        [2 * next(c for t, c in moving.items() if is_kinetic(t) and t.powers[n + i] == 2) for i in range(n)]
    )


def _force_sizes(task: str, mode: int, states: np.ndarray, n: int) -> Callable[[Term], float]:
    """How large the force of a unit of a term is in a mode, relative to the whole force there."""
    law = systems.law(SYSTEMS[task])
    z = states.T
    place = PLACES[task].get(mode, 0.0)

    def size(term: Term, shift: float = place) -> float:
        slopes = [
            np.broadcast_to(slope(term, i, z, shift if isinstance(term, Penetration) else 0.0), z[0].shape)
            for i in range(n)
        ]
        return float(np.sqrt(np.mean(np.sum(np.square(slopes), 0)))) if len(states) else 0.0

    truth = {_bare(t): c for t, c in law.energies[mode].items()}
    total = np.sqrt(sum((c * size(t)) ** 2 for t, c in truth.items())) if truth else 0.0
    total = max(total, 1e-9) if len(truth) > n else max(total, _usual_force(task))
    return lambda term: size(term) / total


@cache
def _usual_force(task: str) -> float:
    """The force that an input, or friction, usually exerts: the measure where H has no force of its own."""
    return {"puck": 1.5, "block": 4.0, "pendulum": 0.5, "pushing": 0.2}[task]


def _present(found: Coefficients, size: Callable[[Term], float]) -> set[Term]:
    def counts(term: Term, c: float) -> bool:
        return bool(np.isfinite(c) and c != 0 and (is_kinetic(term) or abs(c) * size(term) > PRESENT))

    return {t for t, c in found.items() if counts(t, c)}


def _f1(true: set, found: set) -> float:
    return 2 * len(true & found) / (len(true) + len(found)) if true or found else 1.0


def _precision(true: set, found: set) -> float:
    return len(true & found) / len(found) if found else float(not true)


def _relative(true: Coefficients, found: Coefficients) -> float:
    terms = [*true, *(t for t in found if t not in true)]
    a = np.array([true.get(t, 0.0) for t in terms])
    b = np.nan_to_num(np.array([found.get(t, 0.0) for t in terms]), nan=0.0, posinf=1e12, neginf=-1e12)
    return float(np.linalg.norm(a - b) / np.linalg.norm(a))


def _terms(task: str, law: systems.Law, truth, found) -> list[dict[str, Any]]:
    library: Library = problem_of(task).library
    out = []
    for m, name in enumerate(law.modes):
        offered = dict.fromkeys((*library, *truth[m], *found[m]))
        for t in offered:
            true, value = truth[m].get(t, 0.0), found[m].get(t, 0.0)
            if true or value or t in library:
                out.append(
                    {
                        "mode": name,
                        "term": t.text(law.coordinates),
                        "true": true,
                        "estimate": float(np.nan_to_num(value)),
                    }
                )
    return out
