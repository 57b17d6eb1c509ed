"""The episodes that ship with the package, and what their contact forces say."""

import numpy as np
import pytest
from validity import assert_same

from vhydro.data import read, sample
from vhydro.data.convert import convert
from vhydro.data.sample import FOLDER, SHIPPED
from vhydro.modes.segments import run_starts
from vhydro_audits.labels import ProxyLabeller, fit_contact_labeller


@pytest.mark.parametrize("task", SHIPPED)
def test_every_task_has_real_episodes_with_forces(task):
    logs = sample(task)
    assert len(logs) >= 1
    for log in logs:
        assert log.dt == pytest.approx(0.05)
        assert log.info["success"]
        assert {"object", "end_effector", "gripper"} <= {c.group for c in log.channels}
        assert max(c.peak.max() for c in log.contacts) > 1
        assert len(log.channels) == len(set(log.channels))


def test_samples_are_small():
    assert sum(p.stat().st_size for p in FOLDER.iterdir()) < 5e6


def test_an_unknown_sample_says_what_there_is():
    with pytest.raises(ValueError, match="no sample of 'PushCub'; expected one of PickCube, .*bridge"):
        sample("PushCub")


def test_a_task_without_sample_says_how_to_record_it():
    with pytest.raises(ValueError, match="no sample of 'PushPair'.*`vhydro collect maniskill PushPair`"):
        sample("PushPair")


def test_pushing_force_begins_when_the_cube_moves():
    """Contact truth: nothing before the first motion, and force on the very step of it."""
    for log in sample("PushCube"):
        cube = log.observations[:, log.columns(body="cube", quantities=("x", "y", "z"))]
        moved = np.linalg.norm(np.diff(cube, axis=0, prepend=cube[:1]), axis=1) > 1e-5
        pushed = np.any([c.peak > 1e-3 for c in log.contacts if "table" not in c.bodies], axis=0)
        assert pushed.any()
        assert pushed.argmax() == moved.argmax()


def test_poking_goes_through_its_configurations():
    logs = list(sample("PokeCube"))
    labeller = fit_contact_labeller(logs)
    for log in map(labeller, logs):
        path = log.labels["configuration"]
        order = [labeller.names[i] for i in path[run_starts(path)]]
        assert order[:3] == ["none", "hand+peg", "cube+peg, hand+peg"]


@pytest.mark.parametrize("task", SHIPPED)
def test_every_sample_can_be_labelled(task):
    logs = list(sample(task))
    labeller = fit_contact_labeller(logs)
    for log in logs:
        labels = labeller(log).labels
        assert set(np.unique(labels["regime"])) == {0, 1, 2}
        assert set(np.unique(labels["friction"])) <= {-1, 0, 1}
        assert len(ProxyLabeller()(log).labels["proxy"]) == log.steps + 1


@pytest.mark.parametrize("to", ["npz", "lerobot"])
@pytest.mark.parametrize("task", ["PokeCube", "tower"])
def test_what_was_collected_survives_conversion(task, to, tmp_path):
    again = read(convert(FOLDER / SHIPPED[task], to, tmp_path / "converted"))
    assert len(again) == len(sample(task))
    for mine, original in zip(again, sample(task), strict=True):
        assert_same(mine, original)
