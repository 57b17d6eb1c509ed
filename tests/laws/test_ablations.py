"""What each ablation gives up, on a motion whose law is known."""

from dataclasses import replace

import numpy as np
import pytest
from law_logs import KINETIC, SQUARE, puck, swing_problem, swinging

from oracles.oscillator import FRICTION, MASS, STIFFNESS
from vhydro.laws.ablations import without_hamiltonian, without_modes, without_sparsity
from vhydro.laws.estimate import ShootingConfig
from vhydro.laws.recover import LawsConfig, recover
from vhydro.laws.tracks import prepared
from vhydro_audits.laws_truth import problem_of

WEAK = LawsConfig(estimator="weak")


def test_without_modes_there_is_one_law():
    recording, problem = swinging(1e-3), swing_problem()
    halves = np.tile(np.eye(2)[(np.arange(401) > 200) * 1], (4, 1, 1))
    found = without_modes(recording._replace(modes=halves), replace(problem, modes=("first", "second")), WEAK)
    assert found.modes == ("all",)
    np.testing.assert_array_equal(found.theta, recover(recording, problem, WEAK).theta)


def test_without_sparsity_every_term_is_kept():
    found = without_sparsity(prepared(swinging(1e-3), swing_problem()), swing_problem(), ShootingConfig(lengths=(60,)))
    assert found.support[found.form.free].all()
    energy = found.energy(0)
    assert energy[SQUARE].value == pytest.approx(0.5 * STIFFNESS, abs=5 * energy[SQUARE].error)
    assert energy[KINETIC].value == pytest.approx(0.5 / MASS, abs=5 * energy[KINETIC].error)
    assert all(abs(c.value) < 5 * c.error for t, c in energy.items() if t not in (KINETIC, SQUARE))
    assert found.estimator == "dense"


def test_without_the_hamiltonian_there_is_a_field():
    field = without_hamiltonian(prepared(swinging(1e-3), swing_problem()), swing_problem(), 16)
    rng = np.random.default_rng(0)
    q, v, a = rng.uniform(-1, 1, (3, 100, 1))
    true = (-STIFFNESS * q - FRICTION * v + a) / MASS
    assert np.sqrt(np.mean((field(0, q, v, a) - true) ** 2)) < 0.03 * true.std()


def test_a_field_has_a_law_in_every_mode():
    field = without_hamiltonian(prepared(puck().recording, problem_of("puck")), problem_of("puck"), 16)
    q, v, a = np.full((1, 1), 1.02), np.zeros((1, 1)), np.zeros((1, 1))
    free, touching = field(0, q, v, a).item(), field(2, q, v, a).item()
    assert touching == pytest.approx(-1200 * 0.02 / 0.5, rel=0.3)
    assert abs(free) < 5
