"""`--json`: one document on stdout with keys that stay, and everything else on stderr."""

import json
from pathlib import Path

import numpy as np
import pytest

from known_logs import spring_log, valve_log
from vhydro.cli import main
from vhydro.data.dataset import Dataset
from vhydro.data.npz_native import write_npz
from vhydro.data.sample import sample
from vhydro.fitted import load

KEYS = {
    "fit": "verb out model view modes dt channels inputs report",
    "filter": "verb out level modes logs",
    "segment": "verb out dt modes logs",
    "laws": "verb out modes text identified problems law constants",
    "plan": "verb out dt inputs actions cost risk proof",
    "data inspect": "verb out path format episodes unreadable successful steps rates channels inputs contacts labels "
    "notes problems views fit",
}
TASK = """
import jax.numpy as jnp
import vhydro as vh

cost = lambda z, mode, a: jnp.clip(jnp.abs(z["cart.position"]), 0, 1)
task = vh.Task(cost, lambda z, mode, a: z["cart.position"] > 9, 1.0, {"cart.push": (-2, 2)})
"""


def logs(path: Path, *episodes) -> Path:
    write_npz(Dataset("made", path, tuple(f"log {i}" for i in range(len(episodes))), lambda i: episodes[i]), path)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    here = tmp_path_factory.mktemp("json")
    logs(here / "cart.npz", *(spring_log(seed) for seed in range(4)))
    logs(here / "valve.npz", *(valve_log(seed) for seed in range(3)))
    (here / "task.py").write_text(TASK)
    return here


@pytest.fixture(scope="module")
def fitted(place) -> Path:
    main(["fit", str(place / "cart.npz"), "--out", str(place / "cart.vhydro"), "--modes", "1", "--no-refine"])
    return place / "cart.vhydro"


def document(words, capsys, status: int = 0) -> tuple[dict, str]:
    """The one document on stdout, and what else was said."""
    capsys.readouterr()
    ended = 0
    try:
        main([*map(str, words), "--json"])
    except SystemExit as end:
        ended = int(end.code or 0)
    out, err = capsys.readouterr()
    assert ended == status, err
    found = json.loads(out)
    assert list(found) == KEYS[found["verb"]].split()
    return found, err


def test_fit(place, tmp_path, capsys):
    out = tmp_path / "m.vhydro"
    found, err = document(["fit", place / "valve.npz", "--out", out, "--modes", 1, "--no-refine"], capsys)
    kept = load(out)
    assert (found["model"], found["view"], found["modes"]) == (str(out), "plain", list(kept.names))
    assert found["dt"] == kept.dt
    assert [c["name"] for c in found["channels"]] == ["pressure", "flow"]
    assert found["report"] == list(kept.report)
    assert "saw 3 logs" in err


def test_filter_and_segment(place, fitted, tmp_path, capsys):
    found, err = document(["filter", fitted, place / "cart.npz", "--out", tmp_path / "b", "--level", 0.8], capsys)
    assert (found["level"], [log["rows"] for log in found["logs"]]) == (0.8, [60] * 4)
    assert set(found["logs"][0]) == {"name", "rows", "certified", "faults", "log_evidence", "evidence_per_reading"}
    assert "beliefs.npz" in err
    found, _ = document(["segment", fitted, place / "cart.npz", "--out", tmp_path / "s"], capsys)
    first = found["logs"][0]
    assert first["name"] == "log 0"
    assert (first["segments"][0]["start"], first["segments"][-1]["end"]) == (0, 60)
    assert first["segments"][0]["words"] == found["modes"][0]


def test_laws_and_plan(place, fitted, tmp_path, capsys):
    found, err = document(["laws", fitted, place / "cart.npz"], capsys)
    assert found["out"] is None
    assert found["text"] in err
    mass = next(c for c in found["constants"] if c["name"].startswith("mass"))
    assert mass["low"] < mass["value"] < mass["high"]
    assert mass["unit"] == "kg"
    assert found["identified"] == (found["problems"] == [])
    size = ("--horizon", 4, "--candidates", 8, "--particles", 4)
    found, _ = document(["plan", fitted, place / "cart.npz", place / "task.py", *size], capsys)
    assert found["inputs"] == ["cart.push"]
    assert np.shape(found["actions"]) == (4, 1)
    assert found["proof"] is None


def test_inspect(tmp_path, capsys):
    found, err = document(["data", "inspect", sample("PokeCube").path], capsys)
    assert found["episodes"] == list(sample("PokeCube").names)
    assert found["rates"] == [{"hz": 20.0, "episodes": 3}]
    assert found["fit"]["view"] == "contact"
    assert next(n for n in found["views"]["contact"] if n["what"] == "bodies")["found"] == ["cube", "peg"]
    channel = next(c for c in found["channels"] if c["name"] == "cube.z")
    assert (channel["unit"], channel["group"], channel["hidden"]) == ("m", "object", 0.0)
    assert "what a fit would see" in err


def test_an_episode_that_cannot_be_read_is_status_1_and_a_document(tmp_path, capsys):
    import h5py

    path = tmp_path / "log.h5"
    path.write_bytes(sample("PokeCube").path.read_bytes())
    with h5py.File(path, "a") as file:
        del file["traj_1"]["actions"]
    found, _ = document(["data", "inspect", path], capsys, status=1)
    assert found["unreadable"] == 1
    assert any("traj_1" in problem for problem in found["problems"])


def test_tables_have_one_too(place, fitted, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    KEYS["filter"], before = "verb out episodes rows problems", KEYS["filter"]
    try:
        to = ("--to", "parquet", "--workers", 0, "--out", tmp_path / "t")
        found, _ = document(["filter", fitted, place / "cart.npz", *to], capsys)
    finally:
        KEYS["filter"] = before
    assert (found["episodes"], found["rows"], found["problems"]) == (4, {"rows": 240, "logs": 4}, 0)


def test_a_mistake_leaves_stdout_empty(place, capsys):
    with pytest.raises(SystemExit):
        main(["fit", str(place / "none.npz"), "--json"])
    out, err = capsys.readouterr()
    assert out == ""
    assert "found nothing there" in err
