"""Modes of bodies that nobody holds: laws found where the truth is known, and what physics gives."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from known_logs import BALL_DT, BALL_NOISE, FALL, GRAVITY, REST, SLIDE, STEPS, STRUCK, ball_log, ball_steps
from vhydro.episodes import Episode
from vhydro.filter.merged import is_separate
from vhydro.learning import body
from vhydro.learning.body import StepLaws, body_start, fit_body, step_noise
from vhydro.modes import adjusted_rand
from vhydro.smoother import smooth_log
from vhydro.views import body_view

FLOOR = np.full(3, 2e-5)
KNOWN = StepLaws(
    np.array([[0.0] * 3, [1.0] * 3, [np.nan] * 3, [np.nan] * 3]),
    np.array([[0.0] * 3, [0.0, 0.0, -GRAVITY * BALL_DT**2], [0.0, 0.0, np.nan], [0.0, 0.0, np.nan]]),
)
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def logs() -> list[Episode]:
    return [ball_steps(seed) for seed in range(24)]


@pytest.fixture(scope="module")
def found(logs):
    return fit_body(logs[:16], logs[16:20], KNOWN, floor=FLOOR, own_noise=True)


def paths(model, logs) -> np.ndarray:
    return np.concatenate([smooth_log(model, e, key=KEY).path for e in logs])


def test_modes_are_those_that_made_the_logs(found, logs):
    truth = np.concatenate([e.labels["mode"] for e in logs[20:]])
    assert adjusted_rand(paths(found.model, logs[20:]), truth) > 0.9
    assert is_separate(found.model)  # modes are summed over, not sampled


def test_what_is_given_stays_and_the_rest_is_found(found, logs):
    whole = ~np.isnan(KNOWN.keep)
    np.testing.assert_allclose(found.laws.keep[whole], KNOWN.keep[whole])
    np.testing.assert_allclose(found.laws.push[:2], KNOWN.push[:2], rtol=1e-6)
    struck, slide = sorted((2, 3), key=lambda m: -found.noise[m, 0])
    inside = [e.labels["mode"][1:] == SLIDE for e in logs[:16]]
    before = np.concatenate([e.observations[:-1, :2][rows] for e, rows in zip(logs[:16], inside, strict=True)])
    error = BALL_NOISE[SLIDE, 0] / np.sqrt((before**2).sum())  # of least squares that knows the modes
    assert found.laws.keep[slide, 0] == pytest.approx(0.95, abs=4 * error)
    rows = sum((e.labels["mode"][1:] == STRUCK).sum() for e in logs[:16])
    assert found.noise[struck, 2] == pytest.approx(BALL_NOISE[STRUCK, 2], rel=4 / np.sqrt(2 * rows))
    np.testing.assert_array_equal(found.laws.keep[:, 0], found.laws.keep[:, 1])  # one group, one law


def test_labels_change_no_bit(found, logs):
    random = np.random.default_rng(1)
    shuffled = [replace(e, labels={"mode": random.permutation(e.labels["mode"])}) for e in logs]
    again = fit_body(shuffled[:16], shuffled[16:20], KNOWN, floor=FLOOR, own_noise=True)
    for a, b in zip(jax.tree.leaves(found.model), jax.tree.leaves(again.model), strict=True):
        np.testing.assert_array_equal(a, b)


def test_hidden_rows_are_bridged(found, logs):
    hidden = [e.observations.copy() for e in logs[20:]]
    for values in hidden:
        values[5:10] = np.nan  # in the first fall
    dark = [replace(e, observations=v) for e, v in zip(logs[20:], hidden, strict=True)]
    for e in dark:
        assert (smooth_log(found.model, e, key=KEY).path[5:10] == FALL).all()
    again = fit_body([*dark, *logs[4:16]], logs[16:20], KNOWN, floor=FLOOR, own_noise=True)
    np.testing.assert_allclose(again.noise[:2], found.noise[:2], rtol=0.2)


def test_pushes_alone_with_a_shared_noise():
    random = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2, 3, 1, 0], 16)
    level = np.array([[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    values = level[truth] + 0.2 * random.normal(size=(21, 96, 3))
    logs = [Episode(v, np.zeros((95, 0)), BALL_DT, STEPS) for v in values]
    laws = StepLaws(np.zeros((4, 3)), np.full((4, 3), np.nan))
    found = fit_body(logs[:16], logs[16:20], laws, floor=np.full(3, 0.05), own_noise=False)
    nearest = np.abs(level[:, None] - found.laws.push).max(-1).min(1)
    assert (nearest < 4 * 0.2 / np.sqrt(16 * 15)).all()
    assert not np.ptp(found.noise, axis=0).any()
    assert adjusted_rand(smooth_log(found.model, logs[20], key=KEY).path, truth) > 0.9


# --- with what physics gives ------------------------------------------------------------------------------------------


def test_a_start_knows_rest_and_flight():
    logs = [body_view([ball_log(0)])(ball_log(seed)) for seed in range(22)]
    found = body_start(logs[:16], logs[16:20], 4, seed=0)
    assert found.names == ("at rest", "in flight", "touching 1", "touching 2")
    assert found.collapsed == ()
    truth = np.concatenate([ball_log(seed).labels["mode"][1:] for seed in (20, 21)])
    path = paths(found.model, logs[20:])
    assert adjusted_rand(path, truth) > 0.9
    for mode in (REST, FALL):  # by number: what is given has its name for good
        assert (path == mode)[truth == mode].mean() > 0.95


def test_auto_tries_numbers_of_modes_and_one_mode_is_learned(monkeypatch):
    monkeypatch.setattr(body, "MOST", 3)
    logs = [body_view([ball_log(0)])(ball_log(seed)) for seed in range(8)]
    found = body_start(logs[:6], logs[6:], seed=0)
    assert [t.modes for t in found.tried] == [2, 3]
    assert found.model.modes == (3 if found.tried[1].distinct == 3 else 2)
    assert found.names[-1] == "touching" or found.model.modes == 2
    one = body_start(logs[:6], logs[6:], 1)
    assert one.names == ("moving",)
    with pytest.raises(ValueError, match="modes is 0"):
        body_start(logs[:6], logs[6:], 0)


def test_the_jitter_of_a_still_body_is_its_noise():
    logs = [ball_steps(seed) for seed in range(8)]
    rest = np.concatenate([e.observations[e.labels["mode"] == REST] for e in logs])
    assert (step_noise(logs) < 2 * rest.std(0)).all()
    assert (step_noise(logs) > 0.2 * rest.std(0)).all()
    still = replace(logs[0], observations=np.zeros_like(logs[0].observations))
    with pytest.raises(ValueError, match="the body never moves in any log"):
        step_noise([still])


def test_bad_input_is_refused(logs):
    with pytest.raises(ValueError, match="1 training and 0 validation logs"):
        fit_body(logs[:1], [], KNOWN, floor=FLOOR, own_noise=True)
    with pytest.raises(ValueError, match=r"expected \(modes, 3\) twice and \(3,\)"):
        fit_body(logs[:1], logs[1:2], KNOWN, floor=np.ones(2), own_noise=True)
    with pytest.raises(ValueError, match="expected more than 0 in every channel"):
        fit_body(logs[:1], logs[1:2], KNOWN, floor=np.zeros(3), own_noise=True)
    uneven = KNOWN._replace(keep=np.array([[0.0, 1.0, 0.0], *KNOWN.keep[1:]]))
    with pytest.raises(ValueError, match="differs within the group 'level'"):
        fit_body(logs[:1], logs[1:2], uneven, floor=FLOOR, own_noise=True)
    other = logs[1].select(["ball.dx"])
    with pytest.raises(ValueError, match="as in the first training log"):
        fit_body(logs[:1], [other], KNOWN, floor=FLOOR, own_noise=True)
    dark = replace(logs[0], observations=np.full_like(logs[0].observations, np.nan))
    with pytest.raises(ValueError, match="no two steps in a row were seen"):
        fit_body([dark], logs[1:2], KNOWN, floor=FLOOR, own_noise=True)
