"""Bounces shorter than a sample: found without labels, with restitution, floor and the law of flight."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vhydro import systems
from vhydro.bouncing import Rebound, rebounded
from vhydro.episodes import Channel, Episode
from vhydro.filter import FilterSettings, filter_episodes
from vhydro.lagrangian import Surface
from vhydro.laws import ImpactLaw, Law, LawsConfig, Problem, Recording, impact_law, load_law, recover
from vhydro.laws.constants import table
from vhydro.laws.estimate import ShootingConfig
from vhydro.laws.form import Form
from vhydro.laws.impacts import found_impacts
from vhydro.laws.lagrange import LagrangeConfig
from vhydro.laws.lagrange_law import LagrangeLaw
from vhydro.laws.marks import rigid
from vhydro.laws.mechanics import mechanics_problem, rigid_law
from vhydro.laws.writing import text
from vhydro.library import Monomial, Penetration
from vhydro.views import MechanicsView

BALL, DT = systems.Ball(), 0.005
CONFIG = LawsConfig(estimator="lagrange", lagrange=LagrangeConfig(shooting=ShootingConfig(lengths=(60,))))


@cache
def thrown() -> tuple[systems.Simulation, Recording]:
    truth = systems.simulate(BALL, 6, 600, DT, key=jax.random.key(0), substeps=8)
    y = truth.states[..., :1]
    seen = y + 1e-3 * y.std() * np.random.default_rng(0).standard_normal(y.shape)
    return truth, Recording(seen, truth.actions, np.ones((*y.shape[:2], 1)), DT)


def problem() -> Problem:
    law = BALL.law()
    told = law.coordinates, law.units, law.inputs, ("all",)
    return Problem(*told, (), np.array([np.nan]), np.array([[0.0], [1.0]]))


@cache
def ball_law() -> ImpactLaw:
    return impact_law(thrown()[1], problem(), CONFIG)


def test_fast_bounces_are_found_and_nothing_far_from_the_floor_is():
    truth, recording = thrown()
    found = found_impacts(recording.positions[..., 0], DT)
    v = truth.states[..., 1]
    fast = np.argwhere((v[:, :-1] < -1.0) & (v[:, 1:] > 0.5))
    for episode, sample in fast:
        assert (np.abs(found.sample[found.episode == episode] - sample) <= 2).any()
    assert (np.abs(found.place) < 0.02).mean() > 0.95


@pytest.mark.parametrize(("noise", "missing"), [(0.01, 0.2), (0.05, 0.0)])
def test_bounces_are_found_through_gaps_and_noise(noise, missing):
    truth, _ = thrown()
    y, random = truth.states[..., :1], np.random.default_rng(3)
    seen = y + noise * y.std() * random.standard_normal(y.shape)
    seen[random.random(y.shape[:2]) < missing] = np.nan
    law = impact_law(Recording(seen, truth.actions, np.ones((*y.shape[:2], 1)), DT), problem(), CONFIG)
    (floor,) = law.bounces
    assert floor.restitution.value == pytest.approx(BALL.restitution, abs=5 * floor.restitution.error + 1e-3)


def test_a_log_shorter_than_a_parabola_holds_no_impact():
    noisy = np.random.default_rng(0).standard_normal((3, 17))
    assert len(found_impacts(noisy, DT).episode) == 0


def test_restitution_floor_and_gravity():
    law = ball_law()
    (floor,) = law.bounces
    assert (floor.axis, floor.side, floor.identified) == (0, "below", True)
    assert abs(floor.restitution.value - BALL.restitution) < 5 * floor.restitution.error + 1e-3
    assert abs(floor.place.value) < 1e-3
    assert isinstance(law.flight, LagrangeLaw)
    assert law.flight.terms(0)["V y"].value == pytest.approx(BALL.mass * BALL.gravity, rel=0.01)
    assert "velocity ← −0." in str(law)


def driven_cart(episodes: int = 6, rows: int = 1200):
    """A cart of 2 kg with friction that a force drives against a hard wall: between samples the motion is exact."""
    random, dt, mass, friction, wall, restitution = np.random.default_rng(2), 0.005, 2.0, 1.2, 0.4, 0.5
    fine, rate = 40, friction / mass
    x, u = np.zeros((episodes, rows, 1)), np.zeros((episodes, rows - 1, 1))
    for e in range(episodes):
        place, speed = random.uniform(-0.2, 0.2), random.uniform(-0.3, 0.3)
        waves = random.uniform(0.15, 0.5, 3), random.uniform(0, 6, 3)
        for t in range(rows):
            x[e, t] = place
            force = 4 * np.sin(2 * np.pi * waves[0] * t * dt + waves[1]).sum() + 3.0 - 12 * place
            if t < rows - 1:
                u[e, t] = force
            for _ in range(fine):
                h, drift = dt / fine, force / friction
                kept = np.exp(-rate * h)
                place += drift * h + (speed - drift) * (1 - kept) / rate
                speed = drift + (speed - drift) * kept
                if place > wall and speed > 0:
                    place, speed = wall - restitution * (place - wall), -restitution * speed
    seen = x + 5e-4 * random.standard_normal(x.shape)
    return Recording(seen, u, np.ones((*x.shape[:2], 1)), dt)


def test_a_driven_cart_that_hits_a_hard_wall():
    """Bounces are low: all that follows one is near the wall for many samples."""
    told = ("x", "p"), ("m", "kg m/s"), ("force",), ("free",)
    cart = Problem(*told, (), np.array([np.nan]), np.array([[0.0], [1.0]]))
    law = impact_law(driven_cart(), cart, CONFIG)
    (wall,) = law.bounces
    assert (wall.axis, wall.side) == (0, "above")
    assert wall.impacts > 12
    assert wall.place.value == pytest.approx(0.4, abs=1e-3)
    assert wall.restitution.value == pytest.approx(0.5, abs=0.015)


def sprung_cart(dt: float, noise: float, episodes: int = 8, seconds: float = 5.0) -> Recording:
    """A cart on a spring that a force drives against a hard wall at 0.4; exact between samples and at the wall."""
    random, fine, rows = np.random.default_rng(5), 50, round(seconds / dt)
    x, v = random.uniform(-0.5, 0.2, episodes), 0.3 * random.standard_normal(episodes)
    waves, phases = random.uniform(1, 6, (episodes, 3, 1)), random.uniform(0, 6, (episodes, 3, 1))
    force, path, h = 3 * np.sin(waves * np.arange(rows) * dt + phases).sum(1), [x], dt / fine
    for t in range(rows):
        for _ in range(fine):
            rate = (force[:, t] - 0.3 * v - 4 * x) / 2
            far, fast = x + v * h + 0.5 * rate * h**2, v + rate * h
            hit = (far > 0.4) & (v > 0)
            when = np.where(hit, (0.4 - x) / np.where(v == 0, 1, v), 0)
            back = -0.5 * (v + rate * when)
            x = np.where(hit, np.minimum(0.4 + back * (h - when), 0.4), far)
            v = np.where(hit, back + rate * (h - when), fast)
        path.append(x)
    seen = np.stack(path, 1)[..., None]
    seen = seen + noise * random.standard_normal(seen.shape)
    return Recording(seen, force[..., None], np.ones((*seen.shape[:2], 1)), dt)


@pytest.mark.parametrize(("dt", "noise"), [(0.01, 1e-4), (0.02, 1e-4), (0.01, 1e-3)])
def test_a_restitution_is_not_bent_by_inputs_that_change(dt, noise):
    """Inputs are held from sample to sample: read half a sample off, velocities after an impact were too small."""
    cart = Problem(("x", "p"), ("m", "kg m/s"), ("force",), ("free",), (), np.array([np.nan]), np.array([[0.0], [1.0]]))
    (wall,) = impact_law(sprung_cart(dt, noise), cart, CONFIG).bounces  # and nothing else is a surface
    assert (wall.side, wall.problem) == ("above", "")
    assert wall.restitution.value == pytest.approx(0.5, abs=4 * wall.restitution.error + 2e-5)
    assert wall.place.value == pytest.approx(0.4, abs=4 * wall.place.error + 1e-5)


def test_a_wall_too_stiff_to_be_seen_is_told_as_impacts():
    """Labels or not, a spring that throws things back between two samples is no answer: only a velocity has jumped."""
    recording = sprung_cart(0.01, 5e-4)
    beyond = recording.positions[..., 0] > 0.38
    sprung = recording._replace(modes=np.stack([~beyond, beyond], -1) * 1.0)
    channels, inputs = (Channel("x", unit="m"),), (Channel("force", unit="N"),)
    logs = [Episode(q, a, 0.01, channels, inputs) for q, a in zip(sprung.positions, sprung.actions, strict=True)]
    view = MechanicsView(positions=("x",), forces=("force",))
    stiff = recover(sprung, mechanics_problem(view, logs[0], ("free", "wall")), LawsConfig(estimator="weak"))
    assert {mode for mode, _ in stiff.problems} == {0, 1}
    springs = [isinstance(e.term, Penetration) for e in stiff.form.entries]
    hard, soft = (replace(stiff, theta=np.where(springs, k, stiff.theta)) for k in (1e7, 1e3))
    assert [(mode, "an impact, whose restitution" in why) for mode, why in rigid(hard)] == [(1, True)]
    assert not list(rigid(soft))
    law = rigid_law(view, logs, stiff)
    assert law is not None
    assert law.modes == ("flight", "upper wall along x")
    assert "unidentified" not in text(law) + table(law)
    assert law.surfaces["restitution of upper wall along x"].value == pytest.approx(0.5, abs=0.005)
    assert rigid_law(view, logs, replace(stiff, problems=())) is None  # nobody doubts it
    # Without labels there is one mode, or no law at all, and the wall is the same.
    alone = recover(recording, mechanics_problem(view, logs[0], ("all",)), LawsConfig(estimator="weak"))
    for tried in (replace(alone, problems=((0, "over 0.5 s it errs"),)), None):
        found = rigid_law(view, logs, tried)
        assert found is not None
        assert found.surfaces == law.surfaces
    assert rigid_law(view, logs, replace(alone, problems=())) is None


def test_a_restitution_that_changes_is_marked():
    """Every bounce another one: no single number predicts held-out bounces."""
    truth, recording = thrown()
    positions = recording.positions.copy()
    generator = np.random.default_rng(1)
    for episode, path in enumerate(positions[..., 0]):
        scale = np.ones(len(path))
        bounces = np.flatnonzero((truth.states[episode, :-1, 1] < -0.3) & (truth.states[episode, 1:, 1] > 0))
        for sample in bounces:  # what follows a bounce is stretched by chance
            scale[sample + 1 :] = generator.uniform(0.7, 1.3)
        positions[episode, :, 0] = path * scale
    law = impact_law(recording._replace(positions=positions), problem(), CONFIG)
    assert law.flight.status(0) == "unidentified" or not any(b.identified for b in law.bounces)


def test_a_law_bounces_by_itself_as_the_exact_simulator_does():
    """Three seconds of a new ball, about ten bounces, in steps of a sample and of a fourth of one."""
    truth = systems.simulate(BALL, 2, 600, DT, key=jax.random.key(30), substeps=8)
    for start, actions, states in zip(truth.states[:, 0], truth.actions, truth.states, strict=True):
        for substeps in (1, 4):
            path = ball_law().simulate(start, actions, DT, substeps=substeps)
            assert np.abs(path[:, 0] - states[:, 0]).max() < 0.02


def test_what_comes_to_rest_stays_on_the_floor_until_it_is_lifted():
    push = np.concatenate([np.zeros((500, 1)), np.full((50, 1), 2 * BALL.mass * BALL.gravity)])
    path = ball_law().simulate(np.array([0.05, 0.0]), push, DT)
    place = ball_law().bounces[0].place.value
    np.testing.assert_allclose(path[450:501], np.tile([place, 0.0], (51, 1)), atol=1e-9)
    lifted = place + 0.5 * BALL.gravity * (50 * DT) ** 2
    assert path[-1, 0] == pytest.approx(lifted, rel=0.02)


@pytest.mark.parametrize("restitution", [0.0, 0.3, 1.0])
def test_no_bounce_wins_energy_where_inertia_couples(restitution):
    """Along one of three positions of any coupled inertia; with restitution 1 none is lost either."""
    generator = np.random.default_rng(0)
    for _ in range(50):
        root = generator.normal(size=(3, 3))
        mass = root @ root.T + 0.1 * np.eye(3)
        column = np.linalg.inv(mass)[1]
        q, v = generator.normal(size=3), generator.normal(size=3)
        q[1] = 0.5 * 0.01 * -v[1]  # half a step before the surface at 0
        surface = Rebound(Surface(1, "above" if v[1] > 0 else "below"), 0.0, restitution, 1e-9)
        with jax.enable_x64(True):
            out = rebounded(surface, (1.0,) * 3, tuple(column), (*q, *v), (*(q + 0.01 * v), *v), 0.01)
        after = np.array(out[3:])
        before_energy, after_energy = v @ mass @ v, after @ mass @ after
        assert after[1] == pytest.approx(-restitution * v[1])
        assert after_energy <= before_energy * (1 + 1e-9)
        if restitution == 1:
            assert after_energy == pytest.approx(before_energy)


def half_hidden() -> tuple[np.ndarray, np.ndarray, list[Episode]]:
    """New balls, half of every log hidden in bursts of 0.2 s: true heights, what is hidden, and the logs."""
    truth = systems.simulate(BALL, 3, 400, DT, key=jax.random.key(50), substeps=8)
    y, generator = truth.states[..., :1], np.random.default_rng(3)
    seen = y + 1e-3 * y.std() * generator.standard_normal(y.shape)
    hidden = np.zeros(y.shape[:2], bool)
    for row in hidden:
        while row.mean() < 0.5:
            first = generator.integers(5, 400)
            row[first : first + 40] = True
    seen[hidden] = np.nan
    logs = [Episode(s, a, DT, (Channel("y"),)) for s, a in zip(seen, truth.actions, strict=True)]
    return y[..., 0], hidden, logs


def test_the_model_follows_bounces_that_nothing_shows():
    """Half hidden logs: through bursts that hold bounces, the law of flight alone falls through the floor."""
    y, hidden, logs = half_hidden()
    errors, evidence = [], []
    for model in (ball_law().as_model(), ball_law().flight.as_model()):
        settings = FilterSettings(particles=64, corrected=False, outliers=None)
        beliefs = filter_episodes(model, logs, key=jax.random.key(1), settings=settings)
        off = np.stack([b.mean[:, 0] for b in beliefs]) - y
        errors.append(np.sqrt(np.mean(off[hidden] ** 2)))
        evidence.append(sum(b.log_evidence for b in beliefs))
    assert errors[0] < 0.1 * errors[1]
    assert errors[0] < 0.05 * y.std()
    assert evidence[0] > evidence[1]


def moved(model, start: np.ndarray, push: float) -> np.ndarray:
    """Where every mode takes a start in one step."""
    arrays = jnp.asarray(start), jnp.full(1, push, jnp.float32), jnp.asarray(DT, jnp.float32)
    return np.asarray(model.next_means(jnp.asarray(0), *arrays))


def test_the_flow_is_what_is_simulated():
    model = ball_law().as_model()
    starts = np.array([[0.02, -3.0], [0.5, 1.0], [0.01, -0.5]], np.float32)
    for start in starts:
        one = ball_law().simulate(start, np.array([[0.4]]), DT, substeps=1)[1]
        ends = moved(model, start, 0.4)
        np.testing.assert_allclose(ends[1], one, rtol=1e-4, atol=1e-5)
        chance = np.exp(model.kernel.log_probability(jnp.asarray(0), jnp.asarray(start), jnp.zeros(1)))
        assert (chance[1] > 0.9) == (start[0] + DT * start[1] < 0)


def test_a_file_holds_a_law_with_impacts(tmp_path):
    law = ball_law()
    law.save(tmp_path / "law.json")
    back = load_law(tmp_path / "law.json")
    assert isinstance(back, ImpactLaw)
    assert (str(back), back.bounces, back.modes) == (str(law), law.bounces, ("flight", "floor along y"))
    start, pushes = np.array([0.4, 0.0]), np.zeros((200, 1))
    np.testing.assert_array_equal(back.simulate(start, pushes, DT), law.simulate(start, pushes, DT))


def test_an_impact_read_with_a_doubtful_flight_is_doubtful():
    law = ball_law()
    assert [law.status(m) for m in (0, 1)] == ["identified", "identified"]
    vague = replace(law, flight=replace(law.flight, problems=((0, "its mass is vague"),)))
    assert [vague.status(m) for m in (0, 1)] == ["unidentified", "unidentified"]
    assert "read with the law of flight, which is not identified" in str(vague)


def test_a_flight_in_momenta_bounces_too():
    """A law whose z has momenta: given the true numbers it goes where the simulator does."""
    terms = Monomial((0, 2)), Monomial((1, 0))
    form = Form(1, 1, 0, terms, (), (None,), ((0.0,), (1.0,)))
    theta = np.array([0.5 / BALL.mass, BALL.mass * BALL.gravity, 0.0, 1.0])
    told, seen = problem(), ball_law().flight.circumstances
    names = ("y", "p"), told.units, told.inputs, ("flight",)
    flight = Law(*names, form, theta, np.ones(4, bool), np.zeros((4, 4)), "given", circumstances=seen)
    law = replace(ball_law(), flight=flight)
    truth = thrown()[0]
    path = law.simulate(truth.states[0, 0], truth.actions[0, :200], DT)
    assert np.abs(path - truth.states[0, :201])[:, 0].max() < 0.005
    start = np.array([0.005, -3.0 * BALL.mass], np.float32)
    ends = moved(law.as_model(), start, 0.0)
    assert ends[1, 1] == pytest.approx(BALL.restitution * 3.0 * BALL.mass, rel=0.02)


def test_surfaces_of_a_bodys_points_are_no_model():
    law = replace(ball_law(), of_points=True)
    with pytest.raises(ValueError, match="points of a body"):
        law.as_model()
    with pytest.raises(ValueError, match="points of a body"):
        law.simulate(np.zeros(2), np.zeros((1, 1)), DT)


def test_logs_that_hold_no_flight_are_refused_in_words():
    recording = thrown()[1]
    few = Recording(recording.positions[:, :6], recording.actions[:, :5], recording.modes[:, :6], DT)
    with pytest.raises(ValueError, match="have 6 samples; expected more"):
        impact_law(few, problem(), CONFIG)
    with pytest.raises(ValueError, match="height of every point at every sample"):
        impact_law(recording, problem(), CONFIG, points=np.zeros((2, 3, 8)))
