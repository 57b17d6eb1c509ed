"""What one kernel for each log is worth on a GPU, beside the scan and cuthbert in one run; writes results/gpu.json.

The switching linear system of `slds.py`, T = 1000, float32, log Z returned, compile time apart, medians; ours and the
peer take turns. Then the numbers of a kernel beside the scan's, learning, and one replan. What is measured is written
as it comes, so that a run that is stopped leaves what it had; a part that fails says so and the others go on. A part
begins only if its usual time is left of `--minutes`.

On a machine without an installation, with jax 0.11, equinox, optax, safetensors and scipy in its Python:

    BENCH_COMMIT=$(git rev-parse --short HEAD) PYTHONPATH=src:carried python3 benchmarks/gpu.py

`carried` is a folder of packages that are missing there and pure Python, such as cuthbert and cuthbertlib
(`pip install --target carried --no-deps cuthbert==0.1.1 cuthbertlib==0.1.1`).
"""

import argparse
import importlib.util
import json
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from filter import HERE, LOG, MODEL, cuthbert, row, timed
from provenance import provenance
from vhydro.certificate import adaptive
from vhydro.episodes import episode
from vhydro.filter import FilterSettings, bootstrap
from vhydro.filter.program import Program, filtered_by
from vhydro.filter.run import _log_evidence_batch, _prepared
from vhydro.proposal import ConditionedProposal

TARGETS = {
    "vs_cuthbert_1024x1": 8, "vs_cuthbert_1024x32": 8, "vs_cuthbert_64x1024": 8, "vs_cuthbert_16384x1": 3,
    "vs_cuthbert_262144x1": 3, "vs_cuthbert_1024x1024": 3, "gated_vs_scan_1024x32": 4, "marginal_vs_scan": 4,
    "training_vs_today": 3,
}  # fmt: skip
REPLAN_MS = 3.0  # at most
SIZES = ((1024, 1), (1024, 32), (64, 1024), (16384, 1), (262144, 1), (1024, 1024))  # particles, logs
GUIDE = ConditionedProposal()
ENGINES = {
    "gated_vs_scan_1024x32": (FilterSettings(particles=1024, engine="mixture", gate=adaptive()), GUIDE, 32),
    "drawn_vs_scan_1024x32": (FilterSettings(particles=1024, engine="drawn"), GUIDE, 32),
    "marginal_vs_scan": (FilterSettings(particles=64, engine="gaussian"), GUIDE, 32),
}


class Ours:
    """Our filter on so many copies of the log: a function of a seed, which remembers what ran."""

    def __init__(self, settings: FilterSettings, proposal, count: int, log=LOG):
        self.proposal, self.logs, self.count = proposal, [log] * count, count
        self.prepared = _prepared(MODEL, proposal, settings, self.logs, jax.random.key(0))
        self.program: Program | None = None

    def __call__(self, i: int) -> np.ndarray:
        settings, batch, _ = self.prepared
        keys = jax.random.split(jax.random.key(i), self.count)
        out, self.program = filtered_by(_log_evidence_batch, MODEL, self.proposal, settings, batch, keys)
        return np.asarray(out)


class Bench:
    """The results so far, kept in a file."""

    def __init__(self, path: Path, minutes: float, rehearsal: bool):
        self.path, self.end, self.rehearsal = path, time.monotonic() + 60 * minutes, rehearsal
        self.out: dict[str, Any] = {"keys": {}, "rows": [], "skipped": {}, "meta": provenance(rehearsal=rehearsal)}
        self.begun = time.monotonic()

    @property
    def kernel(self) -> str:
        return "interpreted" if self.rehearsal else "kernel"

    def part(self, name: str, usual: float, work: Callable[[], None]) -> None:
        """Does one part if so many seconds are left, and writes what there is; one that fails is said and left out."""
        left = self.end - time.monotonic()
        if left < usual:
            self.out["skipped"][name] = f"{left:.0f} s were left, it takes about {usual:.0f} s"
        else:
            try:
                work()
            except Exception as error:
                self.out["skipped"][name] = f"{type(error).__name__}: {error}"[:500]
        if name in self.out["skipped"]:
            print(f"{name}: left out. {self.out['skipped'][name]}", flush=True)
        self.out["meta"]["seconds"] = round(time.monotonic() - self.begun, 1)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = self.path.with_suffix(".partial")
        whole.write_text(json.dumps(self.out, indent=1) + "\n")
        whole.replace(self.path)

    def timed(self, calls: dict[str, Callable], runs: int) -> dict[str, dict]:
        """A row for every call, taking turns; those of ours say what ran."""
        found = {}
        for name, result in timed(calls, runs).items():
            found[name] = row(name, result)
            call = calls[name]
            if isinstance(call, Ours):
                found[name]["program"] = str(call.program)
                print(f"{'':36s} {call.program}", flush=True)
            self.out["rows"].append(found[name])
        return found

    def key(self, name: str, value: float) -> None:
        self.out["keys"][name] = value
        bar = f"   asked: at least {TARGETS[name]}" if name in TARGETS else ""
        print(f"{name:28s} {value:10.3f}{bar}", flush=True)


# --- the parts --------------------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """The system's filter at one size."""

    particles: int
    logs: int
    runs: int


def with_stand_in_for_numba() -> None:
    """cuthbertlib imports numba for its sampling on CPUs; where it is missing a GPU does without."""
    if "numba" not in sys.modules and importlib.util.find_spec("numba") is None:
        stand_in = types.ModuleType("numba")
        stand_in.__dict__["njit"] = lambda function: function
        sys.modules["numba"] = stand_in


def beside_cuthbert(bench: Bench, setting: Setting) -> None:
    """The bootstrap filter in a kernel, in the scan, and cuthbert's."""
    n, count = setting.particles, setting.logs
    name = f"{n}x{count}"
    calls: dict[str, Callable] = {
        f"kernel {name}": Ours(bootstrap(particles=n, program=bench.kernel), None, count),
        f"scan {name}": Ours(bootstrap(particles=n, program="scan"), None, count),
    }
    with_stand_in_for_numba()
    if importlib.util.find_spec("cuthbert") is None:
        bench.out["skipped"][f"vs_cuthbert_{name}"] = "cuthbert is not installed here"
    else:
        calls[f"cuthbert {name}"] = cuthbert(n, count)
    found = bench.timed(calls, setting.runs)
    seconds = {k.split()[0]: r["seconds"] for k, r in found.items()}
    bench.key(f"bootstrap_vs_scan_{name}", seconds["scan"] / seconds["kernel"])
    if "cuthbert" in seconds:
        bench.key(f"vs_cuthbert_{name}", seconds["cuthbert"] / seconds["kernel"])


def beside_scan(bench: Bench, name: str, runs: int) -> None:
    """Another engine in a kernel and in the scan, and how long each compiles."""
    settings, proposal, count = ENGINES[name]
    if bench.rehearsal:
        settings, count = rehearsed(settings), 2
    calls = {
        program: Ours(FilterSettings(**vars(settings) | {"program": program}), proposal, count)
        for program in (bench.kernel, "scan")
    }
    fused, scan = bench.timed({f"{name}: {k}": v for k, v in calls.items()}, runs).values()
    bench.key(name, scan["seconds"] / fused["seconds"])
    bench.key(f"{name.split('_')[0]}_compile_vs_scan", fused["compile_s"] / scan["compile_s"])


def rehearsed(settings: FilterSettings) -> FilterSettings:
    return FilterSettings(**vars(settings) | {"particles": 16})


def same_numbers(bench: Bench) -> None:
    """The greatest difference of log Z between kernel and scan with the same random numbers, over 32 short logs.

    Rounding decides a few ancestors otherwise, so that a long log differs by more than rounding: 100 rows.
    """
    log = episode(np.asarray(LOG.observations)[:100], dt=1.0)
    choices = {"bootstrap": (bootstrap(particles=1024), None, 32), **ENGINES}
    for name, (settings, proposal, count) in choices.items():
        if bench.rehearsal:
            settings, count = rehearsed(settings), 2
        pair = [
            Ours(FilterSettings(**vars(settings) | {"program": p}), proposal, count, log)
            for p in (bench.kernel, "scan")
        ]
        fused, scan = (np.asarray(run(1), np.float64) for run in pair)
        print(f"{name}: {pair[0].program}", flush=True)
        bench.key(f"log_evidence_off_{name.split('_')[0]}", float(np.abs(fused - scan).max()))
        bench.key(f"log_evidence_sd_{name.split('_')[0]}", float(scan.std()))


def learning(bench: Bench, today: float) -> None:
    """Running seconds of one cell group of the support audit, twenty seeds, beside those recorded before kernels."""
    from audit import CellGroup, Setting, least_seconds, whole

    group = CellGroup(Setting("base", 64, 1 if bench.rehearsal else 20, None))
    pieces = ("step", "validation", "filter", "records")
    for name in pieces:
        getattr(group, name)()
    again = {name: least_seconds(getattr(group, name), 1.0) for name in pieces}
    found = whole(group.asked.config, again, 0.0, 0.0)
    bench.out["rows"].append({"name": "training, 20 seeds", **found})
    bench.key("training_vs_today", today / found["running_s"])


def replan(bench: Bench) -> None:
    """Median milliseconds of one replan of `planning.py`, whose rollouts are XLA's as before."""
    from planning import ours

    call, compiled = ours()
    seconds = [call(i)["seconds"] for i in range(3 if bench.rehearsal else 30)]
    bench.out["rows"].append({"name": "replan", "seconds": float(np.median(seconds)), "compile_s": compiled})
    bench.key("replan_ms", 1e3 * float(np.median(seconds)))


def recorded_before() -> float:
    """Running seconds of the cell group on a GPU as `audit.py` recorded them before there were kernels."""
    found = json.loads((HERE / "results" / "audit.json").read_text())["gpu"]
    return next(s["running_s"] for s in found["settings"] if s["name"] == "base")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=7.5, help="nothing begins that would last beyond")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gpu.json")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, interpreted, on any machine; give --out")
    options = parser.parse_args()
    if jax.default_backend() != "gpu" and not options.rehearse:
        raise SystemExit(f"This measures a GPU, and JAX runs on {jax.default_backend()} here: nothing was measured.")
    if options.rehearse and options.out == parser.get_default("out"):
        raise SystemExit("A rehearsal measures nothing that may be kept: give another --out.")
    bench = Bench(options.out, options.minutes, options.rehearse)
    sizes = ((16, 1), (16, 2)) if options.rehearse else SIZES
    runs = 1 if options.rehearse else options.runs
    jnp.zeros(1).block_until_ready()  # the device is there before anything is timed

    bench.part("same numbers", 20, lambda: same_numbers(bench))
    for n, count in sizes[:3]:
        bench.part(f"{n}x{count}", 20, lambda n=n, count=count: beside_cuthbert(bench, Setting(n, count, runs)))
    for name in ENGINES:
        bench.part(name, 20, lambda name=name: beside_scan(bench, name, runs))
    bench.part("replan", 15, lambda: replan(bench))
    for n, count in sizes[3:]:
        bench.part(f"{n}x{count}", 20, lambda n=n, count=count: beside_cuthbert(bench, Setting(n, count, runs)))
    bench.part("learning", 100, lambda: learning(bench, recorded_before()))
    missed = [k for k, least in TARGETS.items() if not bench.out["keys"].get(k, 0.0) >= least]
    missed += ["replan_ms"] if not bench.out["keys"].get("replan_ms", np.inf) <= REPLAN_MS else []
    print(f"Below what was asked, or not measured: {', '.join(missed) or 'nothing'}.")


if __name__ == "__main__":
    main()
