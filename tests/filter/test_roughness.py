"""Noise that grows with an action: every engine against a Kalman filter written out, and where it is refused."""

import jax
import numpy as np
import pytest

from vhydro.episodes import episode
from vhydro.filter import FilterSettings, log_evidence
from vhydro.model import axis_emission, hybrid_model, linear_flow, mode_kernel
from vhydro.planning import hybrid_dynamics

NOISE, ROUGH, SENSOR, PORT, MATRIX = 0.2, 0.7, 0.3, 0.5, 0.9


def rough_model(**options):
    return hybrid_model(
        mode_kernel(1), linear_flow([[[MATRIX]]], port=[[[PORT]]]), axis_emission(1, [0], noise=SENSOR),
        noise=NOISE, channels=["q"], **options,
    )  # fmt: skip


def rough_log(rows: int = 12):
    random = np.random.default_rng(0)
    actions = random.normal(scale=2.0, size=(rows - 1, 1))
    return episode(random.normal(size=(rows, 1)), actions, dt=0.1, channels=["q"])


def kalman(log, roughness: float) -> float:
    mean, variance, total = 0.0, 1.0, 0.0
    for row, seen in enumerate(log.observations[:, 0]):
        if row:
            a = log.actions[row - 1, 0]
            mean, variance = MATRIX * mean + PORT * a, MATRIX**2 * variance + NOISE**2 + (roughness * a) ** 2
        spread = variance + SENSOR**2
        total += -0.5 * ((seen - mean) ** 2 / spread + np.log(2 * np.pi * spread))
        mean, variance = mean + variance / spread * (seen - mean), variance * SENSOR**2 / spread
    return total


@pytest.mark.parametrize("engine", ["gaussian", "merged"])
def test_one_mode_has_the_evidence_of_a_kalman_filter(engine):
    log, settings = rough_log(), FilterSettings(particles=4, engine=engine, outliers=None)
    found = log_evidence(rough_model(roughness=[[[ROUGH]]]), [log], key=jax.random.key(0), settings=settings)
    assert float(found[0]) == pytest.approx(kalman(log, ROUGH), abs=1e-4)
    assert abs(kalman(log, ROUGH) - kalman(log, 0.0)) > 1  # it is not lost in the tolerance


@pytest.mark.parametrize("engine", ["drawn", "mixture"])
def test_engines_that_draw_are_unbiased(engine):
    log, settings = rough_log(), FilterSettings(particles=64, engine=engine, outliers=None)
    logs = [log] * 400
    found = log_evidence(rough_model(roughness=[[[ROUGH]]]), logs, key=jax.random.key(1), settings=settings)
    ratio = np.exp(np.asarray(found, np.float64) - kalman(log, ROUGH))
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(len(ratio))


def test_rollouts_refuse_what_they_do_not_draw():
    with pytest.raises(ValueError, match="the model has roughness.*Leave `roughness` out"):
        hybrid_dynamics(rough_model(roughness=[[[ROUGH]]]), 0.1)
