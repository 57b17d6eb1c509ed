"""Modes of bodies that nobody holds: their steps, and laws found where the truth is known."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from vhydro.episodes import Channel, Episode, episode
from vhydro.modes import adjusted_rand
from vhydro.modes.free import Laws, learned_free
from vhydro.modes.motion import body_steps
from vhydro.modes.posterior import is_separate, mode_posterior

DT, G = 0.01, 9.81
REST, FALL, STRUCK, SLIDE = range(4)
NOISE = np.array([[0.02, 0.02, 0.02], [0.05, 0.05, 0.05], [3.0, 3.0, 3.0], [0.05, 0.05, 0.05]]) * 1e-3
KEEP = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.9, 0.9, -0.3], [0.95, 0.95, 0.0]])
FLOOR = np.full(3, 2e-5)
CHANNELS = (Channel("ball.dx", "level", "m"), Channel("ball.dy", "level", "m"), Channel("ball.dz", "upright", "m"))
KNOWN = Laws(
    np.array([[0.0] * 3, [1.0] * 3, [np.nan] * 3, [np.nan] * 3]),
    np.array([[0.0] * 3, [0.0, 0.0, -G * DT**2], [0.0, 0.0, np.nan], [0.0, 0.0, np.nan]]),
)


def bounce(seed: int) -> Episode:
    """Steps of a ball that falls, is struck, falls again, is struck, slides and rests."""
    random = np.random.default_rng(seed)
    lengths = random.integers([15, 3, 10, 3, 25, 12], [25, 5, 16, 5, 35, 20])
    path = np.repeat([FALL, STRUCK, FALL, STRUCK, SLIDE, REST], lengths)
    steps = [np.array([*random.normal(0, 5e-3, 2), 0.0])]
    for mode in path[1:]:
        push = [0.0, 0.0, -G * DT**2 if mode == FALL else 0.0]
        steps.append(KEEP[mode] * steps[-1] + push + NOISE[mode] * random.normal(size=3))
    return Episode(np.array(steps), np.zeros((len(steps) - 1, 0)), DT, CHANNELS, labels={"mode": path})


@pytest.fixture(scope="module")
def logs() -> list[Episode]:
    return [bounce(seed) for seed in range(24)]


@pytest.fixture(scope="module")
def found(logs):
    return learned_free(logs[:16], logs[16:20], KNOWN, floor=FLOOR, own_noise=True)


def paths(model, logs) -> np.ndarray:
    return np.concatenate([mode_posterior(model, e).path for e in logs])


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
    error = NOISE[SLIDE, 0] / np.sqrt((before**2).sum())  # of least squares that knows the modes
    assert found.laws.keep[slide, 0] == pytest.approx(0.95, abs=4 * error)
    rows = sum((e.labels["mode"][1:] == STRUCK).sum() for e in logs[:16])
    assert found.noise[struck, 2] == pytest.approx(NOISE[STRUCK, 2], rel=4 / np.sqrt(2 * rows))
    np.testing.assert_array_equal(found.laws.keep[:, 0], found.laws.keep[:, 1])  # one group, one law


def test_labels_change_no_bit(found, logs):
    random = np.random.default_rng(1)
    shuffled = [replace(e, labels={"mode": random.permutation(e.labels["mode"])}) for e in logs]
    again = learned_free(shuffled[:16], shuffled[16:20], KNOWN, floor=FLOOR, own_noise=True)
    for a, b in zip(jax.tree.leaves(found.model), jax.tree.leaves(again.model), strict=True):
        np.testing.assert_array_equal(a, b)


def test_hidden_rows_are_bridged(found, logs):
    hidden = [e.observations.copy() for e in logs[20:]]
    for values in hidden:
        values[5:10] = np.nan  # in the first fall
    dark = [replace(e, observations=v) for e, v in zip(logs[20:], hidden, strict=True)]
    for e in dark:
        assert (mode_posterior(found.model, e).path[5:10] == FALL).all()
    again = learned_free([*dark, *logs[4:16]], logs[16:20], KNOWN, floor=FLOOR, own_noise=True)
    np.testing.assert_allclose(again.noise[:2], found.noise[:2], rtol=0.2)


def test_pushes_alone_with_a_shared_noise():
    random = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2, 3, 1, 0], 16)
    level = np.array([[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    values = level[truth] + 0.2 * random.normal(size=(21, 96, 3))
    logs = [Episode(v, np.zeros((95, 0)), DT, CHANNELS) for v in values]
    laws = Laws(np.zeros((4, 3)), np.full((4, 3), np.nan))
    found = learned_free(logs[:16], logs[16:20], laws, floor=np.full(3, 0.05), own_noise=False)
    nearest = np.abs(level[:, None] - found.laws.push).max(-1).min(1)
    assert (nearest < 4 * 0.2 / np.sqrt(16 * 15)).all()
    assert not np.ptp(found.noise, axis=0).any()
    assert adjusted_rand(mode_posterior(found.model, logs[20]).path, truth) > 0.9


def test_a_flying_body_keeps_its_steps_and_falls():
    t = DT * np.arange(20)
    place = np.stack([t, 2 * t, 3 * t - G * t**2 / 2], 1)
    spin = np.array([1.0, -2.0, 3.0])
    turned = Rotation.from_rotvec(t[:, None] * spin) * Rotation.from_euler("x", 40, degrees=True)
    poses = np.concatenate([place, turned.as_quat(scalar_first=True)], 1)
    names = [f"cube.{n}" for n in ("x", "y", "z", "qw", "qx", "qy", "qz")]
    log = episode(poses, dt=DT, channels=names, labels={"mode": np.zeros(20)})
    steps = body_steps(log, "cube")
    assert steps.labels == {}
    change = np.diff(steps.observations, axis=0)
    np.testing.assert_allclose(change, np.tile([0, 0, -G * DT**2, 0, 0, 0], (18, 1)), atol=1e-12)
    np.testing.assert_allclose(steps.observations[0, 3:], spin * DT, atol=1e-12)
    poses[7, 4] = np.nan
    hidden = np.isnan(body_steps(replace(log, observations=poses), "cube").observations)
    assert hidden[[6, 7], 3:].all()
    assert hidden.sum() == 6


def test_bad_input_is_refused(logs):
    with pytest.raises(ValueError, match="1 training and 0 validation logs"):
        learned_free(logs[:1], [], KNOWN, floor=FLOOR, own_noise=True)
    with pytest.raises(ValueError, match=r"expected \(modes, 3\) twice and \(3,\)"):
        learned_free(logs[:1], logs[1:2], KNOWN, floor=np.ones(2), own_noise=True)
    with pytest.raises(ValueError, match="expected more than 0 in every channel"):
        learned_free(logs[:1], logs[1:2], KNOWN, floor=np.zeros(3), own_noise=True)
    uneven = KNOWN._replace(keep=np.array([[0.0, 1.0, 0.0], *KNOWN.keep[1:]]))
    with pytest.raises(ValueError, match="differs within the group 'level'"):
        learned_free(logs[:1], logs[1:2], uneven, floor=FLOOR, own_noise=True)
    other = logs[1].select(["ball.dx"])
    with pytest.raises(ValueError, match="as in the first training log"):
        learned_free(logs[:1], [other], KNOWN, floor=FLOOR, own_noise=True)
    dark = replace(logs[0], observations=np.full_like(logs[0].observations, np.nan))
    with pytest.raises(ValueError, match="no two steps in a row were seen"):
        learned_free([dark], logs[1:2], KNOWN, floor=FLOOR, own_noise=True)
    with pytest.raises(ValueError, match="expected at least 3, for a step and the one after it"):
        body_steps(episode(np.zeros((2, 7)), dt=DT), "cube")
