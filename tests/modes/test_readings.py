"""Heights say what stands on what, where nothing is held."""

from dataclasses import replace

import numpy as np
import pytest

from vhydro.episodes import Channel, Episode
from vhydro.modes.readings import readings, touching_words
from vhydro.modes.segments import segments_of
from vhydro.views.contact import ContactView

ROWS = 12
VIEW = ContactView(
    hand=("tcp.x", "tcp.y", "tcp.z"),
    bodies={"low": ("low.x", "low.y", "low.z"), "high": ("high.x", "high.y", "high.z")},
)
COUPLES = np.array([[False, False], [False, True]])  # nothing; the upper body with the hand
ALONE, HELD = 0, 1


def read(
    places: np.ndarray,
    path: list[int] | None = None,
    noise: float = 0.0,
    hand: np.ndarray | None = None,
    opening: np.ndarray | None = None,
):
    """The readings of two bodies at these places, by default with a hand far off that holds nothing."""
    rows = len(places)
    hand = np.tile([0.5, 0.5, 0.5], (rows, 1)) if hand is None else hand
    finger = [] if opening is None else [opening[:, None]]
    log = Episode(
        observations=np.concatenate([hand, places.reshape(rows, 6), *finger], 1),
        actions=np.zeros((rows - 1, 0)),
        dt=0.05,
        channels=tuple(
            Channel(f"{body}.{a}", "end_effector" if body == "tcp" else "object", "m")
            for body in ("tcp", "low", "high")
            for a in "xyz"
        )
        + ((Channel("finger", "gripper", "m"),) if finger else ()),
        inputs=(),
    )
    view = replace(VIEW, fingers=("finger",)) if finger else VIEW
    modes = np.array([ALONE] * rows if path is None else path)
    return readings(modes, COUPLES, view, view(log), places, noise)


def resting(apart: float, height: float, rows: int = ROWS) -> np.ndarray:
    """Two bodies at rest, so far apart in the plane and in height."""
    return np.tile([[0.0, 0.0, 0.02], [apart, 0.0, 0.02 + height]], (rows, 1, 1))


def test_what_came_off_another_body_stands_on_something_else():
    places = resting(apart=0.002, height=0.04)
    places[6:, 1] = [0.1, 0.0, 0.02]
    found = read(places)
    assert found.contact.tolist() == [0] * 6 + [1] * 6
    assert found.words[int(found.touching[-1])] == "high on something else than at first"


@pytest.mark.parametrize("apart", [0.041, 0.3])
def test_what_only_fell_over_stands_where_it_stood(apart: float):
    places = resting(apart, height=0.04)
    places[6:, 1, 2] = 0.02  # lower, and never above the other body
    assert not read(places).contact.any()


@pytest.mark.parametrize(("risen", "counts"), [(0.005, True), (0.002, False), (-0.005, False)])
def test_what_stands_higher_stands_on_something_else(risen: float, counts: bool):
    places = resting(apart=0.3, height=0.0)
    places[6:, 1, 2] += risen
    assert read(places).contact[6:].all() == counts
    assert read(places).contact.any() == counts


def test_what_is_held_stands_on_nothing():
    places = resting(apart=0.3, height=0.0)
    places[4:8, 1, 2] += 0.1
    found = read(places, [ALONE] * 4 + [HELD] * 4 + [ALONE] * 4)
    assert found.contact.tolist() == [0] * 4 + [1] * 4 + [0] * 4
    assert found.words[int(found.touching[5])] == "the hand on high"


def lifted() -> tuple[np.ndarray, list[int], np.ndarray]:
    """A body that the hand takes up in rows 4 to 7 and then holds still in the air, beside a hand that keeps still."""
    places = resting(apart=0.3, height=0.0)
    places[:, 1, 2] += np.clip(np.arange(ROWS) - 3, 0, 4) * 0.05
    return places, [ALONE] * 4 + [HELD] * 4 + [ALONE] * 4, places[:, 1] + [0.0, 0.0, 0.01]


def words_of(found) -> list[str]:
    return [found.words[int(code)] for code in found.touching]


def test_what_is_held_still_in_the_air_is_in_the_hand():
    places, path, hand = lifted()
    assert words_of(read(places, path, hand=hand))[4:] == ["the hand on high"] * 8
    # It is put down on something: the hand leaves, and from there on it stands elsewhere.
    leaves = hand + np.linspace(0, 1, ROWS)[:, None] * np.where(np.arange(ROWS) < 10, 0, 1)[:, None]
    said = words_of(read(places, path, hand=leaves))
    assert said[8:] == ["the hand on high"] * 2 + ["high on something else than at first"] * 2


def test_fingers_that_open_let_go():
    places, path, hand = lifted()
    opening = np.where(np.arange(ROWS) < 9, 0.02, 0.035)
    said = words_of(read(places, path, hand=hand, opening=opening))
    assert said[4:] == ["the hand on high"] * 5 + ["high on something else than at first"] * 3


def test_beside_a_still_hand_what_was_not_lifted_is_not_held():
    """What was pushed along may be let go without the hand moving: nothing says that it still touches."""
    places = resting(apart=0.3, height=0.0)
    places[:, 1, 0] += np.clip(np.arange(ROWS) - 3, 0, 4) * 0.05
    path = [ALONE] * 4 + [HELD] * 4 + [ALONE] * 4
    said = words_of(read(places, path, hand=places[:, 1] - [0.05, 0, 0]))
    assert said == ["nothing touches"] * 4 + ["the hand on high"] * 4 + ["nothing touches"] * 4


def test_every_segment_says_what_touches_in_most_of_it():
    places, path, hand = lifted()
    found = read(places, path, hand=hand)
    said = touching_words(found, segments_of(np.array(path)))
    assert said == ["nothing touches", "the hand on high", "the hand on high"]


def test_noise_lifts_nothing_and_hides_no_fall():
    random, noise = np.random.default_rng(0), 0.005
    places = resting(apart=0.002, height=0.04, rows=200)
    places[100:, 1] = [0.1, 0.0, 0.02]
    noisy = places + noise * random.normal(size=places.shape)
    assert read(noisy).contact[:100].any()  # each row by itself is taken for a step
    found = read(noisy, noise=noise).contact
    assert not found[: 100 - 12].any()  # a fall is placed to half a window of 25 rows
    assert found[100 + 12 :].all()
