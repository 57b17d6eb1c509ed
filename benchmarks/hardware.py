"""The numbers of the hardware page: laws and modes of public logs of real machines, as the examples find them.

    python benchmarks/hardware.py --data FOLDER    # emps.npz, cube_tosses.npz, bees.npz; four minutes

The data are other people's and not part of this project. Results go to `benchmarks/results/hardware.json`, from which
`docs/tables.py` writes the tables.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import tyro

from provenance import provenance

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import bee_modes
import cube_toss_modes
import emps as emps_example
from vhydro.data import read
from vhydro.laws import Law, chosen_by_halves, constants, halves, impact_constants, recover, toss_law
from vhydro.modes import Scores, change_points, scores
from vhydro.views.body import body_view
from vhydro_audits.baselines.inverse_dynamics import inverse_dynamics

OUT = Path(__file__).parent / "results" / "hardware.json"


def emps(path: Path) -> dict:
    """Three forms of law of the linear drive, beside inverse dynamics; each judged by the half it was not fitted to."""
    recording, forms = emps_example.problems(str(path))
    info, bumps, found = read(path)[0].info, emps_example.BUMPS, {}
    for name, problem in forms.items():
        law, tried = chosen_by_halves(recording, [problem], bumps)
        assert isinstance(law, Law)
        best = min(tried, key=lambda way: way.score)
        found[name] = {
            "bump": best.config.shooting.bump,
            "left": [float(x[0]) for x in best.left],
            "constants": {k: [c.value, *c.interval] for k, c in constants(law).items()},
        }
        if name != "all terms":
            one, (first, second) = problem.one_friction, halves(recording)
            fits = [(inverse_dynamics(a, one_friction=one), b) for a, b in ((first, second), (second, first))]
            found[name]["inverse_dynamics"] = {
                "left": [drive.force_left(other) for drive, other in fits],
                "constants": inverse_dynamics(recording, one_friction=one)._asdict(),
            }
    each = [recover(recording, forms["friction for each direction"], way) for way in bumps]
    ways = [[law.dissipation(mode)[0].value for mode in (0, 1)] for law in each if isinstance(law, Law)]
    published = {name: float(info[f"published_{name}"]) for name in ("M", "Fv", "Fc", "offset")}
    return {
        "published": published, "bumps": [way.shooting.bump for way in bumps], "forms": found, "friction_by_bump": ways
    }  # fmt: skip


def cube(path: Path) -> dict:
    """The law of flight and of impacts of a tossed cube, its mass and size given."""
    logs = read(path)
    info = logs[0].info
    law = toss_law(logs, mass=float(info["mass"]), half_sizes=float(info["half_width"]))
    found, (bounce,) = impact_constants(law), law.bounces
    fall, back = (found[f"{what} along cube.z"] for what in ("acceleration", "restitution of floor"))
    return {
        "gravity": [-fall.value, *sorted(-x for x in fall.interval)],
        "restitution": [back.value, *back.interval],
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


def main(data: Path, only: tuple[Literal["emps", "cube", "cube_modes", "bees"], ...] = ()) -> None:
    """Measure everything, or what is named, and keep it beside what is there."""
    tosses = data / "cube_tosses.npz"
    parts: dict[str, Callable[[], dict]] = {
        "emps": lambda: emps(data / "emps.npz"),
        "cube": lambda: cube(tosses),
        "cube_modes": lambda: {"four": cube_modes(tosses, False), "five": cube_modes(tosses, True)},
        "bees": lambda: bees(data / "bees.npz"),
    }
    found = json.loads(OUT.read_text("utf-8")) if only else {"meta": provenance()}
    for name in only or parts:
        found[name] = parts[name]() | ({"meta": provenance()} if only else {})
    OUT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(OUT)


if __name__ == "__main__":
    tyro.cli(main)
