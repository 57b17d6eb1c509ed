"""PySINDy as a peer: its columns are a Hamiltonian's, it finds easy laws, and it says what it could not fit."""

import sys
from functools import cache
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vhydro.laws.problem import Problem, candidates
from vhydro.laws.recording import Recording
from vhydro.library import Cosine, Custom, Monomial, Penetration, Sine
from vhydro.systems import Puck, Pushing, simulate
from vhydro_audits.baselines import sindy as module
from vhydro_audits.baselines.sindy import sindy
from vhydro_audits.baselines.sindy_law import force

needs_peer = pytest.mark.skipif(find_spec("pysindy") is None, reason="PySINDy is not installed (extra `peers`)")
KINETIC = Monomial((0, 2))
SIDES = ((-1.0, "below"), (1.0, "above"))


def contacts(puck: Puck):
    left, right = (tuple(Penetration(0, at * puck.wall, side, power) for power in (1, 2, 3)) for at, side in SIDES)
    return (), left, right


def problem(system, kinds, dissipation, port) -> Problem:
    law = system.law()
    names = (law.coordinates, law.units, law.inputs, law.modes)
    return Problem(*names, candidates(kinds), np.array(dissipation), np.array(port))


def puck_problem() -> Problem:
    return problem(Puck(), ("length",), [np.nan], [[0.0], [1.0]])


@cache
def recording(system) -> Recording:
    s = simulate(system, 8, 700, 0.005, key=jax.random.key(3))
    law = system.law()
    return Recording(s.states[..., : law.positions], s.actions, np.eye(len(law.modes))[s.modes], s.dt)


def brief() -> Recording:
    whole = recording(Puck())
    return Recording(whole.positions[:6, :401], whole.actions[:6, :400], whole.modes[:6, :401], whole.dt)


def found(method, modes=True, seed=0, record=None):
    return sindy(record or recording(Puck()), puck_problem(), contacts(Puck()), method, modes=modes, seed=seed)


def test_columns_are_the_forces_of_an_energy():
    """Against differences of θ itself: −∂θ/∂q, and the change of ∂θ/∂v while q moves with v and v rests."""
    z, h = np.array([1.2, -0.4, 0.7, 0.3]), 1e-4
    axes = h * np.eye(4)
    moving = h * np.array([*z[2:], 0.0, 0.0])
    for term in (Monomial((1, 2, 0, 0)), Monomial((1, 0, 2, 0)), Monomial((1, 1, 1, 1)), Sine(0), Cosine(0)):

        def value(at, term=term):
            with jax.enable_x64(True):
                return float(term.value(jnp.asarray(at)))

        for i in range(2):
            push = (value(z + axes[i]) - value(z - axes[i])) / (2 * h)
            slopes = [(value(x + axes[2 + i]) - value(x - axes[2 + i])) / (2 * h) for x in (z - moving, z + moving)]
            expected = (slopes[1] - slopes[0]) / (2 * h) - push
            assert force(term, i, tuple(z[:, None])) == pytest.approx(expected, abs=1e-6)


def test_a_contact_pushes_back_on_its_own_coordinate_only():
    wall = Penetration(0, 1.0, "above", 2)
    assert force(wall, 0, (np.array([1.1]), np.zeros(1), np.zeros(1), np.zeros(1))) == pytest.approx(-0.1)
    assert force(wall, 1, (np.array([1.1]), np.zeros(1), np.zeros(1), np.zeros(1))) == 0


def test_a_term_of_ones_own_is_refused():
    with pytest.raises(ValueError, match=r"'mine'.*cannot be given.*Leave it out"):
        force(Custom(lambda z: z[0] ** 2, "mine"), 0, (np.ones(1), np.ones(1)))


@needs_peer
@pytest.mark.parametrize("method", ["stlsq", "ensemble", "weak"])
def test_the_free_law_of_a_puck_is_found_from_clean_positions(method):
    law = found(method)
    puck = Puck()
    assert 0.5 / law.coefficients[0][KINETIC] == pytest.approx(puck.mass, rel=0.03)
    assert law.dissipation[0, 0] == pytest.approx(puck.friction, rel=0.3)
    assert law.port[0].ravel() == pytest.approx([0.0, 1.0])
    assert law.notes == ()
    q, v, a = np.array([[0.2], [-0.5]]), np.array([[1.0], [-2.0]]), np.array([[2.0], [1.0]])
    truth = (a - puck.friction * v) / puck.mass
    assert law.acceleration(0, q, v, a) == pytest.approx(truth, rel=0.05)


@needs_peer
def test_modes_are_what_lets_it_see_the_walls():
    with_modes, without = found("stlsq"), found("stlsq", modes=False)
    q, v, a = np.array([[1.02]]), np.zeros((1, 1)), np.zeros((1, 1))
    truth = -Puck().stiffness * 0.02 / Puck().mass
    assert with_modes.acceleration(2, q, v, a)[0, 0] == pytest.approx(truth, rel=0.2)
    assert without.coefficients[0] == without.coefficients[1] == without.coefficients[2]
    assert abs(without.acceleration(2, q, v, a)[0, 0] - truth) > 0.5 * abs(truth)
    assert not any(isinstance(term, Penetration) for term in without.coefficients[2])


@needs_peer
def test_a_known_dissipation_gives_the_mass_where_no_force_is_known():
    pushing = Pushing()
    port = [[-1.0, 0.0], [0.0, 0.0], [np.nan, 0.0], [0.0, np.nan]]
    assumed = problem(pushing, ("length", "length"), [pushing.friction] * 2, port)
    walls = ((), (Penetration(0, 0.0, "below", 2),))
    law = sindy(recording(pushing), assumed, walls, "stlsq", modes=True, seed=0)
    for axis in (2, 3):
        term = Monomial(tuple(2 * (k == axis) for k in range(4)))
        assert 0.5 / law.coefficients[0][term] == pytest.approx(pushing.mass, rel=0.05)
    assert law.dissipation[0] == pytest.approx([pushing.friction] * 2)
    assert law.coefficients[1][walls[1][0]] == pytest.approx(pushing.stiffness, rel=0.1)
    assert law.port[1, 3, 1] == pytest.approx(pushing.grip, rel=0.2)


@needs_peer
def test_the_seed_alone_decides_and_the_global_generator_is_left_as_it_was():
    short = brief()
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first, again = (found("ensemble", modes=False, seed=5, record=short) for _ in range(2))
    assert first.coefficients == again.coefficients
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


@needs_peer
def test_hidden_samples_and_padding_are_bridged():
    whole = recording(Puck())
    positions, modes = whole.positions.copy(), whole.modes.copy()
    positions[np.random.default_rng(0).random(positions.shape) < 0.2] = np.nan
    positions[0, 500:], modes[0, 500:] = np.nan, 0.0
    positions[1] = np.nan
    law = found("stlsq", record=whole._replace(positions=positions, modes=modes))
    assert 0.5 / law.coefficients[0][KINETIC] == pytest.approx(Puck().mass, rel=0.1)


@needs_peer
@pytest.mark.parametrize("method", ["stlsq", "weak"])
def test_a_mode_that_hardly_occurs_is_named_and_left_empty(method):
    short = brief()
    modes = short.modes.copy()
    modes[:, :, 2] = 0.0
    modes[:, :, 0] = 1.0 - modes[:, :, 1]
    modes[0, 10:14] = np.eye(3)[2]
    law = found(method, record=short._replace(modes=modes))
    assert law.coefficients[2] == {}
    assert any("right wall: not fitted" in note for note in law.notes)
    assert np.isnan(law.acceleration(2, *(np.ones((1, 1)),) * 3)).all()


@needs_peer
def test_without_anything_known_masses_have_no_scale_and_a_note_says_so():
    unknown = problem(Puck(), ("length",), [np.nan], [[0.0], [np.nan]])
    law = sindy(brief(), unknown, ((), (), ()), "stlsq", modes=False, seed=0)
    assert law.coefficients[0][KINETIC] == 0.5
    assert any("units arbitrary" in note for note in law.notes)


def test_bad_input_is_refused():
    short, assumed, walls = brief(), puck_problem(), contacts(Puck())
    moving = problem(Puck(), ("length",), [np.nan], [[np.nan], [1.0]])
    cases = [
        ((short, assumed, walls[:2], "stlsq"), r"contacts\) \(1, 1, 3, 2\)"),
        ((short, moving, walls, "stlsq"), "unknown in a position's row"),
        ((short._replace(positions=short.positions[:, :20]), assumed, walls, "weak"), "20 samples"),
    ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            sindy(*arguments, modes=True, seed=0)


def test_a_missing_peer_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "pysindy", None)
    with pytest.raises(ValueError, match=r"pip install 'vhydro\[peers\]'"):
        module._pysindy()
