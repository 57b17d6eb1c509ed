"""Segments and paths are each other's inverse, and their files hold what they were given, whole."""

import csv
import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from vhydro.modes import Segment, as_rows, path_of, segments_of, write_segments


def test_segments_are_the_runs_of_a_path():
    assert segments_of([0, 0, 2, 2, 2, 0]) == [Segment(0, 2, 0), Segment(2, 5, 2), Segment(5, 6, 0)]
    assert segments_of([4]) == [Segment(0, 1, 4, None)]


def test_confidence_is_the_mean_probability_of_the_mode_over_its_rows():
    probability = [[0.9, 0.1], [0.7, 0.3], [0.4, 0.6], [0.55, 0.45]]
    first, second, third = segments_of([0, 0, 1, 0], probability)
    assert first == (0, 2, 0, pytest.approx((0.9 + 0.7) / 2))
    assert second == (2, 3, 1, pytest.approx(0.6))
    # The most likely path may pass through a mode that is not the likeliest of its row, and the confidence tells.
    assert segments_of([1, 1, 1, 1], probability) == [(0, 4, 1, pytest.approx((0.1 + 0.3 + 0.6 + 0.45) / 4))]
    assert third.confidence == pytest.approx(0.55)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_the_path_of_the_segments_is_the_path(path):
    segments = segments_of(path)
    assert_array_equal(path_of(segments, len(path)), path)
    assert all(a.end == b.start and a.mode != b.mode for a, b in pairwise(segments))


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([], "end at row 0; expected 4"),
        ([Segment(0, 3, 1)], "end at row 3; expected 4"),
        ([Segment(0, 2, 1), Segment(3, 4, 0)], "rows 3 to 4 where row 2 comes next"),
        ([Segment(0, 2, 1), Segment(1, 4, 0)], "rows 1 to 4 where row 2 comes next"),
        ([Segment(0, 0, 1), Segment(0, 4, 0)], "at least one row"),
    ],
)
def test_segments_with_gaps_have_no_path(segments, message):
    with pytest.raises(ValueError, match=message):
        path_of(segments, 4)


@pytest.mark.parametrize(
    ("path", "probability", "message"),
    [
        ([], None, "at least one row"),
        ([0.5], None, "float64 values; expected integers"),
        ([0, -1], None, "mode -1"),
        ([0, 1], [[1.0, 0.0]], r"shape \(1, 2\); expected .* 2 rows"),
        ([0, 2], [[1.0, 0.0], [0.0, 1.0]], "at least 3 modes"),
        ([0, 1], [[1.0, 0.0], [0.2, 0.3]], "row 1 .* sum of 1"),
        ([0, 1], [[0.0, -1.0], [0.0, 1.0]], "row 0 .* none below 0"),
        ([0, 1], [[0.5, 0.5], [np.nan, 1.0]], "row 1"),
    ],
)
def test_unusable_paths_and_probabilities_are_refused(path, probability, message):
    with pytest.raises(ValueError, match=message):
        segments_of(path, probability)


def test_rows_have_seconds():
    first, second = as_rows([Segment(0, 3, 1, 0.5), Segment(3, 4, 0)], 0.05)
    assert first == {"start": 0, "end": 3, "start_s": 0.0, "end_s": 0.15, "mode": 1, "confidence": 0.5}
    assert second == {"start": 3, "end": 4, "start_s": 0.15, "end_s": 0.2, "mode": 0, "confidence": None}
    for dt in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="dt is"):
            as_rows([], dt)


EPISODES = [[Segment(0, 3, 1, 0.5), Segment(3, 4, 0, 0.25)], [Segment(0, 2, 0)]]


def test_both_files_hold_the_segments(tmp_path):
    names = ['odd, "quoted"', "Würfel"]
    json_file, csv_file = write_segments(tmp_path / "new" / "run.1", EPISODES, names, 0.1)
    assert sorted(f.name for f in json_file.parent.iterdir()) == ["run.1.csv", "run.1.json"]
    held = json.loads(json_file.read_text("utf-8"))
    assert held["dt"] == 0.1
    assert [e["name"] for e in held["episodes"]] == names
    assert [e["segments"] for e in held["episodes"]] == [as_rows(segments, 0.1) for segments in EPISODES]
    with csv_file.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["episode"] for row in rows] == [names[0], names[0], names[1]]
    assert rows[1] == {
        "episode": names[0], "start": "3", "end": "4", "start_s": "0.3", "end_s": "0.4", "mode": "0",
        "confidence": "0.25",
    }  # fmt: skip
    assert rows[2]["confidence"] == ""


def test_files_are_replaced_together_or_not_at_all(tmp_path):
    write_segments(tmp_path / "s", EPISODES, ["a", "b"], 0.1)
    (tmp_path / "s.csv").unlink()
    (tmp_path / "s.csv").mkdir()
    before = (tmp_path / "s.json").read_bytes()
    with pytest.raises(IsADirectoryError, match="s.csv is a folder"):
        write_segments(tmp_path / "s", EPISODES[:1], ["a"], 0.1)
    assert (tmp_path / "s.json").read_bytes() == before
    assert sorted(f.name for f in tmp_path.iterdir()) == ["s.csv", "s.json"]
    (tmp_path / "s.csv").rmdir()
    write_segments(tmp_path / "s", EPISODES[:1], ["a"], 0.1)
    assert [e["name"] for e in json.loads((tmp_path / "s.json").read_text("utf-8"))["episodes"]] == ["a"]


def test_names_must_tell_the_episodes_apart(tmp_path):
    for names in (["a"], ["a", "a"]):
        with pytest.raises(ValueError, match="expected a different name for each"):
            write_segments(tmp_path / "s", EPISODES, names, 0.1)
    assert not any(tmp_path.iterdir())
