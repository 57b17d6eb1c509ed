"""The planning audit: every cell once, problems drawn from their seed alone, rows that count certified plans only."""

import numpy as np

from vhydro_audits.planning import PlanningAuditConfig, groups, summary_rows, table
from vhydro_audits.planning_truth import SETTINGS, problem

KEYS = ("certified_share", "epsilon", "margin", "delta", "realised_failure", "executions")


def cell(task: str, seed: int, certified: bool, failures: int) -> dict:
    numbers = ("epsilon", "margin", "model_risk", "bound", "pinsker", "epsilon_fitted", "energy_end", "energy_bound")
    fields = dict.fromkeys(numbers, 0.1) | {"task": task, "seed": seed, "delta": 0.3, "energy_holds": True}
    return fields | {"certified": certified, "certified_fitted": False, "failures": failures, "executions": 100}


def test_every_problem_is_in_the_grid_once_and_tuning_seeds_are_not():
    config = PlanningAuditConfig()
    cells = [c for g in groups(config) for c in g.cells]
    assert len(cells) == 20 * len(SETTINGS) * config.problems
    assert len({tuple(sorted(c.items())) for c in cells}) == len(cells)
    assert min(c["seed"] for c in cells) == 100


def test_a_problem_is_drawn_from_its_seed_and_number_alone():
    for name in SETTINGS:
        one, again, other = problem(name, 3, 1), problem(name, 3, 1), problem(name, 3, 2)
        np.testing.assert_array_equal(one.mean, again.mean)
        assert one.goal == again.goal
        assert (one.mean != other.mean).any()


def test_failures_are_those_of_certified_plans():
    rows = summary_rows([cell("puck", 100, True, 5), cell("puck", 101, True, 15), cell("puck", 102, False, 90)])
    (row,) = rows
    assert all(key in row for key in KEYS)
    assert row["certified_share"] == 2 / 3
    assert row["executions"] == 200
    assert row["realised_failure"] == 0.1
    assert row["worst_plan"] == 0.15
    assert row["above_bound"] == 1
    assert "67%" in table(rows)
    (none,) = summary_rows([cell("block", 100, False, 1)])
    assert none["realised_failure"] is None
    assert "–" in table([none])
