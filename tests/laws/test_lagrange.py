"""Lagrange's equations: M(q), V and friction from positions, as textbooks have them."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vhydro import systems
from vhydro.episodes import Channel, Episode
from vhydro.laws import LagrangeLaw, LawsConfig, Problem, Recording, load_law, recover
from vhydro.laws.estimate import ShootingConfig
from vhydro.laws.lagrange import LagrangeConfig
from vhydro.laws.lagrange_weak import Candidates
from vhydro.laws.mechanics import is_coupled, mechanics_problem
from vhydro.laws.writing import latex, text
from vhydro.views import MechanicsView

CONFIG = LawsConfig(estimator="lagrange", lagrange=LagrangeConfig(shooting=ShootingConfig(lengths=(60,))))


def problem_of(system, column: int = 0) -> Problem:
    """What is told: which position the only input drives."""
    law = system.law()
    n = law.positions
    port = np.zeros((2 * n, 1))
    port[n + column] = 1.0
    return Problem(law.coordinates, law.units, law.inputs, law.modes, (), np.full(n, np.nan), port)


@cache
def recorded(system, noise: float = 1e-3, episodes: int = 6, steps: int = 400) -> Recording:
    truth = systems.simulate(system, episodes, steps, 0.005, key=jax.random.key(0), substeps=8)
    clean = truth.states[..., : system.law().positions]
    error = noise * clean.std((0, 1)) * np.random.default_rng(0).standard_normal(clean.shape)
    return Recording(clean + error, truth.actions, np.eye(len(system.law().modes))[truth.modes], 0.005)


@cache
def found(system) -> LagrangeLaw:
    law = recover(recorded(system), problem_of(system), CONFIG)
    assert isinstance(law, LagrangeLaw)
    return law


SYSTEMS = [systems.Bowl(), systems.Carts()]


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: type(s).__name__)
def test_terms_and_values_are_the_textbooks(system):
    law = found(system)
    for mode, truth in enumerate(system.law().truth):
        assert law.status(mode) == "identified"
        terms = law.terms(mode)
        assert terms.keys() - {"place"} == truth.keys()
        for name, value in truth.items():
            assert terms[name].value == pytest.approx(value, rel=0.05)
            assert abs(terms[name].value - value) < 5 * terms[name].error


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: type(s).__name__)
def test_the_law_simulates_as_its_system_does(system):
    truth = systems.simulate(system, 1, 100, 0.005, key=jax.random.key(7), substeps=8)
    path = found(system).simulate(truth.states[0, 0], truth.actions[0], 0.005)
    spread = truth.states[0].std(0)
    assert (np.abs(path[:101] - truth.states[0]) < 0.02 * spread).all()


def test_the_model_moves_as_the_law_does():
    """In every mode, contact included: one vector field is printed, simulated and filtered with."""
    law = found(systems.Carts())
    model = law.as_model()
    generator = np.random.default_rng(0)
    z = generator.normal(size=(4, 5)).astype(np.float32) * 0.1
    rate = np.asarray(model.flow.velocity(jnp.stack([z, z]), jnp.full((1, 5), 0.7, jnp.float32)))
    for mode in range(2):
        own = law.acceleration(mode, z[:2].T, z[2:].T, np.full((5, 1), 0.7))
        assert np.allclose(rate[mode][2:].T, own, rtol=2e-3, atol=1e-2)
        assert np.allclose(rate[mode][:2], z[2:])


def test_a_file_holds_the_law(tmp_path):
    law = found(systems.Carts())
    law.save(tmp_path / "law.json")
    back = load_law(tmp_path / "law.json")
    assert text(back) == text(law)
    assert back.form == law.form
    assert "M[x,gap]" in text(law)
    assert "M_{12}" in latex(law)


def test_no_force_and_no_mass_is_refused():
    recording = recorded(systems.Bowl())
    still = recording._replace(actions=np.full_like(recording.actions, 0.3))
    with pytest.raises(ValueError, match="mass is given"):
        recover(still, problem_of(systems.Bowl()), CONFIG)


def test_a_known_mass_stands_in_for_a_force():
    """Wagons that nothing drives: the given mass of one fixes the scale of all other terms."""
    system = systems.Train(drive=0.0)
    known = replace(problem_of(system), masses=np.array([system.masses[0], np.nan]))
    law = recover(recorded(system), known, CONFIG)
    assert isinstance(law, LagrangeLaw)
    truth = system.law().truth[0]
    assert law.terms(0)["M[x2,x2]"].value == pytest.approx(truth["M[x2,x2]"], rel=0.02)
    assert law.terms(0)["M[x1,x1]"] == (truth["M[x1,x1]"], 0)


def test_a_library_that_cannot_hold_the_law_is_marked():
    """Without a changing inertia on offer no law of the bowl is borne out by held-out episodes."""
    form = found(systems.Bowl()).form
    few = replace(CONFIG.lagrange, candidates=Candidates(form.inertia[:1], form.potential, form.friction))
    law = recover(recorded(systems.Bowl()), problem_of(systems.Bowl()), replace(CONFIG, lagrange=few))
    assert law.status(0) == "unidentified"


def test_a_view_with_fewer_forces_than_positions_is_coupled():
    """An input on one position of two is enough; none at all, and no mass, is refused in the words of the flags."""
    channels, inputs = (Channel("x1", unit="m"), Channel("x2", unit="m")), (Channel("force", unit="N"),)
    log = Episode(np.zeros((5, 2)), np.zeros((4, 1)), 0.01, channels, inputs)
    told = mechanics_problem(MechanicsView(("x1", "x2"), ("force", "-")), log, 1)
    assert is_coupled(told)
    assert told.port[2:].tolist() == [[1.0], [0.0]]
    assert not is_coupled(mechanics_problem(MechanicsView(("x1",), ("force",)), log, 1))
    known = mechanics_problem(MechanicsView(("x1", "x2"), masses=(1.0, float("nan"))), log, 1)
    assert known.masses is not None
    with pytest.raises(ValueError, match="--forces torque, --friction 1.0 or --masses 0.5"):
        mechanics_problem(MechanicsView(("x1", "x2"), ("-", "-")), log, 1)


def test_a_force_named_twice_is_refused():
    with pytest.raises(ValueError, match="name force more than once"):
        MechanicsView(("x1", "x2"), ("force", "force"))
