"""CSV logs: strict numbers, hidden cells, and errors that name line and column."""

import json
import multiprocessing
import os

import numpy as np
import pytest
from builders_tables import ROWS, csv_described, csv_guessed

from vhydro.data import DataError, read
from vhydro.data.csv_logs import LONGEST_NUMBER, NUMBER, Csv, is_number
from vhydro.data.read import readers


def written(tmp_path, text: str):
    path = tmp_path / "log.csv"
    path.write_text(text)
    return path


def test_trials_times_units_and_hidden_cells(tmp_path):
    dataset = read(csv_guessed(tmp_path))
    assert dataset.names == ("0", "1", "2")
    assert any("guessed" in note for note in dataset.notes)
    for n, episode in zip(ROWS, dataset, strict=True):
        assert episode.observations.shape == (n, 2)
        assert [(c.name, c.unit) for c in episode.channels] == [("cart_m", "m"), ("cart_m_s", "m/s")]
        np.testing.assert_array_equal(episode.observations[:, 0], np.arange(n) + 0.5)
        assert np.isnan(episode.observations[1, 1])
        np.testing.assert_array_equal(episode.actions[:, 0], [float(f"1e-{t + 1}") for t in range(n - 1)])
        assert episode.dt == pytest.approx(0.1)


@pytest.mark.parametrize("clock", ["stamp_s", "clock", "elapsed", "Seconds"])
def test_a_clock_by_another_name_is_no_channel(tmp_path, clock):
    rows = "\n".join(f"{0.02 * t},{t}" for t in range(20))
    episode = read(written(tmp_path, f"{clock},cart_m\n{rows}\n"))[0]
    assert [c.name for c in episode.channels] == ["cart"]
    assert episode.dt == pytest.approx(0.02)


def test_of_several_clocks_the_time_is_taken(tmp_path):
    rows = "\n".join(f"{7 * t},{0.1 * t},{t}" for t in range(20))
    episode = read(written(tmp_path, f"stamp,time,cart_m\n{rows}\n"))[0]
    assert [c.name for c in episode.channels] == ["stamp", "cart"]
    assert episode.dt == pytest.approx(0.1)


def test_coordinates_are_no_pixels(tmp_path):
    """`tool_px` is one of three; by itself it is a number of pixels."""
    three = read(written(tmp_path, "time,tool_px,tool_py,tool_pz\n" + "0,1,2,3\n1,2,3,4\n"))[0]
    assert [(c.name, c.unit) for c in three.channels] == [("tool_px", ""), ("tool_py", ""), ("tool_pz", "")]
    one = read(written(tmp_path, "time,tool_px\n0,1\n1,2\n"))[0]
    assert [(c.name, c.unit) for c in one.channels] == [("tool", "px")]


def test_units_in_brackets(tmp_path):
    """As spreadsheets have them; what is in brackets and no unit stays in the name."""
    rows = "\n".join(f"{20 * t},{t},{t},{t}" for t in range(20))
    episode = read(written(tmp_path, f"time [ms],x (mm),rate [deg/s],gripper (left)\n{rows}\n"))[0]
    named = [(c.name, c.unit) for c in episode.channels]
    assert named == [("x", "mm"), ("rate", "deg/s"), ("gripper (left)", "")]
    assert episode.dt == pytest.approx(0.02)


@pytest.mark.parametrize(("clock", "ticks"), [("t_ms", 1e3), ("stamp_us", 1e6), ("timestamp_ns", 1e9)])
def test_a_clock_that_counts_parts_of_a_second(tmp_path, clock, ticks):
    rows = "\n".join(f"{0.02 * ticks * t:.0f},{t}" for t in range(20))
    episode = read(written(tmp_path, f"{clock},speed_ms\n{rows}\n"))[0]
    assert ([c.name for c in episode.channels], episode.dt) == (["speed_ms"], pytest.approx(0.02))


def test_a_bracket_is_no_unit_of_time_and_an_index_no_unit(tmp_path):
    rows = "\n".join(f"{0.02 * t},{300 + 0.03 * t},{t},{t}" for t in range(20))
    episode = read(written(tmp_path, f"time [s],T [K],q[0],q[1]\n{rows}\n"))[0]
    assert [c.name for c in episode.channels] == ["T", "q[0]", "q[1]"]
    assert episode.dt == pytest.approx(0.02)


def test_a_description_for_the_folder(tmp_path):
    episode = read(csv_described(tmp_path))[0]
    assert [(c.name, c.unit) for c in episode.channels] == [("cart.x", "m")]
    np.testing.assert_array_equal(episode.observations[:, 0], np.arange(ROWS[0]) + 0.25)
    assert episode.labels["hit"].tolist() == [0, 1, 0, 1, 0, 1]
    assert episode.dt == 0.01


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_delimiters(tmp_path, delimiter):
    path = written(tmp_path, "t,x\n0,1\n0.5,2\n".replace(",", delimiter))
    assert read(path)[0].observations.tolist() == [[1], [2]]
    assert read(path)[0].dt == 0.5


def test_text_without_a_name_that_says_csv_is_recognised(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("t\tx\n0\t1\n1\t2\n")
    assert read(path).format == "CSV"
    path.write_text("Dear reader, hello\nthis, is prose\n")
    with pytest.raises(DataError, match="no reader recognises"):
        read(path)


@pytest.mark.parametrize("cell", ["1_000", "inf", "-inf", "1e999", "0x10", "1,5", "one", "1 2", "٣", "--1", "1e"])
def test_a_bad_cell_names_its_line_and_column(tmp_path, cell):
    path = written(tmp_path, f't,x\n0,1\n\n0.5,"{cell}"\n')
    with pytest.raises(DataError) as caught:
        read(path)
    assert caught.value.key == "line 4, column x"
    assert repr(cell) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("t,x\n0,1\n1\n", "1 cells"),
        ("t,x\n0,1,2\n", "3 cells"),
        ("t,t\n0,1\n", "a name twice"),
        ("t,\n0,1\n", "expected a header line"),
        ("t,x\n", "nothing below"),
        ('t,x\n0,"1\n', "unexpected end of data"),
        ("t,x\n0,1\n0,2\n", "0.0 followed by 0.0"),
        ("t,x\n1,1\n,2\n", "nan at row 1"),
    ],
)
def test_broken_tables_are_refused(tmp_path, text, found):
    with pytest.raises(DataError, match=found):
        read(written(tmp_path, text))


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes(b"t,x\n0,\xff\xfe\n")
    with pytest.raises(DataError, match="UnicodeDecodeError"):
        read(path)


def test_a_trial_that_is_apart_is_refused(tmp_path):
    with pytest.raises(DataError, match="key trial: found a trial whose rows are apart"):
        read(written(tmp_path, "trial,x\n0,1\n1,2\n0,3\n"))


def test_uneven_time_is_noted(tmp_path):
    rows = "".join(f"{t},{t}\n" for t in (0, 1, 2.2, 3.2, 9, 10))
    dataset = read(written(tmp_path, f"t,x\n{rows}"))
    assert dataset[0].dt == 1
    assert any("gaps in time: 1, the longest 5.8 s" in note for note in dataset.notes)
    assert any("20 % of 1 s" in note for note in dataset.notes)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"dt": -1}, "dt"),
        ({"dt": True}, "dt"),
        ({"dt": None}, "dt"),
        ({"time": "t"}, "dt"),
        ({"time_unit": "h"}, "time_unit"),
        ({"rate": 5}, "rate"),
        ({"observations": []}, "observations"),
        ({"observations": [{"key": "x", "names": []}]}, "observations[0].names"),
        ({"observations": [{"key": "x", "units": ["m", "s"]}]}, "observations[0].units"),
        ({"observations": [{"key": "x", "scale": None}]}, "observations[0].scale"),
        ({"observations": [{"key": "x", "scale": float("nan")}]}, "observations[0].scale"),
        ({"observations": [{"key": "x", "scale": float("inf")}]}, "observations[0].scale"),
        ({"observations": [{"key": "x", "scale": 10**400}]}, "observations[0].scale"),
        ({"dt": 10**400}, "dt"),
        ({"observations": [{"name": "x"}]}, "observations[0]"),
        ({"observations": [{"names": ["x"]}]}, "observations[0].key"),
        ({"episodes": {"every": 3}}, "episodes"),
        ({"episodes": {"trial": "t", "lengths": "n"}}, "episodes"),
        ({"labels": {"a": 3}}, "labels"),
        ({"info": {"a": [1]}}, "info.a"),
        ({"parts": []}, "parts"),
    ],
)
def test_a_wrong_description_names_the_entry(tmp_path, change, key):
    path = written(tmp_path, "t,x\n0,1\n1,2\n")
    said = {"dt": 0.1, "observations": [{"key": "x"}]} | change
    path.with_name("log.channels.json").write_text(json.dumps(said))
    with pytest.raises(DataError) as caught:
        read(path)
    assert caught.value.key == key
    assert caught.value.file.endswith("log.channels.json")


@pytest.mark.parametrize(
    ("change", "key"),
    [({"observations": [{"key": "y"}]}, "y"), ({"dt": "rate"}, "rate"), ({"observations": [{"key": "x[1]"}]}, "x")],
)
def test_a_description_of_columns_that_are_not_there(tmp_path, change, key):
    path = written(tmp_path, "t,x\n0,1\n1,2\n")
    said = {"dt": 0.1, "observations": [{"key": "x"}]} | change
    path.with_name("log.channels.json").write_text(json.dumps(said))
    with pytest.raises(DataError) as caught:
        read(path)[0]
    assert (caught.value.key, caught.value.file) == (key, str(path))


def elsewhere(function, argument):
    """What the function returns; an error if it hangs, which can only be ended with its process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(function, (argument,)).get(60)


def recognised_by(path) -> list[str]:
    return [reader.name for reader in readers() if reader.recognises(path)]


@pytest.mark.parametrize("name", ["pipe", "pipe.csv", "x.tfrecord-00000-of-00001", "meta/info.json"])
def test_a_pipe_is_not_waited_on(tmp_path, name):
    pipe = tmp_path / "folder" / name
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    assert elsewhere(recognised_by, pipe) == []
    assert elsewhere(recognised_by, pipe.parents[1] if name == "meta/info.json" else pipe.parent) == []
    with pytest.raises(DataError, match="no plain file"):
        read(pipe)


def test_digits_without_end_are_judged_at_once(tmp_path):
    path = written(tmp_path, "1" * 60_000 + "x,y\n1,2\n")
    assert elsewhere(Csv().recognises, path)
    assert elsewhere(NUMBER.fullmatch, "1" * 1_000_000 + "x") is None


@pytest.mark.parametrize("number", ["1", "-1.", "+.5", "1.5e-3", "12E+4", "0" * LONGEST_NUMBER])
def test_numbers(number):
    assert is_number(f" {number} ")
    assert not is_number(f"{number}." + "." * (LONGEST_NUMBER - len(number)))
