"""The contract that every view keeps."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from known_logs import ball_log, cloth_log, hand_log, spring_log, valve_log
from vhydro.episodes import Channel, Episode
from vhydro.views import (
    BodyView,
    ContactView,
    MechanicsView,
    PlainView,
    as_json,
    choose_view,
    view_from_json,
    view_of,
)


class Case(NamedTuple):
    """A view as a user would write it, and logs of which `auto` finds one of its kind."""

    make: Callable[[int], Episode]
    view: ContactView | MechanicsView | BodyView | PlainView
    hidden: tuple[str, ...]  # raw channels that may be hidden


XYZ = "xyz"
CASES = {
    "contact": Case(
        hand_log,
        ContactView(
            tuple(f"tcp.{a}" for a in XYZ), {b: tuple(f"{b}.{a}" for a in XYZ) for b in ("cup", "plate")},
            ("gripper.finger_1", "gripper.finger_2"), "gripper.command", 0.04, moves=("tcp.dx", "tcp.dy", "tcp.dz"),
        ),
        ("cup.x", "cup.y", "cup.z"),
    ),
    "contact with a cloth": Case(
        cloth_log,
        ContactView(
            tuple(f"tcp.{a}" for a in XYZ), {"cloth": tuple(f"cloth.v{k}.{a}" for k in (1, 2, 3) for a in XYZ)}
        ),
        ("cloth.v2.y",),
    ),
    "mechanics": Case(spring_log, MechanicsView(("cart.position",), ("cart.push",)), ("cart.position",)),
    "body": Case(ball_log, BodyView(("ball.x", "ball.y", "ball.z"), name="ball"), ("ball.z",)),
    "plain": Case(valve_log, PlainView(("pressure", "flow"), ("valve",)), ("flow",)),
}  # fmt: skip
PREFIXED = {"m": "mm", "N": "kN", "Pa": "kPa"}
FACTOR = {"mm": 1e3, "kN": 1e-3, "kPa": 1e-3}


@pytest.fixture(params=CASES)
def case(request) -> Case:
    return CASES[request.param]


def test_it_is_data(case):
    record = json.loads(json.dumps(as_json(case.view)))
    assert record["kind"] == case.view.kind
    again = view_from_json(record)
    assert again == case.view
    assert type(again) is type(case.view)
    log = case.make(0)
    np.testing.assert_array_equal(again(log).observations, case.view(log).observations)


def test_it_says_what_it_needs_and_how_to_name_it(case):
    log = case.make(0)
    needed = [*case.view.channels, *case.view.inputs]
    assert set(needed) <= {c.name for c in (*log.channels, *log.inputs)}
    for name in needed:
        channels = tuple(replace(c, name="other") if c.name == name else c for c in log.channels)
        inputs = tuple(replace(c, name="other") if c.name == name else c for c in log.inputs)
        lacking = replace(log, channels=channels, inputs=inputs, source="log 7")
        with pytest.raises(ValueError, match=f"log 7 does not show {name}, which the {case.view.kind} view") as found:
            case.view(lacking)
        assert "other" in str(found.value)  # what there is to be named
        assert f"Name what it has: {type(case.view).__name__}(" in str(found.value)


def test_nothing_else_matters(case):
    """More channels and inputs, in another order, with labels: the same is seen."""
    log = case.make(0)
    columns = np.random.default_rng(0).permutation(len(log.channels))
    other = replace(
        log,
        observations=np.hstack([np.ones((log.steps + 1, 1)), log.observations[:, columns]]),
        channels=(Channel("room.temperature", "scene", "K"), *(log.channels[i] for i in columns)),
        actions=np.hstack([np.ones((log.steps, 1)), log.actions]),
        inputs=(Channel("lamp", "action"), *log.inputs),
    )
    one, two = case.view(log), case.view(other)
    np.testing.assert_array_equal(one.observations, two.observations)
    np.testing.assert_array_equal(one.actions, two.actions)
    assert (one.channels, one.inputs, one.dt) == (two.channels, two.inputs, two.dt)


def test_units_are_converted(case):
    log = case.make(0)
    factors = [[FACTOR.get(PREFIXED.get(c.unit, ""), 1.0) for c in part] for part in (log.channels, log.inputs)]
    channels, inputs = (
        tuple(replace(c, unit=PREFIXED.get(c.unit, c.unit)) for c in part) for part in (log.channels, log.inputs)
    )
    assert channels != log.channels
    small = replace(
        log, observations=log.observations * factors[0], actions=log.actions * factors[1], channels=channels,
        inputs=inputs,
    )  # fmt: skip
    one, two = case.view(log), case.view(small)
    assert (one.channels, one.inputs) == (two.channels, two.inputs)
    np.testing.assert_allclose(one.observations, two.observations, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(one.actions, two.actions, rtol=1e-9, atol=1e-12)


def test_what_is_hidden_stays_hidden(case):
    """A hidden reading hides what is made of it and changes nothing else, and no drive."""
    log = case.make(0)
    values = log.observations.copy()
    names = [c.name for c in log.channels]
    values[20:25, [names.index(n) for n in case.hidden]] = np.nan
    one, two = case.view(log), case.view(replace(log, observations=values))
    hidden = np.isnan(two.observations)
    assert hidden[20:24].any(1).all()
    assert not hidden[:19].any()
    assert not hidden[26:].any()
    if "cloth.v2.y" not in case.hidden:  # a cloth goes on from another knot
        np.testing.assert_allclose(two.observations[~hidden], one.observations[~hidden], atol=1e-12)
    np.testing.assert_array_equal(one.actions, two.actions)


def test_auto_finds_it(case):
    logs = [case.make(seed) for seed in range(2)]
    view, why = choose_view(logs)
    assert view.kind == case.view.kind
    assert set(view.channels) == set(case.view.channels)
    assert why
    assert view_of(case.view.kind, logs) == view
    assert view_from_json(json.loads(json.dumps(as_json(view)))) == view


def test_every_view_says_an_example_of_itself(case):
    """What an error shows as a remedy can be written as it is."""
    kinds = {c.__name__: c for c in (ContactView, MechanicsView, BodyView, PlainView)}
    made = eval(type(case.view).example, kinds)  # our own text
    assert type(made) is type(case.view)


def test_the_rows_and_the_time_step_are_the_logs(case):
    log = case.make(0)
    seen = case.view(log)
    assert seen.dt == log.dt
    assert seen.steps == log.steps - (case.view.kind == "body")


def test_what_is_no_view_is_refused():
    for record in ({"kind": "contact", "colour": "red"}, {"kind": "sonar"}, {}, {"kind": "plain", "channels": []}):
        with pytest.raises(ValueError, match="expected what `Fitted.save` writes"):
            view_from_json(record)
    with pytest.raises(ValueError, match="view is 'sonar'; expected auto, contact, mechanics, body, plain"):
        view_of("sonar", [hand_log(0)])


def test_a_log_in_which_nothing_changes_has_no_view():
    log = valve_log(0)
    still = replace(log, observations=np.ones_like(log.observations), source="log 3")
    with pytest.raises(ValueError, match="no channel of log 3 is ever seen to change"):
        choose_view([still])
    with pytest.raises(ValueError, match="no channel of log 3 is ever seen to change"):
        choose_view([replace(still, observations=np.full_like(log.observations, np.nan))])
