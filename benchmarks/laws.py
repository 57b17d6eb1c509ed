"""One law fit beside PySINDy's STLSQ on the same log: 20 episodes of 5 s at 200 Hz, 0.1 % noise.

Prints the seconds of the weak form, of weak form and shooting, and of STLSQ with one threshold and one smoothing (no
grid), each the best of three after compilation, and their ratio; writes `results/laws.json`.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from provenance import provenance
from vhydro.laws.recover import LawsConfig, recover
from vhydro_audits.baselines.sindy import sindy
from vhydro_audits.laws_truth import SYSTEMS, problem_of, trial


def best(function: Callable[[], object], times: int = 3) -> float:
    """The least seconds of a few calls."""
    out = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        out.append(time.perf_counter() - start)
    return min(out)


def plain_stlsq(recording, problem) -> None:
    """PySINDy as its first example shows it: smoothed differences, polynomials, STLSQ with one threshold."""
    import pysindy

    n = problem.positions
    filled = np.where(np.isfinite(recording.positions), recording.positions, 0.0)
    difference = pysindy.SmoothedFiniteDifference(smoother_kws={"window_length": 15})
    velocity = [np.asarray(difference(q, recording.dt)) for q in filled]
    states = [np.concatenate([q, v], 1) for q, v in zip(filled, velocity, strict=True)]
    inputs = [np.concatenate([a, a[-1:]]) for a in recording.actions]
    model = pysindy.SINDy(
        optimizer=pysindy.STLSQ(threshold=0.1),
        feature_library=pysindy.PolynomialLibrary(degree=3 if n == 1 else 2),
        differentiation_method=difference,
    )
    model.fit(states, u=inputs, t=recording.dt)


def measured(task: str) -> dict[str, float]:
    """The seconds of every method on one log."""
    problem = problem_of(task)
    recording = trial(task, 0, 0.001, 0.0, 0.0, episodes=20, steps=1000, dt=0.005).recording
    start = time.perf_counter()
    recover(recording, problem)
    first = time.perf_counter() - start
    weak = best(lambda: recover(recording, problem, LawsConfig(estimator="weak")))
    full = best(lambda: recover(recording, problem))
    stlsq = best(lambda: plain_stlsq(recording, problem))
    tuned = best(lambda: sindy(recording, problem, ((),) * len(problem.modes), "stlsq", modes=True, seed=0), times=1)
    return {
        "first_fit_s": first,
        "full_s": full,
        "weak_s": weak,
        "stlsq_s": stlsq,
        "stlsq_on_a_grid_s": tuned,
        "weak_over_stlsq": weak / stlsq,
    }


def main() -> None:
    rows = {task: measured(task) for task in SYSTEMS}
    for task, row in rows.items():
        print(task, "  ".join(f"{name} {value:.3g}" for name, value in row.items()))
    out = Path(__file__).parent / "results" / "laws.json"
    out.write_text(json.dumps({"provenance": provenance(), "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
