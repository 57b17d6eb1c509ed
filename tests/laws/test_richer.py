"""Stribeck friction and forces that are not port-Hamiltonian: found where the data insist, and nowhere else."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from law_logs import oscillator_problem, van_der_pol

from vhydro import systems
from vhydro.laws import LagrangeLaw, LawsConfig, Problem, Recording, load_law, recover
from vhydro.laws.estimate import Estimate, ShootingConfig
from vhydro.laws.export import numpy_code
from vhydro.laws.lagrange import LagrangeConfig
from vhydro.laws.lagrange_weak import Candidates, lagrange_candidates
from vhydro.laws.richer import energy_given, is_better, is_borne_out, is_stribeck, offered_stribeck, vague_speeds
from vhydro.laws.tracks import prepared
from vhydro.laws.writing import latex

CONFIG = LawsConfig(estimator="lagrange", lagrange=LagrangeConfig(shooting=ShootingConfig(lengths=(60,))))
WITH = replace(CONFIG, remainder=True)
QUICK = replace(WITH, lagrange=replace(CONFIG.lagrange, refine=False))


def slid(system: systems.Sled) -> tuple[Recording, Problem]:
    truth = systems.simulate(system, 6, 400, 0.005, key=jax.random.key(0), substeps=8)
    clean = truth.states[..., :1]
    error = 1e-3 * clean.std() * np.random.default_rng(0).standard_normal(clean.shape)
    told, port = system.law(), np.array([[0.0], [1.0]])
    names = told.coordinates, told.units, told.inputs, told.modes
    return Recording(clean + error, truth.actions, np.eye(3)[truth.modes], 0.005), Problem(
        *names, (), np.array([np.nan]), port
    )


@cache
def sled_law() -> LagrangeLaw:
    """Of a sled with Stribeck friction, from a few candidates, which compile sooner."""
    terms = lagrange_candidates(("length",))
    few = Candidates(terms.inertia[:1], terms.potential[1:2], terms.friction)
    law = recover(*slid(systems.Sled(more=1.0)), replace(CONFIG, lagrange=replace(CONFIG.lagrange, candidates=few)))
    assert isinstance(law, LagrangeLaw)
    return law


@cache
def oscillator_law() -> LagrangeLaw:
    law = recover(van_der_pol(), oscillator_problem(), WITH)
    assert isinstance(law, LagrangeLaw)
    return law


def test_stribeck_friction_is_found_with_its_speed():
    law, truth = sled_law(), systems.Sled(more=1.0).law().truth[1]
    assert law.status(1) == "identified"
    terms = law.terms(1)
    assert terms.keys() == truth.keys()
    for name, value in truth.items():
        assert abs(terms[name].value - value) < 5 * terms[name].error + 1e-3 * value
    assert "sign(v_x) exp(−|v_x|/0.0" in str(law) or "sign(v_x) exp(−|v_x|/0.1" in str(law)


def test_a_law_that_is_borne_out_is_given_no_remainder():
    law = recover(van_der_pol(mu=0.0), oscillator_problem(), QUICK)
    assert law.status(0) == "identified"
    assert law.terms(0).keys() == {"M[x,x]", "V x^2"}
    assert not law.form.remainder


def test_plain_dry_friction_is_not_taken_for_stribecks():
    """By the numbers that shooting came to on a log of plain dry friction: it pays for nothing, and gives energy."""
    law = sled_law()
    ((friction, at),) = law.form.speeds.items()
    tracks, every = prepared(*slid(systems.Sled())), np.ones(len(law.theta), bool)
    richer = Estimate(law.form, law.theta.copy(), every, law.covariance, 1.0, freedom=9430)
    assert is_stribeck(richer, tracks)
    richer.theta[friction] = -2.3
    assert not is_stribeck(richer, tracks)
    richer.theta[[friction, at]] = 1.0, 10.0  # it fades over speeds that were never seen
    assert not is_stribeck(richer, tracks)
    plain = richer._replace(support=np.arange(len(every)) > 2, chi_square=1.0005)
    assert not is_better(richer, plain)
    assert is_better(richer, plain._replace(chi_square=1.05))


def test_a_law_that_explains_its_data_is_borne_out_where_nothing_is_held_out():
    law = replace(sled_law(), held_out=())
    found = Estimate(law.form, law.theta, law.support, law.covariance, 1.0, freedom=9430)
    assert is_borne_out(law, found, held_out=False)
    assert not is_borne_out(law, found, held_out=True)
    assert not is_borne_out(law, found._replace(chi_square=1.3), held_out=False)


def test_a_smaller_misfit_in_shorter_windows_is_no_better():
    law, every = sled_law(), np.ones(len(sled_law().theta), bool)
    plain = Estimate(law.form, law.theta, np.arange(len(every)) > 2, law.covariance, 1.3, freedom=9430)
    richer = plain._replace(support=every, chi_square=1.0)
    assert is_better(richer, plain)
    assert not is_better(richer._replace(stopped_at=20), plain)
    assert not is_better(richer._replace(stopped_at=20), plain._replace(stopped_at=60))
    assert is_better(richer, plain._replace(stopped_at=60))


def test_friction_that_was_dropped_is_offered_no_stribeck_friction():
    law, tracks = sled_law(), prepared(*slid(systems.Sled()))
    kept = tuple(i for i in law.form.dry if i not in law.form.speeds)
    plain = replace(law.form, dry=kept, friction=law.form.friction[:-1], known_friction=law.form.known_friction[:-1])
    theta, support = np.ones(len(plain.entries)), np.ones(len(plain.entries), bool)
    found = Estimate(plain, theta, support, np.eye(len(theta)), 1.3)
    assert offered_stribeck(found, tracks) is not None
    support[[*kept]] = False
    assert offered_stribeck(found, tracks) is None
    support[[*kept]], theta[[*kept]] = True, 0.0
    assert offered_stribeck(found, tracks) is None


def test_a_law_with_stribeck_friction_sticks_and_slips_as_its_system():
    system = systems.Sled(more=1.0)
    truth = systems.simulate(system, 1, 300, 0.005, key=jax.random.key(7), substeps=8)
    path = sled_law().simulate(truth.states[0, 0], truth.actions[0], 0.005)
    np.testing.assert_allclose(path, truth.states[0], atol=0.02 * truth.states[0].std())


def test_a_speed_that_is_not_bounded_is_said():
    form = sled_law().form
    ((friction, at),) = form.speeds.items()
    theta, errors = sled_law().theta, np.zeros(len(form.entries))
    every = np.ones(len(theta), bool)
    found = Estimate(form, theta, every, np.diag(errors), 1.0)
    assert vague_speeds(found) == ""
    errors[at] = (0.4 * theta[at]) ** 2
    assert "s is not bounded" in vague_speeds(found._replace(covariance=np.diag(errors)))
    every[friction] = False
    assert vague_speeds(found._replace(covariance=np.diag(errors), support=every)) == ""


def test_an_oscillator_that_shakes_itself_is_marked_without_a_remainder():
    law = recover(van_der_pol(), oscillator_problem(), replace(QUICK, remainder=False))
    assert law.status(0) == "unidentified"


def test_an_oscillator_that_shakes_itself_is_found_with_one_and_said_to_be():
    law = oscillator_law()
    assert law.status(0) == "identified"
    terms = {name: number.value for name, number in law.terms(0).items()}
    truth = {"M[x,x]": 1.0, "V x^2": 0.5, "remainder v_x": -1.2, "remainder x^2 v_x": 1.2}
    assert terms == pytest.approx(truth, rel=0.02)
    text = str(law)
    assert "oscillates (not port-Hamiltonian)" in text
    assert "− friction − (not port-Hamiltonian) + input" in text
    share, ((low, high),) = energy_given(law, prepared(van_der_pol(), oscillator_problem()))
    assert (low, high) == pytest.approx((-1.0, 1.0), abs=0.02)
    assert f"it gives energy in {100 * share:.2g} % of the samples" in text
    assert r"\text{not port-Hamiltonian}\text{ along } x &= -1.2" in latex(law)


def test_the_remainder_is_simulated_filtered_with_exported_and_kept(tmp_path):
    law, generator = oscillator_law(), np.random.default_rng(0)
    z, push = generator.normal(size=(2, 5)), np.full((5, 1), 0.3)
    own = law.acceleration(0, z[:1].T, z[1:].T, push)
    flow = law.as_model().flow
    rate = flow.velocity(jnp.asarray(z[None], jnp.float32), jnp.full((1, 5), 0.3, jnp.float32))
    np.testing.assert_allclose(rate[0, 1], own[:, 0], rtol=1e-4, atol=1e-5)
    space: dict = {}
    exec(numpy_code(law), space)
    written = [space["accelerations"](0, [x], [v], [0.3])[0] for x, v in z.T]
    np.testing.assert_allclose(written, own[:, 0], rtol=1e-9)
    law.save(tmp_path / "law.json")
    back = load_law(tmp_path / "law.json")
    assert (str(back), back.form) == (str(law), law.form)
    # It shakes itself: without a push it comes to swing between −2 and 2, from wherever it begins.
    path = back.simulate(np.array([0.1, 0.0]), np.zeros((3000, 1)), 0.01)
    assert np.abs(path[2000:, 0]).max() == pytest.approx(2.0, rel=0.02)


def test_laws_that_are_port_hamiltonian_refuse_a_remainder():
    with pytest.raises(ValueError, match="estimator='lagrange', which can have one"):
        recover(van_der_pol(), oscillator_problem(), LawsConfig(estimator="weak", remainder=True))
