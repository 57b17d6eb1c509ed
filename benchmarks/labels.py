"""How well the kinematic proxy agrees with contact truth on held-out episodes; writes results/labels.json.

The proxy's constants are chosen on the validation episodes of one split; truth is used for nothing else.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from provenance import provenance
from vhydro.data import read, split
from vhydro.modes.metrics import rand_index
from vhydro_audits.labels import fit_contact_labeller, fit_proxy_labeller

HERE = Path(__file__).parent
TASKS = ("PushCube", "PokeCube", "PullCubeTool", "PegInsertionSide")


def agreement(proxy, episodes, truth: str) -> float:
    """The adjusted Rand index of the proxy's labels with the truth, over all rows."""
    labelled = [proxy(e) for e in episodes]
    found, true = (np.concatenate([e.labels[name] for e in labelled]) for name in ("proxy", truth))
    return round(rand_index(found, true), 4)


def row(path: Path, seed: int) -> dict:
    logs = read(path)
    parts = split(logs, seed=seed)
    train, validation, test = parts.of(logs)
    truth = fit_contact_labeller([*train, *validation])
    chosen_on, held_out = [truth(e) for e in validation], [truth(e) for e in test]
    blind = fit_proxy_labeller([replace(e, labels={}) for e in validation])
    out = {"task": path.stem, "configurations": truth.names, "seed": seed, "episodes": [len(p) for p in parts.of(logs)]}
    for name in ("regime", "configuration"):
        out[name] = agreement(fit_proxy_labeller(chosen_on, truth=name), held_out, name)
        out[f"{name}_without_truth"] = agreement(blind, held_out, name)
    print(json.dumps(out), flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE.parents[1] / "shared" / "data" / "maniskill")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "labels.json")
    options = parser.parse_args()
    rows = [row(options.data / f"{task}-v1.h5", seed) for task in TASKS for seed in range(options.seeds)]
    options.out.write_text(json.dumps({"meta": provenance(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
