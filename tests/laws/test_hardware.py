"""The hardware examples: the laws they find in real logs, where those are at hand."""

import importlib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def example(name: str, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    return importlib.import_module(name)


def at_hand(module) -> Path:
    if not module.DATA.exists():
        pytest.skip(f"{module.DATA.name} is not at hand: it is third-party data and not part of the project")
    return module.DATA


def test_emps_gives_the_published_constants_and_its_own_asymmetry(monkeypatch, capsys):
    emps = example("emps_law", monkeypatch)
    tracks, info = emps.recorded(at_hand(emps))
    study = emps.Study(tracks)
    rows = study.rows(study.width())
    law = study.law(rows, study.symmetric)
    found = emps.constants(law)
    assert found["M"].value == pytest.approx(info["published_M"], rel=0.015)
    assert found["Fv forward"].value == pytest.approx(info["published_Fv"], rel=0.025)
    assert found["Fc"].value == pytest.approx(info["published_Fc"], rel=0.025)
    low, high = found["offset"].interval
    assert low < info["published_offset"] < high

    first = emps.ladder(rows, study.symmetric, study.optional)[0]
    entry = study.form.entries[first.entry]
    assert (entry.block, entry.kind) == (0, "dissipation")
    richer = study.law(rows, first.support)
    friction = emps.constants(richer)
    assert friction["Fv forward"].interval[1] < friction["Fv backward"].interval[0]
    assert emps.force_left(rows, richer, first.support) < 0.6 * emps.force_left(rows, law, study.symmetric)

    emps.main(emps.DATA)
    assert "1. friction Fv, another backward" in capsys.readouterr().out


def test_emps_holds_at_every_width(monkeypatch):
    emps = example("emps_law", monkeypatch)
    tracks, info = emps.recorded(at_hand(emps))
    for name, (low, high) in emps.sensitivity(emps.Study(tracks)).items():
        if name in ("M", "Fv forward", "Fc"):
            published = info[f"published_{name.split()[0]}"]
            assert max(abs(low / published - 1), abs(high / published - 1)) < (0.015 if name == "M" else 0.025)


def test_a_drives_law_predicts_the_other_half_better_than_inverse_dynamics(monkeypatch):
    halves, path = example("emps_halves", monkeypatch), at_hand(example("emps_law", monkeypatch))
    log = np.load(path)
    q, force, dt = log["qm"], float(log["gtau"]) * log["vir"], float(log["dt"])
    fitted, left = slice(0, len(q) // 2), slice(len(q) // 2, None)
    law = halves.drive_law(q[fitted], force[fitted], dt)
    least = halves.inverse_dynamics(halves.motion(q[fitted], force[fitted], dt))
    seen = halves.motion(q[left], force[left], dt)
    theirs = (least.force(seen.velocity, seen.acceleration) - seen.force)[halves.EDGE : -halves.EDGE]
    assert halves.force_error(law, q[left], force[left], dt) < 0.85 * np.sqrt(np.mean(theirs**2))
    forward, backward = (law.dissipation(mode)[0].interval for mode in (0, 1))
    assert forward[1] < backward[0]


def test_a_sign_that_flickers_is_no_turn(monkeypatch):
    emps = example("emps_law", monkeypatch)
    t = np.linspace(0, 2, 401)
    velocity = np.cos(np.pi * (t + 0.001))
    clean = emps.directions(velocity)
    assert np.flatnonzero(np.diff(clean)).tolist() == [99, 299]  # it turns where it stands still, not where it is fast
    flickering = velocity + np.where(np.arange(401) % 2, 0.03, -0.03)
    # Only signs right after a turn, before it is sure, may differ.
    assert np.sum(emps.directions(flickering) != clean) <= 8
    assert np.sum(np.diff(emps.directions(flickering)) != 0) == 2


def test_cube_falls_and_rebounds(monkeypatch):
    """Gravity and restitution with nothing but the mass given; poses err by more than noise, and the law says so."""
    cube = example("cube_toss_law", monkeypatch)
    law, info = cube.cube_law(at_hand(cube))
    assert law.flight.terms(0)["V z"].value / info["mass"] == pytest.approx(9.6, abs=0.15)
    (floor,) = law.bounces
    assert floor.side == "below"
    assert info["restitution_reported"] < 0.2 < floor.restitution.value < 0.35
    assert abs(floor.place.value) < 0.005
    assert law.flight.status(0) == "unidentified"
    assert not floor.identified
