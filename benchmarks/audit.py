"""Seconds of one cell group of the support audit, and how they grow with N, seeds and T; writes results/audit.json.

PickCube, `adaptive`, `shift`: with compiling, and running alone, divided in training steps, validations, the filter at
all levels, and the records. As in the audit every setting has a process of its own, of one thread. All start at once,
no more compiling than there are cores; when all have compiled they take turns, so that nothing runs beside what is
timed. Run on a CPU and on a GPU: each keeps the other's entry.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any, NamedTuple
from unittest.mock import patch

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provenance import provenance
from vhydro import training
from vhydro.data.dataset import Dataset
from vhydro.data.npz_native import write_npz
from vhydro.episodes import Episode
from vhydro.occlusion import channel_groups
from vhydro_audits import places, support, support_fits, support_records, support_runs
from vhydro_audits.store import rounded, write_whole
from vhydro_audits.support_data import divided, episodes_of, logs_of

HERE = Path(__file__).parent
GROUP = {"family": "contact", "task": "PickCube", "regime": "shift", "method": "adaptive"}
BLOCK = 10  # training steps that are timed together
PIECES = ("step", "validation", "filter", "records")
# A process that computes nothing yet must not keep the accelerator's memory; a kept program is not compiled.
ALONE = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_ENABLE_COMPILATION_CACHE": "false"}


class Setting(NamedTuple):
    """A cell group: how many particles and seeds, and the folder of its logs (the shipped sample if None)."""

    name: str
    particles: int
    seeds: int
    data: str | None


def settings(seeds: int, data: str | None, doubled: str) -> list[Setting]:
    """The base, and the base with one thing changed at a time."""
    return [
        Setting("base", 64, seeds, data),
        Setting("N x 4", 256, seeds, data),
        Setting("fewer seeds", 64, max(1, seeds // 4), data),
        Setting("more seeds", 64, 4 * seeds, data),
        Setting("T x 2", 64, seeds, doubled),
    ]


def there_and_back(e: Episode) -> Episode:
    """An episode of twice the steps: the log, then the log backwards, so that nothing jumps."""
    return replace(
        e,
        observations=np.concatenate([e.observations, e.observations[-2::-1]]),
        actions=np.concatenate([e.actions, e.actions[::-1]]),
        labels={},
        contacts=(),
    )


def write_doubled(data: str | None, folder: Path) -> None:
    logs = logs_of(GROUP["task"], data)
    twice = Dataset(logs.format, logs.path, logs.names, lambda i: there_and_back(logs[i]))
    write_npz(twice, folder / f"{GROUP['task']}.npz")


# --- one cell group, in its own process -----------------------------------------------------------------------------


class Asked(NamedTuple):
    """What the audit asks of `fit`; the fields are its arguments."""

    starts: list[training.Parts]
    train: list[list[Episode]]
    validation: list[list[Episode]]
    key: Any
    config: training.TrainingConfig
    length: int
    progress: bool


class CellGroup:
    """What `support.work` does, in pieces that can be called again without compiling again."""

    def __init__(self, setting: Setting):
        self.key: dict[str, Any] = GROUP | {"seeds": setting.seeds}
        chosen = asdict(support.SupportAuditConfig(particles=setting.particles))
        self.config: dict[str, Any] = chosen | {"data": setting.data}
        noise = self.config["sensor_noise"]
        parts = [divided(self.key["task"], setting.data, seed, noise) for seed in range(setting.seeds)]
        train, validation, self.test = ([p[i] for p in parts] for i in range(3))
        self.rows = max(e.steps + 1 for e in episodes_of(self.key["task"], setting.data))
        # The audit's own starts and training settings: it is asked for a fit, and the question is kept.
        with patch.object(support_fits, "fit", Asked):
            self.asked: Any = support_fits.fitted(
                GROUP["method"], GROUP["regime"], self.config, train, validation, self.rows
            )
        self.groups = channel_groups(self.test[0][0])
        self.episodes = len(train[0]), len(validation[0]), len(self.test[0])
        self._prepare_fit(self.asked)
        self._prepare_filter(noise)

    def _prepare_fit(self, asked: Asked) -> None:
        weights, rest = training._stacked(asked.starts, training._trainable(asked.starts[0], asked.config.frozen))
        dtype = asked.starts[0].model.dtype
        train, validation = (training._padded(e, dtype, asked.length) for e in (asked.train, asked.validation))
        self.program = training._Program(asked.config, rest, train, validation, self.groups)
        self.state = training._fresh(self.program, weights, jnp.zeros(asked.config.seeds))

    def _prepare_filter(self, noise: float) -> None:
        arrays = [eqx.partition(p, eqx.is_array) for p in self.asked.starts]
        self.stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(a for a, _ in arrays))
        self.batch = support_fits.stacked(self.test, self.rows)
        settings = support_fits.settings_of(
            GROUP["method"], GROUP["regime"], self.config["particles"], history=True, pareto=True
        )
        own = partial(support_runs._seed, arrays[0][1], settings, noise, True, None)
        self.filtering = jax.jit(jax.vmap(own))

    def step(self) -> Any:
        """The state after a block of training steps."""
        s = self.state
        after = self.program.block(s.weights, s.optimiser, s.diverged, s.step, self.asked.key, count=BLOCK)
        return jax.block_until_ready(after)

    def validation(self) -> Any:
        """Every seed's validation score."""
        return jax.block_until_ready(self.program.validate(self.state.weights, self.asked.key))

    def filter(self) -> support_runs.Runs:
        """What `support_runs.runs` returns, at every level."""
        hiding, running = jax.vmap(jax.random.split, out_axes=1)(
            support_fits.seed_keys(len(self.test), support_fits.Stream.TEST)
        )
        levels = jnp.asarray(support_fits.LEVELS, self.batch.dt.dtype)
        burst = support_fits.REGIMES[GROUP["regime"]].longer * self.config["burst"]
        shown = support_runs._shown(self.batch, levels, tuple(self.groups.tolist()), burst, hiding)
        self.tested = jax.tree.map(np.asarray, self.filtering(self.stacked, self.batch, shown, running))
        return self.tested

    def records(self) -> list[dict[str, Any]]:
        """The cells of every seed."""
        out, valid = [], np.asarray(self.batch.valid)
        for seed in range(self.key["seeds"]):
            out += support_records.seed_records(self.key, self.config, GROUP["method"], self.tested, valid, seed)
        return rounded(out, support.DIGITS)


def seconds(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def least_seconds(call: Callable[[], Any], enough: float) -> float:
    """The least seconds of one call, of as many as it takes to fill `enough`."""
    spent = [seconds(call)]
    while sum(spent) < enough:
        spent.append(seconds(call))
    return min(spent)


class Turns(NamedTuple):
    """Who may compute: as many as there are cores until all have compiled, then one at a time."""

    cores: Any
    compiled: Any
    timed: Any


TURNS: list[Turns] = []  # of this process; such things can be handed over at its start only


def begin(lifeline, *turns) -> None:
    """Starts a process that ends when the one that started it does."""
    places._live_by(lifeline)
    TURNS.append(Turns(*turns))


def measured(setting: Setting, enough: float) -> dict[str, Any]:
    """The seconds of a cell group's pieces and of the whole of it."""
    (turns,) = TURNS
    try:
        with turns.cores:
            begun, processor = time.perf_counter(), time.process_time()
            group = CellGroup(setting)
            prepared = time.perf_counter() - begun
            first = {name: seconds(getattr(group, name)) for name in PIECES}
            processor = time.process_time() - processor
        turns.compiled.wait()
    except Exception:
        turns.compiled.abort()  # or the others would wait for ever
        raise
    with turns.timed:
        again = {name: least_seconds(getattr(group, name), enough) for name in PIECES}
    compiling = sum(first[name] - again[name] for name in PIECES)
    # Unlike the others it is hardly touched by what else the machine does.
    known = shape(setting, group) | {"first_processor_s": processor}
    return known | whole(group.asked.config, again, prepared, compiling)


def shape(setting: Setting, group: CellGroup) -> dict[str, Any]:
    train, validation, test = group.episodes
    episodes = {"train": train, "validation": validation, "test": test}
    sizes = {"particles": setting.particles, "seeds": setting.seeds, "rows": group.rows, "episodes": episodes}
    return {"name": setting.name} | sizes | {"steps": group.asked.config.steps}


def whole(config: training.TrainingConfig, again: dict[str, float], prepared: float, compiling: float) -> dict:
    """The seconds of the group: of its pieces, as often as the audit calls them, and of what comes before."""
    step = again["step"] / BLOCK
    validations = 1 + -(-config.steps // config.validate_every)
    fit = config.steps * step + validations * again["validation"]
    running = fit + again["filter"] + again["records"]
    return {
        "step_s": step, "validation_s": again["validation"], "fit_s": fit, "filter_s": again["filter"],
        "records_s": again["records"], "running_s": running, "prepared_s": prepared, "compiling_s": compiling,
        "cold_s": prepared + compiling + running,
    }  # fmt: skip


# --- all of them ----------------------------------------------------------------------------------------------------


def all_measured(asked: list[Setting], enough: float) -> list[dict[str, Any]]:
    """The rows of all settings, each from a process of its own."""
    context = multiprocessing.get_context("spawn")
    turns = (context.Semaphore(os.cpu_count() or 1), context.Barrier(len(asked)), context.Lock())
    lifeline, _held = context.Pipe(duplex=False)
    with ProcessPoolExecutor(len(asked), context, begin, (lifeline, *turns)) as pool:
        futures = [pool.submit(measured, setting, enough) for setting in asked]
        errors = [error for f in futures if (error := f.exception()) is not None]
    if errors:
        # Where one fails the others only say that they waited for it.
        raise min(errors, key=lambda e: isinstance(e, BrokenBarrierError))
    return [f.result() for f in futures]


def growth(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """What one change multiplies the running seconds by."""
    base, *changed = rows
    names = ("step_s", "validation_s", "filter_s", "running_s")
    return {r["name"]: {n.removesuffix("_s"): r[n] / base[n] for n in names} for r in changed}


def show(rows: list[dict[str, Any]], ratios: dict[str, dict[str, float]]) -> None:
    columns = (
        "step_s", "validation_s", "fit_s", "filter_s", "records_s", "running_s", "prepared_s", "compiling_s", "cold_s",
    )  # fmt: skip
    print(f"{'':12s} {'N':>4s} {'seeds':>5s} {'rows':>5s}" + "".join(f"{n:>13s}" for n in columns))
    for r in rows:
        numbers = "".join(f"{r[n]:13.4g}" for n in columns)
        print(f"{r['name']:12s} {r['particles']:4d} {r['seeds']:5d} {r['rows']:5d}{numbers}")
    for name, own in ratios.items():
        print(f"{name:12s} " + "  ".join(f"{n} x {ratio:.2f}" for n, ratio in own.items()))


def write(path: Path, entry: dict[str, Any]) -> None:
    """Keeps what other kinds of device left in the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads(path.read_text("utf-8")) if path.exists() else {}
    found[jax.default_backend()] = entry
    write_whole(path, json.dumps(found, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with the logs of PickCube; the shipped sample if not given")
    parser.add_argument("--seeds", type=int, help="of the base; 20 on an accelerator and 2 on a CPU if not given")
    parser.add_argument("--seconds", type=float, default=1.0, help="a piece is timed again until this is filled")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "audit.json")
    options = parser.parse_args()
    begun = time.perf_counter()
    with places._environment(places._one_thread() | ALONE), tempfile.TemporaryDirectory() as folder:
        origin = provenance()  # before anything is measured: the code may be changed meanwhile
        seeds = options.seeds or (2 if jax.default_backend() == "cpu" else 20)
        write_doubled(options.data, Path(folder))
        rows = all_measured(settings(seeds, options.data, folder), options.seconds)
    ratios = growth(rows)
    show(rows, ratios)
    logs = "shipped sample" if options.data is None else Path(options.data).name
    took = {"seconds": time.perf_counter() - begun}
    write(options.out, origin | GROUP | {"logs": logs} | took | {"settings": rows, "growth": ratios})


if __name__ == "__main__":
    main()
