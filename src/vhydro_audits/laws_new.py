"""Nine systems beyond separable inertia: coupled, changing with the pose, underactuated, two frictions, an impact map.

All methods see the same noisy positions, inputs and modes. Ours is told which position an input drives, and nothing of
M, V or friction. From positions alone ours finds one law for all there is: dry friction switches by itself, contacts of
coupled positions are not found. Seeds begin at 100: those below ten were looked at while the method was built.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal, cast

import jax
import numpy as np

from vhydro import systems
from vhydro.laws import LagrangeConfig, LagrangeLaw, LawsConfig, Problem, Recording, candidates, recover
from vhydro.laws.impacts import impact_law
from vhydro_audits.baselines.sindy import Method, sindy
from vhydro_audits.laws_truth import confident_wrong

NEW = {"experiment": "laws", "family": "new"}
NEW_METHODS = ("full", "weak", "lasso", "sindy-stlsq", "sindy-ensemble", "sindy-weak")
SYSTEMS: dict[str, Any] = {
    "double-pendulum": systems.DoublePendulum(),
    "carts": systems.Carts(),
    "cart-pole": systems.CartPole(),
    "spring-pendulum": systems.SpringPendulum(),
    "bowl": systems.Bowl(),
    "sled": systems.Sled(),
    "ball": systems.Ball(),
    "arm": systems.Arm(),
    "train": systems.Train(),
}
DRIVEN = {"spring-pendulum": 1}  # the position that the only input drives, where it is not the first
FIRST_SEED = 100
SUBSTEPS = 8
NOISE, MISSING = (0.001, 0.01, 0.05), (0.0, 0.2)
ALONE = ((0.001, 0.0), (0.01, 0.0))  # noise and missing samples of logs of positions alone
OURS = ("full", "weak")


def new_keys(seeds: int, tasks: tuple[str, ...], *, quick: bool = False):
    """Every log: system, noise, missing samples and seed; a quick audit has one of the bowl."""
    if quick:
        place = {"task": "bowl", "source": "given", "noise": NOISE[0], "missing": 0.0, "flips": 0.0}
        yield place | {"seed": FIRST_SEED}
        return
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for task in tasks:
            for noise in NOISE:
                for missing in MISSING:
                    place = {"task": task, "source": "given", "noise": noise, "missing": missing, "flips": 0.0}
                    yield place | {"seed": seed}
                    if (noise, missing) in ALONE:
                        yield place | {"seed": seed, "source": "filtered"}


def new_methods(key: dict[str, Any], methods: Sequence[str]) -> tuple[str, ...]:
    """The methods that answer to a log: of positions alone ours."""
    return tuple(m for m in methods if m in (NEW_METHODS if key["source"] == "given" else ("full",)))


def new_problem(task: str) -> Problem:
    """What every method is told: coordinates, units, and which position every input drives."""
    law = SYSTEMS[task].law()
    n = law.positions
    port = np.zeros((2 * n, len(law.inputs)))
    for column in range(len(law.inputs)):
        port[n + DRIVEN.get(task, column), column] = 1.0
    kinds: tuple[Literal["length", "angle"], ...] = tuple("angle" if u == "rad" else "length" for u in law.units[:n])
    return Problem(law.coordinates, law.units, law.inputs, law.modes, candidates(kinds), np.full(n, np.nan), port)


def new_recording(task: str, seed: int, noise: float, missing: float, *, episodes: int, steps: int, dt: float):
    """A simulated log and what sensors made of it."""
    system = SYSTEMS[task]
    truth = systems.simulate(system, episodes, steps, dt, key=jax.random.key(seed), substeps=SUBSTEPS)
    generator = np.random.default_rng([seed, sorted(SYSTEMS).index(task)])
    clean = truth.states[..., : system.law().positions]
    positions = clean + noise * clean.std((0, 1)) * generator.standard_normal(clean.shape)
    positions[generator.random(clean.shape[:2]) < missing] = np.nan
    return truth, Recording(positions, truth.actions, np.eye(len(system.law().modes))[truth.modes], dt)


@cache
def new_held_out(task: str, seed: int, steps: int, dt: float) -> systems.Simulation:
    """States to judge vector fields on, which no method has seen."""
    return systems.simulate(SYSTEMS[task], 5, steps, dt, key=jax.random.key(1_000_000 + seed), substeps=SUBSTEPS)


def new_work(key: dict[str, Any], config: dict[str, Any]) -> list[dict[str, Any]]:
    """One record for every method on one log."""
    task, seed = key["task"], key["seed"]
    size = {"episodes": config["episodes"], "steps": config["steps"], "dt": config["dt"]}
    _, recording = new_recording(task, seed, key["noise"], key["missing"], **size)
    problem, out = new_problem(task), []
    if key["source"] == "filtered":
        problem = replace(problem, modes=("all",))
        recording = recording._replace(modes=np.ones((*recording.modes.shape[:2], 1)))
    for method in new_methods(key, config["methods"]):
        try:
            record = _record(method, task, seed, recording, problem, config)
        except (ValueError, np.linalg.LinAlgError, FloatingPointError, KeyError, IndexError) as error:
            record = _failed(method, f"failed: {type(error).__name__}: {error}")
        out.append(NEW | key | {"method": method} | record)
    return out


def _failed(method: str, why: str) -> dict[str, Any]:
    ours = method in OURS
    nothing = {"support_f1": 0.0 if ours else None, "support_precision": 0.0 if ours else None}
    nothing |= {"coefficient_error": 1.0 if ours else None, "vector_field_nrmse": 1.0}
    return nothing | {"physical_constant_error": 1.0 if ours else None, "status": why, "confident_wrong": 0.0} | _REST


_REST: dict[str, Any] = {"terms": [], "constants": [], "chi_square": None, "modes_accuracy": None, "theorem": None}


def _record(
    method: str, task: str, seed: int, recording: Recording, problem: Problem, config: dict[str, Any]
) -> dict[str, Any]:
    law = SYSTEMS[task].law()
    if method == "lasso":
        found = recover(recording, problem, LawsConfig(estimator="lasso"))
        status = "; ".join(f"{found.modes[m]}: {why}" for m, why in found.problems) or "identified"
        return _scored(found.acceleration, None, status, task, seed, config)
    if method.startswith("sindy"):
        name = cast(Method, method.removeprefix("sindy-"))
        peer = sindy(recording, problem, tuple(() for _ in law.modes), name, modes=True, seed=seed)
        return _scored(peer.acceleration, None, "identified", task, seed, config)
    settings = LawsConfig(estimator="lagrange", lagrange=LagrangeConfig(refine=method == "full"))
    if task == "ball":
        return _of_impacts(recording, problem, settings, seed, config)
    found = recover(recording, problem, settings)
    assert isinstance(found, LagrangeLaw)
    one = len(found.modes) == 1

    def acceleration(mode: int, q: np.ndarray, v: np.ndarray, a: np.ndarray) -> np.ndarray:
        return found.acceleration(0 if one else mode, q, v, a)

    terms = [_named_terms(found.terms(0 if one else mode)) for mode in range(len(law.modes))]
    status = "; ".join(f"{found.modes[m]}: {why}" for m, why in found.problems) or "identified"
    return _scored(acceleration, terms, status, task, seed, config) | {"chi_square": found.chi_square}


def _named_terms(terms) -> dict[str, float]:
    return {name: number.value for name, number in terms.items() if name != "place"}


def _of_impacts(recording: Recording, problem: Problem, settings: LawsConfig, seed: int, config) -> dict[str, Any]:
    """The ball: its law of flight and what happens at the floor, found without labels."""
    found = impact_law(recording, problem, settings)
    assert isinstance(found.flight, LagrangeLaw)
    flight, floor = found.flight, next((b for b in found.bounces if b.side == "below"), None)
    terms = _named_terms(flight.terms(0))
    if floor is not None:
        terms |= {"restitution": floor.restitution.value, "floor": floor.place.value}
    marks = [why for _, why in flight.problems] + ["no floor was found" if floor is None else floor.problem]
    status = "; ".join(filter(None, marks)) or "identified"

    def acceleration(mode: int, q: np.ndarray, v: np.ndarray, a: np.ndarray) -> np.ndarray:
        return flight.acceleration(0, q, v, a) if mode == 0 else np.zeros_like(q)

    return _scored(acceleration, [terms, {}], status, "ball", seed, config) | {"chi_square": flight.chi_square}


def _scored(acceleration, terms, status: str, task: str, seed: int, config: dict[str, Any]) -> dict[str, Any]:
    """The metrics of an answer; terms are compared only where a method has Lagrange's."""
    law = SYSTEMS[task].law()
    out = {"vector_field_nrmse": _nrmse(acceleration, task, seed, config), "status": status}
    out |= dict.fromkeys(("support_f1", "support_precision", "coefficient_error", "physical_constant_error")) | _REST
    if terms is not None:
        pairs = [(true, found) for true, found in zip(law.truth, terms, strict=True) if true]
        common = [len(true.keys() & found.keys()) for true, found in pairs]
        sizes = [(len(true), len(found)) for true, found in pairs]
        out["support_f1"] = float(np.mean([2 * c / (t + f) for c, (t, f) in zip(common, sizes, strict=True)]))
        out["support_precision"] = float(np.mean([c / max(f, 1) for c, (_, f) in zip(common, sizes, strict=True)]))
        out["coefficient_error"] = float(np.mean([_distance(*pair) for pair in pairs]))
        out["physical_constant_error"] = float(np.mean([_constants_error(*pair) for pair in pairs]))
    return out | {"confident_wrong": confident_wrong(out)}


def _distance(true: dict[str, float], found: dict[str, float]) -> float:
    names = [*true, *(name for name in found if name not in true)]
    a, b = (np.array([one.get(name, 0.0) for name in names]) for one in (true, found))
    return float(np.linalg.norm(a - b) / np.linalg.norm(a))


def _constants_error(true: dict[str, float], found: dict[str, float]) -> float:
    off = [abs(found.get(name, np.inf) - value) / abs(value) for name, value in true.items() if value]
    return float(np.mean(np.minimum(off, 1.0)))


def _nrmse(acceleration, task: str, seed: int, config: dict[str, Any]) -> float:
    """Root mean square error of accelerations on new states, each position in units of its own spread."""
    law, test = SYSTEMS[task].law(), new_held_out(task, seed, config["steps"], config["dt"])
    n, errors, sizes = law.positions, [], []
    for mode, truth in enumerate(law.truth):
        here = test.modes[:, :-1] == mode
        if not here.any() or not truth:
            continue
        z, a = test.states[:, :-1][here], test.actions[here]
        with jax.enable_x64(True):
            rate = [np.broadcast_to(np.asarray(x), len(z)) for x in law.velocity(mode, tuple(z.T), tuple(a.T))]
        true = np.stack(rate[n:], -1)
        found = np.nan_to_num(acceleration(mode, z[:, :n], z[:, n:], a), nan=0.0, posinf=1e9, neginf=-1e9)
        errors.append(found - true)
        sizes.append(true)
    error, size = np.concatenate(errors), np.concatenate(sizes)
    return float(np.sqrt(np.mean((error / size.std(0)) ** 2)))
