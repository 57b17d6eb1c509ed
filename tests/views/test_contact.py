"""The contact view: every response with its drive, cloths where they are touched, fingers that nobody moves."""

from dataclasses import replace

import numpy as np
import pytest

from known_logs import BODIES, cloth_log, hand_log
from vhydro.data.sample import sample
from vhydro.episodes import Channel, Episode, episode
from vhydro.modes.readings import readings, regime_of
from vhydro.views import ContactView, contact_view
from vhydro.views.contact import CLOSE, MOST_BODIES

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
    assert view.spacing == pytest.approx(0.2, abs=1e-3)
    shipped = contact_view(list(sample("laundry")))
    assert shipped.cloths == set(shipped.bodies)


def test_without_a_spacing_as_in_older_files_the_nearest_knot_is_touched():
    log = cloth_log(0)
    view = replace(contact_view([log]), spacing=0.0)
    assert [c.name for c in view(log).inputs[3:]] == ["hand.x", "hand.y", "hand.z"]
    first = np.linalg.norm(log.observations[0, 3:].reshape(3, 3) - log.observations[0, :3], axis=1).argmin()
    own = slice(3 + 3 * first, 6 + 3 * first)
    np.testing.assert_allclose(view(log).observations[1], np.diff(log.observations[:2, own], axis=0)[0])


def sheet(hand: np.ndarray, shift: np.ndarray, noise: float = 0.0) -> tuple[ContactView, Episode]:
    """A hand over a flat cloth of 9 by 9 knots, 2 cm apart, that is shifted as a whole, and its view."""
    grid = 0.02 * np.stack([*np.mgrid[:9, :9], np.zeros((9, 9))], -1).reshape(-1, 3)
    knots = grid + shift[:, None]
    knots = knots + noise * np.random.default_rng(0).normal(size=knots.shape)
    names = [*HAND, *(f"cloth.v{k}.{a}" for k in range(81) for a in "xyz")]
    channels = tuple(Channel(n, "object" if n[0] == "c" else "end_effector", "m") for n in names)
    values = np.concatenate([hand, knots.reshape(len(hand), -1)], 1)
    log = Episode(values, np.zeros((len(hand) - 1, 0)), 0.05, channels)
    return contact_view([log]), log


def wandering(rows: int) -> np.ndarray:
    """A hand that goes round and round, 3 cm above the sheet."""
    angle = np.linspace(0, rows / 20, rows)[:, None]
    return np.concatenate([0.08 + 0.06 * np.cos(angle), 0.08 + 0.06 * np.sin(angle), 0 * angle + 0.03], 1)


def test_where_a_cloth_goes_as_one_its_touch_point_goes_so_too_also_in_the_dark():
    shift = np.cumsum(0.002 * np.random.default_rng(1).normal(size=(60, 3)), 0)
    view, log = sheet(wandering(60), shift)
    values = log.observations.copy()
    values[30:36, 3:] = np.nan
    gone = view(replace(log, observations=values)).observations
    assert np.isnan(gone[30:36]).all()
    shown = np.delete(np.arange(60), np.arange(30, 36))
    np.testing.assert_allclose(gone[shown], (shift - shift[0])[shown], atol=1e-12)


def test_noise_of_knots_averages_out_in_the_touch_point_and_does_not_add_up():
    view, log = sheet(wandering(800), np.zeros((800, 3)), noise=0.005)
    gone = view(log).observations
    size = np.sqrt((np.diff(gone, axis=0) ** 2).mean() / 2)
    assert size < 0.5 * 0.005
    assert np.sqrt(((gone[400:] - gone[:-400]) ** 2).mean() / 2) < 2.5 * size
    assert view.spacing == pytest.approx(0.02, rel=0.15)


def test_the_gap_to_a_cloth_is_to_where_it_lay_at_first():
    """What the dark hides may not come in by an input."""
    hand = np.concatenate([np.full((41, 2), 0.08), np.linspace(0.2, 0.0, 41)[:, None]], 1)
    view, log = sheet(hand, np.zeros((41, 3)))
    seen = view(log)
    assert [c.name for c in seen.inputs[3:]] == ["hand.x", "hand.y", "hand.z", "cloth.gap"]
    gap = seen.actions[:, -1]
    assert gap[-1] < 1e-3
    assert (np.diff(gap) <= 0).all()
    assert gap.max() <= CLOSE
    values = log.observations.copy()
    values[5:, 3:] += 0.1
    values[20:, 3:] = np.nan
    np.testing.assert_array_equal(view(replace(log, observations=values)).actions[:, -1], gap)
    values[:10, 3:] = np.nan
    assert (view(replace(log, observations=values)).actions[:10, -1] == CLOSE).all()


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
