"""`vhydro learn` and `vhydro segment` as a user meets them, on the shipped sample."""

import csv
import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from vhydro.data.dataset import Dataset
from vhydro.data.npz_native import write_npz
from vhydro.data.sample import sample
from vhydro.episodes import episode
from vhydro.model import axis_emission, hybrid_model, linear_flow, mode_kernel
from vhydro.segment import LearnCommand, SegmentCommand, run_learn, run_segment
from vhydro.storage import save


@pytest.fixture(scope="module")
def logs():
    return sample("PokeCube").path


@pytest.fixture(scope="module")
def model(logs, tmp_path_factory):
    path = tmp_path_factory.mktemp("learned") / "contact.safetensors"
    run_learn(LearnCommand(logs, out=path, modes=3))
    return path


def kept(path, *episodes):
    names = tuple(f"log {i}" for i in range(len(episodes)))
    write_npz(Dataset("made", path, names, lambda i: episodes[i]), path)
    return path


def test_a_sample_is_cut_into_contacts(model, logs, tmp_path, capsys):
    found = run_segment(SegmentCommand(model, logs, out=tmp_path / "out"))
    assert "segments in 3 logs" in capsys.readouterr().out
    assert {f.name for f in (tmp_path / "out").iterdir()} == {
        "segments.json", "segments.csv", "timeline.svg", "posteriors.npz",
    }  # fmt: skip
    whole = json.loads((tmp_path / "out" / "segments.json").read_text("utf-8"))
    written = whole["episodes"]
    assert whole["modes"][0] == "nothing"
    assert [len(e["segments"]) for e in written] == [len(s) for s in found]
    with (tmp_path / "out" / "segments.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == sum(map(len, found))
    with np.load(tmp_path / "out" / "posteriors.npz") as arrays:
        rows = arrays["first_row"]
        assert arrays["path"].shape == (rows[-1],)
        np.testing.assert_allclose(arrays["smoothed"].sum(1), 1, atol=1e-4)
        assert rows[1] == found[0][-1].end
        assert arrays["standing"].shape == (rows[-1], len(arrays["bodies"]))
    # Nothing is held at first, and before the cube moves the peg is: the contact that a person would mark first.
    assert all(log[0].mode == 0 and len(log) >= 2 for log in found)


def test_the_timeline_is_a_picture(model, logs, tmp_path):
    found = run_segment(SegmentCommand(model, logs, out=tmp_path))
    picture = ElementTree.parse(tmp_path / "timeline.svg").getroot()
    bars = [r for r in picture.iter("{http://www.w3.org/2000/svg}rect") if r.get("height") == "16"]
    assert len(bars) == sum(map(len, found))
    texts = [t.text for t in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert any("peg with the hand" in (t or "") for t in texts)


def test_any_saved_model_can_segment(tmp_path):
    walker = hybrid_model(
        mode_kernel(1), linear_flow(np.eye(1)[None]), axis_emission(1, [0], noise=0.1), noise=0.3, channels=["x"]
    )
    save(tmp_path / "walker.safetensors", model=walker)
    log = episode(np.cumsum(np.ones(20)), dt=0.1, channels=["x"])
    data = kept(tmp_path / "logs.npz", log)
    found = run_segment(SegmentCommand(tmp_path / "walker.safetensors", data, out=tmp_path / "out"))
    assert [(s.start, s.end, s.mode) for s in found[0]] == [(0, 20, 0)]
    dark = kept(tmp_path / "dark.npz", log, replace(log, observations=np.full((20, 1), np.nan)))
    with pytest.raises(ValueError, match="hides every reading that the model knows"):
        run_segment(SegmentCommand(tmp_path / "walker.safetensors", dark, out=tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_logs_that_the_model_cannot_read_are_refused(model, tmp_path):
    first = sample("PokeCube")[0]
    slow = kept(tmp_path / "slow.npz", replace(first, dt=2 * first.dt))
    with pytest.raises(ValueError, match=r"steps of 0\.1 s; expected 0\.05 s, as those that the model"):
        run_segment(SegmentCommand(model, slow, out=tmp_path / "out"))
    names = np.array([c.group == "object" for c in first.channels])
    dark = kept(tmp_path / "dark.npz", replace(first, observations=np.where(names, np.nan, first.observations)))
    with pytest.raises(ValueError, match="hides every reading that the model knows"):
        run_segment(SegmentCommand(model, dark, out=tmp_path / "out"))


def test_one_log_is_too_few_and_other_files_are_named(logs, tmp_path):
    one = kept(tmp_path / "one.npz", sample("PokeCube")[0])
    with pytest.raises(ValueError, match="has 1 episode; expected at least two"):
        run_learn(LearnCommand(one, out=tmp_path / "m.safetensors"))
    first = sample("PokeCube")[0]
    two = kept(tmp_path / "two.npz", first, replace(first, dt=2 * first.dt))
    with pytest.raises(ValueError, match=r"steps of 0\.05 to 0\.1 s; expected one for all. Learn a model of each"):
        run_learn(LearnCommand(two, out=tmp_path / "m.safetensors"))
    guide = tmp_path / "other.safetensors"
    save(guide, kernel=mode_kernel(2))
    with pytest.raises(ValueError, match="holds kernel; expected a hybrid model"):
        run_segment(SegmentCommand(guide, logs, out=tmp_path))
