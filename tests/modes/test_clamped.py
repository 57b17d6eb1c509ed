"""Clamped predictions against the Kalman filter of one mode, worked by hand, and the bound that they feed."""

import numpy as np
import pytest

from vhydro.episodes import episode
from vhydro.model import axis_emission, hybrid_model, linear_flow, mode_kernel
from vhydro.modes.clamped import clamped_predictions
from vhydro.modes.theorem import concentration

GAIN = np.array([[0.0], [1.0]])


def model(sensor: float = 0.5):
    return hybrid_model(
        mode_kernel(2, stay=0.9),
        linear_flow(np.ones((2, 1, 1)), port=GAIN[:, :, None]),
        axis_emission(1, (0,), noise=sensor),
        noise=1.0,
        channels=["x"],
    )


def log(values):
    return episode(np.asarray(values, float)[:, None], np.full((len(values) - 1, 1), 2.0), dt=0.1, channels=["x"])


def test_two_steps_worked_by_hand():
    mean, sd, seen = clamped_predictions(model(), log([0.0, 2.0, 4.5]), 0, 3)
    # Starts at the first reading, variance .25; the prediction adds 1 of noise, the reading another .25.
    np.testing.assert_allclose(mean[0, :, 0], [0.0, 2.0], atol=1e-6)
    np.testing.assert_allclose(sd[0, 0] ** 2, 1.5, rtol=1e-5)
    keep = 1.25 / 1.5
    np.testing.assert_allclose(mean[1, :, 0], [keep * 2.0, 2.0 + 2.0], rtol=1e-5)
    np.testing.assert_allclose(sd[1, 0] ** 2, 1.25 * (1 - keep) + 1 + 0.25, rtol=1e-5)
    np.testing.assert_allclose(seen[:, 0], [2.0, 4.5])


def test_in_the_dark_modes_drift_apart_and_spread():
    mean, sd, seen = clamped_predictions(model(), log([0.0, np.nan, np.nan, 6.0]), 1, 4)
    np.testing.assert_allclose(mean[:, 1, 0] - mean[:, 0, 0], [2.0, 4.0, 6.0], rtol=1e-5)
    np.testing.assert_allclose(sd[:, 0] ** 2, [1.5, 2.5, 3.5], rtol=1e-5)
    assert np.isnan(seen[:2]).all()


def test_what_was_never_seen_before_says_nothing_of_the_mode():
    mean, sd, seen = clamped_predictions(model(), log([np.nan, np.nan, 6.0]), 1, 3)
    assert sd.min() > 1e3
    found = concentration(mean, sd, seen, 1, [0.5, 0.5])
    assert found.realised == pytest.approx(0.5, abs=1e-3)


def test_the_spread_between_modes_does_not_depend_on_what_is_seen():
    random = np.random.default_rng(0)
    gaps = [np.diff(clamped_predictions(model(), log(random.normal(size=9)), 2, 9)[0], axis=1) for _ in range(2)]
    np.testing.assert_allclose(*gaps, rtol=1e-6)


def test_a_model_that_is_none_of_contacts_is_refused():
    walker = hybrid_model(
        mode_kernel(2), linear_flow(0.5 * np.ones((2, 1, 1))), axis_emission(1, (0,), noise=0.1), noise=1.0,
        channels=["x"],
    )  # fmt: skip
    with pytest.raises(ValueError, match="the model is no contact model"):
        clamped_predictions(walker, log([0.0, 1.0, 2.0]), 0, 3)


def test_rows_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="rows 0 to 1 of a log with 3 rows"):
        clamped_predictions(model(), log([0.0, 1.0, 2.0]), 0, 1)
    with pytest.raises(ValueError, match="rows 2 to 5"):
        clamped_predictions(model(), log([0.0, 1.0, 2.0]), 2, 5)
