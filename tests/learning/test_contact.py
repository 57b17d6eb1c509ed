"""Contact modes without labels: what is found where the truth is known, and what may not matter."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from known_logs import BODIES, cloth_log, hand_log
from vhydro.episodes import Contact, Episode
from vhydro.learning import contact_modes
from vhydro.learning.contact import FLOOR, ContactFit, floors, scales_of, sensor_noise, smoothed_log
from vhydro.learning.contact_modes import contact_start, contact_words
from vhydro.learning.start import Tried, best_count
from vhydro.learning.switching import Rows, Switching
from vhydro.modes import adjusted_rand
from vhydro.occlusion import occlude
from vhydro.smoother import smooth_log
from vhydro.views import contact_view

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def logs() -> list[Episode]:
    return [hand_log(seed) for seed in range(10)]


@pytest.fixture(scope="module")
def view(logs):
    return contact_view(logs[:6])


@pytest.fixture(scope="module")
def found(logs, view):
    return contact_start(view, logs[:6], logs[6:8], 2, seed=0)


def paths(found, view, logs, level: float = 0.0) -> np.ndarray:
    out = []
    for i, log in enumerate(logs):
        seen = view(log)
        if level:
            places = [c.name for c in seen.channels if c.group in BODIES]
            dark = occlude(seen.select(places), level, key=jax.random.key(i))
            values = np.concatenate([dark.observations, seen.observations[:, len(places) :]], 1)
            seen = replace(seen, observations=values)
        out.append(smooth_log(found.model, seen, key=KEY).path)
    return np.concatenate(out)


def truth(logs) -> np.ndarray:
    return np.concatenate([log.labels["configuration"] for log in logs])


def test_modes_are_the_contacts(found, view, logs):
    assert adjusted_rand(paths(found, view, logs[8:]), truth(logs[8:])) > 0.95
    assert found.names == ("nothing", "cup with the hand, the fingers on something")
    assert found.couples.tolist() == [[False] * 4, [True, False, True, False]]
    assert found.collapsed == ()


def test_half_in_the_dark_most_of_it_is_still_told(found, view, logs):
    assert adjusted_rand(paths(found, view, logs[8:], 0.5), truth(logs[8:])) > 0.85


def test_labels_and_forces_change_no_bit(found, view, logs):
    random = np.random.default_rng(1)
    force = Contact(("hand", "cup"), random.random(61), random.random(61))
    shuffled = [replace(e, labels={"configuration": random.integers(0, 5, 61)}, contacts=(force,)) for e in logs]
    again = contact_start(view, shuffled[:6], shuffled[6:8], 2, seed=0)
    for a, b in zip(jax.tree.leaves(found.model), jax.tree.leaves(again.model), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(paths(found, view, logs[8:]), paths(again, view, shuffled[8:]))


def test_auto_stops_where_modes_couple_the_same(logs, view, monkeypatch):
    monkeypatch.setattr(contact_modes, "MOST", 3)
    chosen = contact_start(view, logs[:6], logs[6:8], seed=0)
    assert [t.modes for t in chosen.tried] == [1, 2, 3]
    assert chosen.tried[1].validation > chosen.tried[0].validation + 1
    learned = 2 + (chosen.tried[2].distinct == 3)
    assert chosen.couples[:2].tolist() == [[False] * 4, [True, False, True, False]]
    unseen = chosen.couples[learned:]  # combinations that no log shows
    assert not any((unseen == known).all(1).any() for known in chosen.couples[:learned])


def test_the_most_modes_that_all_differ_and_are_likelier_are_chosen():
    rows = [Tried(1, -5.0, 1), Tried(2, -3.0, 2), Tried(3, -2.0, 2), Tried(4, -1.0, 4), Tried(5, -1.5, 5)]
    assert best_count(rows) == 3
    assert best_count(rows[:3]) == 1
    assert best_count([Tried(1, -5.0, 1), Tried(2, -6.0, 2)]) == 0


def test_the_chain_learns_that_contact_begins_when_fingers_close(found):
    """Fingers close in the very steps in which the cup begins to be held."""
    assert found.couples is not None
    grasps = int(np.argmax(found.couples.sum(1)))
    drive = found.model.kernel.drive.weight
    opening = drive[grasps, -2:] - drive[1 - grasps, -2:]
    assert (opening < 0).all()  # narrow, and closing


def test_what_goes_with_the_hand_goes_roughly(found):
    """The noise of what is held grows with the hand's step; that of what is not, and of the robot, does not."""
    model = found.model
    grasps = int(np.argmax(found.couples.sum(1)))
    still, fast = (np.asarray(model.noise_under(jnp.full(model.inputs, a))) for a in (0.0, 30.0))
    np.testing.assert_allclose(still, model.noise, rtol=1e-6)
    assert (fast[grasps, :3] > 2 * still[grasps, :3]).all()
    np.testing.assert_allclose(fast[1 - grasps], still[1 - grasps], rtol=1e-6)
    np.testing.assert_allclose(fast[grasps, 3:], still[grasps, 3:], rtol=1e-6)


def test_sensor_noise_is_estimated_and_not_assumed(logs, view):
    random = np.random.default_rng(2)
    noisy = [replace(e, observations=e.observations.copy()) for e in logs]
    for e in noisy:
        e.observations[:, 5:8] += 3e-3 * random.normal(size=(61, 3))
    seen = [view(e) for e in noisy]
    size = sensor_noise(seen)
    np.testing.assert_allclose(size[:3], 3e-3, rtol=0.1)
    assert (size[3:6] < 3e-5).all()
    assert not size[6:].any()  # encoders count as exact
    assert scales_of(seen).width >= 1  # rows that bodies are smoothed over, for one step drowns
    assert scales_of([view(e) for e in logs]).width == 0
    found = contact_start(view, noisy[:6], noisy[6:8], 2, seed=0)
    np.testing.assert_allclose(found.model.emission.noise[:3] * found.model.scale[:3], size[:3], rtol=0.1)
    assert adjusted_rand(paths(found, view, noisy[8:]), truth(logs[8:])) > 0.9


def test_smoothing_keeps_gains(logs, view):
    """A cup that follows the hand by a gain follows it by the same one after both were smoothed, hidden rows or not."""
    log = view(logs[0])
    drive = log.actions[:, :3]
    values = log.observations.copy()
    values[:, :3] = 0.1 + np.concatenate([np.zeros((1, 3)), np.cumsum(0.7 * drive, 0)])
    values[20:23, :3] = np.nan
    calm = smoothed_log(replace(log, observations=values), 2.0)
    moved = np.diff(calm.observations[:, :3], axis=0)
    assert np.isfinite(moved).mean() > 0.9
    np.testing.assert_allclose(moved, np.where(np.isnan(moved), np.nan, 0.7 * calm.actions[:, :3]), atol=1e-12)
    np.testing.assert_array_equal(calm.observations[:, 6:], log.observations[:, 6:])  # encoders are not smoothed


def test_bodies_that_are_hidden_while_learning_do_no_harm(logs, view):
    dark = []
    for i, log in enumerate(logs[:8]):
        values = log.observations.copy()
        values[:, 8:] = np.nan  # the plate in no log, the cup not at first
        values[0 if i else slice(None), 5:8] = np.nan
        dark.append(replace(log, observations=values))
    found = contact_start(view, dark[:6], dark[6:], 2, seed=0)
    assert adjusted_rand(paths(found, view, logs[8:]), truth(logs[8:])) > 0.9
    nothing = [replace(log, observations=np.where(np.arange(11) < 5, log.observations, np.nan)) for log in logs[:3]]
    assert contact_start(view, nothing[:2], nothing[2:], 2).model.modes == 2  # hand and fingers alone still tell
    short = [replace(log, observations=log.observations[:1], actions=log.actions[:0], labels={}) for log in logs[:2]]
    with pytest.raises(ValueError, match="in any validation log"):
        contact_start(view, logs[:2], short, 2)


def test_too_many_modes_are_reported_as_collapsed(logs, view):
    many = contact_start(view, logs[:6], logs[6:8], 4, seed=0)
    assert many.collapsed
    assert (len(many.names), many.model.modes) == (4, 4)


def test_bad_calls_are_refused(logs, view):
    with pytest.raises(ValueError, match="0 validation logs"):
        contact_start(view, logs, [], 2)
    with pytest.raises(ValueError, match="modes is 0"):
        contact_start(view, logs[:2], logs[2:], 0)
    still = replace(logs[0], observations=np.repeat(logs[0].observations[:1], 61, 0))
    with pytest.raises(ValueError, match="nothing moves in any of the logs"):
        floors([view(still)])


def test_words():
    things = (*BODIES, "gripper", "end_effector")
    words = contact_words(np.array([True, True, False, True]), things)
    assert words == "cup and plate with the hand, the hand held back"


def test_a_start_with_a_mode_of_a_few_odd_rows_is_the_last_resort():
    small = Switching(np.zeros((2, 2, 1)), np.ones((2, 2)), np.zeros((2, 2)), np.zeros((0, 2)), np.zeros(2))
    whole, odd = (
        ContactFit(small, Rows(np.array(share), np.ones((2, 2)), np.ones((2, 2))), v)
        for share, v in (([0.6, 0.4], -3.0), ([0.995, 0.005], -1.0))
    )
    assert max([odd, whole], key=contact_modes._worth) is whole
    assert max([odd], key=contact_modes._worth) is odd


def test_a_cloth_goes_with_the_hand_that_pulls_it():
    logs = [cloth_log(seed) for seed in range(8)]
    view = contact_view(logs)
    found = contact_start(view, logs[:5], logs[5:7], 2, seed=0)
    assert found.names == ("nothing", "cloth with the hand")
    path = smooth_log(found.model, view(logs[7]), key=KEY).path
    assert adjusted_rand(path, logs[7].labels["pulled"]) > 0.8
    assert found.model.kernel.drive is not None  # how near the hand is to where the cloth lay


def test_a_cloth_settles_by_less_than_a_share_of_the_hands_steps():
    logs = [cloth_log(seed) for seed in range(3)]
    seen = [contact_view(logs)(e) for e in logs]
    hand = np.sqrt(np.mean(np.concatenate([np.diff(e.observations[:, :3], axis=0) for e in logs]) ** 2))
    np.testing.assert_allclose(floors(seen), FLOOR * hand)


def test_a_cup_that_is_carried_in_the_dark_is_followed(found, view, logs):
    """The hand is seen and the cup is not: where it goes is told by the hand that holds it."""
    log = view(logs[8].unlabelled())
    held = np.flatnonzero(logs[8].labels["configuration"])
    values = log.observations.copy()
    values[held[0] + 3 : held[-1] + 1, :3] = np.nan
    part = replace(log, observations=values[: held[-1] + 1], actions=log.actions[: held[-1]])
    belief = smooth_log(found.model, part, key=KEY)
    dark = slice(held[0] + 3, held[-1] + 1)
    scale, shift = (np.asarray(x[:3]) for x in (found.model.scale, found.model.shift))
    where, deviation = belief.mean[dark, :3] * scale + shift, np.sqrt(belief.variance[dark, :3]) * scale
    gone = np.abs(log.observations[dark, :3] - log.observations[held[0] + 2, :3])
    assert (gone / deviation).max() > 5
    assert np.sqrt((((where - log.observations[dark, :3]) / deviation) ** 2).mean()) < 2


def loud(logs: list[Episode], size: float) -> list[Episode]:
    """Logs whose bodies are read with noise."""
    random, out = np.random.default_rng(5), []
    for log in logs:
        values = log.observations.astype(np.float64)
        mine = np.array([c.name.split(".")[0] in BODIES for c in log.channels])
        values[:, mine] += size * random.normal(size=(len(values), mine.sum()))
        out.append(replace(log, observations=values))
    return out


def test_noise_that_hides_everything_is_said_with_its_size(logs, view):
    """A body of which nothing can be told is in no mode's words."""
    quiet = contact_start(view, logs[:6], logs[6:8], 2, seed=0)
    assert quiet.notes == ()
    noisy = loud(logs, 5.0)
    found = contact_start(view, noisy[:6], noisy[6:8], 2, seed=0)
    assert [note.split()[0] for note in found.notes] == ["sensor", *view.bodies, "so"]
    assert float(found.notes[1].split("off by ")[1].split(" mm")[0]) == pytest.approx(5000, rel=0.3)
    assert found.notes[-1].startswith("so nothing can be told of what the hand touches")
    assert not any(body in name for name in found.names for body in view.bodies)
    some = contact_start(view, *(loud(part, 0.003) for part in (logs[:6], logs[6:8])), 2, seed=0)
    assert some.notes[0].startswith("sensor noise, as estimated: cup ")
    assert [note.split(":")[0] for note in some.notes[1:]] == ["plate is not seen to move"]  # it never does
