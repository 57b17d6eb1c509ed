"""A hand that is told where to go pushes a cube: what commands do is learned, kept, and planned on."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vhydro as vh
from vhydro.commanded import HELD, REST
from vhydro.episodes import Channel, Episode
from vhydro.learning.commanded import is_commanded, learn_commanded, track
from vhydro.planning import Task, cem, rollout
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


def pushed(seed: int, steps: int = 50) -> Episode:
    """The hand goes along x, with some noise, and pushes the cube from where they meet."""
    draw = np.random.default_rng(seed)
    command = np.column_stack(
        [draw.uniform(0.2, 1.0, steps), 0.2 * draw.normal(size=(steps, 2)), draw.choice([-1, 1], steps)]
    )
    hand, last, cube = np.zeros(3), np.zeros(3), np.array([draw.uniform(0.15, 0.3), 0.0, 0.0])
    width, rows = 0.04, []
    for row in range(steps + 1):
        rows.append([*hand, *cube, width])
        if row == steps:
            break
        last = LAG * last + GAIN * (1 - LAG) * command[row, :3] + 2e-5 * draw.normal(size=3)
        hand = hand + last
        if cube[0] - hand[0] < CONTACT:
            cube = np.array([hand[0] + CONTACT, *(cube + last)[1:]])
        width = 0.5 * width + 0.5 * 0.02 * (1 + command[row, 3])
    return Episode(np.array(rows), command, 0.05, CHANNELS, INPUTS)


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
    alone = learn_commanded(fitted.view, LOGS[:14])
    kept, learned = (jax.tree.leaves(m) for m in (fitted.commanded, alone))
    assert all(np.array_equal(a, b) for a, b in zip(kept, learned, strict=True))


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
