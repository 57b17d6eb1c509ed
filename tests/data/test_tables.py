"""Rows that belong together: actions, labels and time stamps of an episode are its own, or the file is refused."""

import json

import numpy as np
import pytest

from vhydro.data import DataError, read

LENGTHS = (5, 4, 3)
DESCRIBED = {"observations": [{"key": "x"}], "actions": [{"key": "u"}]}


def counted(fewer: int) -> np.ndarray:
    """For each episode 100 times its number plus the row, with so many rows fewer than observations."""
    return np.concatenate([100.0 * i + np.arange(n - fewer) for i, n in enumerate(LENGTHS)])


def described(tmp_path, said: dict, **arrays):
    path = tmp_path / "log.npz"
    np.savez(path, **arrays)
    path.with_name("log.channels.json").write_text(json.dumps(DESCRIBED | said))
    return path


@pytest.mark.parametrize("fewer", [0, 1])
@pytest.mark.parametrize("divided", ["lengths", "trial"])
def test_actions_of_divided_episodes_are_their_own(tmp_path, fewer, divided):
    keys = {"lengths": np.array(LENGTHS), "trial": np.repeat(np.arange(3), LENGTHS)}
    said = {"dt": 0.1, "episodes": {divided: divided}}
    dataset = read(described(tmp_path, said, x=counted(0), u=counted(fewer), **{divided: keys[divided]}))
    assert len(dataset) == 3
    for episode in dataset:
        np.testing.assert_array_equal(episode.actions, episode.observations[:-1])
    assert any("last action" in note for note in dataset.notes) == (fewer == 0)


def test_actions_with_a_row_less_are_guessed_with_lengths(tmp_path):
    np.savez(tmp_path / "x.npz", lengths=np.array(LENGTHS), x=counted(0), action=counted(1), dt=0.1)
    for episode in read(tmp_path / "x.npz"):
        np.testing.assert_array_equal(episode.actions, episode.observations[:-1])


@pytest.mark.parametrize("rows", [100, 13, 11, 10, 8])
@pytest.mark.parametrize("episodes", [{"episodes": {"lengths": "n"}}, {}])
def test_actions_of_another_rate_are_refused(tmp_path, rows, episodes):
    path = described(tmp_path, {"dt": 0.1} | episodes, n=np.array(LENGTHS), x=counted(0), u=np.arange(float(rows)))
    if rows == 11 and not episodes:
        assert read(path)[0].actions.shape == (11, 1)
        return
    with pytest.raises(DataError, match=rf"key u: found {rows} rows; expected 12 rows .*, or {9 if episodes else 11},"):
        read(path)


@pytest.mark.parametrize("rows", [11, 13, 120])
@pytest.mark.parametrize("said", [{"labels": {"touch": "y"}, "dt": 0.1}, {"time": "y"}])
def test_labels_and_times_with_other_rows_are_refused(tmp_path, rows, said):
    path = described(tmp_path, said, x=counted(0), u=counted(0), y=np.arange(float(rows)))
    with pytest.raises(DataError, match="key y: found .* with 12 rows"):
        read(path)[0]


@pytest.mark.parametrize(("dtype", "size", "unit"), [(np.int64, 1e7, "ns"), (float, 2e4, "us"), (np.uint64, 2e3, "ms")])
def test_stamps_that_are_no_seconds_need_their_unit(tmp_path, dtype, size, unit):
    stamps = (np.arange(5) * size).astype(dtype)
    np.savez(tmp_path / "log.npz", timestamp=stamps, x=np.arange(5.0))
    with pytest.raises(DataError, match=f"key timestamp: found time stamps .* s in {unit}.*time_unit"):
        read(tmp_path / "log.npz")
    said = {"time": "timestamp", "time_unit": unit, "actions": []}
    seconds = size * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}[unit]
    assert read(described(tmp_path, said, timestamp=stamps, x=np.arange(5.0)))[0].dt == pytest.approx(seconds)


@pytest.mark.parametrize(("name", "noted"), [("timestamp", True), ("time_s", False)])
def test_seconds_that_are_a_guess_are_noted(tmp_path, name, noted):
    np.savez(tmp_path / "log.npz", **{name: np.arange(5) * 0.1, "x": np.arange(5.0)})
    dataset = read(tmp_path / "log.npz")
    assert dataset[0].dt == pytest.approx(0.1)
    assert any("Time taken as seconds" in note for note in dataset.notes) == noted


def test_long_steps_that_are_said_to_be_seconds_are_taken(tmp_path):
    said = {"time": "t", "time_unit": "s", "actions": []}
    assert read(described(tmp_path, said, t=np.arange(5) * 3600, x=np.arange(5.0)))[0].dt == 3600


@pytest.mark.parametrize("value", ["thirty", 0, -5.0, np.nan, np.inf])
@pytest.mark.parametrize("key", ["fps", "dt"])
def test_a_rate_that_is_none_is_refused(tmp_path, key, value):
    np.savez(tmp_path / "x.npz", **{key: value, "y": np.arange(5.0)})
    with pytest.raises(DataError, match=f"key {key}: found .*; expected .*positive number"):
        read(tmp_path / "x.npz")


@pytest.mark.parametrize("scale", [np.nan, np.inf, "two"])
def test_a_scale_of_the_file_must_be_finite(tmp_path, scale):
    said = {"dt": 0.1, "observations": [{"key": "x", "scale": "gain"}], "actions": []}
    path = described(tmp_path, said, x=np.arange(5.0), gain=scale)
    with pytest.raises(DataError, match="key gain: .*a finite number to scale by"):
        read(path)[0]
