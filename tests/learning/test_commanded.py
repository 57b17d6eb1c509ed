"""A hand that is told where to go pushes a cube: what commands do is learned, kept, and planned on."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vhydro as vh
from vhydro.commanded import HELD, REST
from vhydro.commands.plan import PlanCommand, run_plan
from vhydro.data import write
from vhydro.episodes import Channel, Episode
from vhydro.fitting import steadied
from vhydro.learning.commanded import is_commanded, learn_commanded, track
from vhydro.planning import Controller, Task, cem, rollout
from vhydro.views import ContactView

pytestmark = pytest.mark.computes
PLACE_OF_CUBE = np.array([False] * 3 + [True] * 3 + [False])
GAIN, LAG = 0.02, 0.5  # metres a unit of command; share of the last step that goes on
CONTACT = 0.04  # metres between hand and cube while it is pushed
MOVES, GRIP = ("tcp.dx", "tcp.dy", "tcp.dz"), "gripper.command"
PLACES = {"tcp": "end_effector", "cube": "object"}
CHANNELS = (
    *(Channel(f"{thing}.{a}", group, "m") for thing, group in PLACES.items() for a in "xyz"),
    Channel("gripper.finger_1", "gripper", "m"),
)
INPUTS = (*(Channel(m, "action", "") for m in MOVES), Channel(GRIP, "action", ""))


class Scene(NamedTuple):
    """Where hand and cube are, how the hand went last, and how wide its fingers are open."""

    hand: np.ndarray
    last: np.ndarray
    cube: np.ndarray
    width: float = 0.04

    @property
    def row(self) -> list[float]:
        return [*self.hand, *self.cube, self.width]

    def after(self, command: np.ndarray, draw: np.random.Generator) -> "Scene":
        """The servo lags, and a cube that is met goes with the hand."""
        last = LAG * self.last + GAIN * (1 - LAG) * command[:3] + 2e-5 * draw.normal(size=3)
        hand, cube = self.hand + last, self.cube
        if cube[0] - hand[0] < CONTACT:
            cube = np.array([hand[0] + CONTACT, *(cube + last)[1:]])
        return Scene(hand, last, cube, 0.5 * self.width + 0.5 * 0.02 * (1 + command[3]))


def scene_of(draw: np.random.Generator) -> Scene:
    return Scene(np.zeros(3), np.zeros(3), np.array([draw.uniform(0.15, 0.3), 0.0, 0.0]))


def pushed(seed: int, steps: int = 50) -> Episode:
    """The hand goes along x, with some noise, and pushes the cube from where they meet."""
    draw = np.random.default_rng(seed)
    command = np.column_stack(
        [draw.uniform(0.2, 1.0, steps), 0.2 * draw.normal(size=(steps, 2)), draw.choice([-1, 1], steps)]
    )
    scenes = [scene_of(draw)]
    for told in command:
        scenes.append(scenes[-1].after(told, draw))
    return Episode(np.array([s.row for s in scenes]), command, 0.05, CHANNELS, INPUTS)


LOGS = [pushed(i) for i in range(16)]


@pytest.fixture(scope="module")
def fitted():
    return vh.fit(LOGS[:14], validation=LOGS[14:], modes=2, refine=False, calibrate=False, commands=True)


def rolled(fitted, log: Episode, first: int, steps: int) -> np.ndarray:
    """The mean place of hand and cube after some steps of the log's own commands, from what was seen."""
    dynamics = fitted.dynamics()
    named = [dict(zip([c.name for c in log.channels], row, strict=True)) for row in log.observations]
    start = dynamics.seen(fitted.view, named[first - 2 : first + 1], log.actions[first - 1])
    particles = 64
    mode, z = (jnp.broadcast_to(x, (*x.shape[:-1], particles)) for x in (start.mode, start.z))
    noise = dynamics.noise(jax.random.key(0), steps, particles)
    for t in range(steps):
        action = jnp.asarray(log.actions[first + t], jnp.float32)[:, None]
        mode, z = dynamics.step(mode, z, action, jax.tree.map(lambda x, t=t: x[t], noise))
    return np.asarray(z)[[0, 1, 2, 7, 8, 9]].mean(1)


def test_commands_take_hand_and_cube_where_they_went(fitted):
    for log in (pushed(100), pushed(101)):
        met = int(np.argmax(np.abs(np.diff(log.observations[:, 3])) > 1e-3))
        first = max(met - 6, 2)
        there, stayed = log.observations[first + 12, :6], log.observations[first, :6]
        error, persistence = (np.abs(x - there)[[0, 3]].max() for x in (rolled(fitted, log, first, 12), stayed))
        assert error < 0.3 * persistence


def test_a_fit_keeps_what_is_learned_from_its_logs(fitted):
    alone = learn_commanded(fitted.view, steadied(fitted, LOGS[:14]))
    kept, learned = (jax.tree.leaves(m) for m in (fitted.commanded, alone))
    assert all(np.array_equal(a, b) for a, b in zip(kept, learned, strict=True))


def test_noise_of_a_camera_moves_nothing():
    """Two millimetres of it are five times what a body has to go to be said to move."""
    draw = np.random.default_rng(7)
    logs = [
        replace(e, observations=e.observations + 0.002 * PLACE_OF_CUBE * draw.normal(size=e.observations.shape))
        for e in LOGS
    ]
    fitted = vh.fit(logs[:14], validation=logs[14:], modes=2, refine=False, calibrate=False, commands=True)
    raw = learn_commanded(fitted.view, logs[:14])
    assert fitted.commanded.reach[0] < 0.7 * raw.reach[0]
    right = [track(fitted.view, log).regime for log in LOGS[:14]]
    agree = [
        np.mean([(track(fitted.view, e).regime == r).mean() for e, r in zip(some, right, strict=True)])
        for some in (logs[:14], steadied(fitted, logs[:14]))
    ]
    assert agree[1] > 0.9 > 0.75 > agree[0]


def test_what_is_out_of_reach_cannot_begin_to_move(fitted):
    model = fitted.commanded
    z = np.zeros((model.latent, 1), np.float32)
    z[7] = float(model.reach[0]) + 0.2
    still = jnp.zeros((4, 1), jnp.float32)
    log_chance = np.asarray(model.log_regime(0, jnp.array([REST], jnp.int32), jnp.asarray(z), still, still))
    assert np.isneginf(log_chance[HELD, 0])
    assert log_chance[REST, 0] == pytest.approx(0.0, abs=1e-6)


def test_a_plan_is_the_same_after_the_file(fitted, tmp_path):
    fitted.save(tmp_path / "push.vhydro")
    loaded = vh.load(tmp_path / "push.vhydro")
    row = dict(zip([c.name for c in CHANNELS], pushed(100).observations[0], strict=True))
    row["tcp.x"] = row["cube.x"] - CONTACT - 0.01  # about to touch it
    goal = row["cube.x"] + 0.05
    task = Task(
        cost=lambda z, mode, a: abs(z["cube.x"] - goal),
        bound=2.0,
        actions=dict.fromkeys((*MOVES, GRIP), (-1.0, 1.0)),
    )
    plans = []
    for one in (fitted, loaded):
        dynamics = one.dynamics()
        start = dynamics.seen(one.view, [row])
        plans.append(cem(candidates=32, particles=4)(dynamics, start, task, key=jax.random.key(1)))
    assert np.array_equal(plans[0].actions, plans[1].actions)
    end = rollout(dynamics, task, dynamics.population(start), jnp.asarray(plans[0].actions), jax.random.key(2), 64)
    assert float(end.cost.mean()) == pytest.approx(plans[0].cost, rel=0.2)
    assert plans[0].actions[:8, 0].mean() > 0.2  # through the cube's place, towards the goal


def test_a_body_that_never_moves_stays_where_it_is(fitted):
    still = [
        replace(e, observations=np.where(PLACE_OF_CUBE, [0, 0, 0, 5.0, 0, 0, 0], e.observations)) for e in LOGS[:3]
    ]
    model = learn_commanded(fitted.view, still, seed=0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(model))  # a file holds nothing else


def test_commands_that_a_log_does_not_have_are_refused():
    view = ContactView(hand=("tcp.x", "tcp.y", "tcp.z"), bodies={"cube": ("cube.x", "cube.y", "cube.z")})
    assert not is_commanded(view)
    with pytest.raises(ValueError, match="Name them in a ContactView"):
        vh.fit([pushed(i) for i in range(3)], view=view, commands=True, refine=False)


def test_noise_of_ones_own_is_refused(fitted):
    with pytest.raises(ValueError, match="Leave them out"):
        fitted.dynamics(noise=0.1)


def test_what_is_seen_is_what_a_log_passes_through(fitted):
    log = pushed(100)
    named = [dict(zip([c.name for c in log.channels], row, strict=True)) for row in log.observations]
    passed = track(fitted.view, log).z
    for t in (0, 1, 2, 20):
        command = log.actions[t - 1] if t else None
        start = fitted.dynamics().seen(fitted.view, named[: t + 1], command)
        np.testing.assert_allclose(np.asarray(start.z)[:, 0], passed[t], atol=1e-6)


def test_a_kernel_that_is_blind_to_gaps_lets_far_bodies_move(fitted):
    logs = [pushed(i) for i in range(4)]
    blind = learn_commanded(fitted.view, logs, sees_gap=False)
    still = jnp.zeros((4, 1), jnp.float32)
    near, far = np.zeros((2, blind.latent, 1), np.float32)
    near[7], far[7] = CONTACT, 1.0
    rests = jnp.array([REST], jnp.int32)
    here, there = (np.asarray(blind.log_regime(0, rests, jnp.asarray(z), still, still)) for z in (near, far))
    np.testing.assert_array_equal(here, there)
    assert np.isfinite(there).all()


# --- from the filter's belief ---------------------------------------------------------------------------------------

HAND, CUBE, WHOLE = slice(0, 3), slice(3, 6), slice(0, 7)


def until(log: Episode, row: int, dark: int = 0, hidden: slice = CUBE) -> Episode:
    """The log up to a row, with the last rows of some channels hidden."""
    rows = log.observations[: row + 1].copy()
    rows[row + 1 - dark :, hidden] = np.nan
    return replace(log, observations=rows, actions=log.actions[:row])


def met(log: Episode) -> int:
    """The first row in which the cube has moved."""
    return 1 + int(np.argmax(np.abs(np.diff(log.observations[:, 3])) > 1e-3))


def to_goal(goal: float) -> Task:
    return Task(
        cost=lambda z, mode, a: jnp.minimum(abs(z["cube.x"] - goal), 2.0),
        bound=2.0,
        actions=dict.fromkeys((*MOVES, GRIP), (-1.0, 1.0)),
    )


def test_what_is_present_is_what_was_seen(fitted):
    log, dynamics = pushed(100), fitted.dynamics()
    named = [dict(zip([c.name for c in log.channels], row, strict=True)) for row in log.observations]
    for row in (0, 1, 2, met(log) - 2, met(log) + 3):
        points = dynamics.population(fitted.present(until(log, row)))
        command = log.actions[row - 1] if row else None
        start = np.asarray(dynamics.seen(fitted.view, named[: row + 1], command).z)[:, 0]
        z = np.asarray(points.z)
        sensor = np.zeros(len(z))
        sensor[7:10] = 5e-4  # as the fit estimates it; all else is exact
        assert (np.abs(z.mean(1) - start) <= sensor + 1e-6).all()
        assert (z.std(1) <= sensor + 1e-6).all()
        assert set(np.asarray(points.mode).tolist()) == {HELD if row > met(log) else REST}


def test_a_log_in_millimetres_is_present_in_them(fitted):
    def scaled(channels):
        return tuple(replace(c, unit="mm") for c in channels)

    log = until(pushed(100), 12)
    small = replace(log, observations=1e3 * log.observations, channels=scaled(log.channels))
    z = np.asarray(replace(fitted, channels=scaled(fitted.channels)).present(small).z)
    np.testing.assert_allclose(z[:7], 1e3 * np.asarray(fitted.present(log).z)[:7], atol=1e-3)
    np.testing.assert_allclose(z[7:10].mean(1), small.observations[-1, CUBE], atol=0.5)
    told, right = track(fitted.view, small, 1e-3), track(fitted.view, log)
    np.testing.assert_array_equal(told.regime, right.regime)


def test_a_log_in_another_unit_than_the_fit_is_present_in_the_fits(fitted):
    log = until(pushed(100), 12, dark=3, hidden=HAND)
    small = replace(
        log, observations=1e3 * log.observations, channels=tuple(replace(c, unit="mm") for c in log.channels)
    )
    same, other = (np.asarray(fitted.present(e).z) for e in (log, small))
    np.testing.assert_allclose(other, same, atol=1e-5)


def test_logs_that_never_show_a_body_are_left_out_and_several_units_refused():
    def hidden(log):
        return replace(log, observations=np.where(PLACE_OF_CUBE, np.nan, log.observations))

    logs = [*LOGS[:4], hidden(LOGS[4])]
    fitted = vh.fit(logs, validation=LOGS[5:6], modes=2, refine=False, calibrate=False, commands=True)
    assert len(steadied(fitted, logs)) == 4
    mixed = [
        replace(e, channels=tuple(replace(c, unit="mm" if c.name[:4] == "cube" else "m") for c in e.channels))
        for e in LOGS[:3]
    ]
    for some, words in (([hidden(e) for e in LOGS[:3]], "shows all of cube"), (mixed, "several units")):
        with pytest.raises(ValueError, match=words):
            vh.fit(some, validation=LOGS[5:6] if some is not mixed else mixed[:1], view=fitted.view, commands=True)


def test_a_hidden_cube_is_where_its_spread_says(fitted):
    inside, spread = [], {0: [], 2: [], 8: []}
    for log in (pushed(seed) for seed in range(100, 106)):
        for dark, widths in spread.items():
            row = met(log) - 2 + dark  # the hand meets it in the dark
            z = np.asarray(fitted.present(until(log, row, dark)).z)
            low, high = np.quantile(z[7:10], [0.025, 0.975], axis=1)
            inside.append((low <= log.observations[row, CUBE]) & (log.observations[row, CUBE] <= high))
            widths.append(z[7].std())
    assert np.mean(inside) > 0.9
    sizes = [np.mean(widths) for widths in spread.values()]
    assert sizes[0] < 1e-3 < sizes[1] < sizes[2] < 0.03


def test_a_hand_in_the_dark_is_carried_on_by_its_servo(fitted):
    for log in (pushed(100), pushed(101)):
        row = met(log) + 12
        spread = []
        for dark in (0, 2, 8):
            z = np.asarray(fitted.present(until(log, row, dark, WHOLE)).z)
            off = z[[0, 1, 2, 6]].mean(1) - log.observations[row, [0, 1, 2, 6]]
            stayed = np.abs(log.observations[row, 0] - log.observations[row - dark, 0])
            assert np.abs(off).max() <= max(0.02 * stayed, 1e-7)
            assert abs(z[7].mean() - log.observations[row, 3]) < 3e-3
            spread.append(z[0].std())
        assert spread[0] < 1e-7 < spread[1] < spread[2] < 1e-3
    back = until(log, row)
    back.observations[row - 6 : row - 2, WHOLE] = np.nan  # seen again since
    z, seen = (np.asarray(fitted.present(x).z) for x in (back, until(log, row)))
    np.testing.assert_allclose(z[:7], seen[:7], atol=1e-7)


def test_a_stream_is_present_as_its_log_is(fitted):
    log = pushed(100)
    log.observations[10:14, CUBE] = np.nan
    log.observations[12:15, HAND] = np.nan
    stream = fitted.stream()
    for row, seen in enumerate(log.observations[:18]):
        command = dict(zip((*MOVES, GRIP), log.actions[row - 1], strict=True))
        stream.step(command, seen) if row else stream.start(seen)
        if row in (0, 1, 11, 13, 14, 15, 17):
            one, two = fitted.present(stream), fitted.present(until(log, row))
            np.testing.assert_array_equal(one.mode, two.mode)
            np.testing.assert_allclose(one.z, two.z, atol=2e-5)


@pytest.mark.parametrize("hidden", [slice(0, 0), CUBE, WHOLE])
def test_the_loop_pushes_a_cube_that_is_hidden_at_times(fitted, hidden):
    draw = np.random.default_rng(100)
    scene = scene_of(draw)
    goal = scene.cube[0] + 0.08
    loop = Controller(fitted, to_goal(goal), cem(12, 4, 48, 8, rounds=1, first_rounds=3))
    decision = loop.start(scene.row)
    for t in range(40):
        scene = scene.after(decision.action, draw)
        row = np.array(scene.row)
        if t % 10 > 4:
            row[hidden] = np.nan
        decision = loop.step(row)
    assert abs(scene.cube[0] - goal) < 0.02  # of 0.08


def test_a_plan_starts_from_where_a_log_ends(fitted, tmp_path):
    fitted.save(tmp_path / "push.vhydro")
    log, task = until(pushed(100), 20, 4), to_goal(0.4)
    planner = cem(6, 2, 24, 4, first_rounds=2)
    plans = [
        fitted.plan(log, task, planner=planner),
        vh.load(tmp_path / "push.vhydro").plan(log, task, planner=planner),
    ]
    plans.append(fitted.plan(fitted.present(log, fitted.filter(log)), task, planner=planner))
    for plan in plans[1:]:
        np.testing.assert_array_equal(plan.actions, plans[0].actions)
    write([log], tmp_path / "log.npz")
    (tmp_path / "task.py").write_text(
        "import vhydro\n"
        "task = vhydro.Task(lambda z, mode, a: abs(z['cube.x'] - 0.4).clip(0, 2), None, 2.0,\n"
        f"    dict.fromkeys({(*MOVES, GRIP)!r}, (-1.0, 1.0)))\n"
    )
    paths = (tmp_path / n for n in ("push.vhydro", "log.npz", "task.py"))
    plan, proof = run_plan(PlanCommand(*paths, horizon=6, candidates=24, particles=4))
    assert (plan.actions.shape, proof) == ((6, 4), None)


def test_what_says_nothing_of_the_hand_is_refused(fitted):
    log, task = until(pushed(100), 12), to_goal(0.3)
    belief = fitted.filter(log)
    for wrong in (belief, fitted.stream().particles, np.zeros((15, 4))):
        with pytest.raises(ValueError, match=r"says nothing of the hand.*Call `fitted\.plan\(log, task\)`"):
            fitted.plan(wrong, task)
    with pytest.raises(ValueError, match="13 rows and the log has 9"):
        fitted.present(until(log, 8), belief)
    with pytest.raises(ValueError, match="a ndarray was given for the belief"):
        fitted.present(log, belief.mean)
    with pytest.raises(ValueError, match="a Belief was given for the log"):
        fitted.present(belief)
    with pytest.raises(ValueError, match="has not started"):
        fitted.plan(fitted.stream(), task)
    with pytest.raises(ValueError, match="of another model"):
        fitted.present(replace(fitted, commanded=None).stream())
    with pytest.raises(ValueError, match=r"hides the hand or a finger in its first row.*Begin with a row"):
        fitted.plan(until(log, 12, 13, HAND), task)
    other = belief._replace(final=belief.final._replace(z=belief.final.z[:3]))
    with pytest.raises(ValueError, match="belief of another"):
        fitted.present(log, other)
