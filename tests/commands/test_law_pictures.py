"""What the pictures of a law show, against laws that are known: frictions, arrows, surfaces and courses."""

from dataclasses import replace

import numpy as np
import pytest

from laws_drawn import BETWEEN, COULOMB, DT, PLACE, VISCOUS, bumped, known, two_bodies
from vhydro.commands.law_course import WITHIN, course, in_own_momenta, is_told, rows_held, without_lost
from vhydro.commands.law_friction import bump, friction, friction_force
from vhydro.commands.law_phase import MOST_SAMPLES, evenly, phase
from vhydro.commands.law_pictures import richest
from vhydro.lagrangian import Friction
from vhydro.systems import Block, Puck

SEEN = 0.02  # of the largest friction: what smoothing and second differences leave of a recording without noise


def medians(picture) -> tuple[np.ndarray, np.ndarray]:
    return np.array(picture["medians"]["v"]), np.array(picture["medians"]["f"])


# --- friction ---------------------------------------------------------------------------------------------------------


def test_frictions_of_equations_pass_through_their_constants():
    law = two_bodies()
    one = np.array([-1.0, 1.0])
    np.testing.assert_allclose(friction_force(law, 0, (0, None), one), (VISCOUS + COULOMB) * one)
    np.testing.assert_allclose(friction_force(law, 0, (1, None), one), 0.0)
    np.testing.assert_allclose(friction_force(law, 0, (0, 1), one), BETWEEN * one)


def test_a_friction_that_fades_with_speed_is_drawn_and_written():
    law, tracks = two_bodies(), bumped()[2]
    first = law.form.of("friction")[0]
    form = replace(law.form, friction=(*law.form.friction, Friction("Stribeck", 0)), dry=(*law.form.dry, first + 3))
    form = replace(form, known_friction=(None,) * 4)
    theta = np.insert(law.theta, first + 3, [0.5, 0.25])
    law = replace(law, form=form, theta=theta, support=theta != 0, covariance=np.zeros((len(theta),) * 2))
    v = np.array([-0.5, 0.05, 0.5])
    truth = VISCOUS * v + np.sign(v) * (COULOMB + 0.5 * np.exp(-np.abs(v) / 0.25))
    np.testing.assert_allclose(friction_force(law, 0, (0, None), v), truth)
    words = friction(law, tracks)[0]["curves"][0]["words"]
    assert words == "0.4 v + 0.7 sign(v) + 0.5 sign(v) exp(−|v|/0.25)"


def test_what_is_left_over_is_the_friction_of_every_position_and_of_their_difference():
    first, second, between = friction(two_bodies(), bumped()[2])
    assert [p["name"] for p in (first, second, between)] == ["x1", "x2", "x1 − x2"]
    assert [p["force"] for p in (first, second, between)] == ["N"] * 3
    truth = {
        "x1": lambda v: VISCOUS * v + COULOMB * np.sign(v),
        "x2": lambda v: 0 * v,
        "x1 − x2": lambda v: BETWEEN * v,
    }
    for picture in (first, second, between):
        v, force = medians(picture)
        assert len(v) > 8
        assert (v > 0).any()
        assert (v < 0).any()
        np.testing.assert_allclose(force, truth[picture["name"]](v), atol=SEEN * (VISCOUS + COULOMB))
    assert first["curves"][0]["words"] == "0.4 v + 0.7 sign(v)"
    assert second["curves"][0]["words"] == "0"


def test_a_law_without_friction_leaves_the_same_dots_and_a_curve_that_misses_them():
    law = two_bodies()
    theta = np.where([e.kind == "friction" for e in law.form.entries], 0.0, law.theta)
    smooth = friction(replace(law, theta=theta, support=law.support & (theta != 0)), bumped()[2])[0]
    v, force = medians(smooth)
    own = VISCOUS * v + COULOMB * np.sign(v)
    assert smooth["curves"][0]["words"] == "0"
    assert set(smooth["curves"][0]["f"]) == {0.0}
    # What the difference of the velocities leaves is in these dots as well, and scatters about.
    assert np.corrcoef(force, own)[0, 1] > 0.95
    assert np.median(np.abs(force - own)) < 0.5 * np.median(np.abs(own))


def test_directions_have_dry_friction_each_way_and_rest_has_none():
    law, _, tracks = known("block")
    (picture,) = friction(law, tracks)
    block = Block()
    dry = block.kinetic_friction * block.mass * block.gravity
    forward, backward = picture["curves"]
    assert (forward["mode"], backward["mode"]) == (1, 2)
    assert min(forward["v"]) > 0 > max(backward["v"])
    for curve, sign in ((forward, 1), (backward, -1)):
        np.testing.assert_allclose(curve["f"], sign * dry + block.viscosity * np.array(curve["v"]))
    v, force = medians(picture)
    np.testing.assert_allclose(force, dry * np.sign(v) + block.viscosity * v, rtol=SEEN)
    assert 0 not in picture["mode"]  # what rests shows no friction that moves


def test_contacts_rub_as_the_base_does_and_are_left_out_where_there_is_enough_without_them():
    law, _, tracks = known("puck")
    (picture,) = friction(law, tracks)
    assert set(picture["mode"]) == {0}
    v, force = medians(picture)
    np.testing.assert_allclose(force, Puck().friction * v, atol=SEEN * force.max())
    assert [c["words"] for c in picture["curves"]] == ["0.1 v"]


def test_a_log_that_is_always_in_contact_shows_its_friction_all_the_same():
    law, _, tracks = known("puck")
    touching = tracks._replace(modes=np.broadcast_to(np.eye(3)[1], tracks.modes.shape))
    inside = np.where(tracks.positions < -1.0, tracks.positions, np.nan)
    (picture,) = friction(law, touching._replace(positions=inside))
    assert set(picture["mode"]) == {1}
    assert [c["mode"] for c in picture["curves"]] == [0]


def test_wider_bumps_where_noise_asks_for_them():
    law, log, tracks = known("puck")
    noisy = tracks._replace(noise=tracks.noise + 1e-3)
    assert friction(law, noisy)[0]["seconds"] > friction(law, tracks)[0]["seconds"]
    for half in (2, 9):
        assert bump(half).sum() == pytest.approx(1.0)
        assert len(bump(half)) == 2 * half + 1
    assert log.recording.dt == 0.005


def test_a_momentum_that_is_no_multiple_of_the_velocity_has_its_friction_too():
    law, _, tracks = known("puck")
    entries = law.form.entries
    theta = law.theta.copy()
    theta[[e.term is not None and e.term.text(("q", "p")) == "q p^2" for e in entries]] = 1e-9
    odd = replace(law, theta=theta, support=law.support | (theta != 0))
    assert len(odd.energy(0)) == len(law.energy(0)) + 1
    for one, other in zip(friction(odd, tracks), friction(law, tracks), strict=True):
        np.testing.assert_allclose(one["medians"]["f"], other["medians"]["f"], atol=1e-4)


# --- portraits --------------------------------------------------------------------------------------------------------


def test_arrows_go_where_the_law_goes():
    law, _, tracks = known("puck")
    (portrait,) = phase(law, tracks)
    size = np.subtract(portrait["high"], portrait["low"])
    force = np.array([[h["value"] for h in portrait["held"]]])
    assert {line["mode"] for line in portrait["field"]} == {0, 1, 2}
    for line in portrait["field"]:
        course = np.stack([line["q"], line["v"]], -1)
        q, v = course[:1, :1], course[:1, 1:]
        rate = np.concatenate([v, law.acceleration(line["mode"], q, v, force)], -1)[0] / size
        step = (course[1] - course[0]) / size
        assert step @ rate > 0.9 * np.linalg.norm(step) * np.linalg.norm(rate)


def test_surfaces_stand_where_contacts_begin_and_samples_keep_their_modes():
    law, log, tracks = known("puck")
    (portrait,) = phase(law, tracks)
    assert [(s["mode"], s["sign"], s["place"]) for s in portrait["surfaces"]] == [(1, -1.0, -1.0), (2, 1.0, 1.0)]
    q, mode = np.array(portrait["q"]), np.array(portrait["mode"])
    assert (portrait["unit"], portrait["rate"]) == ("m", "m/s")
    near = 0.02  # smoothing blurs the moment of touch
    assert (np.abs(q[mode == 0]) < 1 + near).all()
    assert (q[mode == 1] < -1 + near).all()
    assert (q[mode == 2] > 1 - near).all()
    assert len(q) <= MOST_SAMPLES
    assert (mode == 1).sum() == (log.truth.modes == 1).sum()  # of a rare mode all is shown


def test_bodies_that_touch_have_a_portrait_of_their_difference():
    states, _, tracks = bumped()
    portraits = {p["name"]: p for p in phase(two_bodies(), tracks)}
    assert list(portraits) == ["x1", "x2", "x1 − x2"]
    assert [s["place"] for s in portraits["x1 − x2"]["surfaces"]] == [PLACE]
    assert not portraits["x1"]["surfaces"]
    assert {line["mode"] for line in portraits["x1"]["field"]} == {0}
    beyond = np.array(portraits["x1 − x2"]["q"])[np.array(portraits["x1 − x2"]["mode"]) == 1]
    assert (beyond > PLACE - 0.02).all()
    shown = len(portraits["x2"]["q"])
    assert shown < states[..., 0].size
    assert np.isfinite(portraits["x2"]["q"]).all()  # the hidden span is not made up


def test_modes_that_nothing_switches_have_portraits_of_their_own():
    law, _, tracks = known("block")
    told = replace(law, circumstances=law.circumstances._replace(directions=()))
    assert [p["modes"] for p in phase(law, tracks)] == [[0, 1, 2]]
    assert [p["modes"] for p in phase(told, tracks)] == [[0, 1], [2]]
    assert {line["mode"] for line in phase(told, tracks)[1]["field"]} == {2}


def test_a_recording_of_nothing_has_no_picture():
    law, _, tracks = known("puck")
    hidden = np.full_like(tracks.positions, np.nan)
    smooth = tracks.smooth._replace(position=hidden, velocity=hidden)
    nothing = tracks._replace(positions=hidden, smooth=smooth)
    assert phase(law, nothing) == []
    assert friction(law, nothing) == []


@pytest.mark.parametrize(("count", "most"), [(3, 5), (5, 5), (1000, 7)])
def test_samples_are_thinned_evenly(count, most):
    got = evenly(count, most)
    assert len(got) == min(count, most)
    assert (got[0], got[-1]) == (0, count - 1)
    assert np.ptp(np.diff(got)) <= 1


# --- courses ----------------------------------------------------------------------------------------------------------


def test_a_true_law_is_followed_through_its_contacts_to_the_end():
    law, log, _ = known("puck")
    e = int(np.argmax([np.count_nonzero(np.diff(m)) for m in log.truth.modes]))
    states, path = log.truth.states[e], log.truth.modes[e]
    followed = course(law, states[0], log.truth.actions[e], 0.005, path)
    spread = states[:, :1].std(0)
    assert rows_held(states[:, :1], followed, spread) == len(states)
    np.testing.assert_allclose(followed, states[:, :1], atol=1e-3 * spread[0])
    heavier = replace(law, theta=np.where([x.is_kinetic for x in law.form.entries], 0.8 * law.theta, law.theta))
    assert rows_held(states[:, :1], course(heavier, states[0], log.truth.actions[e], 0.005, path), spread) < len(states)


def test_a_law_with_directions_stops_and_turns_round_by_itself():
    law, log, _ = known("block")
    e = int(np.argmax((log.truth.modes == 0).sum(1) * ((log.truth.modes > 0).sum(1) > 100)))
    states, actions = log.truth.states[e], log.truth.actions[e]
    assert not is_told(law)
    followed, other = (course(law, states[0], actions, 0.005, p) for p in (log.truth.modes[e], 0 * log.truth.modes[e]))
    np.testing.assert_array_equal(followed, other)  # whatever modes were seen
    assert rows_held(states[:, :1], followed, states[:, :1].std(0)) > 0.5 * len(states)


def test_a_law_that_is_told_its_modes_rests_where_they_do():
    law, log, _ = known("block")
    law = replace(law, circumstances=law.circumstances._replace(directions=()))
    assert is_told(law)
    e = int(np.argmax((log.truth.modes == 0).sum(1) * ((log.truth.modes > 0).sum(1) > 100)))
    states, path = log.truth.states[e], log.truth.modes[e]
    followed = course(law, states[0], log.truth.actions[e], 0.005, path)
    rests = (path[:-1] == 0)[:, None]
    assert rests.any()
    assert (np.diff(followed, axis=0)[rests] == 0).all()
    assert rows_held(states[:, :1], followed, states[:, :1].std(0)) > 0.5 * len(states)


def test_equations_are_followed_as_they_were_simulated():
    states, forces, _ = bumped()
    path = np.zeros(len(forces[0]), int)
    np.testing.assert_allclose(
        course(two_bodies(), states[0, 0], forces[0], DT, path), states[0, :, :2], atol=1e-3 * states[0, :, :2].std()
    )


def test_a_course_holds_until_readings_are_off_for_good_and_not_for_one_outlier():
    seen = np.zeros((100, 1))
    seen[20], seen[40:50] = 9.0, np.nan
    followed = np.where(np.arange(100)[:, None] < 60, 0.0, 2 * WITHIN)
    assert rows_held(seen, followed, np.ones(1)) == 60
    assert rows_held(seen, np.zeros((100, 1)), np.ones(1)) == 100
    lost = np.where(np.arange(100)[:, None] < 70, 0.0, np.nan)
    assert rows_held(seen, lost, np.ones(1)) == 70
    far = without_lost(seen, np.where(np.arange(100)[:, None] < 70, 0.0, 1e3), np.ones(1))
    assert np.isnan(far[70:]).all()
    assert (far[:70] == 0).all()


def test_states_are_handed_from_one_law_to_another_with_their_velocities():
    puck, _, _ = known("puck")
    states = np.array([[0.1, 1.0], [0.2, -2.0]])
    heavier = replace(puck, theta=np.where([x.is_kinetic for x in puck.form.entries], 0.5 * puck.theta, puck.theta))
    np.testing.assert_allclose(in_own_momenta(states, puck, heavier), states * [1.0, 2.0])
    np.testing.assert_allclose(in_own_momenta(states, puck, puck), states)


def test_the_log_with_the_most_modes_is_shown():
    assert richest([np.array([0, 0, 1]), np.array([0, 1, 0]), np.array([0, 0, 0])]) == 1
