"""Conversion: the same episodes in another file, or an error and no file."""

from dataclasses import replace

import numpy as np
import pytest
from builders_tables import BUILDERS, full_dataset, npz_ours, rlds_bridge
from validity import assert_same

from vhydro.data import DataError, read
from vhydro.data.convert import convert
from vhydro.data.lerobot_write import write_lerobot
from vhydro.data.npz_native import write_npz

WRITERS = {"npz": write_npz, "lerobot": write_lerobot}
each_target = pytest.mark.parametrize("to", WRITERS)


@pytest.fixture(autouse=True)
def _needs_pyarrow():
    pytest.importorskip("pyarrow")


@each_target
@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_every_format_comes_back_the_same(build, to, tmp_path):
    path = build(tmp_path / "in")
    out = convert(path, to, tmp_path / "out")
    before, after = read(path), read(out)
    assert after.names == before.names
    for one, other in zip(before, after, strict=True):
        assert_same(one, other)
        assert one.actions.dtype == other.actions.dtype
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


@each_target
def test_nothing_is_left_when_an_episode_cannot_be_read(to, tmp_path):
    path = rlds_bridge(tmp_path / "in")
    content = bytearray(path.read_bytes())
    content[-30] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="episode 2"):
        convert(path, to, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


@each_target
def test_what_is_there_is_kept_unless_told_otherwise(to, tmp_path):
    path = npz_ours(tmp_path / "in")
    out = convert(path, to, tmp_path / "out")
    stamp = out.stat().st_mtime_ns
    with pytest.raises(DataError, match="overwrite"):
        convert(path, to, out)
    assert out.stat().st_mtime_ns == stamp
    convert(path, to, out, overwrite=True)
    assert len(read(out)) == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


@each_target
def test_a_failed_overwrite_keeps_what_was_there(to, tmp_path):
    out = WRITERS[to](full_dataset(), tmp_path / "out")
    broken = full_dataset().map(lambda e: e if e.steps == 5 else e.select(["nothing"]))
    with pytest.raises(ValueError, match="unknown channel"):
        WRITERS[to](broken, out, overwrite=True)
    assert_same(read(out)[2], full_dataset()[2])
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


CHANGES = {
    "channels": lambda e: e.select(["cube.x", "cube.vx"]),
    "inputs": lambda e: replace(e, actions=e.actions[:, :1], inputs=e.inputs[:1]),
    "observations": lambda e: replace(e, observations=e.observations.astype(np.float64)),
    "labels": lambda e: replace(e, labels={}),
    "contacts": lambda e: replace(e, contacts=e.contacts[:1]),
}


@each_target
@pytest.mark.parametrize("what", CHANGES)
def test_episodes_that_differ_are_named(what, to, tmp_path):
    mixed = full_dataset().map(lambda e: CHANGES[what](e) if e.steps == 3 else e)
    with pytest.raises(DataError) as caught:
        WRITERS[to](mixed, tmp_path / "out")
    assert (caught.value.episode, caught.value.key) == ("b", what)
    assert "episode a" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_missing_channel_is_said(tmp_path):
    mixed = full_dataset().map(lambda e: e.select(["cube.x", "cube.vx"]) if e.steps == 3 else e)
    with pytest.raises(DataError, match=r"goal.x \[-, scene\] missing"):
        write_npz(mixed, tmp_path / "out.npz")


def test_lerobot_has_one_rate_and_npz_many(tmp_path):
    mixed = full_dataset().map(lambda e: replace(e, dt=e.dt * (2 if e.steps == 3 else 1)))
    with pytest.raises(DataError, match="a LeRobot dataset has one rate"):
        write_lerobot(mixed, tmp_path / "out")
    assert [e.dt for e in read(write_npz(mixed, tmp_path / "out.npz"))] == [0.05, 0.1, 0.05]


def test_a_log_is_not_replaced_by_its_own_conversion(tmp_path):
    path = npz_ours(tmp_path)
    with pytest.raises(DataError, match="the log itself"):
        convert(path, "npz", path, overwrite=True)


def test_names_beside_the_log(tmp_path):
    path = rlds_bridge(tmp_path / "in")
    assert convert(path).parent == path.parent
    assert convert(path, "lerobot").name.endswith("_lerobot")


def test_overwriting_never_takes_the_log_or_a_strangers_folder(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    log = folder / "run.csv"
    log.write_text("t,x,u\n0,1,2\n1,2,3\n2,3,4\n")
    other = tmp_path / "photos"
    other.mkdir()
    (other / "precious.txt").write_text("keep me")
    with pytest.raises(DataError, match="a folder that holds it"):
        convert(log, "lerobot", folder, overwrite=True)
    with pytest.raises(DataError, match="not a LeRobot dataset"):
        convert(log, "lerobot", other, overwrite=True)
    assert log.exists()
    assert (other / "precious.txt").read_text() == "keep me"
