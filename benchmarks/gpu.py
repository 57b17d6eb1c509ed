"""What one kernel for each log is worth on a GPU, beside the scan and cuthbert in one run; writes results/gpu.json.

The switching linear system of `slds.py`, T = 1000, float32, log Z returned, compile time apart, medians; ours and the
peer take turns. The numbers of a kernel beside the scan's, and one replan, which no kernel takes part in. What is
measured is written as it comes, so that a run that is stopped leaves what it had; a part that fails says so and the
others go on. A part begins only if its usual time is left of `--minutes`.

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
import traceback
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from filter import HERE, LOG, MODEL, cuthbert, row, timed
from provenance import provenance
from vhydro import objective
from vhydro.certificate import adaptive
from vhydro.episodes import episode, pad
from vhydro.filter import FilterSettings, bootstrap
from vhydro.filter.program import Program, filtered_by
from vhydro.filter.run import _log_evidence_batch, _prepared
from vhydro.proposal import ConditionedProposal, amortized_proposal

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
                traceback.print_exc()
        if name in self.out["skipped"]:
            print(f"{name}: left out. {self.out['skipped'][name]}", flush=True)
        self.write()

    def write(self) -> None:
        """Writes what there is, whole or not at all."""
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
        settings, count = replace(settings, particles=16), 2
    calls = both(bench, settings, proposal, count)
    fused, scan = bench.timed({f"{name}: {k}": v for k, v in calls.items()}, runs).values()
    bench.key(name, scan["seconds"] / fused["seconds"])
    bench.key(f"{name.split('_')[0]}_compile_vs_scan", fused["compile_s"] / scan["compile_s"])
    differences(bench, name.split("_")[0], calls)


def both(bench: Bench, settings: FilterSettings, proposal, count: int, log=LOG) -> dict[str, "Ours"]:
    """The filter in a kernel and in the scan."""
    return {p: Ours(replace(settings, program=p), proposal, count, log) for p in (bench.kernel, "scan")}


def differences(bench: Bench, name: str, calls: dict[str, "Ours"]) -> None:
    """The greatest difference of log Z between kernel and scan with the same random numbers, beside its deviation."""
    fused, scan = (np.asarray(call(1), np.float64) for call in calls.values())
    bench.key(f"log_evidence_off_{name}", float(np.abs(fused - scan).max()))
    bench.key(f"log_evidence_sd_{name}", float(scan.std()))


def same_numbers(bench: Bench) -> None:
    """The difference between kernel and scan over 32 logs of 100 rows.

    Rounding decides a few ancestors otherwise; from there on a log differs as with another key.
    """
    short = episode(np.asarray(LOG.observations)[:100], dt=1.0)
    n, count = (16, 2) if bench.rehearsal else (1024, 32)
    calls = both(bench, bootstrap(particles=n), None, count, short)
    differences(bench, "100_rows", calls)
    print(calls[bench.kernel].program, flush=True)


def training(bench: Bench, runs: int) -> None:
    """One step of learning with fixed samples, of many seeds at once: its gradient in two parts, and by recursion."""
    seeds, count, rows, n = (2, 1, 4, 4) if bench.rehearsal else (20, 8, 32, 32)
    guide = amortized_proposal(MODEL, hidden=(32,), key=jax.random.key(1))
    readings = np.asarray(LOG.observations)[: count * rows].reshape(count, rows, -1)
    batch = pad([episode(y, dt=1.0) for y in readings], dtype=MODEL.dtype, length=rows)
    settings = FilterSettings(particles=n, engine="mixture", gate=adaptive(), ess_threshold=1.0)
    settings = objective.estimator_settings(settings, "fixed")

    def step(two_parts: bool) -> Callable[[int], np.ndarray]:
        @jax.jit
        @jax.vmap
        def evidence(key):
            of = eqx.filter_value_and_grad(lambda p: objective.mean_log_evidence(*p, settings, batch, key))
            return of((MODEL, guide))

        def call(i: int) -> np.ndarray:
            with patch.object(objective, "has_two_parts", lambda _: two_parts):
                value, _ = jax.block_until_ready(evidence(jax.random.split(jax.random.key(i), seeds)))
            return np.asarray(value)

        return call

    calls = {"training step: two parts": step(True), "training step: recursion": step(False)}
    two, one = bench.timed(calls, runs).values()
    bench.key("training_vs_today", one["seconds"] / two["seconds"])


def replan(bench: Bench) -> None:
    """Median milliseconds of one replan of `planning.py`, whose rollouts are XLA's as before."""
    from planning import ours

    call, compiled = ours()
    seconds = [call(i)["seconds"] for i in range(3 if bench.rehearsal else 30)]
    bench.out["rows"].append({"name": "replan", "seconds": float(np.median(seconds)), "compile_s": compiled})
    bench.key("replan_ms", 1e3 * float(np.median(seconds)))


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
    sizes = ((16, 2),) if options.rehearse else SIZES
    runs = 1 if options.rehearse else options.runs
    jnp.zeros(1).block_until_ready()  # the device is there before anything is timed

    bench.part("same numbers", 20, lambda: same_numbers(bench))
    for n, count in sizes[:3]:
        bench.part(f"{n}x{count}", 20, lambda n=n, count=count: beside_cuthbert(bench, Setting(n, count, runs)))
    for name in list(ENGINES)[: 1 if options.rehearse else None]:
        bench.part(name, 20, lambda name=name: beside_scan(bench, name, runs))
    bench.part("replan", 15, lambda: replan(bench))
    bench.part("training", 40, lambda: training(bench, runs))
    for n, count in sizes[3:]:
        bench.part(f"{n}x{count}", 20, lambda n=n, count=count: beside_cuthbert(bench, Setting(n, count, runs)))
    missed = [k for k, least in TARGETS.items() if not bench.out["keys"].get(k, 0.0) >= least]
    missed += ["replan_ms"] if not bench.out["keys"].get("replan_ms", np.inf) <= REPLAN_MS else []
    print(f"Below what was asked, or not measured: {', '.join(missed) or 'nothing'}.")


if __name__ == "__main__":
    main()
