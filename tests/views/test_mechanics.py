"""The mechanics view: positions and the inputs that act on them, in SI units, under their own names."""

import numpy as np
import pytest

from vhydro.episodes import Channel, Episode
from vhydro.views.mechanics import MechanicsView, mechanics_view


def log(*units: str, forces: tuple[str, ...] = ("N",), names: tuple[str, ...] = ("x0", "x1")) -> Episode:
    """Five rows of one channel for each unit, and one input for each unit of force."""
    return Episode(
        np.arange(5.0)[:, None] * np.ones(len(units)), np.ones((4, len(forces))), 0.01,
        tuple(Channel(name, "object", unit) for name, unit in zip(names, units, strict=False)),
        tuple(Channel(f"f{i}", "action", unit) for i, unit in enumerate(forces)),
    )  # fmt: skip


def test_the_log_is_that_of_its_positions_and_forces_in_si():
    seen = MechanicsView(("x1",), ("f1",))(log("s", "mm", forces=("V", "kN")))
    assert [(c.name, c.unit) for c in (*seen.channels, *seen.inputs)] == [("x1", "m"), ("f1", "N")]
    np.testing.assert_allclose(seen.observations[:, 0], 1e-3 * np.arange(5))
    np.testing.assert_allclose(seen.actions, 1e3)


def test_seen_twice_is_seen_once():
    view = MechanicsView(("x0",), ("f0",))
    once = view(log("mm"))
    np.testing.assert_array_equal(view(once).observations, once.observations)


def test_units_say_what_is_a_position_and_what_a_force():
    assert mechanics_view([log("mm", "m/s")]) == MechanicsView(("x0",), ("f0",))
    assert mechanics_view([log("deg", forces=("N m",))]) == MechanicsView(("x0",), ("f0",))


def test_what_was_commanded_is_no_position():
    assert mechanics_view([log("m", "m", names=("x0", "axis.reference"))]) == MechanicsView(("x0",), ("f0",))


def test_a_force_for_every_position_is_asked_for():
    with pytest.raises(ValueError, match=r"2 positions in m or rad and 1 forces .*expected a force for every position"):
        mechanics_view([log("m", "m")])


def test_views_that_name_too_much_or_too_little_are_refused():
    with pytest.raises(ValueError, match="no positions given"):
        MechanicsView(())
    with pytest.raises(ValueError, match="1 forces for 2 positions; expected one for each, a dash where there is none"):
        MechanicsView(("x", "y"), ("f",))
    with pytest.raises(ValueError, match=r"does not show torque, .* it has the channels x0 and the inputs f0"):
        MechanicsView(("x0",), ("torque",))(log("m"))


def test_a_velocity_is_no_position_whatever_its_unit():
    assert mechanics_view([log("m", "m", names=("x0", "x0_velocity"))]) == MechanicsView(("x0",), ("f0",))


def test_without_any_unit_names_say_what_is_what():
    plain = log("", "", forces=("",), names=("arm.angle", "arm.speed"))
    named = Episode(plain.observations, plain.actions, 0.01, plain.channels, (Channel("arm.torque", "action", ""),))
    assert mechanics_view([named]) == MechanicsView(("arm.angle",), ("arm.torque",))
