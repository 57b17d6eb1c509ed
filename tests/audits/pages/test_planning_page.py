"""The page of the planning audit: what was proven, what really happened, and what could not be proven."""

import json
from pathlib import Path

import pytest

from vhydro_audits.pages.planning import (
    headline,
    paper_gaps,
    planning_page,
    read_planning,
    risk_gap,
    risk_panel,
    write_planning_page,
)
from vhydro_audits.pages.planning_maniskill import film_panel, films, maniskill_claims

ROW = {"family": "known-equations", "plans": 2, "delta": 0.3, "epsilon": 0.02, "epsilon_worst": 0.5, "margin": 0.01}
ROW |= {"model_risk": 0.05, "bound": 0.08, "realised_failure": 0.01, "worst_plan": 0.02, "executions": 1000}
ROW |= {"energy_end": 0.4, "energy_bound": 1.8, "certified_share": 1.0, "above_bound": 0}
META = {"commit": "abc1234", "device": "some device", "seconds": 12.0, "seeds": 2, "config": {"delta": 0.3}}


def written(folder: Path, rows: list[dict], cells: list[dict], **meta) -> Path:
    (folder / "summary.json").write_text(json.dumps({"meta": META | meta, "rows": rows}), "utf-8")
    (folder / "cells.jsonl").write_text("".join(json.dumps(c) + "\n" for c in cells), "utf-8")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [ROW | {"task": "puck"}, ROW | {"task": "wall", "certified_share": 0.5, "realised_failure": 0.2}]
    cell = {"family": "known-equations", "certified": True, "energy_holds": True}
    return written(tmp_path, rows, [cell, cell, cell, cell | {"certified": False, "energy_holds": False}])


def test_what_happened_stands_beside_what_was_proven_even_where_it_is_worse(folder):
    text = write_planning_page(folder).read_text("utf-8")
    assert "3 of 4 plans on recovered laws are certified to fail with a chance of at most 0.3" in text
    assert "they fail in 20\u00a0% on the worst task" in text
    assert "1 of 2 tasks have a realised share of failures below the proven one" in text  # 0.2 against 0.08
    assert "wall has a proof for 50\u00a0% of its plans" in text
    assert "is broken in 1 of 4 ensembles" in text
    assert "ManiSkill tasks are not in this run" in text


def test_the_gap_between_predicted_and_real_risk_is_the_largest_and_the_papers_is_its_own(folder):
    rows, cells, meta = read_planning(folder)
    assert risk_gap(rows) == pytest.approx(0.15)
    assert paper_gaps() == [0.196, 0.397, 0.484, 0.705]
    ours, paper, _ = planning_page(rows, cells, meta).card.scores
    assert (ours.number, paper.number) == ("0.150", "0.196 to 0.705")
    worse = [r | {"model_risk": 0.9} for r in rows]
    assert "▼ worse than the paper’s" in planning_page(worse, cells, meta).card.scores[0].words


def test_the_parts_of_a_bound_are_drawn_one_after_the_other(folder):
    rows, *_ = read_planning(folder)
    drawn = [m for m in risk_panel(rows).marks if m.y[:1] == (0,)]
    assert [m.x for m in drawn if m.kind == "stretch"] == [
        pytest.approx(x) for x in ((0.0, 0.05), (0.05, 0.06), (0.06, 0.08))
    ]
    assert [m.x for m in drawn if m.name == "real"] == [(0.01,)]


def test_a_run_in_which_nothing_was_certified_has_a_page(tmp_path):
    row = ROW | {"task": "puck", "realised_failure": None, "worst_plan": None, "certified_share": 0.0, "executions": 0}
    cell = {"family": "known-equations", "certified": False, "energy_holds": True}
    text = write_planning_page(written(tmp_path, [row], [cell], quick=True)).read_text("utf-8")
    assert "0 of 1 plans" in text
    assert "This is a small run" in text
    assert headline([row], [cell]).startswith("0 of 1 plans")


def test_predictions_success_and_risk_in_the_simulator_have_claims_of_their_own(folder):
    numbers = dict.fromkeys(
        (
            "rmse_h1",
            "rmse_mean16",
            "rmse_h16_hand",
            "rmse_h16_bodies",
            "rmse_h16_wandering",
            "coverage90_moving",
            "coverage90_resting",
        ),
        0.125,
    )
    numbers |= {"family": "maniskill", "task": "PushCube", "success": None, "episodes": 0, "published": None}
    played = {"success": 0.75, "episodes": 40, "return": 20.0, "return_dense": 80.0, "safe_return": 16.5}
    risk = {"predicted_risk_t0": 0.3, "predicted_risk_t5": 0.2, "brier": 0.15, "brier_base_rate": 0.1875}
    risk |= {f"{k}_t5": 0.111 for k in ("risk_gap", "ece", "brier", "auc")}
    ours = numbers | played | risk | {"method": "ours", "rmse_h16": 0.35, "risk_gap": 0.05, "ece": 0.062, "auc": 0.8}
    ours["published"] = {"rmse": 0.502, "return": 11.171, "risk_gap": 0.196}
    still = numbers | {"method": "persistence", "rmse_h16": 0.9, "predicted_risk_t0": None}
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    written(folder, [*summary["rows"], ours, still], [{"family": "known-equations", "certified": 1, "energy_holds": 1}])
    text = write_planning_page(folder).read_text("utf-8")
    assert "least error 16 steps ahead on 1 of 1 tasks" in text
    assert "PushCube 75\u00a0% of 40" in text
    assert "better than the base rate for 1 of 1" in text
    for number in ("0.350", "0.900", "0.502", "11.171", "0.062, 0.111", "0.196"):
        assert number in text
    assert "four ManiSkill tasks stand below: measured, not proven" in text
    better = maniskill_claims([ours, still | {"rmse_h16": 0.1}])
    assert "0 of 1 tasks; persistence on PushCube" in better[0].found
    assert [c.name for c in maniskill_claims([still])] == ["Prediction"]
    assert maniskill_claims([]) == []


def test_films_show_what_happened_over_what_plans_believed(folder):
    film = {"away": [0.2, 0.1, 0.05], "apart": [0.1, 0.0, 0.0]}
    film["plans"] = [{"step": 1, "away": [[0.08, 0.02], [0.1, 0.04], [0.3, 0.5]], "apart": [[0.0, 0.0]] * 3}]
    cell = {"task": "PickCube", "seed": 100, "episode": 1, "success": True, "film": film}
    later = cell | {"seed": 110, "film": film | {"away": [9.0, 9.0, 9.0]}}
    place = folder / "maniskill/PickCube/episodes/ours"
    place.mkdir(parents=True)
    text = "".join(json.dumps(c) + "\n" for c in (later, cell, cell | {"episode": 0, "film": None}))
    (place / "cells.jsonl").write_text(text, "utf-8")
    assert [(c["seed"], c["success"]) for c in films(folder / "maniskill")] == [(100, True)]
    happened = {m.name: m for m in film_panel(cell).marks if m.kind == "line"}
    assert happened["away"].y == pytest.approx((20, 10, 5))  # in centimetres
    assert (happened["believed"].x, happened["believed"].y) == ((2.0, 3.0), pytest.approx((10, 4)))
    assert "PickCube: succeeded" in write_planning_page(folder).read_text("utf-8")


def test_a_missing_summary_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"summary.json is not there; expected a file that the planning audit writes"):
        write_planning_page(tmp_path)
