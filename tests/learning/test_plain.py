"""Switching autoregressions of channels as they are, where the truth is known."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from known_logs import valve_log
from vhydro.episodes import Episode, episode
from vhydro.learning import plain
from vhydro.learning.plain import plain_start
from vhydro.modes import adjusted_rand
from vhydro.smoother import smooth_log

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def logs() -> list[Episode]:
    return [valve_log(seed) for seed in range(9)]


@pytest.fixture(scope="module")
def found(logs):
    return plain_start(logs[:6], logs[6:8], 2, seed=0)


def test_regimes_and_their_laws_are_found(found, logs):
    truth = logs[8].labels["mode"][1:]
    assert adjusted_rand(smooth_log(found.model, logs[8], key=KEY).path[1:], truth) > 0.9
    assert found.names == ("regime 1", "regime 2")
    assert found.collapsed == ()
    model = found.model
    scale, action = np.asarray(model.scale, np.float64), np.asarray(model.action_scale, np.float64)
    matrix = np.asarray(model.flow.matrix, np.float64) * scale[:, None] / scale
    port = np.asarray(model.flow.port, np.float64) * scale[:, None] / action
    opened = int(np.abs(port).sum((1, 2)).argmax())
    # Least squares that knows the modes has errors of .02 over the root of the rows times the size of a regressor.
    rows = sum((e.labels["mode"][1:] == 1).sum() for e in logs[:6])
    np.testing.assert_allclose(port[opened, :, 0], [1.0, -0.5], atol=6 * 0.02 / np.sqrt(rows))
    np.testing.assert_allclose(port[1 - opened, :, 0], 0, atol=6 * 0.02 / np.sqrt(rows))
    size = np.concatenate([e.observations[:-1][e.labels["mode"][1:] == 1] for e in logs[:6]]).std(0)
    # Pressure and flow follow one valve: they are told apart by their own noise alone where it is open.
    total = matrix[opened] @ [1.0, -0.5]
    np.testing.assert_allclose(total, 0.7 * np.array([1.0, -0.5]), atol=6 * 0.02 / np.sqrt(rows) / size.min())


def test_one_mode_is_a_vector_autoregression(logs):
    """With one mode it is least squares with one imagined row for every coefficient, in units of their spread."""
    found = plain_start(logs[:6], logs[6:8], 1)
    assert found.names == ("everything",)
    model = found.model
    rows = [(e.observations - np.asarray(model.shift)) / np.asarray(model.scale) for e in logs[:6]]
    spread = np.maximum(np.sqrt((np.concatenate(rows) ** 2).mean(0)), 1.0)
    told = np.concatenate([e.actions for e in logs[:6]]) / np.asarray(model.action_scale)
    design = np.hstack([np.concatenate([y[:-1] for y in rows]) / spread, told, np.ones((len(told), 1))])
    step = np.concatenate([np.diff(y, axis=0) for y in rows])
    expected = np.linalg.solve(design.T @ design + np.eye(4), design.T @ step).T
    np.testing.assert_allclose(model.flow.matrix[0], np.eye(2) + expected[:, :2] / spread, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(model.flow.port[0], expected[:, 2:3], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(model.flow.offset[0], expected[:, 3], rtol=1e-3, atol=1e-4)


def test_auto_chooses_the_regimes_that_logs_speak_for(logs, monkeypatch):
    monkeypatch.setattr(plain, "MOST", 2)
    chosen = plain_start(logs[:6], logs[6:8], seed=0)
    assert [t.modes for t in chosen.tried] == [1, 2]
    assert chosen.tried[1].validation > chosen.tried[0].validation + 1
    assert chosen.model.modes == 2


def test_of_many_channels_each_follows_itself():
    random = np.random.default_rng(0)
    values = np.cumsum(random.normal(size=(3, 50, 8)), 1)
    found = plain_start([episode(v, dt=0.1) for v in values[:2]], [episode(values[2], dt=0.1)], 1)
    matrix = np.asarray(found.model.flow.matrix[0])
    assert (matrix == np.diag(np.diag(matrix))).all()


def test_hidden_values_are_left_out(found, logs):
    random = np.random.default_rng(1)
    dark = [replace(e, observations=np.where(random.random((61, 2)) < 0.1, np.nan, e.observations)) for e in logs]
    again = plain_start(dark[:6], dark[6:8], 2, seed=0)
    one, two = (
        np.asarray(m.flow.port) * np.asarray(m.scale)[:, None] / np.asarray(m.action_scale)
        for m in (found.model, again.model)
    )
    rows = sum((e.labels["mode"][1:] == 1).sum() for e in logs[:6])
    np.testing.assert_allclose(two, one, atol=6 * 0.02 / np.sqrt(rows))
    assert np.isfinite(smooth_log(again.model, dark[8], key=KEY).mean).all()


def test_bad_input_is_refused(logs):
    with pytest.raises(ValueError, match="0 validation logs"):
        plain_start(logs, [], 2)
    with pytest.raises(ValueError, match="modes is 0"):
        plain_start(logs[:2], logs[2:], 0)
    still = replace(logs[0], observations=np.ones_like(logs[0].observations))
    with pytest.raises(ValueError, match="nothing changes in any of the logs"):
        plain_start([still], logs[1:2], 1)
    dark = replace(logs[0], observations=np.where(np.arange(61)[:, None] % 2, np.nan, logs[0].observations))
    with pytest.raises(ValueError, match="no two rows in a row were seen in any validation log"):
        plain_start(logs[:2], [dark], 1)
