"""The laws audit: laws of systems whose equations are known, the paper's four and nine more. Paper: Exp 3."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from vhydro import systems
from vhydro.laws.ablations import without_hamiltonian, without_modes, without_sparsity
from vhydro.laws.chain import ChainConfig, chain
from vhydro.laws.estimate import sorted_by_motion
from vhydro.laws.form import depth_terms
from vhydro.laws.guards import labels
from vhydro.laws.law import Law
from vhydro.laws.problem import Problem
from vhydro.laws.recording import Recording
from vhydro.laws.recover import LawsConfig, recover_from
from vhydro.laws.tracks import Tracks, prepared
from vhydro.laws.writing import text
from vhydro.usage import UsageError, at_least, refuse_unknown
from vhydro_audits.baselines.sindy import Method, sindy
from vhydro_audits.grid import Group, run_grid
from vhydro_audits.laws_new import NEW, new_keys, new_methods, new_work
from vhydro_audits.laws_theorem import theorem_of
from vhydro_audits.laws_truth import (
    SYSTEMS,
    Answer,
    answer_of,
    matched,
    problem_of,
    scored,
    trial,
    true_law,
)
from vhydro_audits.spec import LAWS
from vhydro_audits.store import rounded, write_whole
from vhydro_audits.summary import meta, summary_rows, write_summary

NOISE, MISSING, FLIPS = (LAWS.levels[name] for name in ("noise", "missing", "flips"))
OURS, PEERS = (tuple(m.key for m in LAWS.methods if (m.kind == "peer") is peer) for peer in (False, True))
FAMILY = {"experiment": "laws", "family": "four"}


@dataclass(frozen=True)
class LawsAuditConfig:
    """`vhydro audit laws`: four systems with known equations, all seeds, every condition, every method."""

    out: Path = Path("results/laws")  # where cells, summary, figures and page go
    seeds: int = 20  # each with noise, gaps and labels of its own
    tasks: tuple[str, ...] = ()  # of the families `four` and `new`; all of them if not given
    sources: tuple[Literal["given", "filtered"], ...] = ("given", "filtered")  # where modes come from: truth or a fit
    peers: bool = True  # PySINDy beside ours; needs the extra `peers`
    quick: bool = False  # one seed, two conditions, puck, block and bowl: a small honest run that says it is one
    episodes: int = 20  # that a law is found from
    steps: int = 1000  # of each episode …
    dt: float = 0.005  # … in seconds
    workers: int | None = None  # processes; 0: this one
    on: Literal["local", "ray"] = "local"  # this machine, or a Ray cluster
    address: str | None = None  # of the Ray cluster; an embedded one if not given
    overwrite: bool = False  # begin anew where results of another configuration are

    def __post_init__(self):
        for name in ("seeds", "episodes", "steps"):
            at_least(name, getattr(self, name), 1)
        if not self.dt > 0:
            raise UsageError(f"--dt {self.dt:g}; expected a positive number of seconds, such as --dt 0.005.")
        refuse_unknown(self.tasks, (*SYSTEMS, *LAWS.families["new"]), "task")

    @property
    def systems(self) -> tuple[str, ...]:
        """The systems of the family `four` that are asked for."""
        return tuple(t for t in SYSTEMS if not self.tasks or t in self.tasks)

    @property
    def new(self) -> tuple[str, ...]:
        """Those of the family `new`."""
        return tuple(t for t in LAWS.families["new"] if not self.tasks or t in self.tasks)


def run_laws_audit(config: LawsAuditConfig) -> Path:
    """The path of the audit's page, after every cell was computed or found."""
    from vhydro_audits.pages.laws import write_laws_page

    methods = OURS + (PEERS if config.peers else ())
    plain = {"episodes": config.episodes, "steps": config.steps, "dt": config.dt, "methods": list(methods)}
    results = run_grid(
        groups(config, methods),
        work,
        plain,
        config.out,
        workers=config.workers,
        on=config.on,
        address=config.address,
        overwrite=config.overwrite,
    )
    seeds = len({cell["seed"] for cell in results.cells})
    write_summary(
        config.out,
        meta(results, seeds) | {"quick": config.quick, "theorem": theorem_rows(results.cells)},
        summary_rows(LAWS, results.cells),
    )
    write_whole(config.out / "equations.json", json.dumps(equations(config), indent=1, ensure_ascii=False) + "\n")
    page = write_laws_page(config.out)
    print(page)
    return page


def groups(config: LawsAuditConfig, methods: tuple[str, ...]) -> list[Group]:
    """One group for every log: all methods see the same one."""
    out = []
    for key in _keys(config):
        cells = tuple(FAMILY | key | {"condition": condition(key), "method": m} for m in methods)
        out.append(Group(key, cells))
    for key in new_keys(config.seeds, config.new, quick=config.quick):
        cells = tuple(NEW | key | {"condition": condition(key), "method": m} for m in new_methods(key, methods))
        out.append(Group(key, cells))
    return out


def _keys(config: LawsAuditConfig):
    names = ("puck", "block") if config.quick else config.systems
    for seed in range(1 if config.quick else config.seeds):
        for task in names:
            for source in config.sources:
                for noise in (
                    (0.001, 0.05) if config.quick and source == "given" else (0.01,) if config.quick else NOISE
                ):
                    for missing in (0.2 if noise == 0.05 else 0.0,) if config.quick else MISSING:
                        flips = FLIPS if source == "given" else (0.0,)
                        for flip in (0.02 if noise == 0.05 else 0.0,) if config.quick else flips:
                            yield {
                                "task": task,
                                "source": source,
                                "noise": noise,
                                "missing": missing,
                                "flips": flip,
                                "seed": seed,
                            }


def condition(key: dict[str, Any]) -> str:
    """A condition in words."""
    words = f"noise {100 * key['noise']:g} %, missing {100 * key['missing']:g} %"
    return words + (f", flips {100 * key['flips']:g} %" if key["source"] == "given" else "")


def work(key: dict[str, Any], config: dict[str, Any]) -> list[dict[str, Any]]:
    """One record for every method on one log."""
    task, seed, dt = key["task"], key["seed"], config["dt"]
    if task in LAWS.families["new"]:
        named = {"condition": condition(key)}
        return rounded([r | named for r in new_work(key, config)], 7)
    log = trial(
        task,
        seed,
        key["noise"],
        key["missing"],
        key["flips"],
        episodes=config["episodes"],
        steps=config["steps"],
        dt=dt,
    )
    problem = problem_of(task)
    recording, agreement, chained = log.recording, None, None
    order = list(range(len(problem.modes)))
    full: Law | None = None
    failure = ""
    if key["source"] == "filtered":
        try:
            chained = chain(recording, problem, ChainConfig(), seed=seed)
            recording, full = recording._replace(modes=chained.modes), chained.law
        except (ValueError, np.linalg.LinAlgError) as error:
            failure = str(error)
        if chained is not None:
            order, agreement = matched(labels(recording.modes), log.truth.modes, len(problem.modes))
    out, tracks = [], prepared(recording, problem)
    for method in config["methods"]:
        answer, theorem = _answer(method, recording, tracks, problem, order, full, task, seed, log, failure)
        if method == "full" and full is None:
            full = answer.law
        record = scored(answer.answer, task, seed, config["steps"], dt)
        if not any(place.items() <= key.items() for place in LAWS.pictured):
            record["terms"] = []
        if method != "full":
            record["constants"] = []
        out.append(
            FAMILY
            | key
            | {"condition": condition(key), "method": method}
            | record
            | {"modes_accuracy": agreement, "theorem": theorem}
        )
    return rounded(out, 7)


@dataclass(frozen=True)
class Given:
    """An answer, and the law it came from where there is one."""

    answer: Answer
    law: Law | None = None


NOTHING = Answer((), lambda m, q, v, a: np.zeros_like(q), {}, None, "failed")  # noqa: ARG005


def _answer(method, recording: Recording, tracks: Tracks, problem: Problem, order, full, task, seed, log, failure):
    """What a method answers, and the theorem's measurement where the method is the theorem's."""
    nothing = replace(NOTHING, coefficients=tuple({} for _ in problem.modes), status=f"failed: {failure}")
    if method == "no-ph":
        nothing = replace(nothing, coefficients=None, constants=None)
    if failure and method not in ("no-mode",) and not method.endswith("no-modes"):
        return Given(nothing), None
    try:
        return _tried(method, recording, tracks, problem, order, full, task, seed, log)
    except (ValueError, np.linalg.LinAlgError, FloatingPointError, KeyError, IndexError) as error:
        return Given(replace(nothing, status=f"failed: {type(error).__name__}: {error}")), None


def _tried(method, recording: Recording, tracks: Tracks, problem: Problem, order, full, task, seed, log):
    same = [0] * len(order)
    if method == "full":
        law = recover_from(tracks, problem, LawsConfig()) if full is None else full
        return Given(answer_of(law, order, task), law), None
    if method == "weak":
        return Given(answer_of(recover_from(tracks, problem, LawsConfig(estimator="weak")), order, task)), None
    if method == "lasso":
        law = recover_from(tracks, problem, LawsConfig(estimator="lasso"))
        return Given(answer_of(law, order, task)), theorem_of(tracks, problem, order, full, task, log.truth)
    if method == "no-mode":
        return Given(answer_of(without_modes(recording, problem, LawsConfig()), same, task)), None
    if method == "no-sparsity":
        law = without_sparsity(tracks, problem, LawsConfig().shooting)
        return Given(answer_of(law, order, task)), None
    if method == "no-ph":
        found = without_hamiltonian(tracks, problem, LawsConfig().shooting.bump)
        return Given(Answer(None, lambda m, *x: found(order[m], *x), None)), None
    return Given(_peer(method, recording, tracks, problem, order, task, seed)), None


def _peer(
    method: str, recording: Recording, tracks: Tracks, problem: Problem, order: list[int], task: str, seed: int
) -> Answer:
    """PySINDy's answer: same positions, same modes, same candidate forces."""
    name = cast(Method, method.removeprefix("sindy-").removesuffix("-no-modes"))
    sorted_modes, _ = sorted_by_motion(tracks)
    contacts = tuple(
        tuple(replace(t, at=sorted_modes.places[m]) for t in depth_terms(guard)) if guard else ()
        for m, guard in ((m, sorted_modes.guards.get(m)) for m in range(len(problem.modes)))
    )
    with_modes = not method.endswith("no-modes")
    found = sindy(recording, problem, contacts, name, modes=with_modes, seed=seed)
    coefficients = tuple(
        {replace(t, at=0.0) if hasattr(t, "at") else t: c for t, c in found.coefficients[m].items()} for m in order
    )
    return Answer(
        coefficients, lambda m, *x: found.acceleration(order[m], *x), _peer_constants(found, problem, order, task)
    )


def _peer_constants(found, problem: Problem, order: list[int], task: str) -> dict[str, tuple[float, float | None]]:
    """The constants that a peer's coefficients imply, by the names ours have."""
    out: dict[str, tuple[float, float | None]] = {}
    n, names = problem.positions, systems.law(SYSTEMS[task]).modes
    truth = true_law(task)
    base = found.coefficients[order[truth.form.base]]
    for name, value in _implied(problem, base, found.dissipation[order[truth.form.base]], n).items():
        out[name] = (value, None)
    for block in truth.form.blocks:
        mode, own = order[block.mode], found.coefficients[order[block.mode]]
        extra = found.dissipation[mode] - found.dissipation[order[truth.form.base]]
        if block.guard is not None:
            along = [f" along {c}" for c in problem.coordinates[:n]] if n > 1 else [""]
            out |= {f"damping of {names[block.mode]}{a}": (float(extra[i]), None) for i, a in enumerate(along)}
            for term, c in own.items():
                if getattr(term, "power", 0) == 2:
                    out[f"stiffness of {names[block.mode]}"] = (float(c), None)
                    out[f"place of {names[block.mode]}"] = (float(term.at), None)
        else:
            line = next(t for t in problem.library if getattr(t, "powers", ()) == (1, *[0] * (2 * n - 1)))
            force = 0.5 * abs(base.get(line, 0.0) - own.get(line, 0.0))
            out["sliding friction"] = (force, None)
            out["friction coefficient"] = (force / (out.get("mass", (np.inf,))[0] * 9.81), None)
    return out


def _implied(problem: Problem, energy, dissipation, n: int) -> dict[str, float]:
    out: dict[str, float] = {}
    for axis in range(n):
        along = f" along {problem.coordinates[axis]}" if n > 1 else ""
        angle = problem.units[axis] == "rad"
        for term, c in energy.items():
            powers = getattr(term, "powers", None)
            if powers == tuple(2 * (i == n + axis) for i in range(2 * n)) and c:
                out[f"{'inertia' if angle else 'mass'}{along}"] = 0.5 / c
            if powers == tuple(2 * (i == axis) for i in range(2 * n)):
                out[f"stiffness{along}"] = 2 * c
            if powers is None and getattr(term, "axis", -1) == axis and type(term).__name__ == "Cosine":
                out[f"weight times length{along}"] = -c
        if np.isnan(problem.dissipation[axis]):
            out[f"friction{along}"] = float(dissipation[axis])
    return out


def theorem_rows(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How often the theorem's conditions held, and whether its bound did in every one of those."""
    kept = [t | {"source": c["source"]} for c in cells for t in (c["theorem"] or [])]
    out = []
    for source in sorted({t["source"] for t in kept}):
        for size in ("whole library", "few columns"):
            these = [t for t in kept if t["source"] == source and t["library"] == size]
            held = [t for t in these if t["conditions"]]
            out.append(
                {"source": source, "library": size}
                | {"modes": len(these), "conditions_hold": len(held), "bound_holds": sum(t["holds"] for t in held)}
                | {"support_condition": sum(t["support_condition"] for t in these)}
                | {"median_kappa": float(np.median([t["kappa"] or 0.0 for t in these])) if these else None}
                | {
                    "median_bound_over_error": float(np.median([t["bound"] / t["error"] for t in held if t["error"]]))
                    if held
                    else None
                }
            )
    return out


def equations(config: LawsAuditConfig) -> list[dict[str, str]]:
    """The laws of the first seed of every system beside the true ones, recovered from positions alone."""
    out = []
    for task in ("puck", "block") if config.quick else config.systems:
        key = {"source": "filtered", "noise": 0.01, "missing": 0.0, "flips": 0.0}
        log = trial(task, 0, 0.01, 0.0, 0.0, episodes=config.episodes, steps=config.steps, dt=config.dt)
        found = chain(log.recording, problem_of(task), ChainConfig(), seed=0)
        order, _ = matched(labels(found.modes), log.truth.modes, len(found.law.modes))
        names = list(found.law.modes)
        for true, name in enumerate(systems.law(SYSTEMS[task]).modes):
            names[order[true]] = name
        recovered = text(replace(found.law, modes=tuple(names))).partition("\n\nmisfit over")[0] + "\n"
        out.append({"task": task, "true": text(true_law(task)), "recovered": recovered, "condition": condition(key)})
    return out
