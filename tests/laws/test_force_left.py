"""Directions of motion as modes, the force that a law leaves over, and forms chosen by held-out halves."""

from dataclasses import replace

import numpy as np
import pytest

from known_drives import BACKWARD, DRY, FORWARD, MASS, OFFSET, TEXTBOOK, drive
from vhydro.laws import (
    LagrangeConfig,
    Law,
    LawsConfig,
    Problem,
    Recording,
    ShootingConfig,
    by_direction,
    chosen_by_halves,
    constants,
    force_left,
    halves,
    motion,
    recover,
)
from vhydro.laws.directions import directions

WEAK = LawsConfig("weak", held_out=False, shooting=ShootingConfig(bump=100))


def weak(recording: Recording, problem: Problem) -> Law:
    """The law by the weak form."""
    law = recover(recording, problem, WEAK)
    assert isinstance(law, Law)
    return law


def test_a_sign_that_flickers_is_no_turn():
    t = np.linspace(0, 2, 401)
    velocity = np.cos(np.pi * (t + 0.001))
    clean = directions(velocity, 0.001)
    assert np.flatnonzero(np.diff(clean)).tolist() == [99, 299]  # it turns where it stands still, not where it is fast
    flickering = velocity + np.where(np.arange(401) % 2, 0.03, -0.03)
    # Only signs right after a turn, before it is sure, may differ.
    assert np.sum(directions(flickering, 0.03) != clean) <= 8
    assert np.sum(np.diff(directions(flickering, 0.03)) != 0) == 2


def test_what_is_hidden_goes_on_as_it_went():
    velocity = np.cos(np.linspace(0, 4 * np.pi, 401))
    hidden = np.where((np.arange(401) >= 20) & (np.arange(401) < 60), np.nan, velocity)
    whole, found = directions(velocity, 0.001), directions(hidden, 0.001)
    assert (found[:20] == whole[:20]).all()
    assert (found[60:] == whole[60:]).all()
    assert (found[20:60] == whole[19]).all()


def test_directions_are_modes_and_padding_stays_padding():
    recording = drive()
    modes = recording.modes.copy()
    modes[:, -500:] = 0.0
    positions = np.where(modes > 0, recording.positions, np.nan)
    found, problem = by_direction(recording._replace(modes=modes, positions=positions), TEXTBOOK)
    assert problem.modes == ("forward", "backward")
    assert (found.modes.sum(-1) == modes[..., 0]).all()
    way = np.sign(np.diff(recording.positions[0, :9000, 0]))
    assert np.mean(found.modes[0, :8999, 0] == (way > 0)) > 0.995


def test_nothing_seen_is_refused():
    recording = drive()
    with pytest.raises(ValueError, match="nowhere seen"):
        by_direction(recording._replace(positions=np.full_like(recording.positions, np.nan)), TEXTBOOK)


def test_constants_of_a_drive_and_its_asymmetry():
    recording, problem = by_direction(drive(), TEXTBOOK)
    found = constants(weak(recording, problem))
    truth = {
        "mass": MASS, "friction": FORWARD, "friction of backward": BACKWARD, "sliding friction": DRY,
        "constant force": -OFFSET,
    }  # fmt: skip
    names = {"friction", "friction of backward"}
    low, high = sorted(found[name].value for name in names)
    assert (low, high) == pytest.approx((FORWARD, BACKWARD), rel=0.02)
    for name in set(truth) - names:
        assert found[name].value == pytest.approx(truth[name], rel=0.03)


def test_one_friction_is_the_same_in_both_directions():
    recording, problem = by_direction(drive(backward=FORWARD), TEXTBOOK)
    law = weak(recording, replace(problem, one_friction=True))
    assert law.dissipation(0) == law.dissipation(1)
    assert law.dissipation(0)[0].value == pytest.approx(FORWARD, rel=0.01)
    assert "friction of backward" not in constants(law)
    with pytest.raises(ValueError, match="fits every mode for itself"):
        recover(recording, replace(problem, one_friction=True), LawsConfig("lasso"))


def test_the_force_left_over_is_what_is_missing_in_a_law():
    """A law without an offset of the truth leaves just that offset over."""
    recording, problem = by_direction(drive(), TEXTBOOK)
    law = weak(recording, problem)
    assert force_left(law, recording)[0] < 0.1 * DRY
    pushed = recording._replace(actions=recording.actions + 7.0)
    assert force_left(law, pushed)[0] == pytest.approx(7.0, rel=0.05)


def test_coupled_equations_are_scored_alike():
    recording, problem = by_direction(drive(backward=FORWARD), TEXTBOOK)
    own = recording._replace(modes=recording.modes.sum(-1, keepdims=True))
    config = LawsConfig("lagrange", held_out=False, lagrange=LagrangeConfig(refine=False))
    law = recover(own, replace(problem, modes=("all",)), config)
    both = weak(recording, replace(problem, one_friction=True))
    assert force_left(law, own)[0] < 2 * force_left(both, recording)[0] + 0.02 * DRY


def test_a_gap_is_left_out():
    recording, problem = by_direction(drive(), TEXTBOOK)
    law = weak(recording, problem)
    positions = recording.positions.copy()
    positions[:, 4000:4200] = np.nan
    positions[:, 4500:4510] = np.nan  # what is between is too short to be filtered
    assert force_left(law, recording._replace(positions=positions))[0] < 0.1 * DRY
    positions[:, ::300] = np.nan
    with pytest.raises(ValueError, match="in a row"):
        force_left(law, recording._replace(positions=positions))


def test_halves_choose_a_friction_for_each_direction_where_there_is_one():
    recording, problem = by_direction(drive(), TEXTBOOK)
    law, tried = chosen_by_halves(recording, [replace(problem, one_friction=True), problem], [WEAK])
    one, each = tried
    assert each.score < 0.5 * one.score
    assert isinstance(law, Law)
    assert not law.form.one_friction


def test_a_way_that_fails_is_passed_over():
    recording, problem = by_direction(drive(), TEXTBOOK)
    bad = replace(WEAK, shooting=ShootingConfig(bump=10**6))
    law, (failed, other) = chosen_by_halves(recording, [problem], [bad, WEAK])
    assert (failed.score, np.isfinite(other.score)) == (np.inf, True)
    assert law.theta == pytest.approx(weak(recording, problem).theta)
    with pytest.raises(ValueError, match="none of 1 ways.*narrower `bump`"):
        chosen_by_halves(recording, [problem], [bad])


def test_a_recording_with_other_modes_is_refused():
    recording, problem = by_direction(drive(), TEXTBOOK)
    with pytest.raises(ValueError, match="has 1 modes; expected 2"):
        force_left(weak(recording, problem), drive())


def test_halves_of_several_episodes_are_every_other():
    recording = drive()
    both = recording._replace(**{
        k: np.concatenate([getattr(recording, k)] * 3) for k in ("positions", "actions", "modes")
    })  # fmt: skip
    assert [len(half.positions) for half in halves(both)] == [2, 1]
    first, second = halves(recording)
    assert first.actions.shape[1] == first.positions.shape[1] - 1
    assert first.positions.shape[1] + second.positions.shape[1] == recording.positions.shape[1]


def test_a_cutoff_beyond_half_the_rate_is_refused():
    with pytest.raises(ValueError, match="half the sampling rate"):
        motion(np.zeros((1000, 1)), dt=0.001, cutoff=500.0)


def test_a_record_too_short_to_filter_is_refused():
    with pytest.raises(ValueError, match="longer"):
        motion(np.zeros((50, 1)), dt=0.001)
