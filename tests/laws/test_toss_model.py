"""The model of a tossed body: its flight is the law's, and an impact in the dark is expected where impacts are."""

import jax
import numpy as np
import pytest

from known_tosses import DT, GRAVITY, HALF, tosses
from vhydro import FilterSettings
from vhydro.episodes import Episode
from vhydro.filter import filter_episodes
from vhydro.laws import toss_law, toss_model

PLACE = ["cube.x", "cube.y", "cube.z"]


def hidden(toss: Episode) -> Episode:
    """A toss of which nothing is seen."""
    return Episode(np.full_like(toss.observations, np.nan), toss.actions, toss.dt, toss.channels)


@pytest.fixture(scope="module")
def learned():
    logs = tosses(10)
    law = toss_law(logs, mass=0.4, half_sizes=HALF)
    return law, toss_model(law, [*logs, hidden(logs[0])], modes=4)


def test_flight_is_the_laws_and_rest_keeps_nothing(learned):
    model = learned[1]
    keep, push = np.asarray(model.flow.matrix)[:, 3:, 3:], np.asarray(model.flow.offset)[:, 3:]
    fall = np.asarray(model.scale)[2] / DT**2 * push[1, 2]
    np.testing.assert_allclose(fall, -GRAVITY, rtol=0.01)
    np.testing.assert_array_equal(keep[0], 0)
    np.testing.assert_array_equal(keep[1], np.eye(3))


def test_a_bounce_in_the_dark_is_expected(learned):
    """Falling towards the floor unseen, the body is not believed below it."""
    toss = tosses(11)[-1].select(PLACE)
    seen = toss.observations.copy()
    landed = int(np.argmin(seen[:, 2]))
    seen[landed - 4 : landed + 8] = np.nan
    dark = type(toss)(seen, toss.actions, toss.dt, toss.channels)
    settings = FilterSettings(particles=32, engine="gaussian", corrected=False, outliers=None)
    model = learned[1]
    belief = filter_episodes(model, [dark], key=jax.random.key(0), settings=settings)[0]
    height = np.asarray(belief.mean)[: len(seen), 2] * float(np.asarray(model.scale)[2])
    last, before = toss.observations[[landed - 5, landed - 6], 2]
    falls = last + 13 * (last - before)
    assert falls < 0  # where it would be had nothing stopped it
    assert height[landed + 7] > 0.5 * HALF


@pytest.mark.parametrize(
    ("count", "options", "message"), [(10, {"modes": 2}, "at least 3"), (3, {}, "expected at least 5")]
)
def test_too_little_is_refused(learned, count, options, message):
    with pytest.raises(ValueError, match=message):
        toss_model(learned[0], tosses(count), **options)


def test_tosses_that_nobody_saw_do_not_count(learned):
    first, *others = tosses(5)
    with pytest.raises(ValueError, match="4 tosses that are seen; expected at least 5"):
        toss_model(learned[0], [hidden(first), *others])
