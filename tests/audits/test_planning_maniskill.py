"""The ManiSkill part of the planning audit, against a worker that pushes a cube along a line: rollouts, cells, rows."""

import json
import sys

import numpy as np
import pytest

from vhydro_audits import planning_maniskill as part
from vhydro_audits import planning_online as online
from vhydro_audits.collect import scripted
from vhydro_audits.collect.simulator import Simulator
from vhydro_audits.planning import PlanningAuditConfig, run_planning_audit
from vhydro_audits.planning_risk import auc, ece, judged, logistic, told
from vhydro_audits.store import read_cells

WORKER = """
import json, os, random, socket, sys
lines = socket.create_connection(("127.0.0.1", int(sys.argv[1]))).makefile("rw")
for line in lines:
    asked = json.loads(line)
    if asked["do"] == "reset":
        draw = random.Random(asked["seed"])
        hand, cube, width, seed = [-0.2, 0.0, 0.02], [draw.uniform(-0.1, 0.0), 0.0, 0.02], 0.02, asked["seed"]
    else:
        if seed == LOST:
            os._exit(3)
        for i in range(3):
            hand[i] += 0.02 * asked["action"][i] + 2e-4 * draw.gauss(0, 1)
        width = min(max(width + 0.01 * asked["action"][6], 0.0), 0.04)
        if abs(hand[0] + 0.04 - cube[0]) < 0.03 and abs(hand[1]) < 0.1:
            cube[0] = max(cube[0], hand[0] + 0.04)
    values = {f"{b}.{a}": x for b, p in (("tcp", hand), ("cube", cube), ("goal", [0.1, 0.0, 0.0]))
              for a, x in zip("xyz", p)}
    values |= {"gripper.finger_1": width, "gripper.finger_2": width}
    lines.write(json.dumps({"values": values, "success": abs(cube[0] - 0.1) < 0.1, "reward": 0.25}) + "\\n")
    lines.flush()
"""
LOST = 100_001  # the second episode of seed 100
METHODS = ("ours", "one-mode", "persistence", "random", "noisy")  # the others take long to compile
KEYS = (
    "rmse_h1", "rmse_h16", "rmse_mean16", "coverage90", "success", "return", "safe_return", "predicted_risk_t0",
    "predicted_risk_t5", "risk_gap", "ece", "brier", "brier_base_rate", "auc", "energy_drift",
)  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A small run of one task, and where it is."""
    folder = tmp_path_factory.mktemp("audit")
    (folder / "worker.py").write_text(WORKER.replace("LOST", str(LOST)))
    command = [sys.executable, str(folder / "worker.py")]
    small = online.cem(4, 2, 8, 2, rounds=1, first_rounds=1, elites=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part, "maniskill_simulator", lambda _task: Simulator(command, starting=30.0, answering=10.0))
        patch.setattr(part, "own_rollouts", lambda s, task: scripted.own_rollouts(s, task, 0))
        patch.setitem(scripted.EPISODES, "PushCube", (12, 26))
        patch.setitem(online.LIMITS, "PushCube", 7)
        patch.setattr(online, "PLANNER", small)
        patch.setattr(online, "FAR", small)
        patch.setattr("vhydro.learning.commanded.STEPS", 60)
        config = PlanningAuditConfig(
            part="maniskill", tasks=("PushCube",), methods=METHODS, seeds=2, episodes=2, out=folder / "out",
            rollouts=folder / "rollouts", workers=0,
        )  # fmt: skip
        path = run_planning_audit(config)
        before = (folder / "out/maniskill/PushCube/episodes/ours/cells.jsonl.gz").read_bytes()
        patch.setattr(part, "maniskill_simulator", lambda _task: pytest.fail("everything was there"))
        run_planning_audit(config)  # taken up again: nothing is computed
        assert before == (folder / "out/maniskill/PushCube/episodes/ours/cells.jsonl.gz").read_bytes()
    return folder / "out", path


def rows_of(path):
    return {r["method"]: r for r in json.loads(path.read_text("utf-8"))["rows"]}


def test_every_method_has_a_row_with_the_columns_that_it_can_have(ran):
    rows = rows_of(ran[1])
    assert tuple(rows) == METHODS
    assert all(key in row for key in KEYS for row in rows.values())
    assert rows["ours"]["published"]["task"] == "PushCube"
    assert rows["persistence"]["success"] is None
    assert rows["noisy"]["rmse_h1"] is None
    assert rows["ours"]["rmse_h1"] < rows["persistence"]["rmse_h1"]
    assert rows["random"]["predicted_risk_t0"] is None
    ours = rows["ours"]
    assert ours["safe_return"] == pytest.approx(
        ours["return"] - 10 * (1 - ours["success"]) - ours["energy_drift"], abs=1e-5
    )


def test_predictions_are_compared_on_seeds_that_all_methods_have(tmp_path):
    for method, seeds in (("ours", (100, 101)), ("ensemble", (100,))):
        place = tmp_path / "PushCube/prediction" / method
        place.mkdir(parents=True)
        cells = [{"seed": s, "method": method, "windows": 1, "rmse_h16": s - 99.0} for s in seeds]
        (place / "cells.jsonl").write_text("".join(json.dumps(c) + "\n" for c in cells), "utf-8")
    assert [(r["method"], r["rmse_h16"]) for r in part.maniskill_rows(tmp_path)] == [("ours", 1.0), ("ensemble", 1.0)]


def test_a_crash_of_the_simulator_loses_one_episode(ran):
    folder, path = ran
    cells = [c for at in sorted((folder / "maniskill/PushCube/episodes").iterdir()) for c in read_cells(at)]
    assert [c["lost"] for c in cells if (c["seed"], c["episode"]) == (100, 1)] == [True] * 4
    assert sum(c["lost"] for c in cells) == 4
    row = rows_of(path)["noisy"]
    assert (row["lost"], row["episodes"], row["return"]) == (1, 3, pytest.approx(7 * 0.25))


def test_risks_are_told_by_other_seeds_and_judged_by_what_happened():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(400, 1))
    seed = np.repeat(np.arange(10), 40)
    failed = (draw.uniform(size=400) < 1 / (1 + np.exp(-2 * x[:, 0]))).astype(float)
    risk = told(x, failed, seed)
    assert risk is not None
    found = judged(risk, failed)
    assert found["brier"] < found["brier_base_rate"]
    assert found["auc"] == pytest.approx(auc(x[:, 0], failed), abs=0.02)
    changed = failed.copy()
    changed[seed == 3] = 1 - changed[seed == 3]
    np.testing.assert_allclose(told(x, changed, seed)[seed == 3], risk[seed == 3])  # its own outcomes do not matter
    assert told(x[:40], failed[:40], seed[:40]) is None


def test_calibration_errors_by_hand():
    risk, failed = np.array([0.05, 0.05, 0.95, 0.95]), np.array([0.0, 1.0, 1.0, 1.0])
    assert ece(risk, failed) == pytest.approx(0.5 * 0.45 + 0.5 * 0.05)
    assert auc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([0.0, 0.0, 1.0, 1.0])) == pytest.approx(3.5 / 4)
    assert auc(risk, np.ones(4)) is None
    weights = logistic(np.zeros((10, 1)), np.array([1.0] * 3 + [0.0] * 7))
    assert 1 / (1 + np.exp(-weights[1])) == pytest.approx(0.3, abs=1e-3)  # nothing to tell by: the base rate


def test_a_rollout_ends_where_a_body_falls_off_the_table():
    log = scripted.Episode(
        np.array([[0, 0, 0, 0, 0, 0, 0, z] for z in (0.02, 0.02, -0.1, -0.5)], float), np.zeros((3, 4)), 0.05,
        scripted.channels("PushCube"), scripted.INPUTS,
    )  # fmt: skip
    assert part.on_the_table(log).observations.shape == (2, 8)
    assert part.on_the_table(log).actions.shape == (1, 4)


def test_wandering_goes_all_around_a_body():
    policy = scripted.Wandering("PushCube", 0)
    values = {f"{b}.{a}": 0.0 for b in ("tcp", "cube") for a in "xyz"}
    commands = np.array([policy(values) for _ in range(400)])
    assert (commands[:, :2].min(0) < -0.5).all()
    assert (commands[:, :2].max(0) > 0.5).all()
    assert set(commands[:, 3]) == {-1.0, 1.0}


def values_of(task: str, **changed: float) -> dict[str, float]:
    """Open fingers 10 cm above the body, its goal 20 cm away."""
    names = {"tcp", "goal", *scripted.BODIES[task]}
    at = {f"{b}.{a}": 0.0 for b in names for a in (*"xyz", "yaw")}
    at |= {"tcp.z": 0.1, "goal.y": 0.2, "gripper.finger_1": 0.04, "peg.half_length": 0.1, "cubeB.y": 0.2}
    return at | changed


def test_hands_turn_to_what_they_will_grasp_and_not_with_what_they_hold():
    above = values_of("PickCube") | {"cube.yaw": 0.3}
    assert scripted.turn("PickCube", above) == -1.0
    assert scripted.turn("PickCube", above | {"cube.yaw": np.pi / 2 + 0.01}) == pytest.approx(-0.1)
    assert scripted.turn("PickCube", above | {"tcp.z": 0.0, "gripper.finger_1": 0.02}) == 0.0
    peg = values_of("PegInsertionSide") | {"peg.yaw": 0.05, "goal.yaw": 0.1, "gripper.finger_1": 0.02}
    assert scripted.turn("PegInsertionSide", peg) == pytest.approx(-0.5)  # from above, to the peg
    grasped = peg | {"tcp.z": 0.0, "tcp.x": -0.05}
    assert scripted.turn("PegInsertionSide", grasped) == pytest.approx(-0.5)  # held, to the hole
    assert scripted.turn("PegInsertionSide", grasped | {"goal.yaw": 0.05}) == pytest.approx(0.0)


def test_a_peg_waits_in_front_of_its_hole_until_it_is_aligned():
    hole = {"goal.yaw": 0.0, "goal.x": 0.5, "goal.y": 0.0}
    far = values_of("PegInsertionSide") | hole | {"peg.y": 0.02}
    end = scripted.end_place("PegInsertionSide", far)
    np.testing.assert_allclose(end, [0.4, 0, 0])
    np.testing.assert_allclose(scripted.goal_place("PegInsertionSide", far), [0.4 - 0.1 - scripted.BEFORE, 0, 0])
    aligned = far | {"peg.y": 0.001, "peg.x": 0.25}
    np.testing.assert_allclose(scripted.goal_place("PegInsertionSide", aligned), [0.25 + scripted.SLOWLY, 0, 0])
    turned = scripted.goal_place("PegInsertionSide", aligned | {"peg.x": 0.32, "peg.yaw": 0.1})
    assert turned[0] < 0.32  # back again


def costs(task: str, stages: list[dict[str, float]], values: dict[str, float]) -> list[float]:
    """What stages cost: the hand and the opening at places of the state."""
    cost = online.task_of(task, values).cost
    names = [f"{b}.{a}" for b in ("tcp", *scripted.BODIES[task]) for a in "xyz"]
    start = {n: values[n] for n in names} | {f"tcp.{a} step": 0.0 for a in "xyz"} | {"opening": 0.04}
    return [float(cost(start | stage, 0)) for stage in stages]


def test_every_stage_of_a_grasp_costs_less_than_the_one_before():
    values = values_of("PickCube")
    closed = {"tcp.z": 0.0, "opening": 0.02}
    stages = [{"opening": 0.02}, {}, {"tcp.z": 0.05}, {"tcp.z": 0.0}, closed, closed | {"tcp.y": 0.1, "cube.y": 0.1}]
    each = costs("PickCube", stages, values)
    assert each == sorted(each, reverse=True)
    low, high = costs("PickCube", [{"tcp.x": 0.05, "tcp.z": 0.0}, {"tcp.x": 0.05, "tcp.z": 0.06}], values)
    assert low > high - 5 * (np.hypot(0.05, 0.06) - 0.05)  # from the side it is better to come from above


def test_a_stacked_cube_is_let_go():
    there = dict(zip(("cubeA.x", "cubeA.y", "cubeA.z"), (0.0, 0.2, scripted.STACKED), strict=True))
    there |= {"tcp.x": 0.0, "tcp.y": 0.2, "tcp.z": scripted.STACKED}
    values = values_of("StackCube") | {"cubeA.y": 0.2, "tcp.y": 0.2}
    stages = [{"tcp.z": 0.0, "opening": 0.02}, there | {"opening": 0.02}, there | {"opening": 0.04}]
    each = costs("StackCube", stages, values)
    assert each == sorted(each, reverse=True)


def test_a_gripper_opens_or_closes():
    np.testing.assert_allclose(online.shut(np.array([0.1, 0.2, 0.3, -0.2])), [0.1, 0.2, 0.3, -1])
    np.testing.assert_allclose(online.shut(np.array([0.1, 0.2, 0.3, 0.0])), [0.1, 0.2, 0.3, 1])


def test_one_seed_in_ten_keeps_a_film_of_what_plans_believed(ran):
    cells = list(read_cells(ran[0] / "maniskill/PushCube/episodes/ours"))
    shown = [c for c in cells if c.get("film")]
    assert {c["seed"] for c in shown} == {100}
    film = shown[0]["film"]
    assert len(film["away"]) == len(film["apart"]) == 7  # steps
    low, middle, high = np.array(film["plans"][0]["away"])
    assert ((low <= middle) & (middle <= high)).all()
