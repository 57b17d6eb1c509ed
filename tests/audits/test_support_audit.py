"""The support audit: metrics on hand-made beliefs, a grid with every cell once, and the same cell twice."""

import gzip
import json

import jax
import numpy as np
import pytest
from scipy.stats import norm

from vhydro.calibration import LEVELS as NOMINAL
from vhydro_audits.grid import run_grid
from vhydro_audits.spec import SUPPORT
from vhydro_audits.summary import summary_rows
from vhydro_audits.support import SupportAuditConfig, groups, run_support_audit, work
from vhydro_audits.support_data import NOISE, divided, logs_of, view_of
from vhydro_audits.support_fits import FITTED, LEVELS, METHODS, REGIMES, Stream, gate_of, seed_keys, settings_of
from vhydro_audits.support_metrics import calibrated, cell_metrics, check_metrics, coverages, step_metrics
from vhydro_audits.support_runs import Checks, Readings, Steps

CHANNELS = np.array([0, 0, 1])


def readings(claimed: float, shape=(2, 30, 40, 3), seed: int = 0) -> Readings:
    """A belief N(0, claimed) of readings that are N(0, 1), the second half of each log hidden."""
    y = np.random.default_rng(seed).normal(size=shape)
    hidden = np.broadcast_to(np.arange(shape[-2])[:, None] >= shape[-2] // 2, shape)
    sd = np.full(shape, claimed)
    return Readings(hidden, sd, np.abs(y) / sd, norm.logpdf(y, scale=sd), norm.cdf(y, scale=sd), np.abs(y) > 3)


def test_a_true_belief_is_calibrated_and_an_overconfident_one_is_not():
    valid = np.ones((30, 40), bool)
    for claimed in (1.0, 0.5):
        found = readings(claimed, (30, 40, 3))
        cell = cell_metrics(found, np.asarray(found.log_density), coverages(found), valid)
        expected = 2 * norm.cdf(norm.ppf((1 + NOMINAL) / 2) * claimed) - 1
        np.testing.assert_allclose(cell["coverage"], expected, atol=0.03)
        assert cell["cov90"] == pytest.approx(expected[17], abs=0.02)
        assert cell["ece"] == pytest.approx(np.abs(expected - NOMINAL).mean(), abs=0.02)
        true_nll = np.log(claimed) + 0.5 * np.log(2 * np.pi) + 0.5 / claimed**2
        assert cell["nll"] == pytest.approx(true_nll, abs=0.1)
        assert cell["lost"] == pytest.approx(2 * norm.sf(3), abs=0.003)


def test_rows_that_do_not_count_do_not_count():
    found, valid = readings(1.0, (30, 40, 3)), np.zeros((30, 40), bool)
    valid[0, 5] = True  # seen, one row
    cell = cell_metrics(found, np.asarray(found.log_density), coverages(found), valid)
    assert cell["nll"] == pytest.approx(-found.log_density[0, 5].mean())
    assert cell["nll_hidden"] is None
    assert cell["lost"] is None


def test_calibration_mends_intervals_and_density():
    valid = np.ones((2, 30, 40), bool)
    test = readings(0.3, seed=1)
    found = calibrated(readings(0.3, seed=0), valid, test, valid, CHANNELS)
    np.testing.assert_allclose(found.inside.mean((0, 1, 2, 3)), NOMINAL, atol=0.03)
    best = norm.logpdf(np.asarray(test.score) * 0.3).mean()
    assert test.log_density.mean() < best - 1
    assert found.log_density.mean() == pytest.approx(best, abs=0.06)


def test_a_belief_that_was_right_keeps_its_own_density():
    """The density of the intervals must win on episodes that they were not calibrated on."""
    valid = np.ones((2, 30, 40), bool)
    kept = []
    for seed in range(0, 20, 2):
        test = readings(1.0, seed=seed + 1)
        found = calibrated(readings(1.0, seed=seed), valid, test, valid, CHANNELS)
        kept.append((found.log_density == test.log_density).mean())
    assert np.mean(kept) > 0.9


def test_one_validation_episode_cannot_choose_another_density():
    valid, alone = np.ones((2, 30, 40), bool), np.ones((2, 1, 40), bool)
    test = readings(0.3, seed=1)
    found = calibrated(readings(0.3, (2, 1, 40, 3)), alone, test, valid, CHANNELS)
    np.testing.assert_array_equal(found.log_density, test.log_density)


def test_steps_and_checks_are_summed_up_as_defined():
    ess = np.array([[0.5, 0.25, 1.0]])
    flags = np.array([[True, False, True]])
    steps = Steps(ess, ess, flags, np.array([[0.1, 2.0, np.inf]]), ~flags, np.array([[0.2, 0.9, np.inf]]))
    out = step_metrics(steps, np.array([[True, True, False]]), 64)
    assert out["ess"] == pytest.approx(0.375)
    assert out["relative_weight_variance"] == pytest.approx((1 + 3) / 2)
    assert out["empirical_relative_variance"] == pytest.approx(2 / 64)
    assert (out["certified"], out["bounded"], out["redrawn"]) == (0.5, 0.5, 0.5)
    assert (out["pareto_k"], out["pareto_bad"]) == (pytest.approx(0.55), 0.5)
    checks = check_metrics(Checks(np.array([0.2, 5.0, 0.4]), np.array([0.1, 7.0, 0.2]), np.array([0.03, 1.0, 0.04])))
    assert checks["realised_variance"] == pytest.approx(7.3 / 3)
    assert (checks["bound"], checks["bound_realised"]) == (pytest.approx(0.3), pytest.approx(0.15))
    assert checks["bound_realised_se"] == pytest.approx(0.05 / 2)


def test_the_grid_has_every_cell_once():
    asked = groups(SupportAuditConfig())
    cells = [json.dumps(c, sort_keys=True) for g in asked for c in g.cells]
    assert len(cells) == len(set(cells))
    compared = [c for g in asked for c in g.cells if c["regime"] != "plain"]
    assert len(compared) == 3 * 8 * len(LEVELS) * len(METHODS) * 20
    assert {c["regime"] for g in groups(SupportAuditConfig(quick=True)) for c in g.cells} == {"shift"}


def test_methods_differ_in_their_gate_alone():
    for regime in REGIMES:
        settings = {m: settings_of(m, regime, 64) for m in FITTED}
        assert len({(s.particles, s.lookahead, s.ess_threshold, s.resampler) for s in settings.values()}) == 1
        assert gate_of("no-support").fixed == gate_of("smooth").fixed == 0.0
        assert len({s.gate.tolerance for s in settings.values()}) == 1


def test_every_published_row_stands_beside_one_of_ours():
    empty = dict.fromkeys(SUPPORT.numbers, 0.5)
    cells = [c | empty for g in groups(SupportAuditConfig(regime="shift", seeds=1)) for c in g.cells]
    beside = [r["published"] for r in summary_rows(SUPPORT, cells) if r["published"]]
    assert len({json.dumps(p, sort_keys=True) for p in beside}) == 2 * 4 * 5 + 2 * 4 * 4


def test_a_seed_adds_its_own_noise_and_divides_in_its_own_way():
    first, again, other = (divided("PickCube", None, seed, 0.005) for seed in (0, 0, 3))
    assert [len(part) for part in (*first[0], first[1])] == [1, 1, 1]
    np.testing.assert_array_equal(first[1][0].observations, again[1][0].observations)
    view = view_of("PickCube", None)
    one, two = (view(logs[1][0]).observations[:5] for logs in (first, other))
    assert (one != two).all()
    assert not view.machine


def test_no_two_purposes_of_a_seed_share_a_key():
    keys = [np.asarray(jax.random.key_data(seed_keys(3, stream))) for stream in Stream]
    splits = np.asarray(jax.random.key_data(jax.vmap(jax.random.split)(seed_keys(3, Stream.TEST)))).reshape(-1, 2)
    every = np.concatenate([*keys, splits])
    assert len(np.unique(every, axis=0)) == len(every)
    assert np.random.default_rng([5, NOISE]).random() != np.random.default_rng(5).random()


def test_missing_logs_and_wrong_tasks_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"has neither PickCube-v1.h5 nor PickCube.npz"):
        logs_of("PickCube", str(tmp_path))
    with pytest.raises(ValueError, match="no task 'tower' in --family contact; expected PickCube"):
        SupportAuditConfig(family="contact", tasks=("tower",))
    with pytest.raises(ValueError, match="--quick always runs 2 seeds of 60 steps on the shipped sample"):
        SupportAuditConfig(quick=True, data=tmp_path)
    with pytest.raises(ValueError, match="a full run needs --data FOLDER"):
        run_support_audit(SupportAuditConfig(out=tmp_path))
    with pytest.raises(ValueError, match="--sensor-noise 0; expected a positive number"):
        SupportAuditConfig(sensor_noise=0.0)


def test_the_same_cells_twice_are_the_same_bytes(tmp_path):
    config = {"particles": 8, "steps": 1, "sensor_noise": 0.005, "burst": 10, "quick": True, "data": None, "logs": {}}
    asked = [
        g
        for g in groups(SupportAuditConfig(family="contact", regime="shift", seeds=2, tasks=("PushCube",)))
        if g.key["method"] == "two-sided"
    ]
    for folder in ("first", "second"):
        run_grid(asked, work, config, tmp_path / folder, workers=0)
    texts = [(tmp_path / folder / "cells.jsonl.gz").read_bytes() for folder in ("first", "second")]
    assert texts[0] == texts[1]
    cells = [json.loads(line) for line in gzip.decompress(texts[0]).splitlines()]
    assert len(cells) == 2 * 5 * 2
    assert all(c["bound_realised"] <= c["bound"] + 4 * c["bound_realised_se"] for c in cells if c["bound"] is not None)
    assert all(0 <= c["cov90"] <= 1 and 0 < c["ess"] <= 1 + 1e-6 for c in cells)
