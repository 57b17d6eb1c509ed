"""The records of one seed: its metrics at every level, with its own intervals and with calibrated ones."""

from typing import Any

import jax
import numpy as np

from vhydro_audits.support_fits import CONFORMAL, LEVELS
from vhydro_audits.support_metrics import calibrated, cell_metrics, check_metrics, coverages, step_metrics
from vhydro_audits.support_runs import Readings, Runs, Steps


def seed_records(
    key: dict[str, Any],
    config: dict[str, Any],
    method: str,
    tested: Runs,
    valid: np.ndarray,
    seed: int,
    calibrating: tuple[Runs, np.ndarray] | None = None,
    groups: np.ndarray | None = None,
) -> list[dict[str, Any]]:
    """The records of one seed at every level; `calibrating` are the runs on validation episodes, and their rows."""

    def of(tree, *index):
        return jax.tree.map(lambda x: x[index], tree)

    counted = valid[seed].copy()
    counted[:, 0] = False  # the first row is never hidden
    readings: Readings = of(tested.readings, seed)
    inside = {method: (coverages(readings), np.asarray(readings.log_density))}
    if calibrating is not None and groups is not None:
        held, held_valid = calibrating
        kept = np.broadcast_to(held_valid[seed], readings.hidden.shape[:1] + held_valid[seed].shape).copy()
        kept[..., 0] = False
        rows = np.broadcast_to(counted, readings.hidden.shape[:1] + counted.shape)
        found = calibrated(of(held.readings, seed), kept, readings, rows, groups)
        inside[CONFORMAL] = found.inside, found.log_density
    records = []
    for i, level in enumerate(LEVELS):
        steps: Steps = of(tested.steps, seed, i)
        shared = step_metrics(steps, counted, config["particles"]) | check_metrics(of(tested.checks, seed, i))
        for name, (within, log_density) in inside.items():
            place = {"experiment": "support"} | {k: key[k] for k in ("family", "task", "regime")}
            place |= {"occlusion": level, "method": name, "seed": seed}
            own = cell_metrics(of(readings, i), log_density[i], within[i], counted)
            records.append(place | shared | own | {"film": None})
    return records
