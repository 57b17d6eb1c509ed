"""LeRobot datasets: v2, v3, and our own writing of both."""

import json
from pathlib import Path

import numpy as np
import pytest
from builders_tables import ROWS, full_dataset, lerobot_ours, lerobot_v2, lerobot_v3, ramp
from validity import assert_same

from vhydro.data import DataError, lerobot, lerobot_meta, lerobot_v30, read, row_groups
from vhydro.data.lerobot_language import persistent_column
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


BOTH = pytest.mark.parametrize("version", ["v3.0", "v2.1"])


@BOTH
def test_the_numbers_of_every_frame_are_where_the_standard_wants_them(tmp_path, version):
    folder = write_lerobot(full_dataset(), tmp_path / "x", version=version)
    info = json.loads((folder / "meta" / "info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["total_frames"]) == (version, 20, sum(ROWS))
    assert not any("/" in key for key in info["features"])
    files = sorted((folder / "data").rglob("*.parquet"))
    table = pa.concat_tables([pq.read_table(file) for file in files])
    assert set(table.column_names) == set(info["features"])
    assert table.column("index").to_pylist() == list(range(sum(ROWS)))
    assert table.column("episode_index").to_pylist() == [i for i, n in enumerate(ROWS) for _ in range(n)]
    stamps = np.concatenate([np.arange(n) / 20 for n in ROWS])
    np.testing.assert_allclose(table.column("timestamp").to_numpy(), stamps)
    actions = np.array(table.column("action").to_pylist())
    for end in np.cumsum(ROWS):
        np.testing.assert_array_equal(actions[end - 1], actions[end - 2])  # padding
    for one, other in zip(full_dataset(), read(folder), strict=True):
        assert_same(one, other)


def test_v21_lists_episodes_in_lines(tmp_path):
    folder = write_lerobot(full_dataset(), tmp_path / "x", version="v2.1")
    lines = {
        k: (folder / "meta" / f"{k}.jsonl").read_text().splitlines() for k in ("episodes", "episodes_stats", "tasks")
    }
    assert [json.loads(line)["length"] for line in lines["episodes"]] == list(ROWS)
    assert json.loads(lines["tasks"][0]) == {"task_index": 0, "task": "push"}
    for i, n in enumerate(ROWS):
        stats = json.loads(lines["episodes_stats"][i])["stats"]["observation.state"]
        np.testing.assert_allclose(stats["mean"], np.nanmean(full_dataset()[i].observations, axis=0), rtol=1e-6)
        assert stats["count"] == [n]


def test_v30_lists_episodes_in_parquet(tmp_path, monkeypatch):
    monkeypatch.setattr(lerobot_v30, "IN_FILE", 2)
    monkeypatch.setattr(lerobot_v30, "CHUNK", 1)
    monkeypatch.setattr(lerobot_v30, "LISTED", 2)
    folder = write_lerobot(full_dataset(), tmp_path / "x")
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == [
        "data/chunk-000/file-000.parquet", "data/chunk-001/file-000.parquet",
        "meta/episodes/chunk-000/file-000.parquet", "meta/info.json", "meta/stats.json",
        "meta/tasks.parquet", "meta/vhydro.json",
    ]  # fmt: skip
    episodes = pq.read_table(folder / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [e["length"] for e in episodes] == list(ROWS)
    assert [(e["dataset_from_index"], e["dataset_to_index"]) for e in episodes] == [(0, 6), (6, 10), (10, 15)]
    assert [(e["data/chunk_index"], e["data/file_index"]) for e in episodes] == [(0, 0), (0, 0), (1, 0)]
    assert [e["tasks"] for e in episodes] == [["push"]] * 3
    assert pq.read_metadata(folder / "data/chunk-000/file-000.parquet").num_row_groups == 2  # one for each episode
    tasks = pq.read_table(folder / "meta/tasks.parquet")
    assert tasks.to_pylist() == [{"task_index": 0, "task": "push"}]
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]
    for one, other in zip(full_dataset(), read(folder), strict=True):
        assert_same(one, other)


def test_statistics_are_those_of_all_rows_that_were_seen(tmp_path):
    folder = write_lerobot(full_dataset(), tmp_path / "x")
    rows = np.concatenate([e.observations for e in full_dataset()]).astype(np.float64)
    found = json.loads((folder / "meta/stats.json").read_text())["observation.state"]
    for name, truth in (("min", np.nanmin), ("max", np.nanmax), ("mean", np.nanmean), ("std", np.nanstd)):
        np.testing.assert_allclose(found[name], truth(rows, axis=0), rtol=1e-6, err_msg=name)
    assert found["count"] == [len(rows)]
    episodes = pq.read_table(folder / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    for of, episode in zip(episodes, full_dataset(), strict=True):
        middle = np.nanmedian(episode.observations.astype(np.float64), axis=0)
        np.testing.assert_allclose(of["stats/observation.state/q50"], middle)
    middles = np.array([e["stats/observation.state/q50"] for e in episodes])
    np.testing.assert_allclose(found["q50"], np.average(middles, axis=0, weights=ROWS))  # as LeRobot takes them


def test_a_label_of_two_types_is_refused(tmp_path):
    from dataclasses import replace

    mixed = full_dataset().map(
        lambda e: replace(e, labels=e.labels | {"mode": e.labels["mode"].astype(str)}) if e.steps == 3 else e
    )
    with pytest.raises(DataError, match="episode b, key label.mode: found values of type string") as caught:
        write_lerobot(mixed, tmp_path / "x")
    assert "int64 as in episode a" in str(caught.value)


def test_only_the_rows_of_an_episode_are_read(tmp_path, monkeypatch):
    folder = write_lerobot(full_dataset(), tmp_path / "x")
    read_rows, asked = row_groups.row_groups, []
    monkeypatch.setattr(
        lerobot, "row_groups", lambda file, groups, c: asked.append(groups) or read_rows(file, groups, c)
    )
    for i in (1, 2):
        read(folder)[i]
    assert asked == [(1,), (2,)]


def test_a_file_that_changed_is_read_again(tmp_path):
    folder = lerobot_v3(tmp_path / "x")
    before = read(folder)[2].observations
    path = folder / "data" / "chunk-000" / "file-001.parquet"
    table = pq.read_table(path)
    moved = pa.array((before[:, :2] + 1).tolist(), pa.list_(pa.float32()))
    place = table.column_names.index("observation.state")
    pq.write_table(table.set_column(place, "observation.state", moved), path)
    np.testing.assert_allclose(read(folder)[2].observations[:, :2], before[:, :2] + 1)


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
    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", None)
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


def test_language_of_other_styles_stays(tmp_path):
    """A plan that somebody wrote stays, with its calls of tools; the subtasks are the new ones."""
    from vhydro.data.lerobot_annotate import write_annotated
    from vhydro.data.lerobot_language import Subtask

    rows = [
        {"role": "user", "content": "first push", "style": "plan", "timestamp": 0.1, "tool_calls": ['{"name": "say"}']},
        {"role": "assistant", "content": "old", "style": "subtask", "timestamp": 0.0},
    ]
    folder = lerobot_v3(tmp_path / "x")
    for path in folder.rglob("data/**/*.parquet"):
        table = pq.read_table(path)
        frames = table.column("frame_index").to_numpy()
        column = persistent_column(pa, [], np.zeros(len(table), np.float32), rows)
        table = table.append_column("timestamp", pa.array((0.1 * frames).astype(np.float32)))
        pq.write_table(table.append_column("language_persistent", column), path)
    write_annotated(read(folder), tmp_path / "out", lambda i: [Subtask(0, "near"), Subtask(2, f"far {i}")])
    for i, file in ((1, "file-000"), (2, "file-001")):
        table = pq.read_table(tmp_path / "out" / "data" / "chunk-000" / f"{file}.parquet")
        told = table.filter(pa.compute.equal(table.column("episode_index"), i)).column("language_persistent")
        assert [(r["style"], r["content"], r["tool_calls"]) for r in told[0].as_py()] == [
            ("subtask", "near", None), ("plan", "first push", ['{"name": "say"}']), ("subtask", f"far {i}", None),
        ]  # fmt: skip
        assert table.column_names.count("language_persistent") == 1
    for one, other in zip(read(folder), read(tmp_path / "out"), strict=True):
        assert_same(one, other)
