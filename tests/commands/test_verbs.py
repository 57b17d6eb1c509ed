"""`vhydro fit`, `filter`, `segment` and `laws` as a user meets them, on the shipped samples and on small logs."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from known_logs import spring_log, valve_log
from vhydro.cli import main
from vhydro.commands.filter import FilterCommand, run_filter
from vhydro.commands.fit import FitCommand, run_fit
from vhydro.commands.laws import FILES, LawsCommand, run_laws
from vhydro.commands.mapping import Naming
from vhydro.commands.segment import SegmentCommand, run_segment
from vhydro.data import read
from vhydro.data.dataset import Dataset
from vhydro.data.npz_native import write_npz
from vhydro.data.sample import sample
from vhydro.fitted import load
from vhydro.views import BodyView, ContactView, MechanicsView, PlainView


def kept(path: Path, *episodes) -> Path:
    names = tuple(f"log {i}" for i in range(len(episodes)))
    write_npz(Dataset("made", path, names, lambda i: episodes[i]), path)
    return path


@pytest.fixture(scope="module")
def logs() -> Path:
    return sample("PokeCube").path


@pytest.fixture(scope="module")
def model(logs, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("fitted") / "poke.vhydro"
    run_fit(FitCommand(logs, out=path, modes=3, refine=False))
    return path


@pytest.fixture(scope="module")
def cart(tmp_path_factory) -> tuple[Path, Path]:
    """A model of a cart on a spring, and its logs."""
    folder = tmp_path_factory.mktemp("cart")
    data = kept(folder / "cart.npz", *(spring_log(seed) for seed in range(4)))
    run_fit(FitCommand(data, out=folder / "cart.vhydro", modes=1, refine=False))
    return folder / "cart.vhydro", data


def ended(arguments, capsys) -> tuple[int, str, str]:
    """Status, output and error of the command line."""
    try:
        main([str(a) for a in arguments])
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    return status, *capsys.readouterr()


# --- one file through every verb --------------------------------------------------------------------------------------


def test_a_sample_goes_through_every_verb(model, logs, tmp_path, monkeypatch, capsys):
    """The line of the README, with what `fit` wrote: two answers, and one sentence why there is no third."""
    monkeypatch.chdir(tmp_path)
    status, out, _ = ended(["filter", model, logs], capsys)
    assert status == 0
    assert "certified" in out
    status, out, _ = ended(["segment", model, logs], capsys)
    assert status == 0
    assert "segments in 3 logs" in out
    assert "mode 0: nothing" in out
    status, _, err = ended(["laws", model, logs], capsys)
    assert status == 1
    assert err.count("\n") == 1
    assert "through the contact view, which shows no forces" in err
    assert {p.name for p in tmp_path.iterdir()} == {"beliefs", "segments"}


def test_the_fit_says_what_it_found(logs, tmp_path, capsys):
    data = kept(tmp_path / "valve.npz", *(valve_log(seed) for seed in range(3)))
    status, out, err = ended(["fit", data, "--out", tmp_path / "m.vhydro", "--modes", "1", "--no-refine"], capsys)
    assert (status, err) == (0, "")
    assert out.startswith("saw 3 logs")
    assert out.endswith(f"{tmp_path / 'm.vhydro'}\n")
    assert str(load(tmp_path / "m.vhydro")) in out


def test_a_sample_is_cut_into_contacts(model, logs, tmp_path):
    found = run_segment(SegmentCommand(model, logs, out=tmp_path / "out"))
    assert {f.name for f in (tmp_path / "out").iterdir()} == {
        "segments.json", "segments.csv", "timeline.svg", "posteriors.npz", "index.html",
    }  # fmt: skip
    whole = json.loads((tmp_path / "out" / "segments.json").read_text("utf-8"))
    assert whole["modes"] == list(load(model).names)
    assert whole["modes"][0] == "nothing"
    assert [len(e["segments"]) for e in whole["episodes"]] == [len(s) for s in found]
    for log in whole["episodes"]:  # every question has an answer for every row, in words
        for question in ("touching", "contact", "regime"):
            assert [s["start"] for s in log[question][1:]] == [s["end"] for s in log[question][:-1]]
            assert log[question][-1]["end"] == log["segments"][-1]["end"]
        assert {s["is"] for s in log["contact"]} == {"nothing touches", "something touches"}
        assert log["touching"][0]["is"] == "nothing touches"
        assert log["touching"][1]["is"].startswith("the hand on peg")
    with (tmp_path / "out" / "segments.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    told = [(int(row["mode"]), row["words"]) for row in lines]
    assert lines[0]["touching"] == "nothing touches"
    assert {s["touching"] for s in whole["episodes"][0]["segments"]} >= {"nothing touches", "the hand on peg"}
    assert len(told) == sum(map(len, found))
    assert dict(told) == {mode: load(model).names[mode] for mode, _ in told}
    with np.load(tmp_path / "out" / "posteriors.npz") as arrays:
        rows = arrays["first_row"]
        assert arrays["path"].shape == (rows[-1],)
        np.testing.assert_allclose(arrays["smoothed"].sum(1), 1, atol=1e-4)
        np.testing.assert_allclose(arrays["filtered"].sum(1), 1, atol=1e-4)
        assert rows[1] == found[0][-1].end
    # Nothing is held at first, and before the cube moves the peg is: the contact that a person would mark first.
    assert all(log[0].mode == 0 and len(log) >= 2 for log in found)


def test_the_timeline_is_a_picture(model, logs, tmp_path):
    found = run_segment(SegmentCommand(model, logs, out=tmp_path))
    picture = ElementTree.parse(tmp_path / "timeline.svg").getroot()
    bars = [r for r in picture.iter("{http://www.w3.org/2000/svg}rect") if r.get("height") == "16"]
    assert len(bars) == sum(map(len, found))
    texts = [t.text for t in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert any("peg with the hand" in (t or "") for t in texts)


def test_beliefs_are_written_with_intervals_and_certificates(model, logs, tmp_path):
    beliefs = run_filter(FilterCommand(model, logs, out=tmp_path / "out", level=0.8))
    summary = json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))
    fitted = load(model)
    assert (summary["level"], summary["modes"]) == (0.8, list(fitted.names))
    assert [row["rows"] for row in summary["logs"]] == [len(b.mean) for b in beliefs]
    assert all(row["certified"] > 0.5 for row in summary["logs"])  # of a log that the model explains
    first = sample("PokeCube")[0]
    with np.load(tmp_path / "out" / "beliefs.npz") as arrays:
        rows = arrays["first_row"]
        own = slice(rows[0], rows[1])
        np.testing.assert_array_equal(arrays["modes"][own], beliefs[0].mode)
        assert arrays["channels"].tolist() == list(fitted.model.channels)
        low, high = fitted.intervals(first, beliefs[0], 0.8)
        np.testing.assert_allclose(arrays["low"][own], low)
        np.testing.assert_allclose(arrays["high"][own], high)
        assert ((arrays["low"] <= arrays["mean"]) & (arrays["mean"] <= arrays["high"])).all()
        assert len(arrays["names"]) == len(beliefs)


def test_laws_are_printed_and_kept(cart, tmp_path, capsys):
    model, data = cart
    status, out, _ = ended(["laws", model, data, "--out", tmp_path / "law"], capsys)
    assert status == 0
    assert {p.name for p in (tmp_path / "law").iterdir()} == {*FILES, "laws.json", "index.html"}
    assert (tmp_path / "law" / "law.txt").read_text("utf-8") in out
    law = run_laws(LawsCommand(model, data))
    assert law.modes == load(model).names
    assert "cart.position" in out


def test_one_mode_is_one_segment(cart, tmp_path, capsys):
    model, data = cart
    found = run_segment(SegmentCommand(model, data, out=tmp_path / "out"))
    assert [(s.start, s.end, s.mode) for s in found[0]] == [(0, 60, 0)]
    assert "one mode: there is nothing to tell apart" in capsys.readouterr().out


def test_segments_are_lerobots_subtasks(model, logs, tmp_path, capsys):
    """Of any log a new dataset; of a LeRobot dataset a copy, with what else it holds as it was."""
    pq = pytest.importorskip("pyarrow.parquet")
    first = tmp_path / "first"
    found = run_segment(SegmentCommand(model, logs, to="lerobot", out=first))
    names = load(model).names
    (first / "videos").mkdir()
    (first / "videos" / "top.mp4").write_bytes(b"a film")
    before = {p: p.read_bytes() for p in first.rglob("*") if p.is_file()}
    run_segment(SegmentCommand(model, first, to="lerobot", out=tmp_path / "second"))
    assert {p: p.read_bytes() for p in first.rglob("*") if p.is_file()} == before
    assert (tmp_path / "second" / "videos" / "top.mp4").read_bytes() == b"a film"
    for folder in (first, tmp_path / "second"):
        info = json.loads((folder / "meta" / "info.json").read_text())
        assert info["features"]["language_persistent"] == {"dtype": "language", "shape": [1], "names": None}
        table = pq.read_table(folder / "data" / "chunk-000" / "file-000.parquet")
        episodes, stamps = table.column("episode_index").to_numpy(), table.column("timestamp").to_numpy()
        for i, log in enumerate(found):
            rows = np.flatnonzero(episodes == i)
            told = table.column("language_persistent").take(rows).to_pylist()
            assert all(t == told[0] for t in told)  # the same on every frame
            assert [(r["role"], r["style"], r["camera"]) for r in told[0]] == [("assistant", "subtask", None)] * len(
                log
            )
            assert [r["content"] for r in told[0]] == [names[s.mode] for s in log]
            assert [r["timestamp"] for r in told[0]] == [stamps[rows[s.start]] for s in log]
        sure = json.loads((folder / "meta" / "vhydro_segments.json").read_text())
        assert [s["confidence"] for s in sure["episodes"][0]["segments"]] == [s.confidence for s in found[0]]
    for one, other in zip(read(logs), read(tmp_path / "second"), strict=True):
        np.testing.assert_array_equal(one.observations, other.observations)
    assert ended(["segment", model, first, "--to", "lerobot", "--out", first / "in"], capsys)[0] == 1
    assert (
        "expected a place of its own" in ended(["segment", model, first, "--to", "lerobot", "--out", first], capsys)[2]
    )


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["filter", "segment", "laws"])
def test_logs_that_the_model_cannot_read_leave_nothing_behind(verb, cart, tmp_path, capsys):
    model = cart[0]
    log = spring_log(0)
    for name, bad, words in (
        ("slow", replace(log, dt=2 * log.dt), "steps of 0.1 s; expected 0.05 s, as the logs that the model was"),
        ("dark", replace(log, observations=np.full((60, 1), np.nan)), "hides every reading that the model explains"),
        ("other", replace(valve_log(0), dt=log.dt), "does not show cart.position, cart.push, which the mechanics view"),
    ):
        data = kept(tmp_path / f"{name}.npz", *([log] if bad.channels == log.channels else []), bad)
        status, _, err = ended([verb, model, data, "--out", tmp_path / "out"], capsys)
        assert status == 1
        assert err.count("\n") == 1
        assert words in err
        assert not (tmp_path / "out").exists()


def test_logs_that_cannot_be_fitted_leave_nothing_behind(tmp_path, capsys):
    valve = valve_log(0)
    out = tmp_path / "m.vhydro"
    for name, logs, words in (
        ("two", (valve, replace(valve, dt=0.2)), "expected one time step for all"),
        ("still", 2 * (replace(valve, observations=np.ones((61, 2))),), "is ever seen to change"),
        ("short", (replace(valve, observations=valve.observations[:9], actions=valve.actions[:8], labels={}),),
         "the only log has 9 rows"),
    ):  # fmt: skip
        data = kept(tmp_path / f"{name}.npz", *logs)
        status, _, err = ended(["fit", data, "--out", out], capsys)
        assert status == 1
        assert err.count("\n") == 1
        assert words in err
    assert not out.exists()


def test_where_a_model_goes_is_checked_before_it_is_fitted(logs, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "b.vhydro").write_text("mine")
    (tmp_path / "a.vhydro").mkdir()
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("mine")
    for out, error, words in (
        (tmp_path / "a.vhydro", IsADirectoryError, "is a folder; expected a file for the model"),
        (tmp_path / "none" / "m.vhydro", FileNotFoundError, "there is no folder"),
        (tmp_path / "b.vhydro", FileExistsError, "exists and is no model file"),
        (tmp_path / "notes.txt", NotADirectoryError, "is a file; expected a folder for the results"),
        (tmp_path / "page", FileExistsError, "is not a page of this program"),
    ):
        with pytest.raises(error, match=words):
            run_fit(FitCommand(logs, out=out))
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_file_that_is_no_model_is_named(logs, tmp_path, capsys):
    (tmp_path / "bad.vhydro").write_text("nothing of the kind")
    for verb in ("filter", "segment", "laws"):
        status, _, err = ended([verb, tmp_path / "bad.vhydro", logs], capsys)
        assert status == 1
        assert "bad.vhydro" in err
        assert "Traceback" not in err


# --- naming channels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("naming", "view"),
    [
        (Naming(), "auto"),
        (Naming(view="plain"), "plain"),
        (
            Naming(hand=("hx", "hy", "hz"), body=("cup=cx,cy,cz", "jug=jug.")),
            ContactView(("hx", "hy", "hz"), {"cup": ("cx", "cy", "cz"), "jug": ("jug.x", "jug.y", "jug.z")}),
        ),
        (Naming(positions=("q",), forces=("tau",)), MechanicsView(("q",), ("tau",))),
        (Naming(body=("cube=x,y,z,w,i,j,k",)), BodyView(("x", "y", "z"), ("w", "i", "j", "k"), "cube")),
        (Naming(view="plain", channels=("p",), inputs=("u",)), PlainView(("p",), ("u",))),
    ],
)
def test_channels_can_be_named(naming, view):
    assert naming.chosen() == view


@pytest.mark.parametrize(
    ("naming", "words"),
    [
        (Naming(view="body", positions=("q",)), "--view body with channels of the mechanics view"),
        (Naming(positions=("q",), channels=("p",)), "the mechanics and the plain view were named"),
        (Naming(body=("cube",)), "expected a name and its channels, such as --body cup=cup_x,cup_y,cup_z"),
        (Naming(body=("a=a.", "b=b.")), "2 bodies without a hand; expected one, or a hand"),
    ],
)
def test_names_that_contradict_are_refused(naming, words):
    with pytest.raises(ValueError, match=words):
        naming.chosen()


def test_named_channels_reach_the_model(tmp_path, capsys):
    data = kept(tmp_path / "valve.npz", *(valve_log(seed) for seed in range(3)))
    out = tmp_path / "m.vhydro"
    arguments = ["fit", data, "--out", out, "--modes", "1", "--no-refine", "--channels", "flow", "--inputs", "valve"]
    assert ended(arguments, capsys)[0] == 0
    fitted = load(out)
    assert fitted.view == PlainView(("flow",), ("valve",))
    assert "not used: pressure" in str(fitted)


# --- plan -------------------------------------------------------------------------------------------------------------

TASK = """
import jax.numpy as jnp
import vhydro as vh

task = vh.Task(
    lambda z, mode, a: jnp.clip(jnp.abs(z["cart.position"] - 0.1), 0, 1),
    lambda z, mode, a: jnp.abs(z["cart.position"]) > 1,
    1.0,
    {"cart.push": (-2, 2)},
)
"""


def test_plan_plans_and_says_what_is_proven(cart, tmp_path, capsys):
    (tmp_path / "task.py").write_text(TASK)
    size = ("--horizon", 8, "--candidates", 32, "--particles", 16)
    asked = ("--delta", 0.4, "--noise", 0.1, "--out", tmp_path / "plan")
    status, printed, error = ended(["plan", *cart, tmp_path / "task.py", *size, *asked], capsys)
    assert status == 0, error
    assert "certified: chance of failure" in printed
    actions = np.loadtxt(tmp_path / "plan" / "actions.csv", delimiter=",", skiprows=1)
    assert actions.shape == (8,)
    assert np.abs(actions).max() <= 2
    proof = json.loads((tmp_path / "plan" / "plan.json").read_text())["proof"]
    assert proof["certified"]
    assert proof["how"] == "parameters"


@pytest.mark.parametrize(
    ("text", "options", "code", "message"),
    [
        ("task = 3", (), 1, "defines task = 3"),
        ("1 / 0", (), 1, "ZeroDivisionError"),
        (None, (), 1, "is not there"),
        (TASK, ("--episode", "9"), 1, "episode 9 was asked for"),
        (TASK, ("--horizon", "0"), 2, "--horizon 0; expected at least 1"),
    ],
)
def test_plan_refuses_in_one_line(cart, tmp_path, capsys, text, options, code, message):
    if text is not None:
        (tmp_path / "task.py").write_text(text)
    status, _, error = ended(["plan", *cart, tmp_path / "task.py", *options], capsys)
    assert status == code
    assert message in error
