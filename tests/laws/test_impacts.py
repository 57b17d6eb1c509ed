"""Bounces shorter than a sample: found without labels, with restitution, floor and the law of flight."""

from functools import cache

import jax
import numpy as np
import pytest

from vhydro import systems
from vhydro.laws import LawsConfig, Problem, Recording
from vhydro.laws.estimate import ShootingConfig
from vhydro.laws.impacts import found_impacts, impact_law
from vhydro.laws.lagrange import LagrangeConfig
from vhydro.laws.lagrange_law import LagrangeLaw

BALL, DT = systems.Ball(), 0.005
CONFIG = LawsConfig(estimator="lagrange", lagrange=LagrangeConfig(shooting=ShootingConfig(lengths=(60,))))


@cache
def thrown() -> tuple[systems.Simulation, Recording]:
    truth = systems.simulate(BALL, 6, 600, DT, key=jax.random.key(0), substeps=8)
    y = truth.states[..., :1]
    seen = y + 1e-3 * y.std() * np.random.default_rng(0).standard_normal(y.shape)
    return truth, Recording(seen, truth.actions, np.ones((*y.shape[:2], 1)), DT)


def problem() -> Problem:
    law = BALL.law()
    told = law.coordinates, law.units, law.inputs, ("all",)
    return Problem(*told, (), np.array([np.nan]), np.array([[0.0], [1.0]]))


def test_fast_bounces_are_found_and_nothing_far_from_the_floor_is():
    truth, recording = thrown()
    found = found_impacts(recording.positions[..., 0], DT)
    v = truth.states[..., 1]
    fast = np.argwhere((v[:, :-1] < -1.0) & (v[:, 1:] > 0.5))
    for episode, sample in fast:
        assert (np.abs(found.sample[found.episode == episode] - sample) <= 2).any()
    assert (np.abs(found.place) < 0.02).mean() > 0.95


def test_restitution_floor_and_gravity():
    truth, recording = thrown()
    law = impact_law(recording, problem(), CONFIG)
    (floor,) = law.bounces
    assert (floor.axis, floor.side, floor.identified) == (0, "below", True)
    assert abs(floor.restitution.value - BALL.restitution) < 5 * floor.restitution.error + 1e-3
    assert abs(floor.place.value) < 1e-3
    assert isinstance(law.flight, LagrangeLaw)
    assert law.flight.terms(0)["V y"].value == pytest.approx(BALL.mass * BALL.gravity, rel=0.01)
    path = law.simulate(truth.states[0, 0], truth.actions[0, :100], DT)
    assert np.abs(path[:, 0] - truth.states[0, :101, 0]).max() < 0.01
    assert "velocity ← −0." in str(law)


def test_a_restitution_that_changes_is_marked():
    """Every bounce another one: no single number predicts held-out bounces."""
    truth, recording = thrown()
    positions = recording.positions.copy()
    generator = np.random.default_rng(1)
    for episode, path in enumerate(positions[..., 0]):
        scale = np.ones(len(path))
        bounces = np.flatnonzero((truth.states[episode, :-1, 1] < -0.3) & (truth.states[episode, 1:, 1] > 0))
        for sample in bounces:  # what follows a bounce is stretched by chance
            scale[sample + 1 :] = generator.uniform(0.7, 1.3)
        positions[episode, :, 0] = path * scale
    law = impact_law(recording._replace(positions=positions), problem(), CONFIG)
    assert law.flight.status(0) == "unidentified" or not any(b.identified for b in law.bounces)
