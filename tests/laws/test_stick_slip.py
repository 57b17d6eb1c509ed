"""Directions and rests switch by themselves: a law with dry friction sticks and slips as its system does."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from law_logs import SPRINGS, coupled_law

from vhydro import systems
from vhydro.laws import Law
from vhydro.laws.as_model import Circumstances
from vhydro_audits.laws_truth import true_law

DT = 0.005
BLOCK = systems.Block(static_friction=0.25)  # a law knows the friction of what slips alone


def block_law() -> Law:
    seen = Circumstances(DT, (1e-3,), (1e-2,), (0.0,), (0.2,), (0.9,), ((1, 0, 1.0), (2, 0, -1.0)))
    return replace(true_law("block"), circumstances=seen)


@pytest.mark.parametrize("substeps", [1, 4])
def test_a_law_of_directions_sticks_and_slips_as_the_exact_simulator(substeps):
    law, rested = block_law(), 0.0
    truth = systems.simulate(BLOCK, 3, 600, DT, key=jax.random.key(3), substeps=8)
    for start, actions, states, modes in zip(truth.states[:, 0], truth.actions, truth.states, truth.modes, strict=True):
        path = law.simulate(start, actions, DT, substeps=substeps)
        np.testing.assert_allclose(path, states, atol=1e-6)
        assert ((path[:, 1] == 0) == (modes == 0)).all()
        rested += (modes == 0).mean()
    assert rested > 0.1


def test_a_mode_that_is_given_is_on_from_beginning_to_end():
    path = block_law().simulate(np.array([0.0, 0.5]), np.zeros((400, 1)), DT, 1)
    assert (path[:, 1] < 0).any()
    assert not (path[:, 1] == 0).any()


def test_a_law_without_directions_is_simulated_as_before():
    law = replace(true_law("block"), circumstances=None)
    one, other = (law.simulate(np.array([0.0, 0.5]), np.zeros((50, 1)), DT, mode) for mode in (None, law.form.base))
    np.testing.assert_array_equal(one, other)


def test_one_of_two_coupled_positions_rests_while_the_other_moves():
    """What holds it takes up the inertia's pull as well: it does not move at all, and steps hardly matter."""
    law = coupled_law()
    push = 2.0 * np.sin(3.0 * DT * np.arange(600))[:, None]
    start = np.array([0.0, 0.0, 0.4, 0.0])
    coarse = law.simulate(start, push, DT, substeps=1)
    fine = law.simulate(start, np.repeat(push, 16, 0), DT / 16, substeps=1)[::16]
    np.testing.assert_allclose(coarse, fine, atol=2e-3 * np.abs(fine).max())
    resting = fine[:, 3] == 0
    assert 0.1 < resting.mean() < 0.95
    assert (np.abs(fine[resting, 2]) > 0.05).any()
    held = resting[1:] & resting[:-1]
    assert (np.diff(fine[:, 1])[held] == 0).all()


@pytest.mark.parametrize("start", [(0.1, -0.2, 0.5, 0.3), (0.01, 0.01, 0.0, 0.0)])
@pytest.mark.parametrize("rough", [0.4, 0.2])
def test_dry_friction_only_ever_takes_energy(rough, start):
    """Nor does the friction of one position set the other moving, whichever of them is the rougher."""
    law = coupled_law()
    law = replace(law, theta=np.where(np.arange(len(law.theta)) == law.form.dry[0], rough, law.theta))
    path = law.simulate(np.array(start), np.zeros((600, 1)), DT, substeps=1)
    q, v = path[:, :2], path[:, 2:]
    kinetic = 0.5 * np.einsum("ti,ij,tj->t", v, law.mass_matrix(q[0]), v)
    energy = kinetic + (np.array(SPRINGS) * q**2).sum(-1)
    assert (np.diff(energy) < 1e-9).all()
    assert v[0].any() or not v.any()
    assert (v[-1] == 0).all()


def test_at_a_standstill_dry_friction_accelerates_nothing():
    law = coupled_law()
    rest, inputs = np.zeros((1, 2)), np.zeros((1, 1))
    np.testing.assert_array_equal(law.acceleration(0, rest, rest, inputs), 0.0)
    one, other = (law.acceleration(0, rest, sign * np.full((1, 2), 0.1), inputs) for sign in (1.0, -1.0))
    np.testing.assert_allclose(one, -other)
    assert (one[0] != 0).all()
