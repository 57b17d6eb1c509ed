"""The part of the planning audit in ManiSkill: own rollouts, models learned from them, predictions and episodes.

Predictions are of held-out rollouts, open loop; episodes are closed loop in the simulator, with one cost for all
methods. Paper: Experiment 4.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from vhydro.data import read, write
from vhydro.episodes import Episode
from vhydro.learning.commanded import track
from vhydro.views import ContactView
from vhydro.views.contact import contact_view
from vhydro_audits.collect.scripted import EPISODES, WANDERS, own_rollouts
from vhydro_audits.collect.simulator import maniskill_simulator
from vhydro_audits.grid import Group
from vhydro_audits.planning_methods import MODELS, learned
from vhydro_audits.planning_online import MOMENTS, run_episode
from vhydro_audits.planning_prediction import HORIZON, Windows, persistence, predicted, scale, scores, windows
from vhydro_audits.planning_risk import risk_columns
from vhydro_audits.store import cells_file, read_cells, rounded
from vhydro_audits.summary import published, published_row
from vhydro_audits.support_data import digest

PLACE = {"experiment": "planning", "family": "maniskill"}
TASKS = tuple(EPISODES)
PREDICTED = (*MODELS, "persistence")
PLAYED = (*MODELS, "random", "noisy")
METHODS = (*PREDICTED, "random", "noisy")
HELD_OUT = 0.25  # of the rollouts
DENSE = {"PushCube": 4, "PickCube": 5, "StackCube": 8, "PegInsertionSide": 10}  # the dense reward's unit
FILMED = 10  # one seed in so many keeps films
TABLE = -0.02  # m: a body below has fallen off the table
ERRORS = ("rmse_h1", "rmse_h16", "rmse_mean16", "rmse_h16_hand", "rmse_h16_bodies", "coverage90", "coverage90_moving",
          "coverage90_resting", "energy_drift",
          "rmse_h1_wandering", "rmse_h16_wandering", "rmse_mean16_wandering")  # fmt: skip


class Lesson(NamedTuple):
    """What a seed learns from and is tried on."""

    view: ContactView
    train: list[Episode]
    held_out: Windows  # of the noisy script's rollouts …
    wandering: Windows  # … and of those that wander


def rollouts_of(task: str, folder: Path) -> Path:
    """The file with the task's own rollouts; they are made where it is not there."""
    path = folder / f"{task}.npz"
    if not path.is_file():
        with maniskill_simulator(task) as simulator:
            logs = [p.episode for p in own_rollouts(simulator, task) if p.episode is not None]
        folder.mkdir(parents=True, exist_ok=True)
        write(logs, path)
    return path


@cache
def rollouts(path: Path) -> list[Episode]:
    """The logs of a file, each up to where a body falls off the table."""
    return [on_the_table(log) for log in read(path)]


def on_the_table(log: Episode) -> Episode:
    """The rows before a body falls off the table."""
    heights = [i for i, c in enumerate(log.channels) if c.group == "object" and c.name.endswith(".z")]
    lowest = log.observations[:, heights].min(1)
    rows = int(np.argmax(lowest < TABLE)) if lowest.min() < TABLE else len(lowest)
    return replace(log, observations=log.observations[:rows], actions=log.actions[: max(rows - 1, 0)])


@cache
def lesson(task: str, seed: int, folder: str) -> Lesson:
    """The rollouts divided by the seed."""
    logs = rollouts(Path(folder) / f"{task}.npz")
    draw, view, train, kept = np.random.default_rng(seed), contact_view(logs), [], []
    for wanders in (False, True):
        own = [log for log in logs if (float(log.info["seed"]) % WANDERS == 0) == wanders]
        order, held = draw.permutation(len(own)), max(1, round(HELD_OUT * len(own)))
        train += [own[i] for i in order[held:]]
        kept.append(windows(view, [own[i] for i in order[:held]]))
    return Lesson(view, train, *kept)


@cache
def dynamics_of(task: str, method: str, seed: int, folder: str) -> Any:
    """A method's dynamics."""
    one = lesson(task, seed, folder)
    return learned(method, one.view, one.train, seed)


def prediction_groups(task: str, method: str, seeds: Sequence[int]) -> list[Group]:
    """One cell for every seed; none where the method predicts nothing."""
    named = [{"task": task, "seed": s, "method": method} for s in seeds if method in PREDICTED]
    return [Group(key, (PLACE | key,)) for key in named]


def episode_groups(task: str, method: str, seeds: Sequence[int], episodes: int) -> list[Group]:
    """One group for every seed, a cell for each of its episodes; none where the method does not act."""
    named = [{"task": task, "seed": s, "method": method} for s in seeds if method in PLAYED]
    return [
        Group(k | {"episodes": episodes}, tuple(PLACE | k | {"episode": i} for i in range(episodes))) for k in named
    ]


def predict(key: dict[str, Any], config: dict[str, Any]) -> list[dict[str, Any]]:
    """How well a method predicts the held-out rollouts of a seed."""
    task, seed, method = key["task"], key["seed"], key["method"]
    one = lesson(task, seed, config["folder"])
    spread = scale([track(one.view, log) for log in one.train], len(one.view.bodies))

    def judged(given: Windows) -> dict[str, float | None]:
        if method == "persistence":
            return scores(persistence(given), given, spread)
        return scores(predicted(dynamics_of(task, method, seed, config["folder"]), given, seed), given, spread)

    found, also = judged(one.held_out), judged(one.wandering)
    more = {f"{name}_wandering": also[name] for name in ("rmse_h1", "rmse_h16", "rmse_mean16")}
    return rounded([PLACE | key | {"windows": len(one.held_out.z)} | found | more], 6)


def perform(key: dict[str, Any], config: dict[str, Any]) -> list[dict[str, Any]]:
    """The episodes of a method and a seed; one that loses the simulator is marked, and the next begins anew."""
    task, seed, method = key["task"], key["seed"], key["method"]
    plans = method in MODELS
    model = dynamics_of(task, method, seed, config["folder"]) if plans else None
    view = lesson(task, seed, config["folder"]).view if plans else None
    named = {k: v for k, v in key.items() if k != "episodes"}
    out = []
    with maniskill_simulator(task) as simulator:
        for i in range(key["episodes"]):
            run = run_episode(simulator, task, method, 1000 * seed + i, model, view)
            told = {f"features_t{moment}": run.told.get(moment) for moment in MOMENTS}
            facts = {"success": run.success, "return": run.total, "lost": run.lost, "moved": run.moved}
            out.append(PLACE | named | {"episode": i, "film": run.film} | facts | told)
    shown = seed % FILMED == 0 and method == "ours"
    first = {c["success"]: c["episode"] for c in reversed(out)} if shown else {}
    for cell in out:  # films of the first success and the first failure are kept
        if cell["episode"] not in first.values():
            del cell["film"]
    return rounded(out, 6)


def data_config(task: str, folder: Path) -> dict[str, Any]:
    """What results depend on beside their keys: the rollouts."""
    return {"folder": str(folder), "rollouts": digest(rollouts(rollouts_of(task, folder)))}


def maniskill_meta(folder: Path) -> dict[str, Any]:
    """Where the numbers come from, over all grids of the part."""
    runs = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*/*/*/run.json"))]
    words = {name: list(dict.fromkeys(x for run in runs for x in run[f"{name}s"])) for name in ("commit", "device")}
    seeds = {c["seed"] for path in folder.glob("*/*/*/run.json") for c in read_cells(path.parent)}
    config = {"rollouts": {t: n for t, (n, _) in EPISODES.items()}, "horizon": HORIZON, "held_out": HELD_OUT}
    told = {"commit": ", ".join(words["commit"]), "device": "; ".join(words["device"])}
    return told | {"seconds": sum(run["seconds"] for run in runs), "seeds": len(seeds), "config": config}


def maniskill_rows(folder: Path) -> list[dict[str, Any]]:
    """One row for every task and method, with the paper's beside ours; empty columns say that a method has none."""
    out = []
    for task in TASKS:
        predicted = {method: _cells(folder / task / "prediction" / method) for method in METHODS}
        shared = _shared_seeds([cells for cells in predicted.values() if cells])
        for method in METHODS:
            own = [c for c in predicted[method] if c["seed"] in shared], _cells(folder / task / "episodes" / method)
            if any(own):
                row: dict[str, Any] = {**PLACE, "task": task, "method": method, **_prediction_columns(own[0])}
                row |= _episode_columns(task, own[1], row["energy_drift"])
                out.append(row | {"published": published_row(row, published()) if method == "ours" else None})
    return out


def _shared_seeds(cells: Sequence[Sequence[dict]]) -> set[int]:
    """The seeds that all have: some divisions of the rollouts are harder than others, and methods are compared on the
    same.
    """
    seeds = [{c["seed"] for c in own} for own in cells]
    return set.intersection(*seeds) if seeds else set()


def _cells(folder: Path) -> list[dict[str, Any]]:
    return list(read_cells(folder)) if cells_file(folder).is_file() else []


def _prediction_columns(cells: Sequence[dict]) -> dict[str, Any]:
    means = {}
    for name in ERRORS:
        numbers = [c[name] for c in cells if c.get(name) is not None]
        means[name] = fmean(numbers) if numbers else None
    return means | {"prediction_seeds": len({c["seed"] for c in cells}), "windows": sum(c["windows"] for c in cells)}


def _episode_columns(task: str, cells: Sequence[dict], drift: float | None) -> dict[str, Any]:
    """Success, return, and the safe return of the formula that the paper's table obeys (inferred, it states none)."""
    empty = ("success", "return", "return_dense", "safe_return")
    kept = [c for c in cells if not c["lost"]]
    counts = {"seeds": len({c["seed"] for c in cells}), "episodes": len(kept), "lost": len(cells) - len(kept)}
    risks = risk_columns(kept, MOMENTS)
    if not kept:
        return dict.fromkeys(empty) | counts | risks
    success, total = (fmean(float(c[name]) for c in kept) for name in ("success", "return"))
    safe = None if drift is None else total - 10 * (1 - success) - drift
    each = (success, total, DENSE[task] * total, safe)
    return dict(zip(empty, each, strict=True)) | counts | risks


def maniskill_table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows in short, to be printed."""
    shown = ("rmse_h1", "rmse_h16", "rmse_mean16", "coverage90", "success", "return", "risk_gap", "ece", "brier", "auc")
    lines = [f"{'task':18}{'method':12}" + "".join(f"{s:>12}" for s in shown) + f"{'episodes':>10}"]
    for r in rows:
        numbers = "".join(f"{'–' if r[s] is None else f'{r[s]:.3f}':>12}" for s in shown)
        lines.append(f"{r['task']:18}{r['method']:12}{numbers}{r['episodes']:>10}")
    return "\n".join(lines)
