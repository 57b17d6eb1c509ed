"""Whether a whole log can be trusted: evidence against truth, learning against truth, islands against both.

Writes results/path.json. `--part gaps`, `learning` or `efficiency` does one part and keeps the others in the file.
Seeds from 100 on; the systems and settings were looked at on seeds 0 to 9.
"""

import argparse
import json
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import jax
import numpy as np

from path_systems import systems, three_mode_logs, three_mode_start, three_modes
from provenance import provenance
from vhydro.filter import FilterSettings, bootstrap, filter_episodes, log_evidence
from vhydro.proposal import ConditionedProposal
from vhydro.training import Parts, TrainingConfig, fit

OUT = Path(__file__).parent / "results" / "path.json"
GUIDE = ConditionedProposal()
LINEAR = ("three modes", "block")


def seconds(call, runs: int = 3, of=np.median) -> float:
    """The median time of a call, or another statistic `of` its times, once it is compiled."""
    call(0)
    spent = []
    for i in range(runs):
        begun = time.perf_counter()
        call(i + 1)
        spent.append(time.perf_counter() - begun)
    return float(of(spent))


def evidence(model, logs, settings, proposal=GUIDE):
    def run(i: int) -> np.ndarray:
        return np.asarray(log_evidence(model, logs, key=jax.random.key(i), proposal=proposal, settings=settings))

    return run


def reference(model, logs, large: int) -> tuple[np.ndarray, float]:
    """log Z from Gaussian branches in large number, and how far drawn particles in larger number are from it."""
    truth = np.mean([evidence(model, logs, FilterSettings(particles=large))(i) for i in (900, 901)], axis=0)
    few = logs[:8]
    drawn = evidence(model, few, FilterSettings(particles=16 * large, engine="drawn", outliers=None))(902)
    return truth, float(np.median(np.abs(drawn - truth[:8])))


def equal_time(make, budget: float, most: int = 2**15) -> int:
    """The largest power of two of particles from 64 to `most` that a method can afford; 64 if it affords none."""
    count = 64
    spent = seconds(make(count), 2, np.min)
    while count < most and spent <= 1.1 * budget:
        # Time grows at most in proportion to the particles: numbers that are surely affordable are not timed.
        ahead = min(most, count * 2 ** max(1, int(np.log2(budget / spent))))
        spent = seconds(make(ahead), 2, np.min)
        count = ahead if spent <= 1.1 * budget else ahead // 2
    return count


def rivals(model) -> dict:
    """Every other method, as a function of logs and a number of particles."""
    methods = {
        "bootstrap": lambda logs, n: evidence(model, logs, bootstrap(particles=n), None),
        "mixture": lambda logs, n: evidence(model, logs, FilterSettings(particles=n, engine="mixture", outliers=None)),
        "drawn": lambda logs, n: evidence(model, logs, FilterSettings(particles=n, engine="drawn")),
    }
    if find_spec("cuthbert") is None:
        print("cuthbert is not installed, so that its rows are left out; `make .venv/.peers` installs it.", flush=True)
        return methods
    from peer_cuthbert import cuthbert_hybrid

    return methods | {"cuthbert": lambda logs, n: cuthbert_hybrid(model, logs, n)}


def gap_rows(count: int, large: int, equal: bool) -> list[dict]:
    """How far every method's log evidence is from the truth, ours at N = 64 and the others at the same time."""
    rows = []
    for name, (model, logs) in systems(count).items():
        truth, check = reference(model, logs, large)
        some = logs[:32]
        mixture = FilterSettings(particles=64, engine="mixture", outliers=None)
        ours = seconds(evidence(model, some, FilterSettings(particles=64)))
        was = seconds(evidence(model, some, mixture))
        methods = {
            "ours": (64, evidence(model, logs, FilterSettings(particles=64))),
            "mixture n64": (64, evidence(model, logs, mixture)),
        }
        for method, make in rivals(model).items():
            n = equal_time(partial(make, some), ours) if equal else 256
            methods[f"{method}, equal time" if equal else f"{method} n{n}"] = (n, make(logs, n))
        for method, (n, run) in methods.items():
            gap = run(1) - truth
            rows.append({
                "system": name, "linear": name in LINEAR, "method": method, "particles": n, "logs": count,
                "median_gap": float(np.median(np.abs(gap))), "worst_gap": float(np.abs(gap).max()),
                "mean_gap": float(gap.mean()), "seconds_ratio": ours / was if method == "ours" else None,
                "reference_check": check,
            })  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
        rows.append(island_row(name, model, logs, truth))
    return rows


def island_row(name: str, model, logs, truth: np.ndarray) -> dict:
    """How often what the islands say of a log holds."""
    settings = FilterSettings(particles=16, islands=8)
    paths = [out.statement for out in filter_episodes(model, logs, key=jax.random.key(5), settings=settings)]
    inside = np.mean([abs(p.log_evidence - z) <= p.half_width for p, z in zip(paths, truth, strict=True)])
    proven = np.mean([z >= p.lower for p, z in zip(paths, truth, strict=True)])
    row = {
        "system": name, "method": "islands", "particles": 16, "islands": 8, "inside_interval": float(inside),
        "above_lower_bound": float(proven), "median_half_width": float(np.median([p.half_width for p in paths])),
    }  # fmt: skip
    print(json.dumps(row), flush=True)
    return row


def learning(sets: int, restarts: int, steps: int, rate: float, seed: int) -> dict:
    """Held-out evidence of models learned from position alone, beside the truth's."""
    gaps, kept = [], []
    true = three_modes()
    settings = FilterSettings(particles=16)
    config = TrainingConfig(
        steps=steps, batch=16, seeds=restarts, occlusion=(0.0,), learning_rate=rate, validate_every=50,
        candidates=32, settings=settings,
        frozen=("model.emission.matrix", "model.emission.offset", "model.flow.interconnection"),
    )  # fmt: skip
    judge = FilterSettings(particles=2048, engine="gaussian", outliers=None)
    for number in range(sets):
        logs = three_mode_logs(64 + 32 + 48, 50, seed + number)
        train, validation, test = logs[:64], logs[64:96], logs[96:]
        values = sum(e.observed.sum() for e in test)

        def score(model, test=test, values=values):
            return float(evidence(model, test, judge)(7).sum() / values)

        best = score(true)
        key = jax.random.key(number)
        fitted = fit(
            lambda k: Parts(three_mode_start(k), GUIDE), train, validation, key=key, config=config, progress=False
        )
        gaps.append(score(fitted.model) - best)
        one = TrainingConfig(
            **{**config.__dict__, "seeds": 1, "candidates": 1, "learning_rate": 3e-3, "steps": steps // 2}
        )
        again = fit(Parts(true, GUIDE), train, validation, key=key, config=one, progress=False)
        kept.append(score(again.model) - best)
        print(f"set {number}: learned {gaps[-1]:+.4f}, from the truth {kept[-1]:+.4f} nats per value", flush=True)
    return {
        "learning_sets_within_002": int(np.sum(np.array(gaps) >= -0.02)), "learning_sets": sets,
        "learning_gaps": gaps, "truth_start_loss": float(max(0.0, -min(kept))), "truth_start_gaps": kept,
    }  # fmt: skip


def efficiency(runs: int) -> dict:
    """sd(log Z)·√time of the filter that draws z beside the bootstrap's, each at its better of two sizes."""
    from filter import LOG, MODEL

    out = {}
    problems = {"slds": (MODEL, LOG), "ph": (three_modes(), three_mode_logs(1, 400, 100)[0])}
    for name, (model, log) in problems.items():
        cost = {}
        for method, make in {
            "bootstrap": lambda n: (bootstrap(particles=n), None),
            "drawn": lambda n: (FilterSettings(particles=n, engine="drawn"), GUIDE),
            "gaussian": lambda n: (FilterSettings(particles=n // 16), GUIDE),
        }.items():
            sizes = {}
            for n in (1024, 4096):
                run = evidence(model, [log], *make(n))
                spent = seconds(run, 9)
                values = np.array([run(100 + i)[0] for i in range(runs)])
                sizes[n] = float(values.std(ddof=1) * spent**0.5)
            cost[method] = min(sizes.values())
            print(name, method, sizes, flush=True)
        out[f"gated_vs_bootstrap_{name}"] = cost["bootstrap"] / cost["drawn"]
        out[f"gaussian_vs_bootstrap_{name}"] = cost["bootstrap"] / cost["gaussian"]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("all", "gaps", "learning", "efficiency"), default="all")
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--unequal", action="store_true", help="others at N = 256 instead of a search for equal time")
    parser.add_argument("--large", type=int, default=2048)
    parser.add_argument("--sets", type=int, default=10)
    parser.add_argument("--restarts", type=int, default=8)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=100, help="of the first data set to learn from")
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.part in ("all", "gaps"):
        rows = gap_rows(options.logs, options.large, not options.unequal)
        mine = [r for r in rows if r["method"] == "ours"]
        found |= {
            "median_gap_nats": max(r["median_gap"] for r in mine), "worst_gap_nats": max(r["worst_gap"] for r in mine),
            "gaps": rows, "gaps_meta": provenance(logs=options.logs, reference=options.large),
        }  # fmt: skip
    if options.part in ("all", "learning"):
        found |= learning(options.sets, options.restarts, options.steps, options.rate, options.seed)
        found["learning_meta"] = provenance(restarts=options.restarts, steps=options.steps, rate=options.rate)
    if options.part in ("all", "efficiency"):
        found |= efficiency(options.runs) | {"efficiency_meta": provenance(runs=options.runs)}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    keys = ("median_gap_nats", "worst_gap_nats", "learning_sets_within_002", "truth_start_loss")
    print({k: found.get(k) for k in (*keys, "gated_vs_bootstrap_slds", "gated_vs_bootstrap_ph")})


if __name__ == "__main__":
    main()
