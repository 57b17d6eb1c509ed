"""The simulator's socket: answers come back, a crash and a hang lose the episode and not the run."""

import sys

import pytest

from vhydro_audits.collect.simulator import Simulator, SimulatorLostError

WORKER = """
import json, os, socket, sys, time
lines = socket.create_connection(("127.0.0.1", int(sys.argv[1]))).makefile("rw")
for line in lines:
    asked = json.loads(line)
    if asked["do"] == "step" and asked["action"][0] > 1:
        os._exit(3) if asked["action"][0] > 2 else time.sleep(60)
    seen = asked["seed"] if asked["do"] == "reset" else asked["action"][0]
    lines.write(json.dumps({"values": {"x": seen}, "success": seen == 0.5, "reward": 0.25}) + "\\n")
    lines.flush()
"""


@pytest.fixture
def simulator(tmp_path):
    path = tmp_path / "worker.py"
    path.write_text(WORKER)
    with Simulator([sys.executable, str(path)], starting=30.0, answering=1.5) as running:
        yield running


def test_answers_are_those_of_the_worker(simulator):
    assert simulator.reset(7).values == {"x": 7}
    assert simulator.step([0.5]) == ({"x": 0.5}, True, 0.25)
    assert not simulator.step([0.1]).success


@pytest.mark.parametrize("action", [3.0, 1.5], ids=["crash", "hang"])
def test_a_lost_worker_is_said_and_replaced(simulator, action):
    simulator.reset(0)
    with pytest.raises(SimulatorLostError, match="lost in a step"):
        simulator.step([action])
    with pytest.raises(SimulatorLostError, match="expected a `reset`"):
        simulator.step([0.1])
    assert simulator.reset(4).values == {"x": 4}
    assert simulator.restarts == 1


def test_a_worker_that_never_connects_is_refused_with_its_words():
    broken = Simulator([sys.executable, "-c", "raise SystemExit('no such task')"], starting=20.0)
    with pytest.raises(SimulatorLostError, match="no such task"):
        broken.reset(0)
