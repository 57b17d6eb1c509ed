"""Datasets larger than a machine: the same rows whatever the blocks and the workers, and nothing lost by a kill."""

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import block_work
import numpy as np
import pytest

import vhydro
from known_logs import spring_log, valve_log
from vhydro import places
from vhydro.cli import main
from vhydro.commands import blocks
from vhydro.commands.blocks import Where, run_blocks
from vhydro.commands.filter import FilterCommand, run_filter
from vhydro.commands.fit import FitCommand, run_fit
from vhydro.commands.laws import LawsCommand, run_laws
from vhydro.commands.mapping import Naming
from vhydro.commands.segment import SegmentCommand, run_segment
from vhydro.data import read
from vhydro.data.dataset import Dataset
from vhydro.data.npz_native import write_npz
from vhydro.fitted import load
from vhydro.laws.constants import constants
from vhydro.outputs import BusyError, locked

pq = pytest.importorskip("pyarrow.parquet")
HERE = Where(workers=0, block=3)
COUNT = 7


def kept(path: Path, episodes) -> Path:
    names = tuple(f"log {i}" for i in range(len(episodes)))
    return write_npz(Dataset("made", path, names, lambda i: episodes[i]), path)


@pytest.fixture(scope="module")
def valve(tmp_path_factory) -> tuple[Path, Path]:
    """A model, and the logs of a valve."""
    folder = tmp_path_factory.mktemp("valve")
    data = kept(folder / "valve.npz", [valve_log(seed) for seed in range(COUNT)])
    run_fit(FitCommand(data, out=folder / "valve.vhydro", modes=2, refine=False))
    return folder / "valve.vhydro", data


def table(folder: Path) -> list[dict]:
    return pq.read_table(folder).to_pylist()


def expected(valve) -> list[dict]:
    fitted, logs = load(valve[0]), read(valve[1])
    return [
        {"episode": name, "start": s.start, "end": s.end, "mode": s.mode, "words": fitted.names[s.mode],
         "confidence": s.confidence}
        for name, found in zip(logs.names, fitted.segments(list(logs)), strict=True)
        for s in found
    ]  # fmt: skip


def noted(valve, out, where=HERE, **options):
    return run_blocks(
        block_work.noted_tables, block_work.noted_rows, out, verb="note", model=valve[0], logs=valve[1],
        naming=Naming(), where=where, options=options,
    )  # fmt: skip


def test_segments_are_those_of_the_library_whatever_the_blocks(valve, tmp_path):
    told = expected(valve)
    assert len(told) > COUNT
    for size in (1, 3, 100):
        out = tmp_path / str(size)
        run_segment(SegmentCommand(*valve, out=out, to="parquet", where=Where(workers=0, block=size)))
        found = table(out / "segments")
        assert [{k: row[k] for k in told[0]} for row in found] == told
        assert all(row["end_s"] == pytest.approx(row["end"] * load(valve[0]).dt) for row in found)
        assert len(list((out / "segments").iterdir())) == -(-COUNT // size)


def test_beliefs_are_those_of_the_library(valve, tmp_path, capsys):
    assert run_filter(FilterCommand(*valve, out=tmp_path / "out", to="parquet", level=0.8, where=HERE)) == []
    fitted, log = load(valve[0]), read(valve[1])[4]
    belief = fitted.filter(log)
    low, high = fitted.intervals(log, belief, 0.8)
    rows = [r for r in table(tmp_path / "out" / "rows") if r["episode"] == "log 4"]
    assert [r["row"] for r in rows] == list(range(log.steps + 1))
    np.testing.assert_array_equal([r["p1"] for r in rows], np.asarray(belief.mode)[:, 1])
    for i, channel in enumerate(fitted.model.channels):
        np.testing.assert_allclose([r[f"low.{channel}"] for r in rows], low[:, i], rtol=1e-6)
        np.testing.assert_allclose([r[f"high.{channel}"] for r in rows], high[:, i], rtol=1e-6)
    logs = table(tmp_path / "out" / "logs")
    assert [row["name"] for row in logs] == list(read(valve[1]).names)
    assert logs[4]["log_evidence"] == pytest.approx(float(belief.log_evidence))
    assert "rows of 7 logs" in capsys.readouterr().out


def test_every_block_has_its_law(tmp_path, capsys):
    data = kept(tmp_path / "cart.npz", [spring_log(seed) for seed in range(3)])
    model, out = tmp_path / "cart.vhydro", tmp_path / "out"
    run_fit(FitCommand(data, out=model, modes=1, refine=False))
    assert run_laws(LawsCommand(model, data, out=out, to="parquet", where=Where(workers=0, block=2))) is None
    laws = table(out / "laws")
    assert [(law["first"], law["last"], law["logs"]) for law in laws] == [("log 0", "log 1", 2), ("log 2", "log 2", 1)]
    told = constants(load(model).laws(list(read(data))[:2]))
    mine = [row for row in table(out / "constants") if row["first"] == "log 0"]
    assert {row["constant"]: (row["value"], row["low"], row["high"]) for row in mine} == {
        name: (c.value, *c.interval) for name, c in told.items()
    }
    with pytest.raises(ValueError, match="--to parquet without --out"):
        run_laws(LawsCommand(model, data, to="parquet"))


def test_a_run_is_taken_up_where_it_was(valve, tmp_path):
    out, side = tmp_path / "out", tmp_path / "side"
    noted(valve, out, side=str(side))
    whole = {p.name: p.read_bytes() for p in (out / "means").iterdir()}
    (out / "done" / "000001.json").unlink()  # as if it had been killed in the second block
    (out / "means" / "part-000001.parquet").unlink()
    (out / "means" / ".part-000001.parquet.abc.partial").write_bytes(b"half")
    side.write_text("")
    totals = noted(valve, out, side=str(side))
    assert side.read_text().split("\n")[:-1] == ["log 3", "log 4", "log 5"]
    assert {p.name: p.read_bytes() for p in (out / "means").iterdir()} == whole
    assert (totals.episodes, totals.problems) == (COUNT, [])
    assert json.loads((out / "run.json").read_text())["rows"] == totals.rows


def test_a_killed_worker_is_survived(valve, tmp_path):
    out, side = tmp_path / "out", tmp_path / "side"
    totals = noted(valve, out, Where(workers=1, block=4), side=str(side), deadly="log 1")
    assert side.read_text().count("log 1") == 2  # once when it died
    assert totals.episodes == COUNT
    told = [(f"log {i}", log.observations.mean()) for i, log in enumerate(read(valve[1]))]
    assert [(r["episode"], r["mean"]) for r in table(out / "means")] == told


def test_a_log_that_cannot_be_used_is_named_and_the_others_go_on(valve, tmp_path, capsys):
    logs = [valve_log(seed) for seed in range(3)]
    logs[1] = replace(logs[1], observations=logs[1].observations * np.nan)
    data, out = kept(tmp_path / "x.npz", logs), tmp_path / "out"
    with pytest.raises(SystemExit) as end:
        main(["segment", str(valve[0]), str(data), "--to", "parquet", "--out", str(out), "--workers", "0"])
    assert end.value.code == 1
    assert "hides every reading" in capsys.readouterr().err
    assert {row["episode"] for row in table(out / "segments")} == {"log 0", "log 2"}
    assert [row["episode"] for row in table(out / "problems")] == ["log 1"]


def test_only_its_own_folder_is_written(valve, tmp_path):
    command = SegmentCommand(*valve, out=tmp_path / "out", to="parquet", where=HERE)
    run_segment(command)
    with pytest.raises(ValueError, match=r"holds the tables of another run \(options .* or --overwrite"):
        run_segment(replace(command, seed=1))
    run_segment(replace(command, seed=1, overwrite=True))
    assert json.loads((tmp_path / "out" / "run.json").read_text())["config"]["options"] == {"seed": 1}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(FileExistsError, match="holds other files"):
        run_segment(replace(command, out=tmp_path / "mine", overwrite=True))
    with locked(tmp_path / "out" / blocks.LOCK, tmp_path), pytest.raises(BusyError, match="is being written by"):
        run_segment(command)
    with pytest.raises(ValueError, match="--block 0; expected at least 1"):
        Where(block=0)
    with pytest.raises(ValueError, match="with --to files, which is computed here in one go"):
        run_segment(replace(command, to="files"))


# --- Slurm ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Slurm's jobs as processes here, which find the work of the tests."""
    submitit = pytest.importorskip("submitit")
    monkeypatch.chdir(tmp_path)
    found_in = (Path(__file__).parent, Path(vhydro.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, found_in)))
    monkeypatch.setattr(submitit.core.core.Job, "_results_timeout_s", 0.5)  # it waits for a slow file system
    monkeypatch.setattr(places, "POLL", 0.05)

    def answers(work, count=4, jobs=2):
        config = {"scale": 10, "side": str(tmp_path / "side")}
        keys = [{"number": n} for n in range(count)]
        question = partial(places.answer, work, config)
        return dict(places.on_slurm(question, keys, jobs, None, cluster="local"))

    return answers


def test_slurm_gives_every_answer_though_a_job_is_killed(slurm, tmp_path):
    told = {n: [{"twice": 20 * n}] for n in range(4)}
    assert {n: a.records for n, a in slurm(block_work.doubled_after_a_death).items()} == told
    assert (tmp_path / "side").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["side"]  # its own files are gone


def test_slurm_says_what_went_wrong(slurm):
    found = slurm(block_work.refused, count=2, jobs=1)
    assert found[0].records == [{"twice": 0}]
    assert "ArithmeticError: the pivot is zero" in found[1].error


def test_places_are_named_or_refused():
    for asked, words in (
        ({"on": "moon"}, "on is 'moon'"), ({"address": "x"}, "expected 'local'"), ({"workers": -1}, "workers is -1"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            places.answers(lambda key: None, [], **asked)
