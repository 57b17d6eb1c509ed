"""Contact truth from forces: regimes, configurations, sliding."""

from dataclasses import replace

import numpy as np
import pytest

from vhydro.episodes import Channel, Contact, Episode, episode
from vhydro.modes.readings import FREE, IMPACT, SUSTAINED
from vhydro.modes.segments import run_starts
from vhydro_audits.labels import fit_contact_labeller, without_short_runs
from vhydro_audits.labels.contact import sliding_speed

ROWS, DT = 40, 0.05
POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")


def poses(place, quaternion=(1, 0, 0, 0)):
    return np.concatenate([np.broadcast_to(place, (ROWS, 3)), np.broadcast_to(quaternion, (ROWS, 4))], axis=1)


def poking(moving=True):
    """The hand grasps a peg at row 10 and the peg meets the cube at row 25; the cube always lies on the table."""
    rows = np.arange(ROWS)
    hand = poses(np.c_[0.01 * rows, 0 * rows, 0 * rows])
    peg = np.where((rows >= 10)[:, None], hand, hand[10])
    cube = np.where((rows >= 25)[:, None], peg, peg[25])
    cube[:, 1] += np.where(rows >= 25, 0.005 * (rows - 25), 0) if moving else 0
    channels = tuple(
        Channel(f"{b}.{q}", g)
        for b, g in (("tcp", "end_effector"), ("peg", "object"), ("cube", "object"))
        for q in POSE
    )

    def contact(first, second, on):
        force = np.where(on, 2.0, 0.0)
        return Contact((first, second), force, force)

    contacts = (
        contact("peg", "lfinger", rows >= 10), contact("peg", "rfinger", rows >= 11), contact("peg", "hand", rows < 0),
        contact("cube", "peg", rows >= 25), contact("cube", "table", rows >= 0), contact("peg", "table", rows < 10),
    )  # fmt: skip
    return Episode(np.concatenate([hand, peg, cube], axis=1), np.zeros((ROWS - 1, 1)), DT, channels, contacts=contacts)


@pytest.fixture
def labelled():
    return fit_contact_labeller([poking()])(poking())


def test_configurations_say_which_bodies_touch(labelled):
    labeller = fit_contact_labeller([poking()])
    assert labeller.names[0] == "none"
    assert set(labeller.names) == {"none", "hand+peg", "cube+peg, hand+peg"}
    order = [labeller.names[i] for i in labelled.labels["configuration"][run_starts(labelled.labels["configuration"])]]
    assert order == ["none", "hand+peg", "cube+peg, hand+peg"]
    np.testing.assert_array_equal(run_starts(labelled.labels["configuration"]), [0, 10, 25])


def test_regimes_are_free_impact_sustained(labelled):
    regime = labelled.labels["regime"]
    assert (regime[:9] == FREE).all()
    assert (regime[9:12] == IMPACT).all()
    assert (regime[12:] == SUSTAINED).all()


def test_sliding_is_told_by_speed(labelled):
    """The peg sticks to the hand; the cube slides along the peg at 5 mm a step, 0.1 m/s."""
    friction = labelled.labels["friction"]
    assert (friction[:10] == -1).all()
    assert (friction[11:25] == 0).all()
    assert (friction[26:] == 1).all()
    still = fit_contact_labeller([poking()])(poking(moving=False)).labels["friction"]
    assert (still[26:] == 0).all()


def test_sliding_is_told_by_force_where_motion_is_not_recorded():
    normal = np.full(ROWS, 4.0)
    tangential = np.where(np.arange(ROWS) < 20, 0.4, 2.0)  # sticks, then slides at μ = 0.5
    log = replace(episode(np.zeros((ROWS, 1)), dt=DT), contacts=(Contact(("grip", "obj"), normal, normal, tangential),))
    labeller = fit_contact_labeller([log])
    assert labeller.friction == {("hand", "obj"): pytest.approx(0.5)}
    np.testing.assert_array_equal(labeller(log).labels["friction"], tangential > 1)


def test_a_carried_body_does_not_slide():
    """The carrier turns: a body held at arm's length moves, but not against the hand."""
    angle = 0.05 * np.arange(ROWS)
    turn = np.c_[np.cos(angle / 2), 0 * angle, 0 * angle, np.sin(angle / 2)]
    arm = np.c_[0.3 * np.cos(angle), 0.3 * np.sin(angle), 0 * angle]
    channels = tuple(Channel(f"{b}.{q}", "object") for b in ("tcp", "peg") for q in POSE)
    values = np.concatenate([poses(np.zeros(3), turn), poses(arm, turn)], axis=1)
    log = Episode(values, np.zeros((ROWS - 1, 1)), DT, channels)
    speed = sliding_speed(log, "hand", "peg")
    assert speed is not None
    tip = 0.3 * 0.05 / DT
    assert speed.max() < 0.03 * tip  # of the order of the angle in one step
    assert sliding_speed(log, "hand", "cube") is None


def test_poses_are_found_by_name_whatever_their_order():
    log = poking()
    order = [c.name for c in log.channels][::-1]
    np.testing.assert_array_equal(sliding_speed(log, "hand", "peg"), sliding_speed(log.select(order), "hand", "peg"))


def test_what_is_hidden_tells_nothing_about_sliding():
    log = poking()
    dark = replace(log, observations=np.full_like(log.observations, np.nan))
    assert (fit_contact_labeller([log])(dark).labels["friction"] == -1).all()


def test_friction_is_that_of_the_rows_that_press():
    """Two rows of touch among thousands of none, both sticking well below what sliding would take."""
    rows, on = 3000, np.isin(np.arange(3000), (1000, 1001))
    normal, tangential = np.where(on, 5.0, 0.0), np.where(on, 0.5, 0.0)
    log = replace(episode(np.zeros((rows, 1)), dt=DT), contacts=(Contact(("grip", "obj"), normal, normal, tangential),))
    assert fit_contact_labeller([log]).friction == {("hand", "obj"): pytest.approx(0.1)}


def test_rare_configurations_go_to_the_most_alike():
    log = poking()
    brief = np.zeros(ROWS)
    brief[30:33] = 5.0
    odd = replace(log, contacts=(*log.contacts, Contact(("cube", "hand"), brief, brief)))
    labeller = fit_contact_labeller([odd] + [log] * 9)
    assert set(labeller.names) == {"none", "hand+peg", "cube+peg, hand+peg"}
    np.testing.assert_array_equal(labeller(odd).labels["configuration"], labeller(log).labels["configuration"])


def test_truth_needs_forces():
    with pytest.raises(ValueError, match="no contact forces; truth needs a log that recorded them"):
        fit_contact_labeller([episode(np.zeros(5), dt=DT)])
    with pytest.raises(ValueError, match="no episodes given"):
        fit_contact_labeller([])


def test_short_runs_go_to_the_longer_neighbour():
    labels = np.array([0, 0, 0, 1, 0, 0, 2, 2, 2, 2, 1, 1])
    np.testing.assert_array_equal(without_short_runs(labels, 1), labels)
    np.testing.assert_array_equal(without_short_runs(labels, 2), [0] * 6 + [2] * 4 + [1] * 2)
    np.testing.assert_array_equal(without_short_runs(labels, 3), [0] * 6 + [2] * 6)
    np.testing.assert_array_equal(without_short_runs(np.array([3]), 5), [3])
