"""The hardware examples: the laws they find in real logs, where those are at hand."""

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from vhydro.data import read
from vhydro.laws import Law, chosen_by_halves, constants, halves, impact_constants, toss_law
from vhydro_audits.baselines.inverse_dynamics import inverse_dynamics

ROOT = Path(__file__).parents[2]
REAL = ROOT / ".." / "shared" / "data" / "real"


def example(name: str, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    return importlib.import_module(name)


def at_hand(name: str) -> Path:
    if not (REAL / name).exists():
        pytest.skip(f"{name} is not at hand: it is third-party data and not part of the project")
    return REAL / name


def test_emps_gives_the_published_constants_and_its_own_asymmetry(monkeypatch):
    emps, path = example("emps", monkeypatch), at_hand("emps.npz")
    recording, forms = emps.problems(str(path))
    info, quick = read(path)[0].info, [replace(way, held_out=False) for way in emps.BUMPS[1:3]]
    one, each, chosen = (chosen_by_halves(recording, [forms[name]], quick) for name in forms)
    assert isinstance(one[0], Law)
    assert isinstance(each[0], Law)
    found = constants(one[0])
    assert found["mass"].value == pytest.approx(info["published_M"], rel=0.015)
    assert found["friction"].value == pytest.approx(info["published_Fv"], rel=0.025)
    assert found["sliding friction"].value == pytest.approx(info["published_Fc"], rel=0.025)
    low, high = found["constant force"].interval
    assert low < -float(info["published_offset"]) < high

    forward, backward = (constants(each[0])[name].interval for name in ("friction", "friction of backward"))
    assert forward[1] < backward[0]
    least = [min(way.score for way in tried) for _, tried in (one, each, chosen)]
    first, second = halves(recording)
    fits = [(inverse_dynamics(a), b) for a, b in ((first, second), (second, first))]
    assert max(least[1:]) < 0.8 * min(drive.force_left(other) for drive, other in fits)
    assert least == sorted(least, reverse=True)


def test_cube_falls_and_rebounds():
    """Gravity and restitution, mass and size given; poses err by more than noise, and the law says so."""
    logs = read(at_hand("cube_tosses.npz"))
    mass, size, told = (float(logs[0].info[k]) for k in ("mass", "half_width", "restitution_reported"))
    law = toss_law(logs, mass=mass, half_sizes=size)
    assert impact_constants(law)["acceleration along cube.z"].value == pytest.approx(-9.6, abs=0.15)
    (floor,) = law.bounces
    assert floor.side == "below"
    assert told < 0.2 < floor.restitution.value < 0.35
    assert abs(floor.place.value) < 0.005
    assert law.flight.status(0) == "unidentified"
    assert not floor.identified
