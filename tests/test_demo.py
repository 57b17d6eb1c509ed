"""The demo at its smallest: once with real fits, else with fits checked but skipped, for they take long to compile."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from vhydro.report.film import dark_spans

import vhydro.demo as demo
from vhydro.demo import DemoConfig, motion, placed_model, places, puck_episodes, run_demo, true_motion
from vhydro.episodes import episode
from vhydro.storage import load
from vhydro.training import Fit, Parts, _refuse_unfit, _trainable

METHODS = ["adaptive", "conservative", "no-support", "exact guide"]
TINY = DemoConfig(model_steps=2, guide_steps=2, train=6, test=2, particles=16, repeats=2)


def test_the_whole_demo_fits_filters_and_writes(tmp_path):
    """Here and not in a file of its own: what it compiles for the filters serves every test below."""
    out = tmp_path / "demo"
    run_demo(replace(TINY, out=out), quiet=True)
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    for row in summary["rows"]:
        assert all(np.isfinite(v) for k, v in row.items() if k != "method"), row
    assert set(load(out / "model.safetensors").parts) == {"model", "proposal"}
    assert (out / "index.html").stat().st_size > 10_000


def skipped_fit(start, train, validation, *, key, config, progress) -> Fit:
    """The start as it is, after the checks of a real fit."""
    del key, progress
    assert isinstance(start, Parts)
    _refuse_unfit(start, train, validation, config)
    assert any(jax.tree.leaves(_trainable(start, config.frozen)))
    one = np.ones((1, 1))
    return Fit(start.model, start.proposal, 0, [start], one[0], one, one, np.zeros(1, bool))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A folder the demo wrote, and the summary it returned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "fit", skipped_fit)
        out = tmp_path_factory.mktemp("demo") / "new" / "folder"
        yield out, run_demo(replace(TINY, out=out), quiet=True)


def test_writes_its_files_and_nothing_else(results):
    assert sorted(p.name for p in results[0].iterdir()) == ["index.html", "model.safetensors", "summary.json"]


def test_summary_has_a_finite_row_for_every_method(results):
    out, returned = results
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert [r["method"] for r in summary["rows"]] == METHODS == [r["method"] for r in returned["rows"]]
    for r in summary["rows"]:
        numbers = {k: v for k, v in r.items() if k != "method"}
        assert all(np.isfinite(v) for v in numbers.values()), numbers
        assert {k.removesuffix("_se") for k in numbers} - {"runs"} <= summary["definitions"].keys()
        assert r["runs"] == 4
    assert summary["rows"][2]["mixing"] == 0.0
    assert summary["rows"][1]["mixing"] == 0.5
    assert {"version", "seconds", "device", "config"} <= summary["meta"].keys()
    assert summary["meta"]["config"]["particles"] == 16
    assert [x["mode"] for x in summary["law"]] == ["free", "left wall", "right wall"]


def test_a_whole_log_is_said_of_by_both_ways_to_filter(results):
    said = {p["method"]: p for p in results[1]["paths"]}
    assert list(said) == ["adaptive, drawn", "Gaussian branches"]
    for p in said.values():
        assert p["lower"] < p["log_evidence"]
        assert p["half_width"] > 0
    drawn, branches = said.values()
    assert branches["engine"] == "gaussian"
    assert branches["lower"] > drawn["lower"] - 1


def test_model_file_holds_model_and_guide(results):
    saved = load(results[0] / "model.safetensors")
    assert set(saved.parts) == {"model", "proposal"}
    assert saved.notes["config"]["seed"] == 0


def test_page_is_complete_and_needs_no_network(results):
    text = (results[0] / "index.html").read_text("utf-8")
    assert text.endswith("</body></html>\n")
    assert "Plotly.newPlot" in text
    assert "<script src=" not in text
    assert "<link" not in text
    assert all(f"<td>{m}</td>" in text for m in METHODS)
    assert "q̈ = " in text


def test_same_seed_same_numbers_other_seed_others(results, tmp_path):
    def rows(seed):
        return run_demo(replace(TINY, out=tmp_path / "again", seed=seed), quiet=True)["rows"]

    assert rows(0) == results[1]["rows"]
    assert rows(1) != results[1]["rows"]


def test_terminal_output_is_plain_when_piped(results, capsys, tmp_path):
    run_demo(replace(TINY, out=tmp_path))
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert all(m in text for m in METHODS)
    assert str(tmp_path / "index.html") in text.replace("\n", "")


@pytest.mark.parametrize("broken", ["fitted_model", "compared", "demo_page", "write_json"])
def test_a_failing_run_leaves_no_files(results, broken, monkeypatch, tmp_path):
    def fail(*_, **__):
        raise OSError("the disk is full")

    monkeypatch.setattr(demo, broken, fail)
    with pytest.raises(OSError, match="disk is full"):
        run_demo(replace(TINY, out=tmp_path / "out"), quiet=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("particles", 0), ("train", 2), ("occlusion", 1.0), ("promise", 0.0), ("guide_occlusion", 1.0), ("repeats", 0)],
)
def test_bad_settings_are_named(name, value):
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} {value:g}; expected"):
        DemoConfig(**{name: value})


def test_tolerance_keeps_the_promise():
    config = DemoConfig(particles=100, promise=0.25)
    assert 1 / (1 + config.particles * config.tolerance**2) == pytest.approx(0.25)


@pytest.fixture(scope="module")
def data():
    """As many episodes as the tiny demo simulates, so that nothing is compiled again."""
    return puck_episodes(key=jax.random.key(0), train=6, validation=2, test=2)


def test_the_right_share_is_hidden_in_spans_and_the_first_position_stays(data):
    dark = demo.hidden_in_bursts(data.test * 4, 0.75, 15, key=jax.random.key(1))
    shown = np.stack([e.observed[:, 0] for e in dark])
    assert shown[:, 0].all()
    assert np.mean(~shown[:, 1:]) == pytest.approx(0.75, abs=1e-3)
    spans = [b - a + 1 for e in dark for a, b in dark_spans([v if v == v else None for v in e.observations[:, 0]])]
    assert np.mean(spans) > 4  # independent hiding at this share gives 4


def test_sensor_noise_alone_is_not_taken_for_a_spring():
    """A resting puck seen with noise: with shared samples its stiffness would be −slope = 1/2dt² = 50."""
    rng = np.random.default_rng(0)
    logs = [episode(rng.normal(size=400), np.zeros(399), dt=0.1, channels=["q"]) for _ in range(20)]
    found = places(logs)
    for m in range(3):
        # Per cluster: ~2,700 rows, acceleration noise √6/4dt² = 61, place spread at least 0.3.
        assert abs(found.lines[m, 1]) < 5 * 61 / (0.3 * 2000**0.5)


def test_places_finds_the_springs_of_clean_logs(data):
    every = [*data.train, *data.validation, *data.test]
    logs = [replace(e, observations=s[:, :1]) for e, s in zip(every, data.truth.states, strict=True)]
    found = places(logs)
    left, middle, right = np.argsort(found.centres)
    assert found.centres[left] < -0.4 < 0.4 < found.centres[right]
    assert max(found.lines[left, 1], found.lines[right, 1]) < -4 < found.lines[middle, 1]
    np.testing.assert_allclose(found.lines[:, 3], 1.0, atol=0.3)


def test_motion_of_a_placed_model_is_the_line_it_was_placed_by():
    lines = np.array([[0.3, -2.0, -0.5, 1.1], [-6.0, -12.0, -0.55, 1.0], [6.0, -12.0, -0.7, 0.9]])
    flow = placed_model(demo.Places(np.array([0.0, -1.0, 1.0]), 0.1, lines)).flow
    for m, (push, slope, drag, gain) in enumerate(lines):
        # The start's small resistance of q, 1e-4, is part of the motion.
        np.testing.assert_allclose(motion(flow, m), (-slope, -drag, gain, push), rtol=5e-3)


def test_motion_does_not_depend_on_the_scale_of_the_momentum(data):
    flow, c = placed_model(places(data.train)).flow, 3.0
    # p' = c p: H(q, p'/c) times c keeps q̇ = ∂H'/∂p' and makes ṗ' = c ṗ; resistances and ports follow.
    scaled = replace(
        flow,
        coefficients=flow.coefficients * np.array([c, 1, c, 1, 1 / c]),
        dissipation=flow.dissipation * np.array([[c**-0.5, 1], [1, c**0.5]]),
        port=flow.port * np.array([[1], [c]]),
    )
    for m in range(3):
        np.testing.assert_allclose(motion(scaled, m), motion(flow, m), rtol=1e-4, atol=1e-5)


def test_true_motion_is_the_simulated_law():
    law, z, action = demo.PUCK.law(), (0.9, 0.4), (0.3,)
    for m in range(3):
        # Mass 1: p = q̇, and ṗ is the acceleration.
        k, d, g, push = true_motion(m)
        assert law.velocity(m, z, action)[1] == pytest.approx(push - k * z[0] - d * z[1] + g * action[0])
