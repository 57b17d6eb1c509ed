"""Speed of one replan beside pytorch_mppi, in one run, as a ratio; writes results/planning.json.

256 candidates × 64 particles × 16 steps of the system in `planning_system.py`, float32, modes sampled. Ours scores cost
and failure, improves the plan and judges three finalists anew; compile time apart, medians.
Peers and ours take turns, so that a busy moment of the machine falls on all. CPU seconds count all threads.
"""

import argparse
import json
import os
import subprocess
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from planning_system import CANDIDATES, DT, HORIZON, LATENT, MODES, NOISE, PARTICLES, system
from provenance import provenance
from vhydro.filter import Particles
from vhydro.model import axis_emission, hybrid_model, linear_flow, mode_kernel
from vhydro.network import Network
from vhydro.planning import Task, hybrid_dynamics, mppi

HERE = Path(__file__).parent
BAR = 0.030  # s for one replan on two idle cores


def ours():
    """A function that replans once, and what it took to compile."""
    s = {k: jnp.asarray(v, jnp.float32) for k, v in system().items()}
    zeros = (jnp.zeros(s["first"].shape[0]), jnp.zeros(MODES))
    kernel = mode_kernel(MODES, drive=Network((s["first"], s["last"]), zeros))
    kernel = eqx.tree_at(lambda k: k.logits, kernel, s["logits"])
    flow = linear_flow(system()["matrix"], port=system()["port"])
    model = hybrid_model(kernel, flow, axis_emission(LATENT, range(LATENT), noise=0.1), noise=NOISE)
    dynamics = hybrid_dynamics(model, DT)
    task = Task(lambda z, *_: jnp.clip((z["y0"] - 1) ** 2 + z["y1"] ** 2, 0, 10),
                lambda z, *_: z["y2"] > 5, 10.0, (-1.0, 1.0))  # fmt: skip
    start = jnp.broadcast_to(s["start"][:, None], (LATENT, PARTICLES))
    belief = Particles(jnp.zeros(PARTICLES, jnp.int32), start, jnp.full(PARTICLES, -np.log(PARTICLES)), jnp.ones(()))
    planner = mppi(HORIZON, 4, CANDIDATES, PARTICLES, rounds=1, first_rounds=1)
    begun = time.perf_counter()
    held = [planner(dynamics, belief, task, key=jax.random.key(0))]
    compiled = time.perf_counter() - begun

    def replan(i: int) -> dict:
        begun, spent = time.perf_counter(), time.process_time()
        held[0] = planner(dynamics, belief, task, key=jax.random.key(i), warm=held[0])
        return {"seconds": time.perf_counter() - begun, "cpu": time.process_time() - spent}

    return replan, compiled


class Peer:
    """pytorch_mppi in a process of its own, with so many threads."""

    def __init__(self, environment: Path, threads: int):
        python = environment / "bin" / "python"
        if not python.exists():
            raise SystemExit(f"{environment} is missing; run `make bench-planning`, which creates it.")
        command = [python, HERE / "peer_mppi.py", str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, i: int) -> dict:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{i}\n")
        self.process.stdin.flush()
        out = json.loads(self.process.stdout.readline())
        assert out["finite"]
        return out

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--peer", type=Path, default=HERE.parent / ".venv-mppi")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "planning.json")
    options = parser.parse_args()
    replan, compiled = ours()
    calls = {"ours": replan}
    if jax.default_backend() == "cpu":
        calls |= {f"pytorch_mppi, {n} threads": Peer(options.peer, n) for n in (1, os.cpu_count() or 1)}
    load = os.getloadavg()[0]
    found: dict[str, list[dict]] = {name: [] for name in calls}
    for i in range(options.runs):
        for name, call in calls.items():
            found[name].append(call(i + 1))
    for call in calls.values():
        if isinstance(call, Peer):
            call.close()
    rows = [row(name, times) for name, times in found.items()]
    fastest = {what: min((r[what] for r in rows[1:]), default=None) for what in ("median_s", "cpu_s")}
    keys = {f"vs_pytorch_mppi_{k}": None if v is None else v / rows[0][k] for k, v in fastest.items()}
    keys |= {"replan_ms": 1e3 * rows[0]["median_s"], "bar_ms": 1e3 * BAR, "compile_s": compiled}
    out = keys | {"rows": rows, "meta": provenance(load_average=round(load, 2), runs=options.runs)}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(out, indent=1) + "\n")
    for name, value in keys.items():
        print(f"{name:28s} {value if value is None else round(value, 2)}")


def row(name: str, times: list[dict]) -> dict:
    wall, cpu = (np.array([t[k] for t in times]) for k in ("seconds", "cpu"))
    out = {
        "name": name,
        "median_s": float(np.median(wall)),
        "least_s": float(wall.min()),
        "cpu_s": float(np.median(cpu)),
    }
    wall_ms, least_ms, cpu_ms = (1e3 * out[k] for k in ("median_s", "least_s", "cpu_s"))
    print(f"{name:28s} {wall_ms:8.1f} ms (least {least_ms:.1f}), CPU {cpu_ms:.1f} ms")
    return out


if __name__ == "__main__":
    main()
