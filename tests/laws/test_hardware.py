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


def test_cube_falls_and_rebounds(monkeypatch, capsys):
    cube = example("cube_toss_law", monkeypatch)
    flights, info = cube.tosses(at_hand(cube))
    rng = np.random.default_rng(0)
    g, (low, high) = cube.gravity(flights, rng)
    assert low < g < high < low + 0.04
    assert g == pytest.approx(-9.6, abs=0.02)
    found = cube.restitutions(flights)
    low, high = cube.median_interval(found, rng)
    assert info["restitution_reported"] < 0.2 < low < np.median(found) < high < 0.32
    cube.main(cube.DATA)
    assert "impact" in capsys.readouterr().out


def test_a_corner_that_bounces_gives_its_restitution(monkeypatch):
    cube = example("cube_toss_law", monkeypatch)
    dt, down, up, speed = 0.005, 12.9, 30, 1.0
    t = (np.arange(up) - down) * dt
    height = np.where(t < 0, -speed * t - 4.9 * t**2, 0.3 * speed * t - 4.9 * t**2)
    corners = np.stack([height] + 7 * [height + 0.1], 1)
    toss = cube.Toss(centre=height + 0.05, corners=corners, dt=dt)
    assert toss.touchdown == 13
    # It is read at the first sample after the turn, by when gravity has slowed the corner a little.
    slowed = 9.8 * t[14]
    assert cube.restitution(toss) == pytest.approx(0.3 - slowed / speed, abs=1e-6)
    assert np.isnan(cube.restitution(toss._replace(corners=corners[:15])))
