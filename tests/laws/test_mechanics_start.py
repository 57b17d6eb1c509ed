"""Logs through the mechanics view: what is known, what is recorded, and the law and model that come of it."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from vhydro.episodes import Channel, Episode
from vhydro.filter import FilterSettings
from vhydro.laws.as_model import Circumstances
from vhydro.laws.chain import ChainConfig
from vhydro.laws.constants import constants, table
from vhydro.laws.law import Law
from vhydro.laws.mechanics import (
    in_order,
    mechanics_laws,
    mechanics_problem,
    mechanics_recording,
    mechanics_start,
    mode_names,
)
from vhydro.laws.recover import LawsConfig, recover
from vhydro.learning.start import Start, Tried
from vhydro.smoother import smooth_log
from vhydro.systems import Pendulum, Puck, simulate, to_episodes
from vhydro.views.mechanics import MechanicsView
from vhydro_audits.laws_truth import true_law

WEAK = LawsConfig(estimator="weak")
QUICK = ChainConfig(laws=WEAK, particles=16)
LONG = "robot.gantry.carriage.position"
VIEW = MechanicsView((LONG,), ("push",))


def named(logs: list[Episode], name: str, unit: str, force: str = "push", force_unit: str = "N", factor=1.0):
    """The logs with their channel and input named and declared, values multiplied by a factor."""
    channels, inputs = (Channel(name, unit=unit),), (Channel(force, "action", force_unit),)
    return [replace(e, observations=factor * e.observations, channels=channels, inputs=inputs) for e in logs]


@pytest.fixture(scope="module")
def logs() -> list[Episode]:
    """Eight logs of the puck between its walls, 1 mm of noise."""
    simulated = simulate(Puck(), 8, 400, 0.005, key=jax.random.key(3))
    return named(to_episodes(simulated, 0.001, key=jax.random.key(4)), LONG, "m")


@pytest.fixture(scope="module")
def start(logs) -> Start:
    return mechanics_start(VIEW, logs[:6], logs[6:], "auto", seed=0, config=QUICK)


def cut(episode: Episode, rows: int) -> Episode:
    return replace(episode, observations=episode.observations[:rows], actions=episode.actions[: rows - 1], labels={})


# --- what is known ------------------------------------------------------------------------------------------


def test_the_view_says_what_is_known(logs):
    plain = mechanics_problem(VIEW, logs[0], 3)
    np.testing.assert_array_equal(plain.port, [[0], [1]])
    assert plain.coordinates == (LONG, "p")
    assert plain.units == ("m", "kg m/s")
    assert plain.modes == ("mode 1", "mode 2", "mode 3")
    carried = mechanics_problem(MechanicsView((LONG,), carried_by=("push",), friction=(1.2,)), logs[0], ("a", "b"))
    np.testing.assert_array_equal(carried.port, [[-1], [np.nan]])
    assert carried.dissipation.tolist() == [1.2]
    assert carried.modes == ("a", "b")


def test_an_angle_gets_sine_and_cosine():
    swing = to_episodes(simulate(Pendulum(), 1, 10, 0.005, key=jax.random.key(0)), 0.0, key=jax.random.key(0))
    (log,) = named(swing, "angle", "deg", force_unit="mN m", factor=180 / np.pi)
    problem = mechanics_problem(MechanicsView(("angle",), ("push",)), log, 1)
    assert problem.units == ("rad", "kg m²/s")
    assert "cos(angle)" in [t.text(problem.coordinates) for t in problem.library]


def test_without_a_force_there_is_no_scale(logs):
    with pytest.raises(ValueError, match=r"nothing acts on 'robot.*' that has the unit of a force.*MechanicsView\("):
        mechanics_start(MechanicsView((LONG,)), logs[:1], logs[1:2], 1)


# --- what is recorded ---------------------------------------------------------------------------------------


def test_logs_of_different_length_are_padded_with_nothing(logs):
    found = mechanics_recording(VIEW, [cut(logs[0], 101), logs[1]], modes=2)
    assert found.positions.shape == (2, 401, 1)
    assert np.isnan(found.positions[0, 101:]).all()
    assert found.modes[0, 101:].sum() == 0
    np.testing.assert_allclose(found.modes[1], 0.5)


def test_weights_are_those_of_beliefs(logs):
    weights = [np.eye(2)[np.arange(401) % 2], np.eye(2)[np.arange(101) % 2]]
    found = mechanics_recording(VIEW, [logs[0], cut(logs[1], 101)], weights)
    np.testing.assert_array_equal(found.modes[0], weights[0])
    np.testing.assert_array_equal(found.modes[1, :101], weights[1])
    with pytest.raises(ValueError, match=r"beliefs have \[401\] rows and the logs \[101\]"):
        mechanics_recording(VIEW, [cut(logs[1], 101)], weights[:1])


def test_a_step_that_changes_is_refused(logs):
    with pytest.raises(ValueError, match=r"steps of 0.005 to 0.01 s; expected one for all"):
        mechanics_recording(VIEW, [logs[0], replace(logs[1], dt=0.01)])


# --- the start ----------------------------------------------------------------------------------------------


def test_auto_finds_the_walls_and_names_them(start):
    free, *walls = start.names
    assert free == "free"
    places = [float(name.removeprefix(f"wall at {LONG} = ").removesuffix(" m")) for name in walls]
    np.testing.assert_allclose(places, [-1, 1], atol=0.01)
    assert start.law.modes == start.names
    assert [t.modes for t in start.tried] == [1, 2, 3]
    assert start.tried[2].validation > max(t.validation for t in start.tried[:2]) + 0.02
    assert start.model.channels == (LONG,)
    for mine, laws in zip(jax.tree.leaves(start.model), jax.tree.leaves(start.law.as_model()), strict=True):
        np.testing.assert_array_equal(mine, laws)
    assert constants(start.law)["mass"].value == pytest.approx(0.5, rel=0.02)


def test_one_law_that_explains_everything_is_one_mode():
    simulated = simulate(Puck(wall=50.0), 5, 200, 0.005, key=jax.random.key(3))
    free = named(to_episodes(simulated, 0.001, key=jax.random.key(4)), "q", "m")
    found = mechanics_start(MechanicsView(("q",), ("push",)), free[:4], free[4:], "auto", seed=0, config=QUICK)
    assert found.names == ("free",)
    assert constants(found.law)["mass"].value == pytest.approx(0.5, rel=0.02)


def test_the_law_of_smoothed_modes_has_the_models_numbers_and_names(start, logs):
    settings = FilterSettings(particles=16, outliers=None)
    beliefs = [smooth_log(start.model, e, key=jax.random.key(i), settings=settings) for i, e in enumerate(logs[:6])]
    law = mechanics_laws(VIEW, logs[:6], beliefs, start.law, WEAK)
    assert law.modes == start.names
    assert [b.mode for b in law.form.blocks] == [b.mode for b in start.law.form.blocks]
    assert constants(law)[f"place of {start.names[2]}"].value == pytest.approx(1.0, abs=0.01)


def test_modes_have_names_in_words():
    law = true_law("block")
    seen = Circumstances(0.01, (1e-3,), (1e-2,), (0.0,), (1.0,), (1.0,), ((1, 0, 1.0), (2, 0, -1.0)))
    assert mode_names(replace(law, circumstances=seen)) == ("at rest", "sliding +", "sliding −")
    slow = replace(true_law("pushing"), circumstances=seen._replace(position_spread=(0.1, 0.1), directions=()))
    slow.theta[slow.form.places[0]] = -3e-4
    assert mode_names(slow) == ("free", "wall at gap = 0 m")
    assert mode_names(true_law("pendulum")) == ("free", "stop at angle = -1 rad", "stop at angle = 1 rad")
    assert mode_names(replace(true_law("pendulum"), units=("", ""))) == (
        "free", "wall at angle = -1", "wall at angle = 1",
    )  # fmt: skip


def test_more_modes_have_to_be_clearly_likelier_and_whole():
    def order(*tried: tuple[float, int]) -> list[int]:
        return in_order([Tried(i + 1, value, distinct) for i, (value, distinct) in enumerate(tried)])

    assert order((3.0, 1), (3.5, 2), (3.9, 3)) == [2, 1, 0]
    assert order((3.0, 1), (3.01, 2), (3.015, 3)) == [0]  # not clearly
    assert order((3.0, 1), (3.5, 1), (3.9, 2)) == [0]  # marked
    assert order((3.0, 0), (3.5, 1), (3.2, 3)) == [1, 0]  # as was the one before
    assert order() == []


# --- what cannot give a law ---------------------------------------------------------------------------------


def test_logs_that_give_no_law_are_refused_in_a_sentence(logs):
    still = replace(logs[0], observations=np.full_like(logs[0].observations, 0.3))
    with pytest.raises(ValueError, match=r"varies by \S+; expected at least 30 samples that differ"):
        mechanics_start(VIEW, [still], [logs[1]], 1)
    with pytest.raises(ValueError, match=r"20 samples; expected more than 32.*Give longer"):
        mechanics_start(VIEW, [cut(logs[0], 20)], [cut(logs[1], 20)], 1)
    idle = replace(logs[0], actions=np.zeros_like(logs[0].actions))
    with pytest.raises(ValueError, match="no force along .* ever varies"):
        mechanics_start(VIEW, [idle], [logs[1]], 1)
    with pytest.raises(ValueError, match="1 training and 0 validation logs"):
        mechanics_start(VIEW, logs[:1], [], 1)
    with pytest.raises(ValueError, match="modes is 0"):
        mechanics_start(VIEW, logs[:1], logs[1:2], 0)


# --- units --------------------------------------------------------------------------------------------------


def labelled(logs: list[Episode], view: MechanicsView) -> Law:
    """The law of logs with their true modes."""
    weights = [np.eye(3)[e.labels["mode"]] for e in logs]
    names = ("free", "left wall", "right wall")
    return recover(mechanics_recording(view, logs, weights), mechanics_problem(view, logs[0], names), WEAK)


def test_a_log_in_millimetres_has_the_mass_of_one_in_metres(logs):
    short = [replace(e, observations=1e3 * e.observations, channels=(Channel(LONG, unit="mm"),)) for e in logs]
    metres, millimetres = constants(labelled(logs, VIEW)), constants(labelled(short, VIEW))
    assert metres.keys() == millimetres.keys()
    for name, one in metres.items():
        assert millimetres[name].value == pytest.approx(one.value, rel=1e-6)
        assert millimetres[name].unit == one.unit
    assert (metres["mass"].unit, metres["place of left wall"].unit) == ("kg", "m")
    assert metres["mass"].value == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize(("unit", "force"), [("ticks", "N"), ("m", "percent"), ("m", "V")])
def test_where_a_unit_is_not_known_constants_have_none(logs, unit, force):
    law = labelled(named(logs, LONG, unit, force_unit=force), VIEW)
    units = {name: c.unit for name, c in constants(law).items()}
    assert {u for name, u in units.items() if "restitution" not in name} == {""}
    assert "kg" not in table(law)
    assert not any(line.endswith(" ") for line in table(law).splitlines())
