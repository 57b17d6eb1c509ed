"""Heights say what stands on what, where nothing is held."""

import numpy as np
import pytest

from vhydro.episodes import Channel, Episode
from vhydro.modes.readings import readings
from vhydro.views.contact import ContactView

ROWS = 12
VIEW = ContactView(
    hand=("tcp.x", "tcp.y", "tcp.z"),
    bodies={"low": ("low.x", "low.y", "low.z"), "high": ("high.x", "high.y", "high.z")},
)
COUPLES = np.array([[False, False], [False, True]])  # nothing; the upper body with the hand
ALONE, HELD = 0, 1


def read(places: np.ndarray, path: list[int] | None = None, noise: float = 0.0):
    """The readings of two bodies at these places, by default with a hand that holds nothing."""
    rows = len(places)
    log = Episode(
        observations=np.concatenate([np.tile([0.5, 0.5, 0.5], (rows, 1)), places.reshape(rows, 6)], 1),
        actions=np.zeros((rows - 1, 0)),
        dt=0.05,
        channels=tuple(
            Channel(f"{body}.{a}", "end_effector" if body == "tcp" else "object", "m")
            for body in ("tcp", "low", "high")
            for a in "xyz"
        ),
        inputs=(),
    )
    modes = np.array([ALONE] * rows if path is None else path)
    return readings(modes, COUPLES, VIEW, VIEW(log), places, noise)


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


def test_noise_lifts_nothing_and_hides_no_fall():
    random, noise = np.random.default_rng(0), 0.005
    places = resting(apart=0.002, height=0.04, rows=200)
    places[100:, 1] = [0.1, 0.0, 0.02]
    noisy = places + noise * random.normal(size=places.shape)
    assert read(noisy).contact[:100].any()  # each row by itself is taken for a step
    found = read(noisy, noise=noise).contact
    assert not found[: 100 - 12].any()  # a fall is placed to half a window of 25 rows
    assert found[100 + 12 :].all()
