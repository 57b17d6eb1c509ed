"""The support audit: what happens to a contact branch in the dark. Paper: Exp 1A and 1B."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from vhydro.audits.grid import Group, run_grid
from vhydro.audits.summary import meta, published, published_row, rows, write_summary
from vhydro.audits.support_data import FAMILIES, PUBLISHED_TASKS, divided, episodes_of, fingerprint
from vhydro.audits.support_metrics import (
    calibrated,
    cell_metrics,
    check_metrics,
    coverages,
    step_metrics,
)
from vhydro.audits.support_runs import Readings, Runs, Shot, Steps, runs
from vhydro.certificate import Gate, adaptive, conservative, no_support
from vhydro.episodes import Batch, Episode, pad
from vhydro.filter import FilterSettings
from vhydro.labels.contact import touches
from vhydro.occlusion import channel_groups
from vhydro.proposal import amortized_proposal, conditioned_proposal
from vhydro.robots import GIVEN, couplings, robot_model
from vhydro.training import Fit, Parts, TrainingConfig, fit

LEVELS = (0.0, 0.25, 0.5, 0.75, 0.9)
# Hidden shares while learning, and how much longer than then the dark spells of the test are.
TRAINED = {"matched": LEVELS, "shift": (0.0, 0.25), "lit": (0.0,)}
LONGER = {"matched": 1, "shift": 1, "lit": 3}
MODES = 3
CONFORMAL = "two-sided+conformal"
METHODS = ("adaptive", "conservative", "no-support", "smooth", "two-sided", CONFORMAL)
FITTED = METHODS[:-1]  # the last is the one before it with other intervals
FILMED = {"contact": "PickCube", "sawyer-bridge": "tower"}
FILM_METHODS, FILM_LEVEL, FILM_REGIME = ("adaptive", "no-support", "two-sided"), 0.75, "lit"
METRICS = (
    "ess", "relative_weight_variance", "empirical_relative_variance", "realised_variance", "nll", "nll_hidden", "ece",
    "ece_hidden", "cov90", "cov90_hidden", "mixing", "certified", "redrawn", "bounded", "bound", "bound_realised",
    "bound_realised_se", "pareto_k", "pareto_bad", "lost",
)  # fmt: skip


@dataclass(frozen=True)
class SupportAuditConfig:
    """`vhydro audit support`: filters that differ in how they keep branches alive, from full sight to 90 % dark."""

    family: Literal["contact", "sawyer", "both"] = "both"
    # trained over all levels, at up to 25 % hidden, or in full light and then tested in longer dark spells
    regime: Literal["matched", "shift", "lit", "all"] = "all"
    seeds: int = 20
    out: Path = Path("results/support")  # where cells, summary, figures and page go
    data: Path | None = None  # folder with the recorded logs of every task; the shipped sample if not given
    quick: bool = False  # one task of a family, two seeds, short fits on the shipped sample; says it is one
    tasks: tuple[str, ...] = ()  # of the family; all of them if not given
    particles: int = 64  # of every filter
    steps: int = 200  # of every fit
    sensor_noise: float = 0.005  # metres, added to every reading: a simulator's are exact, no camera's are
    burst: int = 10  # rows over which hiding is smoothed
    workers: int | None = None  # processes on a CPU, threads on an accelerator; 0: this one
    on: Literal["local", "ray"] = "local"
    address: str | None = None  # of a Ray cluster
    fresh: bool = False  # begin anew where results of another configuration are

    def __post_init__(self):
        for name in ("seeds", "particles", "steps", "burst"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1.")
        if not self.sensor_noise > 0:
            raise ValueError(f"sensor_noise is {self.sensor_noise}; expected a positive number of metres.")
        known = [t for f in self.families for t in FAMILIES[f]]
        if unknown := [t for t in self.tasks if t not in known]:
            raise ValueError(f"no task {unknown} in {', '.join(self.families)}; there are {known}.")

    @property
    def families(self) -> tuple[str, ...]:
        named = {"contact": ("contact",), "sawyer": ("sawyer-bridge",), "both": tuple(FAMILIES)}
        return named[self.family]

    @property
    def regimes(self) -> tuple[str, ...]:
        return tuple(TRAINED) if self.regime == "all" else (self.regime,)


QUICK_TASKS = {"contact": ("PickCube",), "sawyer-bridge": ("bridge",)}
QUICK: dict[str, Any] = {"seeds": 2, "steps": 60, "data": None}


def run_support_audit(config: SupportAuditConfig) -> Path:
    """The path of the audit's page, after every cell was computed or found."""
    from vhydro.report.support import write_support_page

    if config.quick:
        quick_tasks = config.tasks or tuple(t for f in config.families for t in QUICK_TASKS[f])
        config = replace(config, **QUICK, tasks=quick_tasks)
    asked = groups(config)
    plain = _plain(config, sorted({g.key["task"] for g in asked}))
    results = run_grid(
        asked, work, plain, config.out,
        workers=config.workers, on=config.on, address=config.address, fresh=config.fresh,
    )  # fmt: skip
    write_summary(config.out, meta(results, config.seeds) | {"quick": config.quick}, summary_rows(results.cells))
    page = write_support_page(config.out)
    print(page)
    return page


def _plain(config: SupportAuditConfig, tasks: list[str]) -> dict[str, Any]:
    """What decides the numbers, the logs included."""
    data = None if config.data is None else str(config.data)
    names = ("particles", "steps", "sensor_noise", "burst")
    logs = {task: fingerprint(task, data, None) for task in tasks}
    return {name: getattr(config, name) for name in names} | {"quick": config.quick, "data": data, "logs": logs}


def groups(config: SupportAuditConfig) -> list[Group]:
    """One group for every task, regime and fit, with all seeds and levels in it."""
    out = []
    for regime in config.regimes:
        for family in config.families:
            for task in (t for t in FAMILIES[family] if not config.tasks or t in config.tasks):
                for method in FITTED:
                    key = {"family": family, "task": task, "regime": regime, "method": method, "seeds": config.seeds}
                    out.append(Group(key, tuple(_cells(key))))
    return out


def _cells(key: dict[str, Any]) -> list[dict[str, Any]]:
    methods = (key["method"], CONFORMAL) if key["method"] == "two-sided" else (key["method"],)
    shared = {"experiment": "support"} | {name: key[name] for name in ("family", "task", "regime")}
    return [
        shared | {"occlusion": level, "method": method, "seed": seed}
        for seed in range(key["seeds"])
        for level in LEVELS
        for method in methods
    ]


# --- one group ------------------------------------------------------------------------------------------------------


def gate_of(method: str) -> Gate:
    """How a method mixes; every one says what it could certify."""
    return {
        "adaptive": adaptive(certificate="guide-free"),
        "conservative": conservative(0.5),
        "no-support": no_support(),
        "smooth": no_support(),
        "two-sided": adaptive(certificate="two-sided"),
    }[method]


def settings_of(method: str, particles: int) -> FilterSettings:
    """Filters that differ in their gate alone: resampled at every step, by how likely what comes next is."""
    return FilterSettings(particles=particles, gate=gate_of(method), lookahead=True, ess_threshold=1.0)


def work(key: dict[str, Any], config: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of one method on one task: every seed is fitted, then filters its test episodes at every level."""
    seeds = range(key["seeds"])
    parts = [divided(key["task"], config["data"], None, seed, config["sensor_noise"]) for seed in seeds]
    train, validation, test = ([p[i] for p in parts] for i in range(3))
    fitted = fitted_parts(key, config, train, validation)
    settings = replace(settings_of(key["method"], config["particles"]), history=True, pareto=True)
    length = max(e.steps + 1 for e in episodes_of(key["task"], config["data"], None))
    levels, channels = channel_groups(test[0][0]), test[0][0].channels
    batch, shot = _stacked(test, length), _shot(key, test[0], config)

    def run(batch: Batch, stream: int, **options) -> Runs:
        keys = jax.vmap(lambda s: jax.random.fold_in(jax.random.key(s), stream))(np.arange(key["seeds"]))
        return runs(
            fitted.every, settings, batch, LEVELS, levels,
            sensor_noise=config["sensor_noise"], burst=LONGER[key["regime"]] * config["burst"], keys=keys, **options,
        )  # fmt: skip

    tested = run(batch, 1, shot=shot)
    calibrating = None
    if key["method"] == "two-sided":
        held = _stacked(validation, length)
        calibrating = run(held, 2, checked=False), np.asarray(held.valid)
    records = []
    for seed in seeds:
        records += _seed_records(key, config, tested, calibrating, np.asarray(batch.valid), levels, seed)
    if shot is not None and tested.film is not None:
        _filmed(records, tested, shot, test[0][shot.episode], channels[shot.channel].name)
    return _rounded(records)


def _stacked(lists: list[list[Episode]], length: int) -> Batch:
    batches = [pad(own, dtype=np.float32, length=length) for own in lists]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)


def fitted_parts(key: dict[str, Any], config: dict[str, Any], train, validation) -> Fit:
    """Every seed's model and guide, learned together on its own episodes with the method's own gate."""
    seeds, method = key["seeds"], key["method"]
    modes = 1 if method == "smooth" else MODES
    found = couplings(train, modes, config["sensor_noise"], seeds=range(seeds))
    starts = []
    for seed in range(seeds):
        model_key, guide_key = jax.random.split(jax.random.key(seed))
        model = robot_model(train[seed], found[seed], sensor_noise=config["sensor_noise"], key=model_key)
        learned = method != "two-sided"
        guide = amortized_proposal(model, hidden=(32, 32), key=guide_key) if learned else conditioned_proposal(model)
        starts.append(Parts(model, guide))
    training = TrainingConfig(
        steps=config["steps"],
        batch=16,
        window=32,
        learning_rate=0.01,
        # Ten levels in every regime, so that all share a program.
        occlusion=TRAINED[key["regime"]] * (10 // len(TRAINED[key["regime"]])),
        burst=config["burst"],
        validate_every=100,
        seeds=seeds,
        frozen=GIVEN,
        settings=settings_of(method, 32),
    )
    return fit(starts, train, validation, key=jax.random.key(2**20), config=training, progress=False)


def _seed_records(key, config, tested: Runs, calibrating, valid, groups, seed: int) -> list[dict[str, Any]]:
    """The records of one seed, at every level."""

    def of(tree, *index):
        return jax.tree.map(lambda x: x[index], tree)

    counted = valid[seed].copy()
    counted[:, 0] = False  # the first row is never hidden
    readings: Readings = of(tested.readings, seed)
    inside = {key["method"]: (coverages(readings), np.asarray(readings.log_density))}
    if calibrating is not None:
        held, held_valid = calibrating
        kept = np.broadcast_to(held_valid[seed], readings.hidden.shape[:1] + held_valid[seed].shape).copy()
        kept[..., 0] = False
        rows = np.broadcast_to(counted, readings.hidden.shape[:1] + counted.shape)
        found = calibrated(of(held.readings, seed), kept, readings, rows, groups)
        inside[CONFORMAL] = found.inside, found.log_density
    records = []
    for i, level in enumerate(LEVELS):
        steps: Steps = of(tested.steps, seed, i)
        shared = step_metrics(steps, counted, config["particles"]) | check_metrics(of(tested.checks, seed, i))
        for method, (within, log_density) in inside.items():
            place = {"experiment": "support"} | {n: key[n] for n in ("family", "task", "regime")}
            place |= {"occlusion": level, "method": method, "seed": seed}
            own = cell_metrics(of(readings, i), log_density[i], within[i], counted)
            records.append(place | shared | own | {"film": None})
    return records


# --- the film -------------------------------------------------------------------------------------------------------


def _shot(key: dict[str, Any], test: list[Episode], config: dict[str, Any]) -> Shot | None:
    """The test episode and channel of the first seed with the longest way to go; a choice by the log alone."""
    filmed = key["task"] == FILMED[key["family"]] or config["quick"]
    if key["regime"] != FILM_REGIME or key["method"] not in FILM_METHODS or not filmed:
        return None
    ways = np.stack([np.ptp(e.observations, axis=0) for e in test])
    episode, channel = np.unravel_index(int(np.argmax(ways)), ways.shape)
    return Shot(LEVELS.index(FILM_LEVEL), int(episode), int(channel))


def _filmed(records, tested: Runs, shot: Shot, episode: Episode, channel: str) -> None:
    """Puts the film into the record it is of."""
    film = jax.tree.map(lambda x: x[0, : episode.steps + 1], tested.film)
    truth = episode.observations[:, shot.channel]
    lost = np.flatnonzero(tested.readings.lost[0, shot.level, shot.episode, : len(truth), shot.channel] & ~film.seen)
    touched = np.zeros(len(truth), bool)
    if episode.contacts:
        for pair, on in touches(episode, threshold=1e-3, minimum_run=2).items():
            touched |= on & (channel.rpartition(".")[0] in pair)
    record = next(r for r in records if r["seed"] == 0 and r["occlusion"] == FILM_LEVEL)
    record["film"] = {
        "channel": channel, "dt": episode.dt, "truth": truth.tolist(), "seen": film.seen.astype(int).tolist(),
        "particles": film.particles.tolist(), "weights": film.weights.tolist(),
        "contact": touched.astype(int).tolist(), "lost_at": int(lost[0]) if lost.size else None,
    }  # fmt: skip


def _rounded(value: Any) -> Any:
    """Floats to five digits: what is beyond depends on the machine."""
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.5g}") if np.isfinite(value) else None
    return value


# --- the summary ----------------------------------------------------------------------------------------------------


def summary_rows(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every family at every level, then every task, each with the published row of its method."""
    shared = ("experiment", "family", "regime", "occlusion", "method")
    whole = rows(cells, shared, METRICS)
    single = [r | {"experiment": "support-by-task"} for r in rows(cells, (*shared, "task"), METRICS)]
    return [r | {"published": _published(r)} for r in whole + single]


def _published(row: dict[str, Any]) -> dict[str, Any] | None:
    """The paper's row beside ours; its tasks have names of their own."""
    return published_row(row | ({"task": PUBLISHED_TASKS[row["task"]]} if "task" in row else {}), published())
