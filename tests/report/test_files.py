"""Result files: all or none."""

import json
import math
from pathlib import Path

import pytest

from vhydro.report.files import staged, write_json


def test_files_arrive_together_and_replace_old_ones(tmp_path):
    (tmp_path / "a").write_text("old")
    with staged(tmp_path) as folder:
        (folder / "a").write_text("new")
        (folder / "b").write_text("b")
        assert (tmp_path / "a").read_text() == "old"
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "new", "b": "b"}


def test_a_failure_leaves_what_was_there(tmp_path):
    (tmp_path / "a").write_text("old")

    def fail():
        with staged(tmp_path) as folder:
            (folder / "a").write_text("new")
            raise KeyError("broken")

    with pytest.raises(KeyError):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_failure_leaves_no_new_folder(tmp_path):
    with pytest.raises(KeyError), staged(tmp_path / "new"):
        raise KeyError("broken")
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_way_is_refused_before_any_work(tmp_path):
    (tmp_path / "x").write_text("mine")
    with pytest.raises(OSError, match="is a file; expected a folder"), staged(tmp_path / "x"):
        pytest.fail("the work began")


def test_json_holds_no_infinity(tmp_path):
    write_json(tmp_path / "x.json", {"a": [1.5, -math.inf], "b": (Path("c"), math.nan)})
    assert json.loads((tmp_path / "x.json").read_text("utf-8")) == {"a": [1.5, None], "b": ["c", None]}
