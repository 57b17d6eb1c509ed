"""The same bytes whatever the order, the place and the interruption; nothing computed twice, nothing lost."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import grid_work
import numpy as np
import pytest

from vhydro_audits.grid import Group, GroupFailedError, run_grid
from vhydro_audits.store import as_json, commit

CONFIG = {"scale": 0.1, "tasks": ["task"], "filter": {"particles": 64}}
COUNT = 5


def run(folder, work=grid_work.thirds, *, config=CONFIG, groups=None, workers=0, **more):
    return run_grid(groups or grid_work.groups(COUNT), work, config, folder, workers=workers, **more)


def run_bytes(folder) -> bytes:
    return (folder / "cells.jsonl.gz").read_bytes()


@pytest.fixture
def expected(tmp_path) -> bytes:
    """The bytes of an undisturbed run."""
    run(tmp_path / "expected")
    return run_bytes(tmp_path / "expected")


@pytest.fixture
def side(tmp_path) -> dict:
    """A config with the path of a file that work may write."""
    return {**CONFIG, "side": str(tmp_path / "side"), "sleep": 0.0}


def lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def test_cells_are_sorted_exact_and_null_where_they_are_no_numbers(tmp_path):
    results = run(tmp_path)
    records = [json.loads(line) for line in gzip.decompress(run_bytes(tmp_path)).splitlines()]
    assert results.cells == records
    assert [(r["task"], r["seed"]) for r in records] == [(f"task {i}", s) for s in range(3) for i in range(COUNT)]
    assert [r["third"] for r in records[1::COUNT]] == [1 / 3 * 0.1, 2 / 3 * 0.1, 3 / 3 * 0.1]
    assert records[0]["nothing"] is None
    assert records[0]["all"] is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cells.jsonl.gz", "run.json"]


def test_neither_order_nor_processes_change_a_byte(tmp_path, expected):
    run(tmp_path / "reversed", groups=grid_work.groups(COUNT)[::-1])
    run(tmp_path / "processes", workers=2)
    assert run_bytes(tmp_path / "reversed") == expected
    assert run_bytes(tmp_path / "processes") == expected


def test_workers_are_told_to_use_one_thread_and_this_process_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    results = run(tmp_path, grid_work.threads, groups=grid_work.groups(1), workers=1)
    assert results.cells[0]["threads"] == "1"
    assert os.environ["OMP_NUM_THREADS"] == "7"


def test_a_complete_grid_is_recognised(tmp_path, side):
    first = run(tmp_path / "out", grid_work.noted, config=side)
    (tmp_path / "out" / "cells").mkdir()  # killed before it could be removed
    again = run(tmp_path / "out", grid_work.noted, config=side)
    assert again == first
    assert len(lines(side["side"])) == COUNT
    assert not (tmp_path / "out" / "cells").exists()


def test_fresh_computes_all_again_and_leaves_strangers_alone(tmp_path, side):
    out = tmp_path / "out"
    run(out, grid_work.noted, config=side)
    (out / "notes.txt").write_text("mine")
    run(out, grid_work.noted, config={**side, "scale": 2.0}, overwrite=True)
    assert len(lines(side["side"])) == 2 * COUNT
    assert (out / "notes.txt").exists()


def beside_ours() -> str:
    """The search path of a process that is to find `grid_work` and what this one was told to find."""
    return os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))


def test_a_killed_grid_computes_nothing_again(tmp_path, side):
    """Killed for real, with its workers in the middle of their groups."""
    out, count, config = tmp_path / "out", 12, {**side, "sleep": 0.15}
    program = (
        "import grid_work, json, sys; from pathlib import Path; from vhydro_audits.grid import run_grid\n"
        f"run_grid(grid_work.groups({count}), grid_work.noted, json.loads(sys.argv[1]), Path(sys.argv[2]), "
        "workers=2)"
    )
    command = [sys.executable, "-c", program, json.dumps(config), str(out)]
    environment = {**os.environ, "PYTHONPATH": beside_ours()}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        while len(list(out.glob("cells/*.json"))) < 4:
            assert child.poll() is None, child.communicate()
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=20)  # ends when all who hold its output have: no worker outlives it
    kept, begun = len(list(out.glob("cells/*.json"))), len(lines(config["side"]))
    (out / "cells" / ".0123.json.partial").write_text('{"key": {"ta')
    seconds = json.loads((out / "run.json").read_text())["seconds"]

    results = run(out, grid_work.noted, config=config, groups=grid_work.groups(count), workers=2)
    run(tmp_path / "whole", grid_work.noted, config=config | {"sleep": 0.0}, groups=grid_work.groups(count))
    assert 4 <= kept < count
    assert len(lines(config["side"])) == begun + (count - kept) + count
    assert run_bytes(out) == run_bytes(tmp_path / "whole")
    assert results.seconds > seconds > 0


def test_a_worker_that_dies_is_replaced(tmp_path, side, expected):
    run(tmp_path / "out", grid_work.dies_once, config=side, workers=2)
    assert run_bytes(tmp_path / "out") == expected


def test_a_group_that_always_kills_its_worker_is_named_and_the_others_kept(tmp_path, side):
    with pytest.raises(GroupFailedError, match=r'1 of 3 groups failed.*"task 1".*died 4 times.*memory'):
        run(tmp_path / "out", grid_work.always_dies, config=side, groups=grid_work.groups(3), workers=2)
    assert len(list((tmp_path / "out" / "cells").glob("*.json"))) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_one_group_is_told_after_the_others_are_kept(tmp_path, side, expected, workers):
    out = tmp_path / "out"
    with pytest.raises(GroupFailedError, match=r'1 of 5.*"task 1".*ArithmeticError: the pivot is zero') as caught:
        run(out, grid_work.refuses, config=side, workers=workers)
    assert "grid_work.py" in caught.value.__notes__[0]
    assert len(list((out / "cells").glob("*.json"))) == COUNT - 1
    assert not (out / "cells.jsonl.gz").exists()
    Path(side["side"]).touch()
    run(out, grid_work.refuses, config=side, workers=workers)
    assert run_bytes(out) == expected


def test_an_interrupt_leaves_what_is_finished(tmp_path, side, expected):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(out, grid_work.interrupted, config=side)
    assert len(list((out / "cells").glob("*.json"))) == 2
    Path(side["side"]).touch()
    run(out, grid_work.interrupted, config=side)
    assert run_bytes(out) == expected


def test_records_that_are_not_the_cells_are_refused(tmp_path):
    with pytest.raises(GroupFailedError, match=r"2 records, expected one for each of 3 cells.*\"seed\":0"):
        run(tmp_path, grid_work.forgets_a_seed)


@pytest.mark.parametrize("unfinished", [False, True])
def test_results_of_another_config_are_refused(tmp_path, side, unfinished):
    if unfinished:
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, grid_work.interrupted, config=side)
    else:
        run(tmp_path, config=side)
    other = {**side, "filter": {"particles": 32}}
    with pytest.raises(
        ValueError, match=r"config\.filter\.particles is 64 there and 32 here.*--overwrite.*another --out"
    ):
        run(tmp_path, config=other)


def test_results_of_more_cells_than_asked_for_are_refused(tmp_path):
    run(tmp_path)
    with pytest.raises(ValueError, match=r"has 15 cells, not all of them the grid's 6.*--overwrite"):
        run(tmp_path, groups=grid_work.groups(2))


def test_a_smaller_grid_is_added_to_and_nothing_is_computed_again(tmp_path, side):
    run(tmp_path / "out", grid_work.noted, config=side, groups=grid_work.groups(2))
    before = Path(side["side"]).read_text().splitlines()
    run(tmp_path / "out", grid_work.noted, config=side)
    after = Path(side["side"]).read_text().splitlines()
    assert len(before) == 2
    assert len(after) == COUNT
    run(tmp_path / "at once", grid_work.noted, config=side)
    assert run_bytes(tmp_path / "out") == run_bytes(tmp_path / "at once")


def test_a_start_without_results_does_not_bind_the_folder(tmp_path, side):
    with pytest.raises(GroupFailedError):
        run(tmp_path, grid_work.forgets_a_seed, config=side)
    assert len(run(tmp_path).cells) == 3 * COUNT


def test_damaged_and_unknown_results_are_refused(tmp_path):
    run(tmp_path)
    packed = run_bytes(tmp_path)
    whole = gzip.decompress(packed)
    (tmp_path / "cells.jsonl.gz").write_bytes(gzip.compress(whole[: whole.rindex(b"{")]))
    assert len(run(tmp_path).cells) == 3 * COUNT  # a group that lost a cell is computed again
    assert run_bytes(tmp_path) == packed
    for torn in (packed[:-9], packed[:60], gzip.compress(whole[:-9]), b"not compressed"):
        (tmp_path / "cells.jsonl.gz").write_bytes(torn)
        with pytest.raises(ValueError, match=r"line \d+ of .*does not read as JSON lines.*--overwrite"):
            run(tmp_path)
    (tmp_path / "run.json").unlink()
    with pytest.raises(ValueError, match=r"holds cells but no run\.json.*--overwrite"):
        run(tmp_path)


@pytest.mark.parametrize("count", [COUNT, 2])
def test_a_plain_file_of_cells_is_read_compressed_and_added_to(tmp_path, side, expected, count):
    run(tmp_path / "out", grid_work.noted, config=side, groups=grid_work.groups(count))
    packed = tmp_path / "out" / "cells.jsonl.gz"
    (tmp_path / "out" / "cells.jsonl").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    run(tmp_path / "out", grid_work.noted, config=side)
    assert len(lines(side["side"])) == COUNT
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["cells.jsonl.gz", "run.json"]
    assert run_bytes(tmp_path / "out") == expected


CELL = {"task": "a", "seed": 0}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([Group({"a": 1}, ())], "no cells"),
        ([Group({"a": 1}, (CELL,)), Group({"a": 1}, ({**CELL, "seed": 1},))], r'group {"a":1} is 2 times'),
        ([Group({"a": 1}, (CELL,)), Group({"a": 2}, (CELL,))], r"cell .* is 2 times"),
        ([Group({"a": 1}, (CELL, {"seed": 1}))], "other keys"),
        ([Group({"a": 1}, ({"task": [1, 2], "seed": 0},))], "holds a list"),
    ],
)
def test_grids_that_cannot_be_told_apart_are_refused(tmp_path, groups, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path, groups=groups)


@pytest.mark.parametrize("wrong", [{"workers": -1}, {"on": "local", "address": "a:1"}])
def test_places_that_do_not_exist_are_refused(tmp_path, wrong):
    with pytest.raises(ValueError, match=r"workers is -1|address 'a:1'"):
        run(tmp_path, **wrong)


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(ValueError, match="is a file; expected a folder"):
        run(tmp_path / "out")


def test_json_of_arrays_and_their_scalars():
    value = {"a": np.float32(0.5), "b": np.array([1.0, np.nan]), "c": (np.int64(2), Path("x") / "y")}
    assert as_json(value) == {"a": 0.5, "b": [1.0, None], "c": [2, "x/y"]}
    with pytest.raises(TypeError, match="JSON cannot hold"):
        as_json({"a": object()})


def test_the_commit_can_be_named_and_is_never_empty(monkeypatch):
    monkeypatch.setenv("BENCH_COMMIT", "abc1234")
    assert commit() == "abc1234"
    monkeypatch.delenv("BENCH_COMMIT")
    assert commit() not in ("", "abc1234")


def test_ray_is_named_where_it_lacks(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'vhydro\[ray\]'"):
        run(tmp_path, on="ray")


@pytest.mark.filterwarnings("ignore")
def test_ray_gives_the_same_bytes_though_a_worker_is_killed(tmp_path, side, expected, monkeypatch):
    pytest.importorskip("ray", reason="needs vhydro[ray]")
    monkeypatch.setenv("PYTHONPATH", beside_ours())
    run(tmp_path / "out", grid_work.is_killed_once, config=side, on="ray")
    assert Path(side["side"]).exists()
    assert run_bytes(tmp_path / "out") == expected
