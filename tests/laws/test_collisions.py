"""Impacts between two moving bodies: told from walls, read, simulated, kept in a file and filtered with."""

import json
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vhydro.bouncing import Rebound, rebounded
from vhydro.episodes import Channel, Episode
from vhydro.filter import FilterSettings, filter_episodes
from vhydro.lagrangian import Surface
from vhydro.laws import ImpactLaw, Law, LawsConfig, Problem, Recording, impact_law, load_law
from vhydro.laws.estimate import ShootingConfig
from vhydro.laws.form import Form
from vhydro.laws.lagrange import LagrangeConfig
from vhydro.laws.lagrange_law import LagrangeLaw
from vhydro.laws.marks import rigid
from vhydro.laws.meetings import meetings
from vhydro.laws.recover import recover
from vhydro.library import Monomial
from vhydro_audits.laws_new import new_problem, new_recording

DT, MASSES, RESTITUTION, PLACE = 0.01, np.array([1.0, 0.6]), 0.6, -0.3
WALL, OF_WALL = 0.5, 0.5  # of the second cart
CONFIG = LawsConfig(estimator="lagrange", lagrange=LagrangeConfig(shooting=ShootingConfig(lengths=(60,))))
NAMES = ("x1", "x2", "p1", "p2"), ("m", "m", "kg m/s", "kg m/s"), ("force1", "force2"), ("free",)


@cache
def carts(wall: float = np.inf, apart: float = 0.0, seed: int = 5, driven: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """States and forces of two carts on springs that bump into each other, and the second into a wall.

    Of the carts the first ones are driven.
    """
    random, fine, rows, episodes = np.random.default_rng(seed), 40, 500, 7
    home, stiff, friction = np.array([[-0.25 - apart], [0.25 + apart]]), np.array([[6.0], [5.0]]), [[0.3], [0.2]]
    x, v = home + random.uniform(-0.15, 0.15, (2, episodes)), 0.5 * random.standard_normal((2, episodes))
    waves, phases = random.uniform(1, 6, (2, episodes, 3, 1)), random.uniform(0, 6, (2, episodes, 3, 1))
    force, light, h = 3 * np.sin(waves * np.arange(rows) * DT + phases).sum(2)[:driven], 1 / MASSES, DT / fine
    pushes = np.concatenate([force, np.zeros((2 - driven, *force.shape[1:]))])

    def kick(weights: np.ndarray, place: float, restitution: float):
        """How velocities change at a surface within a fine step, and how far that takes things until it ends."""
        s, u, bent = weights @ x, weights @ v, weights @ rate
        hit = (s + u * h + 0.5 * bent * h**2 > place) & (u > 0)
        when = np.clip((place - s) / np.where(hit, u, 1.0), 0, h) if np.isfinite(place) else h
        change = -(1 + restitution) * np.where(hit, u + bent * when, 0.0)
        change = change * (light * weights / (light @ weights**2))[:, None]
        return change, change * (h - when)

    path = [np.concatenate([x, v])]
    for t in range(rows):
        for _ in range(fine):
            rate = light[:, None] * (pushes[..., t] - friction * v - stiff * (x - home))
            bump = kick(np.array([1.0, -1.0]), PLACE, RESTITUTION)
            stop = kick(np.array([0.0, 1.0]), wall, OF_WALL)
            x, v = x + v * h + 0.5 * rate * h**2 + bump[1] + stop[1], v + rate * h + bump[0] + stop[0]
        path.append(np.concatenate([x, v]))
    return np.moveaxis(np.stack(path, -1), 0, -1), np.moveaxis(force, 0, -1)


def recorded(noise: float, wall: float = np.inf, apart: float = 0.0, driven: int = 2) -> Recording:
    states, forces = carts(wall, apart, driven=driven)
    places = states[..., :2]
    seen = places + noise * np.random.default_rng(1).standard_normal(places.shape)
    return Recording(seen, forces, np.ones((*seen.shape[:2], 1)), DT)


def problem() -> Problem:
    return Problem(*NAMES, (), np.full(2, np.nan), np.concatenate([np.zeros((2, 2)), np.eye(2)]))


@cache
def found(noise: float = 1e-4, wall: float = np.inf, apart: float = 0.0) -> ImpactLaw:
    return impact_law(recorded(noise, wall, apart), problem(), CONFIG)


def is_right(bounce, restitution: float, place: float) -> bool:
    """Whether a surface is told without doubt, its numbers within four standard errors, or steps of the simulator."""
    off = abs(bounce.restitution.value - restitution), abs(bounce.place.value - place)
    allowed = 4 * bounce.restitution.error + 1e-4, 4 * bounce.place.error + 2e-5
    return bounce.problem == "" and off[0] < allowed[0] and off[1] < allowed[1]


@pytest.mark.parametrize("noise", [1e-4, 1e-3])
def test_two_carts_meet_and_nothing_else_is_a_surface(noise):
    law = found(noise)
    assert law.modes == ("flight", "impact of x1 and x2")
    (bump,) = law.bounces
    assert (bump.axis, bump.other, bump.side) == (0, 1, "above")
    assert bump.impacts > 15
    assert is_right(bump, RESTITUTION, PLACE)
    assert isinstance(law.flight, LagrangeLaw)
    np.testing.assert_allclose(np.diag(law.flight.mass_matrix(np.zeros(2))), MASSES, rtol=0.01)
    assert f"impact of x1 and x2 at x1 − x2 = {bump.place.value:.5g}\n" in str(law)
    assert f"relative velocity ← −{bump.restitution.value:.4g} relative velocity" in str(law)
    assert {"restitution of impact of x1 and x2", "place of impact of x1 and x2"} == law.surfaces.keys()


def test_two_carts_and_a_wall_are_both_told():
    law = found(3e-4, WALL)
    assert law.modes == ("flight", "upper wall along x2", "impact of x1 and x2")
    assert is_right(law.bounces[0], OF_WALL, WALL)
    assert is_right(law.bounces[1], RESTITUTION, PLACE)


def test_a_lone_wall_stays_one():
    law = found(1e-4, 2.4, 2.0)
    assert law.modes == ("flight", "upper wall along x2")
    assert is_right(law.bounces[0], OF_WALL, 2.4)


def test_momentum_that_is_not_kept_is_said():
    """No force acts on the second cart, and half its mass is given: flights do not show it, but bumps do."""
    given = Problem(*NAMES[:2], ("force1",), NAMES[3], (), np.full(2, np.nan), np.eye(4)[:, 2:3])
    law = impact_law(recorded(1e-4, driven=1), replace(given, masses=np.array([np.nan, 0.3])), CONFIG)
    assert [law.status(m) for m in (0, 1)] == ["identified", "unidentified"]
    assert "momentum is not kept" in law.bounces[0].problem
    assert "by its inertia 0.23" in str(law)  # 0.3 / (1 + 0.3); the truth is 0.6 / (1 + 0.6)


def told(positions: np.ndarray) -> list[tuple]:
    return [(m.surface.axis, m.surface.other) for m in meetings(positions, ("m",) * positions.shape[-1], DT)[0]]


def test_a_wall_is_none_of_a_body_that_stands_still():
    """Where the other body rests, its distance is as good a place as the wall's: but only one velocity jumps."""
    walled = recorded(1e-4, 2.4, 2.0).positions.copy()
    walled[..., 0] = 0.1 + 1e-4 * np.random.default_rng(2).standard_normal(walled.shape[:2])
    assert told(walled) == [(1, None)]


def test_bodies_that_meet_where_one_hardly_moves_are_no_wall():
    """The places of the first are then nearly the same, as at a wall, but those of their distance are more so."""
    positions = recorded(0.0).positions.copy()
    relative, slow = positions[..., 0] - positions[..., 1], 0.008
    middle = positions @ MASSES / MASSES.sum()
    positions[..., 1] = slow * (middle - relative)
    positions[..., 0] = positions[..., 1] + relative
    assert told(positions + 1e-5 * np.random.default_rng(2).standard_normal(positions.shape)) == [(0, 1)]


def test_a_gap_that_is_a_position_is_no_distance_of_another():
    positions = recorded(1e-4).positions
    gap = positions[..., 1:] - positions[..., :1]
    assert told(np.concatenate([positions[..., :1], gap], -1)) == [(1, None)]


def test_lengths_meet_no_angles():
    positions = recorded(1e-4).positions
    assert not any(m.surface.other is not None for m in meetings(positions, ("m", "rad"), DT)[0])


@pytest.mark.parametrize("restitution", [0.0, 0.6, 1.0])
def test_bodies_that_meet_keep_their_momentum_and_win_no_energy(restitution):
    """Nothing else acts: after many a bump through a spring between them, or none, momentum is what it was."""
    law = found()
    assert isinstance(law.flight, LagrangeLaw)
    kept = np.where([e.kind == "inertia" for e in law.flight.form.entries], law.flight.theta, 0.0)
    bump = replace(law.bounces[0], restitution=law.bounces[0].restitution._replace(value=restitution))
    free = replace(law, flight=replace(law.flight, theta=kept), bounces=(bump,))
    masses = np.diag(law.flight.mass_matrix(np.zeros(2)))
    z = free.simulate(np.array([-0.8, 0.1, 1.0, -0.5]), np.zeros((100, 2)), DT)
    momentum, energy = z[:, 2:] @ masses, 0.5 * z[:, 2:] ** 2 @ masses
    np.testing.assert_allclose(momentum, momentum[0], rtol=1e-9)
    np.testing.assert_allclose(np.diff(z[:, :2] @ masses), DT * momentum[0], rtol=1e-6)
    assert z[-1, 2] - z[-1, 3] == pytest.approx(-restitution * 1.5, abs=1e-9)
    assert np.diff(energy).max() <= 1e-12
    assert energy[-1] == pytest.approx(energy[0]) if restitution == 1 else energy[-1] < 0.9 * energy[0]
    assert (z[:, 0] - z[:, 1]).max() < bump.place.value + 1e-9


def test_bodies_pressed_together_and_to_a_wall_stay_there():
    law = found(3e-4, WALL)
    z = law.simulate(np.array([-0.8, 0.1, 2.0, 1.5]), np.tile([20.0, 0.0], (1000, 1)), DT)[-1]
    wall, bump = (b.place.value for b in law.bounces)
    np.testing.assert_allclose(z[:2], [wall + bump, wall], atol=1e-3)
    assert np.abs(z[2:]).max() < 0.05


@pytest.mark.parametrize("restitution", [0.0, 0.3, 1.0])
def test_no_meeting_wins_energy_where_inertia_couples(restitution):
    """The difference of two of three positions of any coupled inertia; with restitution 1 none is lost either."""
    generator = np.random.default_rng(0)
    for _ in range(20):
        root = generator.normal(size=(3, 3))
        mass, way = root @ root.T + 0.1 * np.eye(3), np.array([-1.0, 0.0, 1.0])
        q, v = generator.normal(size=3), generator.normal(size=3)
        q[2] = q[0] - 0.5 * 0.01 * (way @ v)  # half a step before they meet at 0
        surface = Surface(2, "above" if way @ v > 0 else "below", 0)
        rebound, pushed = Rebound(surface, 0.0, restitution, 1e-9), tuple(np.linalg.solve(mass, way))
        with jax.enable_x64(True):
            out = rebounded(rebound, (1.0,) * 3, pushed, (*q, *v), (*(q + 0.01 * v), *v), 0.01)
        ends = np.array(out[3:])
        impulse = mass @ (ends - v)
        assert way @ ends == pytest.approx(-restitution * (way @ v))
        np.testing.assert_allclose(impulse, impulse[2] * way, atol=1e-9 * np.abs(impulse).max())
        assert ends @ mass @ ends <= v @ mass @ v * (1 + 1e-9)
        if restitution == 1:
            assert ends @ mass @ ends == pytest.approx(v @ mass @ v)


def test_a_law_goes_where_the_carts_do():
    """Two seconds of carts whose bumps and walls nothing of the law was found in."""
    law, (states, forces) = found(3e-4, WALL), carts(WALL, 0.0, 6)
    for path, force in zip(states, forces, strict=True):
        ends = law.simulate(path[0], force[:200], DT)
        assert np.abs(ends - path[:201])[:, :2].max() < 0.02


def test_a_file_holds_bodies_that_meet_and_older_ones_hold_walls(tmp_path):
    law, path = found(3e-4, WALL), tmp_path / "law.json"
    law.save(path)
    back = load_law(path)
    assert isinstance(back, ImpactLaw)
    assert (str(back), back.bounces, back.modes) == (str(law), law.bounces, law.modes)
    document = json.loads(path.read_text("utf-8"))
    document["bounces"][1]["other"] = 2
    path.write_text(json.dumps(document), "utf-8")
    with pytest.raises(ValueError, match="an impact of positions 0 and 2; the law has 2"):
        load_law(path)
    del document["bounces"][1], document["bounces"][0]["other"]
    path.write_text(json.dumps(document), "utf-8")
    older = load_law(path)
    assert isinstance(older, ImpactLaw)
    assert older.bounces == law.bounces[:1]


def test_the_flow_of_a_meeting_is_what_is_simulated():
    law = found()
    model = law.as_model()
    arrays = jnp.zeros(2, jnp.float32), jnp.asarray(DT, jnp.float32)
    for start in np.array([[-0.1, 0.21, 1.0, -0.5], [-0.6, 0.3, 1.0, 0.0], [-0.1, 0.21, -1.0, 0.5]], np.float32):
        one = law.simulate(start, np.zeros((1, 2)), DT, substeps=1)[1]
        ends = np.asarray(model.next_means(jnp.asarray(0), jnp.asarray(start), *arrays))
        np.testing.assert_allclose(ends[1], one, rtol=1e-4, atol=1e-5)
        chance = np.exp(model.kernel.log_probability(jnp.asarray(0), jnp.asarray(start), jnp.zeros(2)))
        assert (chance[1] > 0.9) == (start[0] - start[1] + DT * (start[2] - start[3]) > PLACE)


def test_a_flight_in_momenta_keeps_them_too():
    """A law whose z has momenta, given: free carts bump, in a simulation and in the flow of its model."""
    kinetic = Monomial((0, 0, 2, 0)), Monomial((0, 0, 0, 2))
    form = Form(2, 2, 0, kinetic, (), (None, None), ((0.0, 0.0), (0.0, 0.0), (1.0, 0.0), (0.0, 1.0)))
    theta = np.concatenate([0.5 / MASSES, np.zeros(len(form.entries) - 2)])
    parts = np.ones(len(theta), bool), np.zeros((len(theta), len(theta)))
    flight = Law(*NAMES[:3], ("flight",), form, theta, *parts, "given", circumstances=found().flight.circumstances)
    law = replace(found(), flight=flight)
    start = np.array([-0.1, 0.21, 1.0, -0.5])
    ends = law.simulate(start, np.zeros((1, 2)), DT, substeps=1)[1] * [1, 1, *MASSES]
    assert ends[2:].sum() == pytest.approx(start[2:] @ MASSES)
    assert ends[2] / MASSES[0] - ends[3] / MASSES[1] == pytest.approx(-1.5 * law.bounces[0].restitution.value)
    z = jnp.asarray(start * [1, 1, *MASSES], jnp.float32)
    flown = law.as_model().next_means(jnp.asarray(0), z, jnp.zeros(2, jnp.float32), jnp.asarray(DT, jnp.float32))
    np.testing.assert_allclose(np.asarray(flown)[1], ends, rtol=1e-4, atol=1e-5)


def test_the_model_follows_bumps_that_nothing_shows():
    """A fifth of every log is hidden: the law of flight alone lets the carts through each other."""
    states, forces = carts(seed=6)
    places = states[..., :2]
    hidden = np.arange(240) % 60 >= 48
    seen = places[:2, :240] + 1e-4 * np.random.default_rng(3).standard_normal((2, 240, 2))
    seen[:, hidden] = np.nan
    channels, inputs = (Channel("x1"), Channel("x2")), (Channel("force1"), Channel("force2"))
    logs = [Episode(x, a[:239], DT, channels, inputs) for x, a in zip(seen, forces[:2], strict=True)]
    settings = FilterSettings(particles=32, corrected=False, outliers=None)
    beliefs = filter_episodes(found().as_model(), logs, key=jax.random.key(1), settings=settings)
    off = np.stack([b.mean[:, :2] for b in beliefs]) - places[:2, :240]
    assert np.sqrt(np.mean(off[:, hidden] ** 2)) < 0.01 * places.std()


def test_a_bumper_is_as_hard_as_the_mass_that_meets_it_is_light():
    """Two carts meet with the mass `m1 m2 / (m1 + m2)`, here seen through their gap: less than either has."""
    _, recording = new_recording("carts", 0, 1e-3, 0.0, episodes=6, steps=400, dt=0.005)
    law = recover(recording, new_problem("carts"), CONFIG)
    assert isinstance(law, LagrangeLaw)
    stiff = [e.kind == "stiffness" for e in law.form.entries]
    assert sum(stiff) == 1
    meets = 1.0 * 0.6 / 1.6
    for samples, is_rigid in ((1.4, True), (1.6, False)):  # of 0.005 s, in and out again
        bumper = meets * (3 / (samples * 0.005)) ** 2
        told = [*rigid(replace(law, theta=np.where(stiff, bumper, law.theta)))]
        assert [mode for mode, _ in told] == [1] * is_rigid
        assert not told or "within 1.4 samples" in told[0][1]
