"""Seconds of one cell group of the support audit, and how they grow with N, seeds and T; writes results/audit.json.

PickCube, `adaptive`, `shift`. Every setting calls the audit's `work` twice in this process: the first call compiles
what no earlier setting has, the second reads all programs from a folder, and it is an error if it compiles one.
`running_s` are the second call's seconds but for tracing and reading programs; `processor_s`, those of all threads, are
hardly touched by what else the machine does. Run on a CPU and on a GPU: each keeps the other's entry.
"""

import argparse
import json
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from provenance import provenance
from vhydro.data.dataset import Dataset
from vhydro.data.npz_native import write_npz
from vhydro.episodes import Episode
from vhydro.outputs import write_whole
from vhydro_audits.support import SupportAuditConfig, groups, work
from vhydro_audits.support_data import episodes_of, logs_of

OUT = Path(__file__).parent / "results" / "audit.json"
TASK, REGIME, METHOD = "PickCube", "shift", "adaptive"
PREPARING = "/jax/core/compile/"  # JAX's events of tracing, lowering, and compiling or reading
BUILT, READ = f"{PREPARING}backend_compile_duration", "/jax/compilation_cache/cache_hits"


class Call(NamedTuple):
    """What one call of `work` took, and how many programs it compiled."""

    seconds: float
    processor: float  # of all threads
    preparing: float  # of the seconds: tracing, and compiling or reading programs
    compiled: int


def data_of(config: SupportAuditConfig) -> str | None:
    """The folder of the logs as the audit's work takes it; None: the shipped sample."""
    return None if config.data is None else str(config.data)


def call(config: SupportAuditConfig) -> Call:
    """One call of the audit's `work`, as JAX's own events divide it."""
    (key,) = (g.key for g in groups(config) if g.key["method"] == METHOD)
    spans: list[tuple[str, float, float]] = []
    events: list[str] = []

    def span(event: str, start_time: float, end_time: float, **_: Any) -> None:
        spans.append((event, start_time, end_time))

    def count(event: str, **_: Any) -> None:
        events.append(event)

    jax.monitoring.register_event_time_span_listener(span)
    jax.monitoring.register_event_listener(count)
    begun, processor = time.perf_counter(), time.process_time()
    try:
        work(key, asdict(config) | {"data": data_of(config)})
        took = time.perf_counter() - begun, time.process_time() - processor
    finally:
        jax.monitoring.unregister_event_time_span_listener(span)
        jax.monitoring.unregister_event_listener(count)
    compiled = sum(event == BUILT for event, *_ in spans) - events.count(READ)
    return Call(*took, covered([(a, b) for event, a, b in spans if event.startswith(PREPARING)]), compiled)


def covered(spans: list[tuple[float, float]]) -> float:
    """The seconds that lie in some span; one is often inside another."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def measured(name: str, config: SupportAuditConfig) -> dict[str, Any]:
    """A setting's sizes, and its seconds with compiling and running alone."""
    first, again = call(config), call(config)
    if again.compiled:
        raise SystemExit(
            f"{name}: the second call compiled {again.compiled} programs, the first {first.compiled}; expected none, "
            "or its seconds are not those of running. JAX_EXPLAIN_CACHE_MISSES=1 says which."
        )
    logs = episodes_of(TASK, data_of(config))
    row = {
        "name": name, "particles": config.particles, "seeds": config.seeds, "rows": max(e.steps + 1 for e in logs),
        "episodes": len(logs), "steps": config.steps, "programs": first.compiled, "first_s": first.seconds,
        "first_processor_s": first.processor, "compiling_s": first.preparing, "again_s": again.seconds,
        "processor_s": again.processor, "running_s": again.seconds - again.preparing,
    }  # fmt: skip
    print(row, flush=True)
    return row


def there_and_back(e: Episode) -> Episode:
    """An episode of twice the steps: the log, then the log backwards, so that nothing jumps."""
    values = np.concatenate([e.observations, e.observations[-2::-1]])
    actions = np.concatenate([e.actions, e.actions[::-1]])
    return replace(e, observations=values, actions=actions, labels={}, contacts=())


def settings(base: SupportAuditConfig, folder: Path) -> dict[str, SupportAuditConfig]:
    """The base with one thing changed at a time; the folder is for logs of twice the steps."""
    logs = logs_of(TASK, data_of(base))
    write_npz(Dataset(logs.format, logs.path, logs.names, lambda i: there_and_back(logs[i])), folder / f"{TASK}.npz")
    more = {"N x 4": {"particles": 4 * base.particles}, "seeds x 2": {"seeds": 2 * base.seeds}}
    return {name: replace(base, **change) for name, change in (more | {"T x 2": {"data": folder}}).items()}


def keep_programs(folder: str) -> None:
    """Every program that JAX compiles from now on is kept in the folder, and read from there."""
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with the logs of PickCube; the shipped sample if not given")
    parser.add_argument("--seeds", type=int, help="of the base; 20 on an accelerator and 2 on a CPU if not given")
    parser.add_argument("--steps", type=int, default=200, help="of every fit")
    parser.add_argument("--base", action="store_true", help="the base alone, not how it grows")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as programs, tempfile.TemporaryDirectory() as doubled:
        keep_programs(programs)
        origin = provenance()  # before anything is measured: the code may be changed meanwhile
        given = {"data": options.data, "steps": options.steps}
        given["seeds"] = options.seeds or (2 if jax.default_backend() == "cpu" else 20)
        base = SupportAuditConfig(family="contact", tasks=(TASK,), regime=REGIME, **given)
        more = {} if options.base else settings(base, Path(doubled))
        rows = [measured(name, config) for name, config in ({"base": base} | more).items()]
    growth = {r["name"]: {"running": r["running_s"] / rows[0]["running_s"]} for r in rows[1:]}
    print(growth)
    what = {"family": "contact", "task": TASK, "regime": REGIME, "method": METHOD}
    logs = {"logs": "shipped sample" if options.data is None else options.data.name}
    found = json.loads(options.out.read_text("utf-8")) if options.out.exists() else {}
    found[jax.default_backend()] = origin | what | logs | {"settings": rows, "growth": growth}
    write_whole(options.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
