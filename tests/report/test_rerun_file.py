"""A run for Rerun's viewer: written whole, and readable by its own reader."""

import re
import subprocess
import sys

import pytest

from made_runs import made_run
from vhydro.commands.view import ViewCommand, has_screen, run_view
from vhydro.report.run_files import Run, read_run


def test_without_the_extra_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(ValueError, match=r"Run: pip install 'vhydro\[rerun\]'"):
        run_view(ViewCommand(made_run(tmp_path / "run")))


def test_bodies_are_channels_with_three_places():
    from vhydro.report.rerun_file import bodies

    assert bodies(Run("run", channels=("cup.x", "arm.1", "cup.y", "cup.z", "lid.x"))) == {"cup": [0, 2, 3]}


def test_a_window_needs_a_screen(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not has_screen()
    monkeypatch.setenv("DISPLAY", ":0")
    assert has_screen()


def test_a_run_is_a_recording_that_can_be_read_back(tmp_path, capsys):
    pytest.importorskip("rerun")
    folder = made_run(tmp_path / "run")
    assert run_view(ViewCommand(folder, open=False)) == folder / "run.rrd"
    assert f"rerun {folder / 'run.rrd'}" in capsys.readouterr().out
    words = [sys.executable, "-m", "rerun", "rrd", "stats", str(folder / "run.rrd")]
    said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    run = read_run(folder)
    assert len(re.findall("/believed: ", said)) == len(run.channels) * len(run.episodes)
    assert len(re.findall("/segments: ", said)) == len(run.episodes)
    assert not list(folder.glob(".*"))
