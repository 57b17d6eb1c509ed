"""One door to the estimators: the law it gives, and what it says where the data cannot give one."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from law_logs import KINETIC, LINE, SQUARE, puck, swing_problem, swinging

from oracles.oscillator import FRICTION, MASS, STIFFNESS
from vhydro.laws.constants import constants
from vhydro.laws.estimate import ShootingConfig, shot
from vhydro.laws.form import form_of
from vhydro.laws.problem import Problem, candidates
from vhydro.laws.recording import Recording
from vhydro.laws.recover import FEWEST_SAMPLES, LawsConfig, determined, recover, refuse_unfit
from vhydro.laws.tracks import prepared
from vhydro.library import Custom, Library, Monomial
from vhydro_audits.laws_truth import problem_of

SHOOTING = LawsConfig(shooting=ShootingConfig(lengths=(60, 240)))
WEAK, LASSO = LawsConfig(estimator="weak"), LawsConfig(estimator="lasso")
LAGRANGE = LawsConfig(estimator="lagrange")


def outcome(recording: Recording, problem: Problem, config: LawsConfig) -> str:
    """Why no law is given, or why the one that is given is not to be trusted; empty for a law that stands."""
    try:
        law = recover(recording, problem, config)
    except ValueError as error:
        return str(error)
    return "; ".join(reason for _, reason in law.problems)


@pytest.mark.parametrize(("config", "tolerance"), [(SHOOTING, 0.005), (WEAK, 0.05), (LASSO, 0.3)])
def test_every_estimator_gives_the_law_of_a_spring(config, tolerance):
    law = recover(swinging(1e-3), swing_problem(), config)
    assert law.estimator == config.estimator
    # The Lasso's coefficients are off by far more than noise: held-out episodes mark them.
    assert law.status(0) == ("unidentified" if config is LASSO else "identified")
    assert list(law.energy(0)) == [KINETIC, SQUARE]
    found = constants(law)
    for name, true in {"mass": MASS, "stiffness": STIFFNESS, "friction": FRICTION}.items():
        assert found[name].value == pytest.approx(true, rel=tolerance)
        if config is SHOOTING:
            assert abs(found[name].value - true) < 5 * found[name].error
    assert law.port(0)[1][0].value == 1


def test_hidden_samples_and_padding_change_nothing_but_the_errors():
    recording = swinging(1e-3)
    positions, modes = recording.positions.copy(), recording.modes.copy()
    positions[np.random.default_rng(0).random(positions.shape) < 0.2] = np.nan
    positions[3, 200:], modes[3, 200:] = np.nan, 0.0
    whole = constants(recover(recording, swing_problem(), SHOOTING))
    fewer = constants(recover(recording._replace(positions=positions, modes=modes), swing_problem(), SHOOTING))
    for name, true in {"mass": MASS, "stiffness": STIFFNESS, "friction": FRICTION}.items():
        assert fewer[name].error > whole[name].error
        assert abs(fewer[name].value - true) < 5 * fewer[name].error


def test_one_length_of_window_selects_a_support_too():
    """Begun with a cubic that is not there: windows of one length are enough to do without it."""
    problem = swing_problem()
    form = form_of(problem, 0, {}, ())
    theta = np.array([0.5 / MASS, 0.0, 0.5 * STIFFNESS, 0.1, FRICTION, 1.0])
    support = np.array([True, False, True, True, True, True])
    with jax.enable_x64(True):
        found = shot(form, prepared(swinging(1e-3), problem), theta, support, ShootingConfig(lengths=(60,)))
    assert found.support.tolist() == [True, False, True, False, True, True]


def test_a_law_that_lacks_a_term_says_so():
    law = recover(swinging(1e-3), swing_problem((KINETIC, LINE)), SHOOTING)
    assert law.problems or any("χ²" in note for note in law.notes)


def test_a_law_that_only_short_windows_bear_out_is_unidentified():
    """Noise hides in 60 samples that the spring is missing, and not in 240."""
    wrong = recover(swinging(0.02), swing_problem((KINETIC, LINE)), SHOOTING)
    assert wrong.problems == ((0, "nothing longer than windows of 60 samples could be followed"),)
    assert any("windows of 60 samples" in note for note in wrong.notes)
    right = recover(swinging(0.02), swing_problem(), SHOOTING)
    assert right.status(0) == "identified"
    assert not right.notes


# --- modes that are not identified --------------------------------------------------------------------------


def relabelled(modes: np.ndarray) -> Recording:
    return puck().recording._replace(modes=np.eye(3)[modes])


def test_a_mode_with_too_few_samples_is_unidentified():
    modes = puck().truth.modes.copy()
    right = np.argwhere(modes == 2)
    modes[tuple(right[FEWEST_SAMPLES - 1 :].T)] = 0
    law = recover(relabelled(modes), problem_of("puck"), WEAK)
    assert law.status(2) == "unidentified"
    (reason,) = [why for mode, why in law.problems if mode == 2]
    assert "samples" in reason
    assert str(FEWEST_SAMPLES) in reason


def test_a_mode_that_is_never_on_is_unidentified():
    modes = np.where(puck().truth.modes == 2, 0, puck().truth.modes)
    law = recover(relabelled(modes), problem_of("puck"), WEAK)
    assert (2, f"only 0 samples, {FEWEST_SAMPLES} are needed") in law.problems


def test_segments_of_one_sample_are_no_mode():
    modes = np.where(puck().truth.modes == 2, 0, puck().truth.modes)
    modes[:, 50::60] = 2
    assert (modes == 2).sum() > FEWEST_SAMPLES
    law = recover(relabelled(modes), problem_of("puck"), WEAK)
    assert law.status(2) == "unidentified"


def test_nothing_but_segments_of_one_sample_gives_no_law():
    modes = np.tile(np.arange(401) % 3, (6, 1))
    assert outcome(relabelled(modes), problem_of("puck"), SHOOTING)


# --- recordings and problems that no law can come from ------------------------------------------------------


def with_value(array: np.ndarray, value: float) -> np.ndarray:
    out = array.copy()
    out[1, 30] = value
    return out


GOOD = swinging(1e-3)
BAD_RECORDINGS = {
    "not finite": GOOD._replace(actions=with_value(GOOD.actions, np.nan)),
    "differ": GOOD._replace(positions=np.full_like(GOOD.positions, 0.3)),
    "seen 0 times": GOOD._replace(positions=np.full_like(GOOD.positions, np.nan)),
    "not weights": GOOD._replace(modes=with_value(GOOD.modes, -0.5)),
    "sum is 1": GOOD._replace(modes=2 * GOOD.modes),
    "modes have shape": GOOD._replace(modes=np.concatenate([GOOD.modes, 0 * GOOD.modes], -1)),
    "actions have shape": GOOD._replace(actions=GOOD.actions[:, :-1]),
    "dt is 0": GOOD._replace(dt=0.0),
    "dt is nan": GOOD._replace(dt=float("nan")),
    "in another unit": GOOD._replace(positions=1e200 * GOOD.positions),
}


@pytest.mark.parametrize("message", BAD_RECORDINGS)
def test_a_recording_without_a_law_is_refused(message):
    with pytest.raises(ValueError, match=message):
        recover(BAD_RECORDINGS[message], swing_problem(), WEAK)


def test_weights_that_do_not_sum_to_one_are_refused():
    with pytest.raises(ValueError, match="sum is 1"):
        refuse_unfit(GOOD._replace(modes=0.5 * GOOD.modes), swing_problem())


def test_infinite_positions_are_refused():
    with pytest.raises(ValueError, match="infinit"):
        refuse_unfit(GOOD._replace(positions=with_value(GOOD.positions, np.inf)), swing_problem())


def test_something_must_have_the_unit_of_force():
    unknown = replace(swing_problem(), port=np.array([[0.0], [np.nan]]))
    with pytest.raises(ValueError, match="unit of a force"):
        recover(GOOD, unknown, WEAK)
    refuse_unfit(GOOD, replace(unknown, dissipation=np.array([1.0])))


@pytest.mark.parametrize("config", [SHOOTING, WEAK, LASSO, LAGRANGE], ids=lambda c: c.estimator)
@pytest.mark.parametrize("value", [0.0, 0.7])
def test_an_input_that_never_varies_gives_no_mass(config, value):
    assert "ever varies" in outcome(GOOD._replace(actions=0 * GOOD.actions + value), swing_problem(), config)


@pytest.mark.parametrize("config", [SHOOTING, WEAK], ids=lambda c: c.estimator)
def test_episodes_must_be_longer_than_a_bump(config):
    short = Recording(GOOD.positions[:, :20], GOOD.actions[:, :19], GOOD.modes[:, :20], GOOD.dt)
    with pytest.raises(ValueError, match="bump"):
        recover(short, swing_problem(), config)


# --- libraries that no law can be written in ----------------------------------------------------------------


def test_a_library_needs_a_kinetic_energy():
    with pytest.raises(ValueError, match="kinetic|p\\^2"):
        recover(GOOD, swing_problem((LINE, SQUARE)), WEAK)


def again(label: str) -> Custom:
    return Custom(lambda z: 1.0 * z[0] ** 2, label)


@pytest.mark.parametrize("config", [SHOOTING, WEAK, LASSO], ids=lambda c: c.estimator)
@pytest.mark.parametrize(
    ("library", "named"),
    [
        ((KINETIC, LINE, again("once"), again("twice")), "twice"),
        ((KINETIC, LINE, SQUARE, again("q squared")), "q squared"),
        ((KINETIC, SQUARE, LINE, Custom(lambda z: z[0] ** 2 - 3 * z[0], "sum of both")), "sum of both"),
        ((KINETIC, KINETIC, SQUARE), "p^2"),
    ],
    ids=["twins", "a double", "a sum", "two masses"],
)
def test_collinear_terms_give_no_confident_law(library: Library, named, config):
    assert named in outcome(GOOD, swing_problem(library), config)


@pytest.mark.parametrize("config", [SHOOTING, WEAK, LASSO], ids=lambda c: c.estimator)
def test_a_term_that_is_not_finite_on_the_data_is_named(config):
    root = Custom(lambda z: jnp.sqrt(z[0]), "root of q")
    assert "root of q" in outcome(GOOD, swing_problem((KINETIC, SQUARE, root)), config)


def test_a_term_with_a_pole_on_the_data_is_named():
    at_zero = GOOD._replace(positions=np.where(np.abs(GOOD.positions) < 0.01, 0.0, GOOD.positions))
    inverse = Custom(lambda z: 1 / z[0], "1/q")
    assert "1/q" in outcome(at_zero, swing_problem((KINETIC, SQUARE, inverse)), WEAK)


@pytest.mark.parametrize("config", [WEAK, LASSO], ids=lambda c: c.estimator)
def test_a_product_of_two_momenta_is_refused_where_it_cannot_be_found(config):
    library = (*candidates(("length", "length")), Monomial((0, 0, 1, 1)))
    names = ("x", "y", "p", "r"), ("m",) * 4, ("force",), ("all",)
    told = Problem(*names, library, np.full(2, np.nan), np.array([[0.0], [0.0], [1.0], [1.0]]))
    both = np.concatenate([GOOD.positions, GOOD.positions[:, ::-1]], -1)
    with pytest.raises(ValueError, match="'p r', a coupled inertia.*estimator='lagrange'"):
        recover(GOOD._replace(positions=both), told, config)


@pytest.mark.parametrize("config", [SHOOTING, WEAK, LASSO], ids=lambda c: c.estimator)
def test_a_term_of_ones_own_that_depends_on_momenta_is_refused(config):
    """It would act, and be missing from the equation of the position."""
    own = Custom(lambda z: z[0] * z[1], "q p")
    with pytest.raises(ValueError, match="'q p' depends on momenta"):
        recover(GOOD, swing_problem((KINETIC, SQUARE, own)), config)


@pytest.mark.parametrize("error", [ZeroDivisionError, np.linalg.LinAlgError, FloatingPointError])
def test_arithmetic_that_fails_inside_is_said_in_words(error):
    with pytest.raises(ValueError, match="do not determine a law.*Leave terms out"), determined():
        raise error("inside")
