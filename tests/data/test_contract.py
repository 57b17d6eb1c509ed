"""The contract of every reader, over every layout of every format."""

import copy
import pickle

import builders_bags
import builders_hdf5
import builders_tables
import builders_zarr
import numpy as np
import pytest
from validity import GROUPS, assert_same, assert_valid

from vhydro.data import DataError, read, split
from vhydro.data.read import readers
from vhydro.episodes import pad

BUILDERS = {**builders_hdf5.BUILDERS, **builders_tables.BUILDERS, **builders_bags.BUILDERS, **builders_zarr.BUILDERS}
every_layout = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)


def test_no_layout_hides_another():
    parts = (builders_hdf5.BUILDERS, builders_tables.BUILDERS, builders_bags.BUILDERS, builders_zarr.BUILDERS)
    assert len(BUILDERS) == sum(map(len, parts))


@every_layout
def test_exactly_one_reader_recognises_it_by_its_content(build, tmp_path):
    path = build(tmp_path / "a")
    mine = [r for r in readers() if r.recognises(path)]
    assert len(mine) == 1
    assert read(path).format == mine[0].name
    if path.is_file():
        plain = path.rename(path.with_suffix(".bin" if path.suffix != ".csv" else path.suffix))
        assert [r.name for r in readers() if r.recognises(plain)] == [mine[0].name]


@every_layout
def test_episodes_are_whole_and_named(build, tmp_path):
    dataset = read(build(tmp_path / "a"))
    assert len(dataset) == len(dataset.names) == len(set(dataset.names)) >= 1
    for episode in dataset:
        assert_valid(episode)
        assert {c.group for c in episode.channels} <= GROUPS - {"action"}
        assert {c.group for c in episode.inputs} <= {"action"}
        assert episode.steps >= 1
    assert len({(e.channels, e.inputs) for e in dataset}) == 1
    pad(list(dataset))


@every_layout
def test_reading_twice_gives_the_same(build, tmp_path):
    path = build(tmp_path / "a")
    dataset = read(path)
    for first, again, anew in zip(dataset, dataset, read(path), strict=True):
        assert_same(first, again)
        assert_same(first, anew)


@every_layout
def test_episodes_come_in_any_order_and_do_not_share_memory(build, tmp_path):
    dataset = read(build(tmp_path / "a"))
    forward = list(dataset)
    for i in reversed(range(len(dataset))):
        assert_same(dataset[i], forward[i])
    changed, before = dataset[0], forward[0].observations.copy()
    if changed.observations.flags.writeable:
        changed.observations[:] = 12345
    np.testing.assert_array_equal(dataset[0].observations, before)


@every_layout
def test_a_dataset_can_be_sent_to_another_process(build, tmp_path):
    dataset = read(build(tmp_path / "a"))
    dataset[0]
    assert_same(pickle.loads(pickle.dumps(dataset))[0], dataset[0])
    assert_same(copy.deepcopy(dataset)[0], dataset[0])


@every_layout
def test_a_folder_of_two_is_read_as_a_whole(build, tmp_path):
    one, two = build(tmp_path / "a"), build(tmp_path / "b")
    whole = read(tmp_path)
    parts = [*read(one), *read(two)]
    assert len(whole) == len(parts)
    assert len(set(whole.names)) == len(whole)
    for mine, part in zip(whole, parts, strict=True):
        assert_same(mine, part)


@every_layout
def test_opening_reads_no_episode(build, tmp_path, monkeypatch):
    path = build(tmp_path / "a")
    from vhydro import episodes

    made = []
    monkeypatch.setattr(episodes.Episode, "__post_init__", lambda self: made.append(self))
    dataset = read(path)
    assert not made
    dataset[len(dataset) - 1]
    assert len(made) == 1


@every_layout
def test_splits_name_episodes(build, tmp_path):
    dataset = read(build(tmp_path / "a"))
    if len(dataset) < 3:
        pytest.skip("too few episodes to split")
    parts = split(dataset, seed=0).of(dataset)
    assert sorted(n for p in parts for n in p.names) == sorted(dataset.names)


def test_what_is_not_there_or_empty_or_unknown_is_refused(tmp_path):
    (tmp_path / "empty.h5").touch()
    (tmp_path / "prose.txt").write_text("nothing to see")
    (tmp_path / "void").mkdir()
    for name in ("missing.h5", "empty.h5", "prose.txt", "void"):
        with pytest.raises(DataError, match=name):
            read(tmp_path / name)


def test_a_link_that_leaves_the_folder_is_not_followed(tmp_path):
    folder, elsewhere = tmp_path / "logs", tmp_path / "elsewhere"
    builders_tables.csv_guessed(elsewhere)
    builders_tables.csv_guessed(folder / "inner")
    (folder / "same.csv").symlink_to(folder / "inner" / "log.csv")
    count = len(read(folder))
    (folder / "other.csv").symlink_to(elsewhere / "log.csv")
    (folder / "inner" / "other").symlink_to(elsewhere)
    assert len(read(folder)) == count
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "x.csv").symlink_to(elsewhere / "log.csv")
    with pytest.raises(DataError, match="none recognised"):
        read(tmp_path / "links")
