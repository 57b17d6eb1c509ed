"""LeRobot datasets: v2, v3, and our own writing of v2.1."""

import json
from pathlib import Path

import numpy as np
import pytest
from builders_tables import ROWS, full_dataset, lerobot_ours, lerobot_v2, lerobot_v3, ramp
from validity import assert_same

from vhydro.data import DataError, lerobot, lerobot_meta, read
from vhydro.data.lerobot_write import write_lerobot

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize(
    ("build", "names"),
    [(lerobot_v2, ["state.shoulder", "state.gripper"]), (lerobot_v3, ["shoulder.pos", "gripper.pos"])],
)
def test_states_actions_names_and_rate(tmp_path, build, names):
    dataset = read(build(tmp_path))
    assert dataset.format == "LeRobot"
    assert any("observation.images.top" in note for note in dataset.notes)
    for i, (n, episode) in enumerate(zip(ROWS, dataset, strict=True)):
        assert [c.name for c in episode.channels] == [*names, "environment_state.1"]
        assert [c.group for c in episode.channels] == ["joints", "gripper", "object"]
        np.testing.assert_array_equal(episode.observations[:, :2], ramp(n, 2, 10.0 * i, np.float32))
        np.testing.assert_array_equal(episode.actions, ramp(n, 2, -i, np.float32)[:-1])
        assert (episode.dt, episode.info["task"]) == (0.1, "push")


def test_our_own_gives_back_everything(tmp_path):
    made, found = full_dataset(), read(lerobot_ours(tmp_path / "x"))
    assert found.names == made.names
    for one, other in zip(made, found, strict=True):
        assert_same(one, other)
        assert one.actions.dtype == other.actions.dtype
        np.testing.assert_array_equal(one.contacts[0].tangential, other.contacts[0].tangential)
        assert other.contacts[1].tangential is None


def test_our_own_keeps_to_the_standard(tmp_path):
    folder = lerobot_ours(tmp_path / "x")
    info = json.loads((folder / "meta" / "info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["total_frames"]) == ("v2.1", 20, sum(ROWS))
    assert not any("/" in key for key in info["features"])
    lines = {
        k: (folder / "meta" / f"{k}.jsonl").read_text().splitlines() for k in ("episodes", "episodes_stats", "tasks")
    }
    assert [json.loads(line)["length"] for line in lines["episodes"]] == list(ROWS)
    assert json.loads(lines["tasks"][0]) == {"task_index": 0, "task": "push"}
    first = 0
    for i, n in enumerate(ROWS):
        table = pq.read_table(folder / "data" / "chunk-000" / f"episode_{i:06d}.parquet")
        assert set(table.column_names) == set(info["features"])
        assert table.column("index").to_pylist() == list(range(first, first + n))
        np.testing.assert_allclose(table.column("timestamp").to_numpy(), np.arange(n) / 20)
        stats = json.loads(lines["episodes_stats"][i])["stats"]["observation.state"]
        np.testing.assert_allclose(stats["mean"], np.nanmean(full_dataset()[i].observations, axis=0), rtol=1e-6)
        assert stats["count"] == [n]
        actions = np.array(table.column("action").to_pylist())
        np.testing.assert_array_equal(actions[-1], actions[-2])  # padding
        first += n


def test_a_dataset_without_actions_and_of_many_hidden_values(tmp_path):
    from dataclasses import replace

    bare = full_dataset().map(
        lambda e: replace(
            e, actions=np.zeros((e.steps, 0), np.float32), inputs=(), observations=e.observations * np.nan
        )
    )
    found = read(write_lerobot(bare, tmp_path / "x"))
    for one, other in zip(bare, found, strict=True):
        assert_same(one, other)


def changed_info(folder, **changes) -> None:
    path = folder / "meta" / "info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"codebase_version": "v1.6"},
        {"fps": 0},
        {"fps": "fast"},
        {"features": []},
        {"chunks_size": 0},
        {"data_path": "../{episode_index}"},
        {"data_path": "/etc/passwd"},
        {"data_path": "{episode_index.__class__}"},
        {"data_path": "{x}"},
    ],
)
def test_wrong_info_is_refused(tmp_path, changes):
    folder = lerobot_v2(tmp_path / "x")
    changed_info(folder, **changes)
    with pytest.raises(DataError):
        list(read(folder))


@pytest.mark.parametrize(
    ("column", "values", "key"),
    [
        ("observation.state", None, "observation.state"),
        ("observation.state", pa.array([[1.0, 2.0]] * 3 + [[1.0]]), "observation.state"),
        ("observation.state", pa.array([[1.0, 2.0]] * 3 + [None]), "observation.state"),
        ("observation.state", pa.array(["a"] * 4), "observation.state"),
        ("action", pa.array([[1.0, np.inf]] * 4), "action.2"),
        ("episode_index", pa.array([0, 0, 0, 1]), "length"),
    ],
)
def test_a_wrong_column_names_episode_and_key(tmp_path, column, values, key):
    folder = lerobot_v2(tmp_path / "x")
    path = folder / "data" / "chunk-000" / "episode_000001.parquet"
    columns = {name: pq.read_table(path).column(name) for name in pq.read_schema(path).names if name != column}
    pq.write_table(pa.table(columns | ({column: values} if values is not None else {})), path)
    changed_info(folder, features=json.loads((folder / "meta" / "info.json").read_text())["features"])
    dataset = read(folder)
    dataset[0], dataset[2]
    with pytest.raises(DataError) as caught:
        dataset[1]
    assert caught.value.episode == "episode_000001"
    assert caught.value.key in (key, "action.gripper" if key == "action.2" else key)
    assert caught.value.file == str(path)


def test_an_absurd_length_is_refused_before_allocation(tmp_path):
    folder = lerobot_v2(tmp_path / "x")
    (folder / "meta" / "episodes.jsonl").write_text('{"episode_index": 0, "length": 1000000000000000}')
    with pytest.raises(DataError, match="an episode of 1000000000000000 rows"):
        read(folder)[0]


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    folder = lerobot_v2(tmp_path / "x")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(DataError, match="Run: pip install pyarrow"):
        read(folder)[0]


def test_names_that_repeat_are_told_apart_by_their_feature(tmp_path):
    folder = lerobot_v3(tmp_path / "x")
    features = json.loads((folder / "meta" / "info.json").read_text())["features"]
    features["observation.environment_state"]["names"] = ["gripper.pos"]
    changed_info(folder, features=features)
    names = [c.name for c in read(folder)[0].channels]
    assert names == ["state.shoulder.pos", "state.gripper.pos", "environment_state.gripper.pos"]


def test_paths_are_filled_in_by_hand():
    from pathlib import Path

    filled = lerobot_meta.filled_path(Path("x"), "a-{n:03d}/b_{m}", {"n": 7, "m": 12})
    assert filled == Path("x/a-007/b_12")


@pytest.mark.parametrize("build", [lerobot_v2, lerobot_v3, lerobot_ours])
def test_a_file_that_promises_too_much_is_not_read(tmp_path, build, monkeypatch, allow):
    folder = build(tmp_path / "x")
    rows = 100_000
    for path in folder.rglob("data/**/*.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.take(np.zeros(rows, int)), path, compression="gzip")
        assert path.stat().st_size < 20_000
    dataset = read(folder)
    allow(8 * rows)
    monkeypatch.setattr(pq, "read_table", None)
    with pytest.raises(DataError, match=r"columns of [0-9,]+ values; expected at most 100,000 in a file") as caught:
        dataset[1]
    assert caught.value.episode == dataset.names[1]


def test_a_list_of_episodes_that_promises_too_much_is_not_read(tmp_path, monkeypatch):
    folder = lerobot_v3(tmp_path / "x")
    path = folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(table[:2], path)
    pq.write_table(table[2:], path.with_name("file-001.parquet"))
    monkeypatch.setattr(lerobot_meta, "MOST_LISTED", 15)  # three episodes of five values, in two files
    assert len(read(folder)) == 3
    monkeypatch.setattr(lerobot_meta, "MOST_LISTED", 14)
    with pytest.raises(DataError, match="a list of 15 values, more than 14"):
        read(folder)


def test_only_the_head_of_info_is_looked_at(tmp_path, monkeypatch):
    folder = lerobot_v2(tmp_path / "x")
    assert lerobot.LeRobot().recognises(folder)
    monkeypatch.setattr(lerobot, "HEAD", 10)
    assert not lerobot.LeRobot().recognises(folder)


@pytest.mark.parametrize("names", [["a", "b", "b"], ["a", "b", "c", "c"], ["a", "a", "b", "c"], ["a", "b"]])
def test_our_own_with_other_names_than_episodes_is_refused(tmp_path, names):
    folder = lerobot_ours(tmp_path / "x")
    path = folder / "meta" / "vhydro.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"episodes": [said["episodes"][0] | {"name": n} for n in names]}))
    with pytest.raises(DataError, match="key episodes: .*3 names, all different"):
        read(folder)


def linked(folder: Path, kept: Path) -> Path:
    """The dataset as a download cache has it: every file a link to where its contents are kept."""
    kept.mkdir()
    for i, path in enumerate(sorted(p for p in folder.rglob("*") if p.is_file())):
        path.rename(kept / str(i))
        path.symlink_to(kept / str(i))
    return folder


@pytest.mark.parametrize("build", [lerobot_v2, lerobot_v3])
def test_a_dataset_of_links_is_read(tmp_path, build):
    whole = [e.observations.tolist() for e in read(build(tmp_path / "plain"))]
    folder = linked(build(tmp_path / "snapshot"), tmp_path / "blobs")
    assert [e.observations.tolist() for e in read(folder)] == whole


@pytest.mark.parametrize("build", [lerobot_v2, lerobot_v3])
@pytest.mark.parametrize("template", ["/etc/{episode_index}{chunk_index}", "../x.parquet", "a/../../x.parquet"])
def test_a_path_out_of_the_dataset_is_refused(tmp_path, build, template):
    folder = build(tmp_path / "x")
    path = folder / "meta" / "info.json"
    template = template.replace("{episode_index}{chunk_index}", "x.parquet")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"data_path": template}))
    with pytest.raises(DataError, match="outside the dataset"):
        read(folder)


def test_a_rate_that_the_time_stamps_contradict_is_refused(tmp_path):
    folder = lerobot_v2(tmp_path / "x")
    for path in folder.rglob("data/**/*.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.append_column("timestamp", pa.array(0.1 * np.arange(len(table)))), path)
    assert read(folder)[0].dt == 0.1
    path = folder / "meta" / "info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fps": 90}))
    with pytest.raises(DataError, match="key timestamp: found steps of 0.1 s, and 90 Hz in meta/info.json"):
        read(folder)[0]
