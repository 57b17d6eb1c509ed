"""The support audit: what happens to a contact branch in the dark. Paper: Exp 1A and 1B."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vhydro.occlusion import channel_groups
from vhydro.usage import UsageError, at_least, refuse_unknown
from vhydro_audits import support_loss
from vhydro_audits.grid import Group, run_grid
from vhydro_audits.spec import SUPPORT
from vhydro_audits.store import rounded
from vhydro_audits.summary import meta, summary_rows, write_summary
from vhydro_audits.support_data import divided, episodes_of, fingerprint, view_of
from vhydro_audits.support_fits import (
    CONFORMAL,
    FITTED,
    LEVELS,
    REGIMES,
    Stream,
    fitted,
    parts_of,
    seed_keys,
    settings_of,
    stacked,
    units_of,
)
from vhydro_audits.support_records import seed_records
from vhydro_audits.support_runs import runs

DIGITS = 5  # of every number that is kept
FAMILIES = SUPPORT.families


@dataclass(frozen=True)
class SupportAuditConfig:
    """`vhydro audit support`: filters that differ in how they keep branches alive, from full sight to 90 % dark."""

    family: Literal["contact", "sawyer", "all"] = "all"  # four simulated tasks each
    # matched: trained at all levels; shift: at up to 25 % hidden; lit: in full light, tested in dark spells three times
    # as long; plain: as lit, trained longer, no look-ahead, one task a family
    regime: Literal["matched", "shift", "lit", "plain", "all"] = "all"
    seeds: int = 20  # each with logs divided, noise, darkness and starts of its own
    out: Path = Path("results/support")  # where cells, summary, figures and page go
    data: Path | None = None  # folder with the recorded logs of every task
    # one task a family, shift unless --regime is given, two seeds of 60 steps on the shipped sample: about 4 minutes on
    # two cores
    quick: bool = False
    tasks: tuple[str, ...] = ()  # of the family; all of them if not given
    particles: int = 64  # of every filter
    steps: int = 200  # of every fit
    sensor_noise: float = 0.005  # metres, added to every reading: a simulator's are exact, no camera's are
    burst: int = 10  # rows over which hiding is smoothed
    workers: int | None = None  # processes; 0: this one
    on: Literal["local", "ray"] = "local"  # this machine, or a Ray cluster
    address: str | None = None  # of the Ray cluster; an embedded one if not given
    overwrite: bool = False  # begin anew where results of another configuration are

    def __post_init__(self):
        for name in ("seeds", "particles", "steps", "burst"):
            at_least(name, getattr(self, name), 1)
        if not self.sensor_noise > 0:
            raise UsageError(
                f"--sensor-noise {self.sensor_noise:g}; expected a positive number of metres, such as "
                "--sensor-noise 0.005."
            )
        if self.quick and (self.data, self.seeds, self.steps) != (None, 20, 200):
            raise UsageError(
                f"--quick always runs {QUICK['seeds']} seeds of {QUICK['steps']} steps on the shipped sample; it goes "
                "with none of --data, --seeds and --steps. Leave those out, or leave out --quick."
            )
        known = [t for f in self.families for t in FAMILIES[f]]
        refuse_unknown(self.tasks, known, "task", f" in --family {self.family}")

    @property
    def families(self) -> tuple[str, ...]:
        named = {"contact": ("contact",), "sawyer": ("sawyer-bridge",), "all": tuple(FAMILIES)}
        return named[self.family]

    @property
    def regimes(self) -> tuple[str, ...]:
        if self.regime != "all":
            return (self.regime,)
        return ("shift",) if self.quick else tuple(REGIMES)


QUICK_TASKS = {"contact": ("PickCube",), "sawyer-bridge": ("bridge",)}
QUICK = {"seeds": 2, "steps": 60}


def run_support_audit(config: SupportAuditConfig) -> Path:
    """The path of the audit's page, after every cell was computed or found."""
    from vhydro_audits.pages.support import write_support_page

    if config.data is None and not config.quick:
        raise UsageError(
            "a full run needs --data FOLDER with the recorded logs of every task (record them with `vhydro collect`). "
            "For a small run on the shipped sample use --quick."
        )
    if config.quick:
        quick_tasks = config.tasks or tuple(t for f in config.families for t in QUICK_TASKS[f])
        config = _quickened(config, quick_tasks)
    asked = groups(config)
    plain = _plain(config, sorted({g.key["task"] for g in asked}))
    results = run_grid(
        asked, work, plain, config.out,
        workers=config.workers, on=config.on, address=config.address, overwrite=config.overwrite,
    )  # fmt: skip
    seeds = len({cell["seed"] for cell in results.cells})
    write_summary(config.out, meta(results, seeds) | {"quick": config.quick}, summary_rows(SUPPORT, results.cells))
    page = write_support_page(config.out)
    print(page)
    return page


def _quickened(config: SupportAuditConfig, tasks: tuple[str, ...]) -> SupportAuditConfig:
    small = replace(config, tasks=tasks)
    for name, value in QUICK.items():  # past the check, which is of what a user gave
        object.__setattr__(small, name, value)
    return small


def _plain(config: SupportAuditConfig, tasks: list[str]) -> dict[str, Any]:
    """What decides the numbers, the logs included."""
    data = None if config.data is None else str(config.data)
    names = ("particles", "steps", "sensor_noise", "burst")
    logs = {task: fingerprint(task, data) for task in tasks}
    return {name: getattr(config, name) for name in names} | {"quick": config.quick, "data": data, "logs": logs}


def groups(config: SupportAuditConfig) -> list[Group]:
    """One group for every task, regime and fit, with all seeds and levels in it."""
    out = []
    for regime in config.regimes:
        for family in config.families:
            for task in (t for t in FAMILIES[family] if not config.tasks or t in config.tasks):
                out += _task_groups(family, task, regime, config.seeds)
    return out


def _task_groups(family: str, task: str, regime: str, seeds: int) -> list[Group]:
    place = {"family": family, "task": task, "regime": regime}
    if regime == support_loss.REGIME:
        if task != support_loss.TASKS[family]:
            return []
        key = place | {"method": "all", "seeds": seeds}
        return [Group(key, tuple(_cells(key, support_loss.METHODS)))]
    keys = [place | {"method": method, "seeds": seeds} for method in FITTED]
    return [Group(k, tuple(_cells(k, (k["method"], CONFORMAL)[: 1 + (k["method"] == "two-sided")]))) for k in keys]


def _cells(key: dict[str, Any], methods: Sequence[str]) -> list[dict[str, Any]]:
    shared = {"experiment": "support"} | {name: key[name] for name in ("family", "task", "regime")}
    return [
        shared | {"occlusion": level, "method": method, "seed": seed}
        for seed in range(key["seeds"])
        for level in LEVELS
        for method in methods
    ]


# --- one group ------------------------------------------------------------------------------------------------------


def work(key: dict[str, Any], config: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of one method on one task: every seed is fitted, then filters its test episodes at every level."""
    seeds = range(key["seeds"])
    if key["regime"] == support_loss.REGIME:
        return rounded(support_loss.loss_records(key, config), DIGITS)
    task, data, method, regime = key["task"], config["data"], key["method"], key["regime"]
    divisions, tests = zip(*(divided(task, data, seed, config["sensor_noise"]) for seed in seeds), strict=True)
    view, length = view_of(task, data), max(e.steps + 1 for e in episodes_of(task, data))
    fits = fitted(method, regime, config, list(divisions), view, length)
    settings = settings_of(method, regime, config["particles"], history=True, pareto=True)
    test = [[view(e) for e in own] for own in tests]
    bodies, batch = channel_groups(test[0][0]), stacked(test, length)
    burst = REGIMES[regime].longer * config["burst"]
    shared = {"sensor_noise": config["sensor_noise"], "units": units_of(divisions, view), "burst": burst}
    run = partial(runs, parts_of(fits), settings, **shared)
    tested = run(batch, LEVELS, bodies, keys=seed_keys(key["seeds"], Stream.TEST))
    calibrating = None
    if method == "two-sided":
        held = stacked([[view(e) for e in d.validation] for d in divisions], length)
        keys = seed_keys(key["seeds"], Stream.VALIDATION)
        calibrating = run(held, LEVELS, bodies, keys=keys, checked=False), np.asarray(held.valid)
    valid = np.asarray(batch.valid)
    every = [seed_records(key, config, method, tested, valid, seed, calibrating, bodies) for seed in seeds]
    return rounded([r for records in every for r in records], DIGITS)
