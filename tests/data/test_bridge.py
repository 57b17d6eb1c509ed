"""BridgeData and other RLDS logs: records, checksums, messages and what they mean."""

import json
import struct
from contextlib import suppress

import numpy as np
import pytest
from builders_tables import (
    ROWS,
    bridge_example,
    bridge_numpy,
    bridge_trajectory,
    example,
    framed,
    ramp,
    rlds_bridge,
    rlds_folder,
    rlds_other,
    tensor,
    tree,
    varint,
)
from hypothesis import given
from hypothesis import strategies as st

from vhydro.data import DataError, read
from vhydro.data.crc32c import crc32c, serial
from vhydro.data.tfrecord import example as parsed
from vhydro.data.tfrecord import varints

STATE = ["tcp.x", "tcp.y", "tcp.z", "tcp.roll", "tcp.pitch", "tcp.yaw", "gripper.opening"]


def test_checksum_of_the_published_examples():
    """RFC 3720, B.4."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


@given(st.binary(max_size=200), st.integers(0, 6000))
def test_lanes_give_the_same_checksum_as_one_byte_after_another(tail, zeros):
    data = b"\x01" + bytes(zeros) + tail
    assert crc32c(data) == serial(data)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30))
def test_integers_come_back(values):
    raw = np.frombuffer(b"".join(varint(v) for v in values), np.uint8)
    assert varints(raw).tolist() == values


@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_a_value_error(data):
    with suppress(ValueError):
        assert isinstance(parsed(data), dict)


def test_bridge_states_actions_and_task(tmp_path):
    dataset = read(rlds_bridge(tmp_path))
    assert dataset.format == "RLDS TFRecord"
    assert any("5 Hz" in note for note in dataset.notes)
    assert any("image_0" in note for note in dataset.notes)
    for i, (n, episode) in enumerate(zip(ROWS, dataset, strict=True)):
        np.testing.assert_array_equal(episode.observations, ramp(n, 7, 100.0 * i, np.float32))
        np.testing.assert_array_equal(episode.actions, ramp(n, 7, -100.0 * i, np.float32)[:-1])
        assert episode.observations.dtype == np.float32
        assert [c.name for c in episode.channels] == STATE
        assert [c.unit for c in episode.inputs] == ["m", "m", "m", "rad", "rad", "rad", ""]
        assert episode.dt == 0.2
        assert episode.info["task"] == "put the cup away"
        assert episode.info["episode_id"] == -7
        assert episode.info["has_language"] is True


def test_a_folder_of_shards_is_one_dataset(tmp_path):
    dataset = read(rlds_folder(tmp_path / "x"))
    assert dataset.names[2] == "bridge-train.tfrecord-00002-of-00003:0"
    assert [e.steps + 1 for e in dataset] == list(ROWS)


def test_a_folder_with_other_logs_is_not_taken_for_shards_alone(tmp_path):
    rlds_folder(tmp_path)
    (tmp_path / "log.csv").write_text("x,y\n1,2\n3,4\n")
    assert len(read(tmp_path)) == len(ROWS) + 1


def test_other_robots_are_read_by_their_keys(tmp_path):
    dataset = read(rlds_other(tmp_path))
    episode = dataset[0]
    assert [c.name for c in episode.channels] == [
        "observation.count", "observation.eef.force_1", "observation.eef.force_2",
        "observation.joint_pos_1", "observation.joint_pos_2", "observation.joint_pos_3",
    ]  # fmt: skip
    assert episode.channels[3].group == "joints"
    assert episode.observations[:, 0].tolist() == [-2, -1, 0, 1, 2, 3]
    assert [c.name for c in episode.inputs] == ["action.arm_1", "action.arm_2"]
    assert any("no rate" in note for note in dataset.notes)


def test_a_wrong_checksum_names_the_record(tmp_path):
    path = rlds_bridge(tmp_path)
    content = bytearray(path.read_bytes())
    content[-30] ^= 1
    path.write_bytes(content)
    dataset = read(path)
    dataset[1]
    with pytest.raises(DataError, match="episode 2, key record: found bytes with a wrong checksum"):
        dataset[2]


def test_a_length_past_the_end_is_not_allocated(tmp_path):
    length = struct.pack("<Q", 1 << 60)
    path = tmp_path / "x.tfrecord"
    path.write_bytes(framed(b"")[:8].replace(bytes(8), length) + framed(length)[8 + 4 + 8 :] + b"abc")
    with pytest.raises(DataError, match="a record of 1152921504606846976 bytes"):
        read(path)


def test_a_shape_that_does_not_fit_names_the_key(tmp_path):
    path = rlds_bridge(tmp_path)
    broken = example(
        {"steps/is_first": np.arange(4), "steps/action": ramp(4, 7), "steps/observation/state": ramp(4, 6)}
    )
    path.write_bytes(framed(bridge_example(4, 0)) + framed(broken))
    with pytest.raises(
        DataError, match="episode 1, key steps/observation/state: found 24 numbers; expected 4 steps of 7"
    ):
        read(path)[1]


def test_numpy_export_has_one_state_more_than_actions(tmp_path):
    dataset = read(bridge_numpy(tmp_path))
    assert dataset.format == "BridgeData numpy"
    for i, (n, episode) in enumerate(zip(ROWS, dataset, strict=True)):
        np.testing.assert_array_equal(episode.observations, ramp(n, 7, 100.0 * i))
        np.testing.assert_array_equal(episode.actions, ramp(n - 1, 7, -100.0 * i))
        assert [c.name for c in episode.channels] == STATE
        assert episode.info["task"] == "put the cup away"


def spoiled(key: str, value) -> dict:
    return bridge_trajectory(4, 0) | {key: value}


BOMB: list = [1.0]
for _ in range(60):
    BOMB = [BOMB, BOMB]


@pytest.mark.parametrize(
    ("trajectory", "key"),
    [
        (spoiled("actions", []), "actions"),
        (spoiled("actions", [BOMB] * 3), "actions"),
        (spoiled("actions", [np.zeros(7), np.zeros(6), np.zeros(7)]), "actions"),
        (spoiled("observations", [{"images0": 1}] * 3), "observations/state"),
        (spoiled("next_observations", [{"state": np.zeros((7, 1))}] * 3), "next_observations/state"),
        (spoiled("observations", None), "observations"),
        (spoiled("next_observations", [{"state": np.zeros(7)}] * 2), "next_observations"),
        (spoiled("next_observations", [{"state": np.zeros(7)}] * 4), "next_observations"),
    ],
)
def test_numpy_export_with_a_fault_names_the_key(tmp_path, trajectory, key):
    path = tmp_path / "out.npy"
    np.save(path, np.array([bridge_trajectory(4, 0), trajectory], dtype=object))
    dataset = read(path)
    assert dataset[0].steps == 3
    with pytest.raises(DataError) as caught:
        dataset[1]
    assert (caught.value.episode, caught.value.key) == ("1", key)


def test_numpy_export_of_anything_else_is_not_executed(tmp_path):
    path = tmp_path / "out.npy"
    np.save(path, np.array([len, {}], dtype=object))
    with pytest.raises(DataError, match="the name builtins.len"):
        read(path)[0]


def test_a_header_that_promises_too_much_is_refused(tmp_path):
    path = bridge_numpy(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"(3,), }          ", b"(3000000000000,),"))
    with pytest.raises(DataError):
        read(path)


def other_record(folder, features: dict, keys: dict):
    """A record with only these keys, and shapes of observations."""
    steps = tree(observation=tree(**features))
    (folder / "features.json").write_text(json.dumps(tree(steps={"sequence": {"feature": steps}})))
    path = folder / "x.tfrecord"
    path.write_bytes(framed(example({f"steps/observation/{k}": v for k, v in keys.items()})))
    return path


@pytest.mark.parametrize("numbers", [3, 17])
def test_numbers_that_are_no_whole_steps_name_the_key(tmp_path, numbers):
    path = other_record(tmp_path, {"a": tensor(7)}, {"a": ramp(1, numbers), "b": ramp(1, 4)})
    with pytest.raises(DataError, match=f"key steps/observation/a: found {numbers} numbers; expected whole steps of 7"):
        read(path)


def test_a_tensor_of_varying_size_is_left_out(tmp_path):
    path = other_record(tmp_path, {"a": tensor(2), "b": tensor(-1, 3)}, {"a": ramp(4, 2), "b": ramp(5, 3)})
    dataset = read(path)
    assert [c.name for c in dataset[0].channels] == ["observation.a_1", "observation.a_2"]
    assert any("Left out: observation/b." in note for note in dataset.notes)


def test_a_dimension_below_nothing_is_refused(tmp_path):
    path = other_record(tmp_path, {"a": tensor(-2, -3)}, {"a": ramp(4, 6)})
    with pytest.raises(DataError, match=r"features.json: found .*the shape \(-2, -3\) of steps/observation/a"):
        read(path)
