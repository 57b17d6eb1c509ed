"""The numbers of the hardware page: laws and modes of public logs of real machines, as the examples find them.

    python benchmarks/hardware.py --data FOLDER    # emps.npz, cube_tosses.npz, bees.npz; four minutes

The data are other people's and not part of this project. Results go to `benchmarks/results/hardware.json`, from which
`docs/tables.py` writes the tables.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tyro

from provenance import provenance

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import bee_modes
import cube_toss_law
import cube_toss_modes
import emps_law
from vhydro.data import read
from vhydro.modes import Scores, change_points, scores
from vhydro.views.body import body_view

OUT = Path(__file__).parent / "results" / "hardware.json"


def emps(path: Path) -> dict:
    """Both laws of the linear drive, and how far the width of the bumps moves them."""
    tracks, info = emps_law.recorded(path)
    study = emps_law.Study(tracks)
    width = study.width()
    found = study.rows(width)
    steps = emps_law.ladder(found, study.symmetric, study.optional)
    supports = {"symmetric": study.symmetric, "asymmetric": steps[0].support}
    laws = {name: study.law(found, support) for name, support in supports.items()}
    wide = [emps_law.constants(study.law(study.rows(w), steps[0].support)) for w in emps_law.WIDTHS]
    return {
        "width": width,
        "widths": list(emps_law.WIDTHS),
        "published": {name: float(info[f"published_{name}"]) for name in ("M", "Fv", "Fc", "offset")},
        **{name: {k: [n.value, *n.interval] for k, n in emps_law.constants(law).items()} for name, law in laws.items()},
        "range": {k: list(v) for k, v in emps_law.sensitivity(study).items()},
        "friction_by_width": [[c["Fv forward"].value, c["Fv backward"].value] for c in wide],
        "left_over": {name: emps_law.force_left(found, law, supports[name]) for name, law in laws.items()},
        "bic_gains": [step.against.bic_gain for step in steps],
    }


def cube(path: Path) -> dict:
    """The law of flight and of impacts of a tossed cube."""
    law, info = cube_toss_law.cube_law(path)
    (bounce,) = law.bounces
    weight, mass = law.flight.terms(0)["V z"], float(info["mass"])
    return {
        "gravity": [x / mass for x in (weight.value, *weight.interval)],
        "restitution": [bounce.restitution.value, *bounce.restitution.interval],
        "impacts": bounce.impacts,
        "middle_half": list(bounce.middle_half),
        "restitution_reported": float(info["restitution_reported"]),
    }


COLUMNS: dict[str, Callable[[Scores], float]] = {
    "ari": lambda s: s.ari,
    "mode_f1": lambda s: s.mode_f1,
    "change_points_2": lambda s: s.change_points[2].f1,
    "change_points_5": lambda s: s.change_points[5].f1,
    "purity": lambda s: s.purity,
    "extra": lambda s: s.over_segmentation,
}


def cube_modes(path: Path, apart: bool) -> dict:
    """Scores of ours and of peers on the last tosses, mean over seeds."""
    episodes = list(read(path))
    view = body_view(episodes)
    truth = cube_toss_modes.truths(episodes, apart)[-cube_toss_modes.TEST :]
    steps, counts = [view(e) for e in episodes], [len(change_points(t)) for t in truth]
    runs = [cube_toss_modes.run_of(steps, 5 if apart else 4, counts, seed) for seed in range(cube_toss_modes.SEEDS)]
    every = {method: [scores(r.paths[method], truth) for r in runs] for method in runs[0].paths}
    return {m: {k: float(np.mean([of(s) for s in found])) for k, of in COLUMNS.items()} for m, found in every.items()}


def bees(path: Path) -> dict:
    """Scores of ours and of peers on the dances, each left out once, mean over seeds."""
    dances = list(read(path))
    seen = [bee_modes.blocks(d) for d in dances]
    truth = [np.cumsum(d.labels["changepoint"] > 0) for d in dances]
    counts = [len(change_points(t)) for t in truth]
    runs = [[bee_modes.fold(seen, i, n, seed) for i, n in enumerate(counts)] for seed in range(bee_modes.SEEDS)]
    out = {}
    for method in runs[0][0].paths:
        paths = [[bee_modes.in_frames(f.paths[method], len(t)) for f, t in zip(r, truth, strict=True)] for r in runs]
        found = [scores(p, truth, bee_modes.TOLERANCES) for p in paths]
        out[method] = {
            f"change_points_{t}": float(np.mean([s.change_points[t].f1 for s in found])) for t in bee_modes.TOLERANCES
        }
        out[method]["purity"] = float(np.mean([s.purity for s in found]))
        out[method]["ratio"] = float(np.mean([len(change_points(p)) for r in paths for p in r]) / np.mean(counts))
    return out


def main(data: Path) -> None:
    """Measure everything, and keep it."""
    tosses = data / "cube_tosses.npz"
    found = {
        "meta": provenance(),
        "emps": emps(data / "emps.npz"),
        "cube": cube(tosses),
        "cube_modes": {"four": cube_modes(tosses, False), "five": cube_modes(tosses, True)},
        "bees": bees(data / "bees.npz"),
    }
    OUT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(OUT)


if __name__ == "__main__":
    tyro.cli(main)
