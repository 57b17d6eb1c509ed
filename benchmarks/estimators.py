"""Compares the gradient estimators on validation log evidence, for both guides, over seeds.

Writes benchmarks/results/estimators.json; DESIGN asks for the better one to be the default.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np

from provenance import provenance
from puck_model import puck_episodes, puck_start
from vhydro.filter import FilterSettings
from vhydro.training import TrainingConfig, fit

OUT = Path(__file__).parent / "results" / "estimators.json"


def row(estimator: str, guide: str, rate: float, *, steps: int, seeds: int, particles: int) -> dict:
    """One configuration's validation scores, all seeds."""
    data = puck_episodes(key=jax.random.key(0))
    config = TrainingConfig(
        steps=steps,
        seeds=seeds,
        estimator=estimator,
        learning_rate=rate,
        window=40,
        occlusion=(0.0, 0.3, 0.6),
        frozen=("model.emission.matrix", "model.emission.offset", "model.flow.interconnection"),
        settings=FilterSettings(particles=particles),
    )
    begun = time.perf_counter()
    result = fit(
        lambda k: puck_start(k, guide=guide),
        data.train,
        data.validation,
        key=jax.random.key(1),
        config=config,
        progress=False,
    )
    return {
        "estimator": estimator,
        "guide": guide,
        "learning_rate": rate,
        "validation_median": float(np.median(result.score)),
        "validation_best": float(np.max(result.score)),
        "validation": [round(float(s), 4) for s in result.score],
        "curve_median": [round(float(v), 4) for v in np.median(result.validation, axis=1)],
        "diverged": int(result.diverged.sum()),
        "seconds": round(time.perf_counter() - begun, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--particles", type=int, default=32)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    rows = []
    for guide in ("conditioned", "amortized"):
        # Gaussian branches draw nothing: there is no guide to learn.
        for estimator in ("exact", "fixed", *(("gaussian",) if guide == "conditioned" else ())):
            for rate in (0.01, 0.03):
                rows.append(
                    row(
                        estimator,
                        guide,
                        rate,
                        steps=options.steps,
                        seeds=options.seeds,
                        particles=options.particles,
                    )
                )
                print(json.dumps({k: v for k, v in rows[-1].items() if k != "curve_median"}), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    meta = provenance(steps=options.steps, seeds=options.seeds, particles=options.particles)
    options.out.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
