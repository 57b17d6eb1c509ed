"""Robot logs: what the hand carries is found without labels, and what a log must show is said when it does not."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from vhydro.data.sample import sample
from vhydro.episodes import Channel, Episode
from vhydro.filter import FilterSettings, filter_episodes
from vhydro.robots import bodies_of, couplings, robot_model, seen_by_hand

NOISE = 0.003


def carried_logs(count: int = 8, steps: int = 40) -> list[Episode]:
    """A hand that wanders; from row 20 on the cup goes where it goes, the plate never moves."""
    random = np.random.default_rng(0)
    channels = [*(f"tcp.{a}" for a in "xyz"), "gripper.finger_1", "gripper.finger_2"]
    channels += [f"{body}.{a}" for body in ("cup", "plate") for a in "xyz"]
    groups = ["end_effector"] * 3 + ["gripper"] * 2 + ["object"] * 6
    logs = []
    for _ in range(count):
        moves = random.normal(0, 0.02, (steps, 3))
        hand = np.concatenate([np.zeros((1, 3)), np.cumsum(moves, 0)])
        fingers = np.where(np.arange(steps + 1)[:, None] < 20, 0.04, 0.01) * [1, -1]
        cup = np.concatenate([np.zeros((21, 3)), np.cumsum(moves[20:], 0)]) + random.normal(0, 0.1, 3)
        plate = np.broadcast_to(random.normal(0, 0.1, 3), (steps + 1, 3))
        values = np.concatenate([hand, fingers, cup, plate], 1)
        values[:, 5:] += NOISE * random.normal(size=values[:, 5:].shape)
        names = tuple(Channel(n, g, "m") for n, g in zip(channels, groups, strict=True))
        logs.append(Episode(values, np.zeros((steps, 1)), 0.05, names))
    return logs


@pytest.fixture(scope="module")
def logs() -> list[Episode]:
    return [seen_by_hand(log) for log in carried_logs()]


def test_bodies_are_channels_and_the_hand_is_an_input(logs):
    first = logs[0]
    assert [c.name for c in first.channels] == [f"{b}.{a}" for b in ("cup", "plate") for a in "xyz"]
    assert [c.group for c in first.channels] == ["cup"] * 3 + ["plate"] * 3
    raw = carried_logs()[0].observations
    np.testing.assert_allclose(first.actions[:, :3], np.diff(raw[:, :3], axis=0))
    np.testing.assert_allclose(first.actions[:, 3:6], raw[:-1, :3])
    np.testing.assert_allclose(first.actions[18:21, 6], [0.08, 0.02, 0.02])
    np.testing.assert_allclose(first.actions[18:21, 7], [0.0, -0.06, 0.0])


def test_couplings_say_what_is_carried_without_having_seen_a_label(logs):
    found = couplings([logs, logs[:4]], 2, NOISE, seeds=[0, 1])
    assert len(found) == 2
    for one in found:
        rest, carry = one.gain[np.argsort(np.abs(one.gain[:, :3]).sum(1))]
        np.testing.assert_allclose(rest, 0, atol=0.1)
        np.testing.assert_allclose(carry[:3], 1, atol=0.05)
        np.testing.assert_allclose(carry[3:], 0, atol=0.05)
        np.testing.assert_allclose(one.transition.sum(1), 1, rtol=1e-5)
        np.testing.assert_allclose(one.residual, np.sqrt(2) * NOISE, rtol=0.5)


def test_the_model_follows_a_cup_that_is_carried_in_the_dark(logs):
    found = couplings([logs], 2, NOISE, seeds=[0])[0]
    model = robot_model(logs, found, sensor_noise=NOISE, key=jax.random.key(0))
    dark = logs[0].observations.copy()
    dark[30:, :3] = np.nan
    log = replace(logs[0], observations=dark)
    (out,) = filter_episodes(model, [log], key=jax.random.key(1), settings=FilterSettings(particles=64))
    where = out.belief.mean[-1, :3] * np.asarray(model.scale[:3]) + np.asarray(model.shift[:3])
    away = np.abs(logs[0].observations[-1, :3] - logs[0].observations[30, :3]).max()
    assert away > 0.03
    np.testing.assert_allclose(where, logs[0].observations[-1, :3], atol=0.02)


def test_of_a_cloth_the_most_spread_knots_are_taken():
    names = bodies_of(sample("laundry")[0])
    assert len(names) == 5
    assert all(name.startswith("cloth.v") for name in names)


def test_what_a_log_must_show_is_said():
    log = carried_logs(1)[0]
    blind = log.select([c.name for c in log.channels if c.group != "object"])
    with pytest.raises(ValueError, match="no place of an object"):
        bodies_of(blind)
    with pytest.raises(ValueError, match=r"shows 0 of tcp.x, tcp.y, tcp.z and 2 fingers"):
        seen_by_hand(log.select([c.name for c in log.channels if c.group != "end_effector"]))
    gone = replace(log, observations=np.where(np.arange(41)[:, None] == 3, np.nan, log.observations))
    with pytest.raises(ValueError, match="encoders are never in the dark"):
        seen_by_hand(gone)
    unseen = replace(seen_by_hand(log), observations=np.full((41, 6), np.nan))
    with pytest.raises(ValueError, match="to see what moves with the hand"):
        couplings([[unseen]], 2, NOISE, seeds=[0])
