"""Contact modes without labels: what a view shows, what is learned from it, and posteriors against enumeration."""

from dataclasses import replace
from itertools import pairwise, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from vhydro.chains import chain_posterior
from vhydro.episodes import Channel, Contact, Episode, episode, pad
from vhydro.labels.contact import regime_of
from vhydro.model import axis_emission, hybrid_model, linear_flow, mode_kernel
from vhydro.modes import adjusted_rand, learn
from vhydro.modes.learn import Tried, contact_words, learned
from vhydro.modes.posterior import _merged_posterior, is_separate, mode_posterior
from vhydro.modes.readings import readings, standing
from vhydro.modes.switching import Found, Switching, floors
from vhydro.modes.view import ContactView, contact_view, view_from_json
from vhydro.network import network
from vhydro.occlusion import occlude

BODIES = ("cup", "plate")


def hand_log(seed: int, *, opens: float = 1.0, steps: int = 60) -> Episode:
    """A hand that wanders and, between two moments, has the cup between its fingers; the plate never moves."""
    random = np.random.default_rng(seed)
    grasp, release = random.integers(15, 25), random.integers(40, 50)
    held = (np.arange(steps + 1) > grasp) & (np.arange(steps + 1) <= release)
    asked = random.normal(size=(steps, 3))
    hand = np.concatenate([np.zeros((1, 3)), np.cumsum(0.01 * asked, 0)])
    cup = 0.1 + np.concatenate([np.zeros((1, 3)), np.cumsum(0.01 * asked * held[1:, None], 0)])
    command = np.where(held[1:], -1.0, 1.0)
    width = [0.04]
    for c in command:  # closes halfway to its target in a step, but for the cup between the fingers
        target = 0.02 * (1 + c)
        width.append(max(width[-1] + 0.5 * (target - width[-1]), 0.02 if c < 0 else 0.0))
    fingers = np.array(width)[:, None] * [1.0, -1.0]
    plate = np.full((steps + 1, 3), 0.3)
    names = [*(f"tcp.{a}" for a in "xyz"), "gripper.finger_1", "gripper.finger_2"]
    names += [f"{b}.{a}" for b in BODIES for a in "xyz"]
    groups = ["end_effector"] * 3 + ["gripper"] * 2 + ["object"] * 6
    return Episode(
        np.concatenate([hand, fingers, cup, plate], 1) + 1e-5 * random.normal(size=(steps + 1, 11)),
        np.concatenate([asked, opens * command[:, None]], 1),
        0.05,
        tuple(Channel(n, g, "m") for n, g in zip(names, groups, strict=True)),
        tuple(Channel(n, "action") for n in ("tcp.dx", "tcp.dy", "tcp.dz", "gripper.command")),
        labels={"configuration": held.astype(int)},
    )


@pytest.fixture(scope="module")
def logs() -> list[Episode]:
    return [hand_log(seed) for seed in range(10)]


@pytest.fixture(scope="module")
def found(logs):
    return learned(logs[:6], logs[6:8], 2, seed=0)


# --- views ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opens", [1.0, -1.0])
def test_a_view_pairs_every_response_with_its_drive(opens):
    logs = [hand_log(seed, opens=opens) for seed in range(3)]
    view = contact_view(logs)
    assert (view.bodies, view.opens, view.servo) == (BODIES, opens, "hand")
    assert view.opening == pytest.approx(0.04, abs=1e-3)
    seen, raw = view(logs[0]), logs[0].observations
    names = [c.name for c in seen.channels]
    assert names == [f"{b}.{a}" for b in BODIES for a in "xyz"] + ["gripper.opening", *(f"tcp.{a}" for a in "xyz")]
    np.testing.assert_allclose(seen.actions[:, :3], np.diff(raw[:, :3], axis=0))
    np.testing.assert_allclose(seen.actions[:, 3:6], seen.actions[:, :3])
    target = 0.5 * (1 + opens * logs[0].actions[:, 3]) * view.opening
    np.testing.assert_allclose(seen.actions[:, 6], target - np.abs(raw[:-1, 3:5]).mean(1))
    np.testing.assert_allclose(seen.actions[:, 7:], logs[0].actions[:, :3])
    assert view_from_json(view.as_json()) == view


def test_joints_with_targets_are_preferred_to_the_hand(logs):
    joint, random = Channel("arm.joint_1", "joints", "rad"), np.random.default_rng(0)
    q, target = random.normal(size=(61, 1)), random.normal(size=(60, 1))
    log = replace(
        logs[0],
        observations=np.concatenate([logs[0].observations, q], 1),
        channels=(*logs[0].channels, joint),
        actions=np.concatenate([logs[0].actions, target], 1),
        inputs=(*logs[0].inputs, Channel("arm.joint_target_1", "action")),
    )
    view = contact_view([log])
    assert (view.servo, view.joints) == ("joints", ("arm.joint_1",))
    np.testing.assert_allclose(view(log).actions[:, -1], (target - q[:-1])[:, 0])


def test_what_a_view_cannot_use_is_refused(logs):
    without = logs[0].select([c.name for c in logs[0].channels if not c.name.startswith("tcp.")])
    with pytest.raises(ValueError, match=r"does not show tcp\.x, tcp\.y, tcp\.z; expected the place of the hand"):
        contact_view([without])
    with pytest.raises(ValueError, match="no episodes given"):
        contact_view([])
    view, hidden = contact_view(logs[:2]), logs[0].observations.copy()
    hidden[4, 0] = np.nan
    with pytest.raises(ValueError, match="hides the hand, a finger or a joint"):
        view(replace(logs[0], observations=hidden))
    with pytest.raises(ValueError, match=r"expected gripper\.command among them"):
        view(replace(logs[0], inputs=tuple(Channel(f"a{i}") for i in range(4))))
    with pytest.raises(ValueError, match="expected what `vhydro learn` writes"):
        view_from_json({"bodies": ["cup"], "colour": "red"})


# --- learning ---------------------------------------------------------------------------------------------------------


def paths(found, logs, level: float = 0.0) -> np.ndarray:
    out = []
    for i, log in enumerate(logs):
        seen = found.view(log)
        if level:
            places = [c.name for c in seen.channels if c.group in BODIES]
            dark = occlude(seen.select(places), level, key=jax.random.key(i))
            values = np.concatenate([dark.observations, seen.observations[:, len(places) :]], 1)
            seen = replace(seen, observations=values)
        out.append(mode_posterior(found.model, seen).path)
    return np.concatenate(out)


def test_modes_are_the_contacts(found, logs):
    truth = np.concatenate([log.labels["configuration"] for log in logs[8:]])
    assert adjusted_rand(paths(found, logs[8:]), truth) > 0.95
    assert found.contacts == ("nothing", "cup with the hand, the fingers on something")
    assert found.collapsed == ()


def test_half_in_the_dark_most_of_it_is_still_told(found, logs):
    truth = np.concatenate([log.labels["configuration"] for log in logs[8:]])
    assert adjusted_rand(paths(found, logs[8:], 0.5), truth) > 0.85


def test_labels_and_forces_change_no_bit(found, logs):
    random = np.random.default_rng(1)
    force = Contact(("hand", "cup"), random.random(61), random.random(61))
    shuffled = [replace(e, labels={"configuration": random.integers(0, 5, 61)}, contacts=(force,)) for e in logs]
    again = learned(shuffled[:6], shuffled[6:8], 2, seed=0)
    for a, b in zip(jax.tree.leaves(found.model), jax.tree.leaves(again.model), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(paths(found, logs[8:]), paths(again, shuffled[8:]))


def test_auto_stops_where_modes_couple_the_same(logs, monkeypatch):
    monkeypatch.setattr(learn, "MOST", 3)
    chosen = learned(logs[:6], logs[6:8], seed=0)
    assert [t.modes for t in chosen.tried] == [1, 2, 3]
    assert chosen.tried[1].validation > chosen.tried[0].validation + 1
    assert chosen.model.modes == 2 + (chosen.tried[2].different == 3)


def test_the_most_modes_that_all_differ_and_are_likelier_are_chosen():
    rows = [Tried(1, -5.0, 1), Tried(2, -3.0, 2), Tried(3, -2.0, 2), Tried(4, -1.0, 4), Tried(5, -1.5, 5)]
    assert learn._chosen(rows) == 3
    assert learn._chosen(rows[:3]) == 1
    assert learn._chosen([Tried(1, -5.0, 1), Tried(2, -6.0, 2)]) == 0


def test_long_logs_leave_digits_for_every_row():
    random = np.random.default_rng(0)
    likely = jnp.asarray(random.normal(-20, 5, (20_000, 3)), jnp.float32)
    weight, pairs, _ = chain_posterior(likely, jnp.ones(20_000, bool), jnp.full((3, 3), 1 / 3), jnp.full(3, 1 / 3))
    np.testing.assert_allclose(weight.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(weight, jax.nn.softmax(likely, axis=1), atol=1e-4)
    assert float(pairs.sum()) == pytest.approx(19_999, rel=1e-4)


def test_bodies_that_are_hidden_while_learning_do_no_harm(logs):
    dark = []
    for i, log in enumerate(logs[:8]):
        values = log.observations.copy()
        values[:, 8:] = np.nan  # the plate in no log, the cup not at first
        values[0 if i else slice(None), 5:8] = np.nan
        dark.append(replace(log, observations=values))
    found = learned(dark[:6], dark[6:], 2, seed=0)
    truth = np.concatenate([log.labels["configuration"] for log in logs[8:]])
    assert adjusted_rand(paths(found, logs[8:]), truth) > 0.9
    nothing = [replace(log, observations=np.where(np.arange(11) < 5, log.observations, np.nan)) for log in logs[:3]]
    assert learned(nothing[:2], nothing[2:], 2).model.modes == 2  # hand and fingers alone still tell something
    short = [replace(log, observations=log.observations[:1], actions=log.actions[:0], labels={}) for log in logs[:2]]
    with pytest.raises(ValueError, match="in any validation log"):
        learned(logs[:2], short, 2)
    with pytest.raises(ValueError, match="shows 2 fingers, not always"):
        learned(
            [replace(logs[0], observations=np.where(np.arange(11) == 3, np.nan, logs[0].observations))], logs[1:], 2
        )


def test_too_many_modes_are_reported_as_collapsed(logs):
    many = learned(logs[:6], logs[6:8], 4, seed=0)
    assert many.collapsed
    assert len(many.contacts) == 4


def test_bad_calls_are_refused(logs):
    with pytest.raises(ValueError, match="0 validation logs"):
        learned(logs, [], 2)
    with pytest.raises(ValueError, match="modes is 0"):
        learned(logs[:2], logs[2:], 0)
    still = replace(logs[0], observations=np.repeat(logs[0].observations[:1], 61, 0))
    with pytest.raises(ValueError, match="nothing moves in any of the logs"):
        floors([contact_view(logs[:1])(still)])


def test_words():
    things = (*BODIES, "gripper", "end_effector")
    words = contact_words(np.array([True, True, False, True]), things)
    assert words == "cup and plate with the hand, the hand held back"


def test_a_start_with_a_mode_of_a_few_odd_rows_is_the_last_resort():
    whole, odd = (
        Found(small_switching(), np.array(share), v) for share, v in (([0.6, 0.4], -3.0), ([0.995, 0.005], -1.0))
    )
    assert max([odd, whole], key=learn._worth) is whole
    assert max([odd], key=learn._worth) is odd


def small_switching() -> Switching:
    return Switching(GAIN, np.eye(2), np.ones(2) / 2, np.ones(2))


# --- cloths, fingers that nobody moves, and what stands on what -------------------------------------------------------


def cloth_log(seed: int, steps: int = 80) -> Episode:
    """A hand that wanders over three knots in a row, and from time to time pulls the nearest by a third of its way."""
    random = np.random.default_rng(seed)
    place, knots, pulled = np.array([0.0, 0.0, 0.1]), np.array([[0.0, 0, 0], [0.2, 0, 0], [0.4, 0, 0]]), []
    hands, cloths = [place], [knots]
    for t in range(steps):
        step, pulls = 0.01 * random.normal(size=3), 20 <= t % 40 < 35
        nearest = np.linalg.norm(knots - place, axis=1).argmin()
        knots = knots + 1e-6 * random.normal(size=knots.shape)
        knots[nearest] += pulls * step / 3
        place = place + step
        hands.append(place)
        cloths.append(knots)
        pulled.append(pulls)
    names = [*(f"tcp.{a}" for a in "xyz"), *(f"cloth.v{k}.{a}" for k in (1, 2, 3) for a in "xyz")]
    values = np.concatenate([np.array(hands), np.array(cloths).reshape(steps + 1, 9)], 1)
    channels = tuple(Channel(n, "object" if n[0] == "c" else "end_effector", "m") for n in names)
    commands = np.zeros((steps, 1))
    labels = {"pulled": np.array([False, *pulled]).astype(int)}
    return Episode(values, commands, 0.05, channels, (Channel("gripper.command", "action"),), labels=labels)


def test_a_cloth_is_seen_where_it_is_touched():
    logs = [cloth_log(seed) for seed in range(8)]
    view = contact_view(logs)
    assert (view.bodies, len(view.knots), view.servo) == (("cloth",), 3, "none")
    assert view_from_json(view.as_json()) == view
    found = learned(logs[:5], logs[5:7], 2, seed=0)
    assert found.contacts == ("nothing", "cloth with the hand")
    assert adjusted_rand(mode_posterior(found.model, view(logs[7])).path, logs[7].labels["pulled"]) > 0.8


def test_a_hidden_cloth_goes_on_from_the_knot_that_was_nearest():
    log = cloth_log(0)
    values = log.observations.copy()
    values[30:33, 3:] = np.nan
    whole, gap = (contact_view([log])(e).observations for e in (log, replace(log, observations=values)))
    assert np.isnan(gap[30:33]).all()
    np.testing.assert_array_equal(gap[:30], whole[:30])
    nearest = np.linalg.norm(log.observations[29, 3:].reshape(3, 3) - log.observations[29, :3], axis=1).argmin()
    own = slice(3 + 3 * nearest, 6 + 3 * nearest)
    np.testing.assert_allclose(gap[33] - gap[29], log.observations[33, own] - log.observations[29, own])
    np.testing.assert_allclose(np.diff(gap[33:], axis=0), np.diff(whole[33:], axis=0), atol=1e-12)


def test_fingers_that_are_never_told_to_move_are_left_out(logs):
    still = [replace(e, actions=np.concatenate([e.actions[:, :3], np.ones((60, 1))], 1)) for e in logs[:2]]
    assert contact_view(still).opening == 0
    assert contact_view(logs[:2]).opening > 0


def test_what_nobody_holds_and_is_higher_than_before_stands_on_something():
    names = [f"cup.{a}" for a in "xyz"]
    height = np.array([0.0, 0.0, 0.1, 0.1, np.nan, 0.1, 0.002])
    seen = episode(np.stack([0 * height, 0 * height, height], 1), np.zeros((6, 3)), dt=0.1, channels=names)
    view, couples = ContactView(("cup",)), np.array([[False], [True]])
    path = np.array([0, 1, 1, 0, 0, 0, 0])
    read = readings(path, couples, view, seen)
    assert standing(path, couples, view, seen)[:, 0].tolist() == [False, False, False, True, True, True, False]
    assert read.kinds.tolist() == [0, 1, 1, 2, 2, 2, 0]
    assert read.contact.tolist() == [0, 1, 1, 1, 1, 1, 0]
    np.testing.assert_array_equal(read.regime, regime_of(read.contact.astype(bool)))
    cloth = ContactView(("cup",), knots=("cup.v1",))
    assert not standing(path, couples, cloth, seen).any()


# --- posteriors -------------------------------------------------------------------------------------------------------

GAIN = np.array([[0.0, 0.0], [1.0, 0.5]])


def small_model(noise: float = 1.0, sensor: float = 0.1, drive=None):
    return hybrid_model(
        replace(mode_kernel(2, stay=0.8), drive=drive),
        linear_flow(np.broadcast_to(np.eye(2), (2, 2, 2)), port=GAIN[:, :, None] * np.eye(2)),
        axis_emission(2, (0, 1), noise=sensor),
        noise=noise,
        start_mode=[0.7, 0.3],
        channels=["a", "b"],
    )


def small_log(steps: int, hidden: float, seed: int = 0) -> Episode:
    random = np.random.default_rng(seed)
    drive = 3 * random.normal(size=(steps, 2))
    modes = random.integers(0, 2, steps)
    walk = np.concatenate([np.zeros((1, 2)), np.cumsum(GAIN[modes] * drive + random.normal(size=(steps, 2)), 0)])
    walk[random.random(walk.shape) < hidden] = np.nan
    return episode(walk, drive, dt=0.1, channels=["a", "b"], inputs=["ua", "ub"])


def enumerated(log: Episode, noise: float, sensor: float):
    """Exact modes and evidence from all paths; along one, readings are jointly Gaussian."""
    steps, seen = log.steps, log.observed
    weights, modes = [], list(product((0, 1), repeat=steps + 1))
    later = np.minimum.outer(np.arange(steps + 1), np.arange(steps + 1))
    for path in modes:
        value = np.log([0.7, 0.3][path[0]]) + sum(np.log(0.8 if a == b else 0.2) for a, b in pairwise(path))
        mean = np.concatenate([np.zeros((1, 2)), np.cumsum(GAIN[list(path[1:])] * log.actions, 0)])
        for c in range(2):
            on = seen[:, c]
            covariance = 1.0 + noise**2 * later + sensor**2 * np.eye(steps + 1)
            if on.any():
                value += multivariate_normal(mean[on, c], covariance[np.ix_(on, on)]).logpdf(log.observations[on, c])
        weights.append(value)
    total = np.logaddexp.reduce(weights)
    chance = np.exp(np.array(weights) - total)
    table = np.array(modes)
    smoothed = np.stack([chance @ (table == m) for m in (0, 1)], 1)
    return smoothed, total, table[int(np.argmax(weights))]


def test_seen_logs_have_the_exact_posterior():
    log = small_log(6, 0.0)
    got, (smoothed, evidence, path) = mode_posterior(small_model(), log), enumerated(log, 1.0, 0.1)
    np.testing.assert_allclose(got.smoothed, smoothed, atol=0.01)
    np.testing.assert_allclose(got.filtered[-1], smoothed[-1], atol=0.01)
    assert got.log_evidence == pytest.approx(evidence, abs=0.02)
    np.testing.assert_array_equal(got.path, path)


@pytest.mark.parametrize("seed", range(4))
def test_in_the_dark_merging_stays_near_the_exact_posterior(seed):
    log = small_log(7, 0.4, seed)
    got, (smoothed, evidence, _) = mode_posterior(small_model(), log), enumerated(log, 1.0, 0.1)
    assert np.abs(got.smoothed - smoothed).mean() < 0.08
    assert got.log_evidence == pytest.approx(evidence, abs=0.4)
    np.testing.assert_allclose(got.smoothed.sum(1), 1, atol=1e-5)


def test_padding_changes_nothing_and_one_row_is_enough():
    model, log = small_model(), small_log(20, 0.3)
    results = []
    for length in (21, 50):
        batch = jax.tree.map(lambda x: x[0], pad([log], dtype=np.float32, length=length))
        results.append([np.asarray(x) for x in _merged_posterior(model, batch)])
    for short, long in zip(*results, strict=True):
        np.testing.assert_allclose(short, long[: len(short)] if long.ndim else long, rtol=1e-5)
    alone = mode_posterior(model, episode(np.zeros((1, 2)), np.zeros((0, 2)), dt=0.1, channels=["a", "b"]))
    np.testing.assert_allclose(alone.smoothed, [[0.7, 0.3]], atol=1e-6)


def test_models_that_need_particles_agree_with_the_merged():
    idle = network(4, (), 2, key=jax.random.key(0), dtype=np.float32, last=0.0)  # a kernel drive that says nothing
    log = small_log(30, 0.2)
    sampled, merged = small_model(drive=idle), small_model()
    assert is_separate(merged)
    assert not is_separate(sampled)
    by_particles = mode_posterior(sampled, log, key=jax.random.key(1))
    assert np.abs(by_particles.smoothed - mode_posterior(merged, log).smoothed).mean() < 0.1
