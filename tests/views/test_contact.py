"""The contact view: every response with its drive, cloths where they are touched, fingers that nobody moves."""

from dataclasses import replace

import numpy as np
import pytest

from known_logs import BODIES, cloth_log, hand_log
from vhydro.data.sample import sample
from vhydro.episodes import Channel, Episode, episode
from vhydro.modes.readings import readings, regime_of
from vhydro.views import ContactView, contact_view
from vhydro.views.contact import MOST_BODIES

HAND = ("tcp.x", "tcp.y", "tcp.z")
CUP = {"cup": ("cup.x", "cup.y", "cup.z")}


@pytest.fixture(scope="module")
def logs() -> list[Episode]:
    return [hand_log(seed) for seed in range(3)]


@pytest.mark.parametrize("opens", [1.0, -1.0])
def test_a_view_pairs_every_response_with_its_drive(opens):
    logs = [hand_log(seed, opens=opens) for seed in range(3)]
    view = contact_view(logs)
    assert (tuple(view.bodies), view.opens, view.moves) == (BODIES, opens, ("tcp.dx", "tcp.dy", "tcp.dz"))
    assert view.opening == pytest.approx(0.04, abs=1e-3)
    seen, raw = view(logs[0]), logs[0].observations
    names = [c.name for c in seen.channels]
    assert names == [f"{b}.{a}" for b in BODIES for a in "xyz"] + ["gripper.opening", *(f"hand.{a}" for a in "xyz")]
    np.testing.assert_allclose(seen.actions[:, :3], np.diff(raw[:, :3], axis=0))
    np.testing.assert_allclose(seen.actions[:, 3:6], seen.actions[:, :3])
    width = np.abs(raw[:, 3:5]).mean(1)
    target = 0.5 * (1 + opens * logs[0].actions[:, 3]) * view.opening
    np.testing.assert_allclose(seen.actions[:, 6], target - width[:-1])
    np.testing.assert_allclose(seen.actions[:, 7:10], logs[0].actions[:, :3])
    # What says when a contact may begin comes after the drives.
    assert [c.name for c in seen.inputs[10:]] == [*(f"hand.{a}" for a in "xyz"), "opening", "opening.change"]
    np.testing.assert_allclose(seen.actions[:, 10:13], raw[:-1, :3])
    np.testing.assert_allclose(seen.actions[:, 13:], np.stack([width[1:], np.diff(width)], 1))


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
    assert (view.joints, view.targets, view.moves) == (("arm.joint_1",), ("arm.joint_target_1",), ())
    seen = view(log)
    lag = [c.name for c in seen.inputs].index("drive of arm.joint_1")
    np.testing.assert_allclose(seen.actions[:, lag], (target - q[:-1])[:, 0])


def test_without_the_machine_only_bodies_respond(logs):
    view = replace(contact_view(logs), machine=False)
    assert [c.group for c in view(logs[0]).channels] == ["cup"] * 3 + ["plate"] * 3


def test_a_view_by_names_finds_what_only_logs_say(logs):
    named = ContactView(HAND, CUP, fingers=("gripper.finger_1",), grip="gripper.command")
    assert named.opening == 0
    fitted = named.fitted_to(logs)
    assert (fitted.opening, fitted.opens) == (pytest.approx(0.04, abs=1e-3), 1.0)
    assert fitted.fitted_to(logs) is fitted


def test_what_a_view_cannot_use_is_refused(logs):
    without = logs[0].select([c.name for c in logs[0].channels if not c.name.startswith("tcp.")])
    with pytest.raises(ValueError, match=r"does not show tcp\.x, tcp\.y, tcp\.z; expected the place of the hand"):
        contact_view([without])
    with pytest.raises(ValueError, match="no episodes given"):
        contact_view([])
    blind = logs[0].select([c.name for c in logs[0].channels if c.group != "object"])
    with pytest.raises(ValueError, match="shows no place of an object"):
        contact_view([blind])
    view = contact_view(logs[:2])
    for column, message in ((0, "hides the hand, a finger or a joint"), (3, "hides a finger at times")):
        hidden = logs[0].observations.copy()
        hidden[4, column] = np.nan
        with pytest.raises(ValueError, match=message):
            view(replace(logs[0], observations=hidden))
    with pytest.raises(ValueError, match=r"does not show gripper\.command, tcp\.dx, tcp\.dy, tcp\.dz, which"):
        view(replace(logs[0], inputs=tuple(Channel(f"a{i}") for i in range(4))))
    for broken in (
        {"hand": ("tcp.x",), "bodies": CUP},
        {"hand": HAND, "bodies": {"cup": ("cup.x", "cup.y")}},
        {"hand": HAND, "bodies": {}},
        {"hand": HAND, "bodies": CUP, "joints": ("arm.joint_1",)},
    ):
        with pytest.raises(ValueError, match="expected"):
            ContactView(**broken)


def test_of_too_many_bodies_the_most_spread_are_taken():
    random = np.random.default_rng(0)
    places = random.normal(0, 0.01, (7, 3))
    places[[1, 4]] += [[1.0, 0, 0], [0, 1.0, 0]]
    names = [*HAND, *(f"b{i}.{a}" for i in range(7) for a in "xyz")]
    channels = [Channel(n, "object" if n[0] == "b" else "end_effector", "m") for n in names]
    log = episode(np.tile(np.append(np.zeros(3), places), (5, 1)), dt=0.1, channels=channels)
    view = contact_view([log])
    assert len(view.bodies) == MOST_BODIES
    assert {"b1", "b4"} <= set(view.bodies)


# --- cloths, and fingers that nobody moves ----------------------------------------------------------------------------


def test_a_cloth_is_one_body_of_many_knots():
    log = cloth_log(0)
    view = contact_view([log])
    assert tuple(view.bodies) == ("cloth",)
    assert len(view.bodies["cloth"]) == 9
    assert view.cloths == {"cloth"}
    assert not view.joints
    assert not view.moves
    first = np.linalg.norm(log.observations[0, 3:].reshape(3, 3) - log.observations[0, :3], axis=1).argmin()
    own = slice(3 + 3 * first, 6 + 3 * first)
    np.testing.assert_allclose(view(log).observations[1], np.diff(log.observations[:2, own], axis=0)[0])
    shipped = contact_view(list(sample("laundry")))
    assert shipped.cloths == set(shipped.bodies)


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


# --- what stands on what ----------------------------------------------------------------------------------------------


def standing_log(height: np.ndarray, *, gripper: bool = False, leaves: int | None = None):
    """A cup at these heights below a hand that rests at the origin, or leaves it, as the view shows it."""
    names = [f"cup.{a}" for a in "xyz"] + (["gripper.opening"] if gripper else [])
    values = np.stack([0 * height, 0 * height, height, *([0 * height] if gripper else [])], 1)
    channels = tuple(Channel(n, n.partition(".")[0], "m") for n in names)
    inputs = tuple(Channel(n) for n in [*(f"drive of {n}" for n in names), "hand.x", "hand.y", "hand.z"])
    told = np.zeros((len(height) - 1, len(inputs)))
    told[leaves if leaves is not None else len(told) :, -1] = 0.3  # of the hand before each step
    return Episode(values, told, 0.1, channels, inputs)


def test_what_nobody_holds_and_is_higher_than_before_stands_on_something():
    seen = standing_log(np.array([0.0, 0.0, 0.1, 0.1, np.nan, 0.1, 0.002]), leaves=3)
    view, couples = ContactView(HAND, CUP), np.array([[False], [True]])
    path = np.array([0, 1, 1, 0, 0, 0, 0])
    read = readings(path, couples, view, seen)
    assert read.touching.tolist() == [0, 1, 1, 2, 2, 2, 0]
    assert read.words == {0: "nothing touches", 1: "the hand on cup", 2: "cup on something else than at first"}
    assert read.contact.tolist() == [0, 1, 1, 1, 1, 1, 0]
    np.testing.assert_array_equal(read.regime, regime_of(read.contact.astype(bool)))
    cloth = ContactView(HAND, {"cup": ("a", "b", "c", "d", "e", "f")})
    assert readings(path, couples, cloth, seen).touching.tolist() == [0, 1, 1, 0, 0, 0, 0]


def test_blocked_fingers_are_on_what_is_near():
    """A mode of fingers alone and one of the cup with the fingers are one contact: the hand on the cup."""
    seen, view = standing_log(np.zeros(4), gripper=True), ContactView(HAND, CUP)
    couples = np.array([[False, False], [False, True], [True, True]])
    read = readings(np.array([0, 1, 2, 0]), couples, view, seen)
    assert [read.words[c] for c in read.touching] == ["nothing touches", *["the hand on cup"] * 2, "nothing touches"]


def test_fingers_settle_below_where_they_begin(logs):
    """The first rows of some grippers are wider than they ever open again."""
    wide = [replace(e, observations=e.observations.copy()) for e in logs[:2]]
    fingers = [i for i, c in enumerate(wide[0].channels) if c.name.startswith("gripper.finger")]
    usual = contact_view(logs[:2]).opening
    for e in wide:
        e.observations[0, fingers] *= 1.5
    assert contact_view(wide).opening == pytest.approx(usual, rel=0.02)
