"""ALOHA demonstrations: names, rates that are assumed and said, and files that point elsewhere."""

import json

import h5py
import numpy as np
import pytest
from builders_hdf5 import aloha, aloha_described, ramp
from validity import assert_same

from vhydro.data import DataError, read
from vhydro.data.convert import convert
from vhydro.episodes import Channel


def test_two_arms_have_names_and_the_last_action_leads_nowhere(tmp_path):
    dataset = read(aloha(tmp_path))
    episode = dataset[0]
    assert (episode.steps, episode.dt, len(episode.channels), len(episode.inputs)) == (5, 0.02, 28, 14)
    assert episode.channels[0] == Channel("left.joint_1", "joints", "rad")
    assert episode.channels[13] == Channel("right.gripper", "gripper", "")
    assert episode.channels[14] == Channel("left.joint_velocity_1", "joints", "rad/s")
    assert episode.inputs[6] == Channel("left.gripper_target", "action", "")
    np.testing.assert_array_equal(episode.observations[:, 14:], ramp(6, 14, 100))
    np.testing.assert_array_equal(episode.actions, ramp(6, 14, 200)[:5])
    assert any("50 Hz is assumed" in note for note in dataset.notes)
    assert any("last action" in note for note in dataset.notes)


def test_a_rate_may_be_given(tmp_path):
    dataset = read(aloha(tmp_path), rate=30)
    assert dataset[0].dt == pytest.approx(1 / 30)
    assert not any("assumed" in note for note in dataset.notes)


def test_a_description_is_put_over_what_is_usual(tmp_path):
    dataset = read(aloha_described(tmp_path))
    episode = dataset[0]
    assert episode.dt == 0.1
    assert [c.name for c in episode.inputs] == ["arm.joint_target_1", "arm.joint_target_2"]
    assert [c.name for c in episode.channels][6:8] == ["arm.joint_7", "arm.joint_effort_1"]
    assert not any("assumed" in note for note in dataset.notes)
    said = {"observations": [{"key": "observations/qpos[0:2]", "names": ["cart.x", "gripper.y"], "units": "m"}]}
    (tmp_path / "channels.json").write_text(json.dumps(said))
    shown = read(tmp_path / "episode_7.hdf5")[0]
    assert shown.channels == (Channel("cart.x", "object", "m"), Channel("gripper.y", "gripper", "m"))
    assert shown.inputs[-1] == Channel("base.angular_velocity", "action", "rad/s")


def test_what_is_no_number_is_left_out(tmp_path):
    path = aloha(tmp_path)
    with h5py.File(path, "r+") as file:
        file["task"] = "fold the shirt"
        file["observations/jpeg"] = np.full((6, 1), b"jpeg")
        file["elsewhere"] = h5py.ExternalLink("other.h5", "/x")
    assert len(read(path)[0].channels) == 28


def test_a_demonstration_becomes_an_npz_file(tmp_path):
    path = aloha(tmp_path)
    assert_same(read(convert(path))[0], read(path)[0])


@pytest.mark.parametrize("key", ["observations", "observations/qpos", "action"])
def test_links_to_other_files_are_refused(tmp_path, key):
    path = aloha(tmp_path)
    path.with_name("other.h5").write_bytes(path.read_bytes())
    with h5py.File(path, "r+") as file:
        del file[key]
        file[key] = h5py.ExternalLink("other.h5", f"/{key}")
    with pytest.raises(DataError, match="a link to somewhere else"):
        read(path)[0]


@pytest.mark.parametrize(("key", "rows", "found"), [("action", 4, "4 rows"), ("observations/qvel", 5, "rows {")])
def test_rows_that_do_not_fit_are_refused(tmp_path, key, rows, found):
    path = aloha(tmp_path)
    with h5py.File(path, "r+") as file:
        del file[key]
        file[key] = ramp(rows, 14)
    with pytest.raises(DataError, match=found):
        read(path)[0]
