"""The planning audit: are certified plans as safe as their proofs say, and how well is planned in ManiSkill?

Part `known` is of systems with known equations (Paper: Thm 4), part `maniskill` of four tasks in a simulator, where
nothing is proven (Paper: Experiment 4; see `planning_maniskill`).
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from vhydro.laws.as_model import masses
from vhydro.laws.law import Law
from vhydro.laws.recover import LawsConfig, recover_from
from vhydro.laws.tracks import prepared
from vhydro.planning import certify, fitted, known, mppi
from vhydro.planning.energy import energy_bound, storage
from vhydro.usage import at_least, refuse_unknown, share
from vhydro_audits.grid import Group, run_grid
from vhydro_audits.laws_truth import problem_of, trial, true_law
from vhydro_audits.planning_maniskill import (
    METHODS,
    TASKS,
    data_config,
    episode_groups,
    maniskill_meta,
    maniskill_rows,
    maniskill_table,
    perform,
    predict,
    prediction_groups,
)
from vhydro_audits.planning_truth import (
    DT,
    HORIZON,
    SETTINGS,
    Executed,
    belief,
    dynamics,
    executed,
    problem,
    true_dynamics,
)
from vhydro_audits.store import rounded
from vhydro_audits.summary import meta, write_summary

FAMILY = {"experiment": "planning", "family": "known-equations", "method": "ours"}
PLANNER = mppi(HORIZON, knots=8, candidates=128, particles=16, first_rounds=6)
MEANS = ("epsilon", "margin", "model_risk", "bound", "pinsker", "epsilon_fitted", "energy_end", "energy_bound")


@dataclass(frozen=True)
class PlanningAuditConfig:
    """`vhydro audit planning`: plans on recovered laws, certified and executed; models and plans in ManiSkill."""

    part: Literal["known", "maniskill"] = "known"  # systems with known equations, or four tasks in a simulator
    out: Path = Path("results/planning")  # where cells and summary go
    first_seed: int = 100  # seeds 0 to 9 were for tuning
    seeds: int = 20  # each with a law and problems of its own, or a division of the rollouts
    tasks: tuple[str, ...] = ()  # of the part; all of them if not given
    methods: tuple[str, ...] = ()  # that are compared in ManiSkill; all of them if not given
    episodes: int = 10  # of every seed and method in ManiSkill; 0: predictions only, which need no simulator
    rollouts: Path = Path("runs/rollouts")  # folder of ManiSkill's rollouts; they are made where it has none
    problems: int = 6  # starts and goals of each seed
    executions: int = 500  # of every plan
    delta: float = 0.3  # largest chance of failure to be proven
    beta: float = 0.05  # chance that the proof is wrong
    noise: float = 0.01  # of the sensors that laws were recovered with, relative to the positions' spread
    quick: bool = False  # two seeds, two problems: a small honest run that says it is one
    workers: int | None = None  # processes; 0: this one
    on: Literal["local", "ray"] = "local"  # this machine, or a Ray cluster
    address: str | None = None  # of the Ray cluster; an embedded one if not given
    overwrite: bool = False  # begin anew where results of another configuration are

    def __post_init__(self):
        for name in ("seeds", "problems", "executions"):
            at_least(name, getattr(self, name), 1)
        at_least("first-seed", self.first_seed, 0)
        share("delta", self.delta)
        share("beta", self.beta)
        at_least("episodes", self.episodes, 0)
        refuse_unknown(self.tasks, TASKS if self.part == "maniskill" else SETTINGS, "task", f" in --part {self.part}")
        refuse_unknown(self.methods, METHODS, "method")

    @property
    def range(self) -> range:
        """The seeds."""
        return range(self.first_seed, self.first_seed + (2 if self.quick else self.seeds))


def run_planning_audit(config: PlanningAuditConfig) -> Path:
    """The path of the audit's page, or of the summary where there is no page yet, after every cell was computed."""
    from vhydro_audits.pages.planning import write_planning_page

    summary = run_maniskill(config) if config.part == "maniskill" else run_known(config)
    page = write_planning_page(config.out) if (config.out / "summary.json").is_file() else summary
    print(page)
    return page


def run_known(config: PlanningAuditConfig) -> Path:
    """The path of the summary of systems with known equations, whose rows were printed."""
    names = ("problems", "executions", "delta", "beta", "noise")
    plain = {name: getattr(config, name) for name in names} | ({"problems": 2} if config.quick else {})
    results = run_grid(
        groups(config), work, plain, config.out,
        workers=config.workers, on=config.on, address=config.address, overwrite=config.overwrite,
    )  # fmt: skip
    seeds = len({cell["seed"] for cell in results.cells})
    rows = summary_rows(results.cells)
    print(table(rows))
    said = write_summary(config.out, meta(results, seeds) | {"quick": config.quick}, rows)
    return joined(config.out) or said


def run_maniskill(config: PlanningAuditConfig) -> Path:
    """The path of the summary of ManiSkill's tasks, whose rows were printed."""
    folder, methods = config.out / "maniskill", config.methods or METHODS
    place = {"workers": config.workers, "on": config.on, "address": config.address, "overwrite": config.overwrite}
    for task in config.tasks or TASKS:
        data = data_config(task, config.rollouts)
        for method in methods:  # each with a folder of its own, so that one may have more seeds than another
            if predicting := prediction_groups(task, method, config.range):
                run_grid(predicting, predict, data, folder / task / "prediction" / method, **place)
            acting = episode_groups(task, method, config.range, 1 if config.quick else config.episodes)
            if acting and config.episodes:
                run_grid(acting, perform, data, folder / task / "episodes" / method, **place)
    rows = maniskill_rows(folder)
    print(maniskill_table(rows))
    told = write_summary(folder, maniskill_meta(folder) | {"quick": config.quick}, rows)
    return joined(config.out) or told


def joined(out: Path) -> Path | None:
    """The path of the summary with the rows of both parts; None where there are not both."""
    paths = out / "summary.json", out / "maniskill" / "summary.json"
    if not all(path.is_file() for path in paths):
        return None
    known, other = (json.loads(path.read_text("utf-8")) for path in paths)
    rows = [row for row in known["rows"] if row.get("family") == FAMILY["family"]] + other["rows"]
    return write_summary(out, known["meta"] | {"maniskill": other["meta"]}, rows)


def groups(config: PlanningAuditConfig) -> list[Group]:
    """One group for every task and seed: one law, several problems."""
    problems = range(2 if config.quick else config.problems)
    keys = [{"task": task, "seed": seed} for seed in config.range for task in config.tasks or SETTINGS]
    return [Group(key, tuple(FAMILY | key | {"problem": i} for i in problems)) for key in keys]


@cache
def recovered(system: str, seed: int, noise: float) -> Law:
    """The law of a system from noisy positions of one seed, modes given; see the laws audit."""
    log = trial(system, seed, noise, 0.0, 0.0, episodes=20, steps=1000, dt=0.005)
    known_before = problem_of(system)
    return recover_from(prepared(log.recording, known_before), known_before, LawsConfig())


def work(key: dict[str, Any], config: dict[str, Any]) -> list[dict[str, Any]]:
    """One record for every problem of a task and a seed."""
    law = recovered(SETTINGS[key["task"]].system, key["seed"], config["noise"])
    return rounded([FAMILY | key | {"problem": i} | solved(key, i, law, config) for i in range(config["problems"])], 6)


def solved(key: dict[str, Any], index: int, law: Law, config: dict[str, Any]) -> dict[str, Any]:
    """One problem planned, certified and executed."""
    name, seed = key["task"], key["seed"]
    model, truth, task = dynamics(name, law), true_dynamics(name, law), problem(name, seed, index)
    start = belief(task, law)
    keys = jax.random.split(jax.random.key(1000 * seed + index), 3)
    plan = PLANNER(model, start, task.task, key=keys[0])
    asked = {"delta": config["delta"], "beta": config["beta"]}
    proof = certify(model, start, plan, task.task, key=keys[1], shift=known(truth), **asked)
    beside = certify(model, start, plan, task.task, key=keys[2], shift=fitted(law), **asked)
    run = executed(name, task, plan.actions, config["executions"], 1000 * seed + index)
    return {
        "delta": proof.delta, "certified": proof.certified, "epsilon": proof.shift, "margin": proof.margin,
        "model_risk": proof.risk, "bound": proof.bound, "pinsker": proof.pinsker, "why": proof.why, "goal": task.goal,
        "certified_fitted": beside.certified, "epsilon_fitted": beside.shift,
        "failures": int(run.failed.sum()), "executions": len(run.failed),
    } | energies(name, law, plan.actions, run)  # fmt: skip


def energies(name: str, law: Law, actions: np.ndarray, run: Executed) -> dict[str, Any]:
    """The bound on the energy by the recovered law, and what the true system has at the end or where it leaves."""
    setting, n = SETTINGS[name], law.positions
    held = storage(law, setting.region)
    energy = held(run.states[:n], run.states[n:])  # (samples, executions)
    noise = setting.noise / masses(true_law(setting.system))
    box = [setting.region[x] for x in (*law.coordinates[:n], *(f"{q} velocity" for q in law.coordinates[:n]))]
    outside = np.any([(x < low) | (x > high) for x, (low, high) in zip(run.states, box, strict=True)], axis=0)
    last = np.where(outside.any(0), outside.argmax(0), len(energy) - 1)
    end = energy[last, np.arange(energy.shape[1])]
    bound = energy_bound(law, actions, DT, noise=noise, start=float(energy[0].mean()), region=setting.region)
    forms = {"own actions": bound.own_actions, "root": bound.root, "general": bound.general}
    return {
        "energy_start": bound.start, "energy_end": float(end.mean()), "energy_bound": bound.bound,
        "energy_form": min(forms, key=lambda k: forms[k]), "energy_holds": bool(end.mean() <= bound.bound),
        "left_region": int(outside.any(0).sum()),
    }  # fmt: skip


def summary_rows(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for every task; failures are those of certified plans."""
    out = []
    for task in [t for t in SETTINGS if any(c["task"] == t for c in cells)]:
        own = [c for c in cells if c["task"] == task]
        certified = [c for c in own if c["certified"]]
        executions = sum(c["executions"] for c in certified)
        row = FAMILY | {"task": task, "system": SETTINGS[task].system, "plans": len(own), "delta": own[0]["delta"]}
        row |= {"seeds": len({c["seed"] for c in own}), "process_noise": SETTINGS[task].noise}
        row |= {name: float(np.mean([c[name] for c in own])) for name in MEANS}
        row |= {f"{name}_worst": float(np.max([c[name] for c in own])) for name in ("epsilon", "margin", "energy_end")}
        row |= {"certified_share": len(certified) / len(own), "executions": executions}
        row |= {"certified_share_fitted": float(np.mean([c["certified_fitted"] for c in own]))}
        row["realised_failure"] = sum(c["failures"] for c in certified) / executions if executions else None
        row["worst_plan"] = max((c["failures"] / c["executions"] for c in certified), default=None)
        row["above_bound"] = sum(c["failures"] / c["executions"] > c["bound"] for c in certified)
        row["energy_holds"] = all(c["energy_holds"] for c in own)
        out.append(row | {"published": None})
    return out


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in short, to be printed."""
    lines = [f"{'task':12}{'certified':>10}{'ε':>8}{'margin':>8}{'bound':>8}{'realised':>10}{'executions':>12}  energy"]
    for r in rows:
        real = "–" if r["realised_failure"] is None else f"{r['realised_failure']:.4f}"
        lines.append(
            f"{r['task']:12}{r['certified_share']:10.0%}{r['epsilon']:8.3f}{r['margin']:8.3f}{r['bound']:8.3f}{real:>10}"
            f"{r['executions']:12}  {'holds' if r['energy_holds'] else 'BROKEN'}"
        )
    return "\n".join(lines)
