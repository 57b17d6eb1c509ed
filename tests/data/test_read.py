"""What `read` takes besides a path: patterns and episodes."""

import pickle
import sys

import builders_bags
import builders_hdf5
import builders_tables
import builders_zarr
import h5py
import pytest
from builders_tables import ROWS, csv_guessed, npz_ours
from validity import assert_same

from vhydro.cli import main
from vhydro.data import DataError, read
from vhydro.data.convert import convert


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (["1"], (1,)), ([2, 0], (2, 0)), (["0:2"], (0, 1)), (["1:"], (1, 2)), ([":1", "2"], (0, 2)),
        (["0:99", 1], (0, 1, 2)), (["c/d"], (2,)),
    ],
)  # fmt: skip
def test_episodes_are_chosen_by_number_range_or_name(tmp_path, wanted, found):
    path = npz_ours(tmp_path)
    whole, some = read(path), read(path, episodes=wanted)
    assert some.names == tuple(whole.names[i] for i in found)
    for mine, i in zip(some, found, strict=True):
        assert_same(mine, whole[i])


@pytest.mark.parametrize(
    ("wanted", "words"),
    [("9", "has 3; expected a number from 0 to 2"), ("x", "a name such as a, b"), ("5:9", "none"), (":", "no")],
)
def test_episodes_that_are_not_there_are_refused(tmp_path, wanted, words):
    with pytest.raises(ValueError, match=words):
        read(npz_ours(tmp_path), episodes=[wanted])
    with pytest.raises(ValueError, match="expected lists"):
        read(npz_ours(tmp_path / "b"), episodes="1")


def test_a_pattern_is_all_that_it_matches(tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        csv_guessed(tmp_path / name)
    assert len(read(tmp_path / "*" / "log.csv")) == 3 * len(ROWS)
    assert len(read(f"{tmp_path}/[ab]")) == 2 * len(ROWS)
    assert read(tmp_path / "?" / "*.csv").names[0] == "a/log.csv:0"
    monkeypatch.chdir(tmp_path / "a")
    assert read("*.csv").names == ("log.csv:0", "log.csv:1", "log.csv:2")
    with pytest.raises(DataError, match="nothing that matches"):
        read(tmp_path / "*.mcap")
    (tmp_path / "a" / "other.csv").symlink_to(tmp_path / "b" / "log.csv")
    assert len(read("*.csv")) == len(ROWS)  # a link that leaves the folder is not meant


def test_a_folder_of_links_says_why_it_is_none(tmp_path):
    path = csv_guessed(tmp_path / "logs")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "log.csv").symlink_to(path)
    with pytest.raises(DataError, match="Links out of the folder are not followed"):
        read(tmp_path / "links")


def test_what_a_pattern_is_converted_to_has_to_be_named(tmp_path):
    path = csv_guessed(tmp_path)
    with pytest.raises(ValueError, match="Give --out"):
        convert(tmp_path / "*.csv")
    assert len(read(convert(tmp_path / "*.csv", out=tmp_path / "x.npz"))) == len(read(path))


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path):
    path = csv_guessed(tmp_path)
    assert len(read(path.rename(tmp_path / "log[1].csv"))) == len(ROWS)


@pytest.mark.parametrize("layout", ["maniskill_flat", "sawyer", "rlds_bridge", "rlds_other", "bridge_numpy"])
def test_a_rate_takes_the_place_of_one_that_is_assumed(tmp_path, layout):
    path = (builders_hdf5.BUILDERS | builders_tables.BUILDERS)[layout](tmp_path)
    if layout == "sawyer":
        with h5py.File(path, "r+") as file:  # what tells its rate
            for group in (file["data"], *file["data"].values()):  # pyright: ignore[reportAttributeAccessIssue]
                del group.attrs["dt"]
            del file["data"].attrs["env_args"]
    assumed = read(path)
    assert assumed.assumed_rate in assumed.notes
    given = read(path, rate=12.5)
    assert given[0].dt == 0.08
    assert set(given.notes) == set(assumed.notes) - {assumed.assumed_rate}


def test_a_log_with_a_rate_can_be_sent_to_another_process(tmp_path):
    (tmp_path / "x.csv").write_text("x,y\n1,2\n2,3\n")
    dataset = read(tmp_path / "x.csv", rate=4)
    assert pickle.loads(pickle.dumps(dataset))[0].dt == 0.25


@pytest.mark.parametrize(
    ("layout", "package"), [("bag_arm", "mcap"), ("parquet_guessed", "pyarrow"), ("zarr_umi", "numcodecs")]
)
def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch, layout, package):
    path = (builders_bags.BUILDERS | builders_tables.BUILDERS | builders_zarr.BUILDERS)[layout](tmp_path)
    for name in [n for n in sys.modules if n == package or n.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=f"Run: pip install {package}"):
        read(path)[0]


def test_verbs_take_them(tmp_path, capsys):
    csv_guessed(tmp_path / "a")
    csv_guessed(tmp_path / "b")
    main(["data", "inspect", f"{tmp_path}/*/log.csv", "--episodes", "0:2", "a/log.csv:2", "--rate", "10"])
    assert "episodes  3" in capsys.readouterr().out
