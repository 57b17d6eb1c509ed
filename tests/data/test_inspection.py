"""What `vhydro data inspect` says."""

import io

import numpy as np
import pytest
from builders_hdf5 import BUILDERS as HDF5
from builders_tables import BUILDERS as TABLES
from rich.console import Console

from vhydro.data import sample
from vhydro.data.inspection import inspect, show, sparkline
from vhydro.data.sample import FILES, FOLDER

BUILDERS = HDF5 | TABLES


def text(found, rows=40) -> str:
    out = io.StringIO()
    show(found, Console(file=out, width=140), rows=rows)
    return out.getvalue()


@pytest.mark.parametrize("name", BUILDERS)
def test_every_format_is_shown(name, tmp_path):
    found = inspect(BUILDERS[name](tmp_path / "log"))
    shown = text(found, rows=1000)
    assert f"episodes  {len(found.dataset)}" in shown
    assert all(channel in shown for channel in found.observations)
    assert "Hz" in shown


def test_ranges_and_forces_are_those_of_the_file():
    found = inspect(FOLDER / FILES["PushCube"])
    logs = list(sample("PushCube"))
    heights = np.concatenate([e.observations[:, e.columns(body="cube", quantities=("z",))[0]] for e in logs])
    assert (found.observations["cube.z"].low, found.observations["cube.z"].high) == (heights.min(), heights.max())
    assert found.steps == [e.steps for e in logs]
    assert found.contacts["obj__table"].peak == max(
        c.peak.max() for e in logs for c in e.contacts if c.name == "obj__table"
    )
    shown = text(found)
    assert "3 successful" in shown
    assert "obj + table" in shown


def test_a_bad_episode_is_named_and_the_others_are_shown(tmp_path):
    import h5py

    path = HDF5[next(iter(HDF5))](tmp_path)
    with h5py.File(path, "a") as file:
        first = sorted(file)[0]
        del file[first]["actions"]
    found = inspect(path)
    assert len(found.problems) == 1
    assert first in found.problems[0]
    assert "wrong:" in text(found)
    assert len(found.steps) == len(found.dataset) - 1


def test_a_folder_of_several_tasks_says_so(tmp_path):
    found = inspect(FOLDER)
    assert any("differ in their channels" in p for p in found.problems)


def test_sparklines():
    assert sparkline(np.arange(8.0), width=8) == "▁▂▃▄▅▆▇█"
    assert sparkline(np.full(5, 3.0)) == "─────"
    assert sparkline(np.array([0.0, np.nan, 1.0])) == "▁ █"
    assert sparkline(np.full(4, np.nan)) == "    "


def test_names_with_brackets_are_shown_as_they_are(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("t,pos[m],pos[/m],u\n0,1,2,3\n1,2,3,4\n2,3,4,5\n")
    shown = text(inspect(path))
    assert "pos[m]" in shown
    assert "pos[/m]" in shown
