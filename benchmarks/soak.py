"""One million stream steps with 90 % of the channels hidden and random rows of NaN; writes results/soak.json.

Fails if a NaN comes out or if memory grows after warming up.
"""

import argparse
import json
import os
import time
from pathlib import Path

import jax
import numpy as np

from provenance import provenance
from vhydro.certificate import Gate
from vhydro.filter import FilterSettings, Stream
from vhydro.library import polynomial
from vhydro.model import axis_emission, hybrid_model, mode_kernel, port_hamiltonian

PAGE = os.sysconf("SC_PAGE_SIZE")
ALLOWED_GROWTH_MB = 8.0


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20


def model():
    """Two coupled oscillators with a stiffer second mode, all four coordinates observed."""
    library = polynomial(4, 2)
    energy = {(2, 0, 0, 0): 0.5, (0, 2, 0, 0): 0.5, (0, 0, 2, 0): 0.5, (0, 0, 0, 2): 0.5}
    base = [energy.get(t.powers, 0.0) for t in library]
    flow = port_hamiltonian(
        2,
        4,
        1,
        library,
        coefficients=[base, [3 * c for c in base]],
        dissipation=0.09 * np.eye(4),
        port=np.ones((4, 1)),
    )
    return hybrid_model(mode_kernel(2), flow, axis_emission(4, range(4), noise=0.1), noise=0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "soak.json")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    settings = FilterSettings(particles=32, gate=Gate(), pareto=True)
    stream = Stream(model(), dt=0.05, key=jax.random.key(0), settings=settings)
    stream.start(np.zeros(4))
    warm, begun, worst = None, time.perf_counter(), 0.0
    for i in range(options.steps):
        row = np.where(rng.random(4) < 0.9, np.nan, rng.normal(size=4))
        if rng.random() < 0.05:
            row[:] = np.nan
        out = stream.step(rng.normal(size=1), row)
        if any(np.isnan(x).any() for x in jax.tree.leaves(out)):
            raise SystemExit(f"NaN at step {i}: {out}")
        if i == options.steps // 10:
            warm = resident_mb()
        if warm is not None and i % 10_000 == 0:
            worst = max(worst, resident_mb() - warm)
    seconds = time.perf_counter() - begun
    result = {"steps": options.steps, "seconds": round(seconds, 1), "growth_mb": round(worst, 2), "nan": 0}
    print(json.dumps(result))
    if worst > ALLOWED_GROWTH_MB:
        raise SystemExit(f"memory grew by {worst:.1f} MB; allowed {ALLOWED_GROWTH_MB} MB.")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"meta": provenance(), **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
