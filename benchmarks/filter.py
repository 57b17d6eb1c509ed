"""Speed of the filter beside cuthbert and particles, in one run, as ratios; writes results/filter.json.

The switching linear system of `slds.py`, T = 1000, float32, log Z returned, compile time apart, medians. Peers and
ours take turns, so that a busy moment of the machine falls on both.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provenance import provenance
from slds import MODES, slds
from vhydro.episodes import episode
from vhydro.filter import FilterSettings, Stream, bootstrap, filter, log_evidence
from vhydro.filter.run import CHUNK, padded_length
from vhydro.filter.settings import noise_layout
from vhydro.model import axis_emission, hybrid_model, linear_emission, linear_flow, mode_kernel
from vhydro.particles import step_noise
from vhydro.proposal import ConditionedProposal

HERE = Path(__file__).parent
TARGETS = {
    "vs_cuthbert_n1024": (3, 5), "vs_particles_n1024": (1.5, 2.5), "vs_cuthbert_n16384": (1.8, 3),
    "vs_cuthbert_batch32": (6, 8), "gate_efficiency": (1.5, 3), "rng_limit": (0.4, None),
    "drawn_efficiency": (1.5, None),
    "stream_p50_ms": (0.5, None), "stream_p99_ms": (1, None), "peak_rss_mb": (1500, None),
}  # fmt: skip


def model_of(system: dict):
    """The system as one of our models; its first observation row is hidden, as the peers move before they see."""
    kernel = eqx.tree_at(lambda k: k.logits, mode_kernel(MODES), jnp.asarray(np.log(system["table"]), jnp.float32))
    return hybrid_model(
        kernel,
        linear_flow(system["matrix"], system["offset"]),
        linear_emission(system["emission"], noise=system["sensor"]),
        noise=system["noise"],
        start_mode=[1, 0, 0],
    )


SYSTEM = slds()
MODEL = model_of(SYSTEM)
LOG = episode(np.concatenate([np.full((1, 2), np.nan), SYSTEM["log"]]), dt=1.0)


def ours(settings: FilterSettings, proposal, count: int = 1):
    def run(i: int) -> np.ndarray:
        key = jax.random.key(i)
        return np.asarray(log_evidence(MODEL, [LOG] * count, key=key, proposal=proposal, settings=settings))

    return run


def cuthbert(particles: int, count: int = 1):
    from peer_cuthbert import cuthbert_log_evidence

    one = cuthbert_log_evidence(particles)
    call = jax.jit(jax.vmap(one))

    def run(i: int) -> np.ndarray:
        return np.asarray(call(jax.random.split(jax.random.key(i), count)))

    single = jax.jit(one)
    return run if count > 1 else lambda i: np.asarray(single(jax.random.key(i)))


def particles_peer(count: int, runs: int) -> dict:
    python = HERE.parent / ".venv-particles" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{python.parent.parent} is missing; run `make bench-filter`, which creates it.")
    done = subprocess.run([python, HERE / "peer_particles.py", str(count), str(runs)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the particles peer failed:\n{done.stderr}")
    return json.loads(done.stdout)


def timed(calls: dict, runs: int) -> dict:
    """Compile seconds, run seconds and values of every call, taking turns."""
    out = {name: {"seconds": [], "log_evidence": []} for name in calls}
    for name, call in calls.items():
        begun = time.perf_counter()
        call(0)
        out[name]["compile_s"] = time.perf_counter() - begun
    for i in range(runs):
        for name, call in calls.items():
            begun = time.perf_counter()
            value = call(i + 1)
            out[name]["seconds"].append(time.perf_counter() - begun)
            out[name]["log_evidence"] += np.ravel(value).tolist()
    return out


def row(name: str, result: dict) -> dict:
    seconds, values = float(np.median(result["seconds"])), np.array(result["log_evidence"])
    sd = float(values.std(ddof=1)) if values.size > 1 else float("nan")
    print(f"{name:36s} {seconds * 1e3:10.1f} ms   log Z {values.mean():9.2f} ± {sd:.2f}", flush=True)
    return {
        "name": name, "seconds": seconds, "runs": len(result["seconds"]), "log_evidence": float(values.mean()),
        "sd_log_evidence": sd, "sd_sqrt_time": sd * seconds**0.5, "compile_s": result.get("compile_s"),
    }  # fmt: skip


def random_numbers(particles: int):
    """Draws the random numbers of a whole bootstrap run and nothing else, by our own generator."""
    layout = noise_layout(MODEL, None, bootstrap(particles=particles))
    rows = padded_length(LOG.steps + 1)

    @jax.jit
    def draw(key):
        def chunk(total, steps):
            noise = jax.vmap(lambda t: step_noise(layout, key, t, jnp.float32))(steps)
            return total + sum(x.sum() for x in noise.values()), None

        return jax.lax.scan(chunk, jnp.zeros(()), jnp.arange(rows).reshape(-1, CHUNK))[0]

    return lambda i: np.asarray(draw(jax.random.key(i)))


def gated_filters() -> dict:
    """The gated filters that compete on sd(log Z)·√time."""
    guide = ConditionedProposal()
    choices = {
        "mixture n1024": FilterSettings(particles=1024, engine="mixture"),
        "mixture look-ahead n1024": FilterSettings(particles=1024, lookahead=True),
        "drawn n1024": FilterSettings(particles=1024, engine="drawn"),
        "gaussian n64": FilterSettings(particles=64, engine="gaussian"),
        "gaussian n128": FilterSettings(particles=128, engine="gaussian"),
        "gaussian n256": FilterSettings(particles=256, engine="gaussian"),
    }
    return {name: ours(s, guide) for name, s in choices.items()}


def stream_milliseconds(steps: int = 3000) -> tuple[float, float]:
    """Median and 99th percentile of one control-loop step: N = 64, d = 14, M = 3."""
    rng, d = np.random.default_rng(0), 14
    rotations = [0.98 * np.linalg.qr(np.eye(d) + 0.1 * rng.normal(size=(d, d)))[0] for _ in range(3)]
    model = hybrid_model(
        mode_kernel(3), linear_flow(rotations, inputs=7), axis_emission(d, range(d), noise=0.1), noise=0.1
    )
    stream = Stream(model, dt=0.02, key=jax.random.key(0), settings=FilterSettings(particles=64))
    observations, actions = rng.normal(size=(steps, d)), rng.normal(size=(steps, 7))
    stream.start(observations[0])
    seconds = []
    for o, a in zip(observations, actions, strict=True):
        begun = time.perf_counter()
        stream.step(a, o)
        seconds.append(time.perf_counter() - begun)
    p50, p99 = np.percentile(np.array(seconds[100:]) * 1e3, [50, 99])
    print(f"{'stream step':36s} {p50:10.3f} ms   99th percentile {p99:.3f} ms", flush=True)
    return float(p50), float(p99)


def peak_rss_mb() -> float:
    """Peak memory of a process that filters T = 100,000 steps with N = 1024, records and beliefs included."""
    done = subprocess.run([sys.executable, __file__, "--long-run"], capture_output=True, text=True, check=True)
    mb = float(done.stdout)
    print(f"{'peak memory, T = 100,000, N = 1024':36s} {mb:10.0f} MB", flush=True)
    return mb


def long_run() -> None:
    log = np.tile(SYSTEM["log"], (100, 1))
    out = filter(MODEL, episode(log, dt=1.0), key=jax.random.key(0), settings=FilterSettings(particles=1024))
    assert np.isfinite(out.log_evidence)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def accelerator_rows(runs: int) -> list[dict]:
    """Our filter on the accelerator; peers that run there are timed beside it."""
    calls = {
        "bootstrap n1024": ours(bootstrap(particles=1024), None),
        "bootstrap n16384": ours(bootstrap(particles=16384), None),
        "bootstrap n262144": ours(bootstrap(particles=262144), None),
        "bootstrap 32 x n1024": ours(bootstrap(particles=1024), None, 32),
        "gated n1024": ours(FilterSettings(particles=1024, engine="drawn"), ConditionedProposal()),
        "gated 32 x n1024": ours(FilterSettings(particles=1024, engine="drawn"), ConditionedProposal(), 32),
    }
    return [row(name, result) for name, result in timed(calls, runs).items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "filter.json")
    parser.add_argument("--long-run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.long_run:
        long_run()
    elif jax.default_backend() != "cpu":
        write(options.out, {}, accelerator_rows(options.runs), key="accelerator")
    else:
        beside_peers(options)


def beside_peers(options: argparse.Namespace) -> None:
    """Every key of the results on a CPU, measured in one run."""
    keys, rows = {}, []
    for count, particles in ((1, 1024), (1, 16384), (32, 1024)):
        name = f"{count} x n{particles}" if count > 1 else f"n{particles}"
        runs = options.runs if count * particles < 10_000 else 5
        calls = {f"bootstrap {name}": ours(bootstrap(particles=particles), None, count)}
        calls[f"cuthbert {name}"] = cuthbert(particles, count)
        mine, peer = (row(k, v) for k, v in timed(calls, runs).items())
        rows += [mine, peer]
        keys[f"vs_cuthbert_batch{count}" if count > 1 else f"vs_cuthbert_{name}"] = peer["seconds"] / mine["seconds"]
    rows.append(row("particles n1024", particles_peer(1024, options.runs)))
    keys["vs_particles_n1024"] = rows[-1]["seconds"] / rows[0]["seconds"]
    limit = timed({"bootstrap": ours(bootstrap(particles=1024), None), "alone": random_numbers(1024)}, 2 * options.runs)
    whole = row("bootstrap n1024 (beside its numbers)", limit["bootstrap"])
    alone = row("random numbers", limit["alone"])
    rows += [whole, alone]
    keys["rng_limit"] = alone["seconds"] / whole["seconds"]
    many = max(options.runs, 40)
    competition = timed(
        {"bootstrap n1024 (efficiency)": ours(bootstrap(particles=1024), None), **gated_filters()}, many
    )
    efficiency = [row(k, v) for k, v in competition.items()]
    best = min(efficiency[1:], key=lambda r: r["sd_sqrt_time"])
    rows += efficiency
    keys["gate_efficiency"] = efficiency[0]["sd_sqrt_time"] / best["sd_sqrt_time"]
    keys["gate_efficiency_by"] = best["name"]
    drawn = next(r for r in efficiency if r["name"].startswith("drawn"))
    keys["drawn_efficiency"] = efficiency[0]["sd_sqrt_time"] / drawn["sd_sqrt_time"]
    keys["stream_p50_ms"], keys["stream_p99_ms"] = stream_milliseconds()
    keys["peak_rss_mb"] = peak_rss_mb()
    write(options.out, keys, rows)


def write(path: Path, keys: dict, rows: list[dict], key: str = "rows") -> None:
    """The results, beside an accelerator's rows (or the CPU's) that an earlier run left in the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(path.read_text()) if path.exists() else {}
    before.update(keys)
    before[f"{key}_meta"] = provenance()
    before[key] = rows
    path.write_text(json.dumps(before, indent=1) + "\n")
    for name, (least, aim) in TARGETS.items():
        if name in keys:
            bar = f"bar {least}" + (f", aim {aim}" if aim else "")
            print(f"{name:24s} {keys[name]:10.3f}   {bar}")


if __name__ == "__main__":
    main()
