"""Event-accurate simulation in float64: RK4 steps that end exactly where a mode ends, many at once."""

from functools import partial
from math import ceil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from vhydro.episodes import Channel, Episode, refuse_bad_dt
from vhydro.systems.port_hamiltonian import Law, State, System, fastest
from vhydro.systems.textbook import Textbook

MOST_CHANGES = 32  # of mode, between two samples
LARGEST_TURN = 0.5  # rad of a system's fastest motion in one substep; RK4 then errs by 3e-4 rad
MOST_TRIES = 40  # to locate one event; three or four are usual
TIME_RESOLUTION = 1e-10  # of a substep, to which an event is located …
GUARD_RESOLUTION = 1e-14  # … unless its guard is already this small, in the guard's unit


class Simulation(NamedTuple):
    """Simulated episodes: `actions[:, t]` acts from sample t to t + 1, `modes[:, t]` is that at sample t."""

    states: np.ndarray  # (episodes, steps + 1, coordinates)
    modes: np.ndarray  # (episodes, steps + 1), int
    actions: np.ndarray  # (episodes, steps, inputs)
    changes: np.ndarray  # (episodes, steps), int: how often the mode changed between two samples
    dt: float
    system: System


class Moment(NamedTuple):
    """Somewhere between two samples."""

    state: State
    mode: Int[Array, ""]
    left: Float[Array, ""]  # time until the next sample
    changes: Int[Array, ""]


class Point(NamedTuple):
    """A state, how it moves, and how far it is from the end of its mode."""

    state: State
    velocity: State
    guard: Float[Array, ""]
    rate: Float[Array, ""]  # of the guard


class Stretch(NamedTuple):
    """A way through one mode: `there` is `time` after `here`, and `left` is counted from `here`."""

    here: Point
    there: Point
    time: Float[Array, ""]
    left: Float[Array, ""]
    reach: Float[Array, ""]  # longest step to try next
    crossed: Bool[Array, ""]  # the mode ends between here and there


class Draw(NamedTuple):
    """What chance decides in one episode."""

    start: Float[Array, "*episodes coordinates"]
    actions: Float[Array, "*episodes steps inputs"]
    kicks: Float[Array, "*episodes steps coordinates"] | None  # standard normal; None without process noise


class Track(NamedTuple):
    """One episode as it was simulated."""

    states: Float[Array, "times coordinates"]
    modes: Int[Array, "times"]
    changes: Int[Array, "steps"]
    reached: Bool[Array, "steps"]  # False where a sample took too many changes of mode


class Search(NamedTuple):
    """The end of a mode is sought between the times `before` and `after`; `point` is at `time`."""

    before: Float[Array, ""]
    after: Float[Array, ""]
    time: Float[Array, ""]
    point: Point
    tries: Int[Array, ""]


def moved(z: State, velocity: State, time) -> State:
    return tuple(x + time * v for x, v in zip(z, velocity, strict=True))


def chosen(condition, yes, no):
    return jax.tree.map(partial(jnp.where, condition), yes, no)


def flow(system: System, z: State, action: State, mode) -> State:
    """ż in the mode the state is in."""
    law = system.law()
    velocity = law.velocity(0, z, action)
    for s in range(1, len(law.modes)):
        velocity = chosen(mode == s, law.velocity(s, z, action), velocity)
    return velocity


def point(system: System, action: State, mode, z: State) -> Point:
    velocity = flow(system, z, action, mode)
    guard, rate = jax.jvp(lambda x: system.guard(x, action, mode), (z,), (velocity,))
    return Point(z, velocity, guard, rate)


def stepped(system: System, action: State, mode, here: Point, time) -> Point:
    """The point one Runge-Kutta step of length `time` away."""
    z, k1 = here.state, here.velocity
    k2 = flow(system, moved(z, k1, 0.5 * time), action, mode)
    k3 = flow(system, moved(z, k2, 0.5 * time), action, mode)
    k4 = flow(system, moved(z, k3, time), action, mode)
    mean = tuple((a + 2 * b + 2 * c + d) / 6 for a, b, c, d in zip(k1, k2, k3, k4, strict=True))
    return point(system, action, mode, moved(z, mean, time))


def stretch(system: System, action: State, longest, m: Moment) -> Stretch:
    """The way from m to the next sample, or to the step in which the mode ends."""

    def onward(s: Stretch) -> Stretch:
        here = s.here
        # The last step takes all that is left, so that rounding never leaves a sliver.
        time = jnp.where(s.left > s.reach * (1 + 1e-9), s.reach, s.left)
        there = stepped(system, action, m.mode, here, time)
        crossed = there.guard < 0
        # A guard that falls, turns and rises again may have crossed 0 twice unseen: try again up to the turn.
        turns = (here.rate < 0) & (there.rate > 0) & ~crossed
        turn = time * here.rate / jnp.where(turns, here.rate - there.rate, 1.0)
        unseen = turns & (here.guard < -here.rate * turn) & (s.reach >= longest)
        stay = crossed | unseen
        return Stretch(
            here=chosen(stay, here, there),
            there=there,
            time=time,
            left=jnp.where(stay, s.left, s.left - time),
            reach=jnp.where(unseen, jnp.maximum(turn, 1e-6 * longest), longest),
            crossed=crossed,
        )

    here = point(system, action, m.mode, m.state)
    start = Stretch(here, here, jnp.zeros_like(m.left), m.left, longest, jnp.zeros((), bool))
    return jax.lax.while_loop(lambda s: (s.left > 0) & ~s.crossed, onward, start)


def event(system: System, action: State, mode, s: Stretch) -> Search:
    """Where the guard reaches 0: Newton on the length of the RK4 step itself, kept inside a bracket."""

    def searching(x: Search):
        far = jnp.abs(x.point.guard) > TIME_RESOLUTION * s.time * jnp.abs(x.point.rate) + GUARD_RESOLUTION
        return s.crossed & far & (x.tries < MOST_TRIES)

    def closer(x: Search) -> Search:
        newton = x.time - x.point.guard / x.point.rate
        inside = (newton > x.before) & (newton < x.after)
        time = jnp.where(inside, newton, 0.5 * (x.before + x.after))
        p = stepped(system, action, mode, s.here, time)
        early = p.guard > 0
        return Search(jnp.where(early, time, x.before), jnp.where(early, x.after, time), time, p, x.tries + 1)

    # From the far end: where a mode has just begun, its guard is 0 at time 0 as well.
    start = Search(jnp.zeros_like(s.time), s.time, s.time, s.there, jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(searching, closer, start)


def sample(system: System, z: State, action: State, dt, longest) -> Moment:
    """The moment dt later, through every change of mode on the way."""

    def onward(m: Moment) -> Moment:
        s = stretch(system, action, longest, m)
        end = event(system, action, m.mode, s)
        after, mode = system.switch(end.point.state, action, m.mode)
        return chosen(
            s.crossed,
            Moment(after, mode, s.left - end.time, m.changes + 1),
            Moment(s.here.state, m.mode, s.left, m.changes),
        )

    start = Moment(z, system.settle(z, action), dt, jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(lambda m: (m.left > 0) & (m.changes < MOST_CHANGES), onward, start)


def track(system: System, dt, longest, draw: Draw) -> Track:
    """One episode, kicked at every sample where there is process noise."""
    spread = jnp.sqrt(dt) * system.law().noise

    def step(z: State, now):
        action = tuple(now[0])
        m = sample(system, z, action, dt, longest)
        z = m.state if now[1] is None else moved(m.state, tuple(now[1] * spread[m.mode]), 1.0)
        return z, (jnp.stack(z), system.settle(z, action), m.changes, m.left <= 0)

    start = tuple(draw.start)
    _, (states, modes, changes, reached) = jax.lax.scan(step, start, (draw.actions, draw.kicks))
    states = jnp.concatenate([draw.start[None], states])
    modes = jnp.concatenate([system.settle(start, tuple(draw.actions[0]))[None], modes])
    return Track(states, modes, changes, reached)


@partial(jax.jit, static_argnames=("system", "steps", "episodes"))
def draws(system: System, episodes: int, steps: int, dt, key) -> Draw:
    """A draw for every episode; the first ones do not depend on how many follow."""

    def one(index):
        start_key, action_key, noise_key = jax.random.split(jax.random.fold_in(key, index), 3)
        start = jnp.stack(system.starts(key=start_key))
        noisy = system.law().noise.any()
        kicks = jax.random.normal(noise_key, (steps, start.size)) if noisy else None
        return Draw(start, system.excitation(steps, dt, key=action_key), kicks)

    return jax.vmap(one)(jnp.arange(episodes))


@partial(jax.jit, static_argnames="system")
def tracks(system: System, dt, longest, draw: Draw) -> Track:
    """The track of every episode."""
    return jax.vmap(partial(track, system, dt, longest))(draw)


def simulate(
    system: System,
    episodes: int,
    steps: int,
    dt: float,
    *,
    key: PRNGKeyArray,
    starts=None,
    actions=None,
    substeps: int = 4,
) -> Simulation:
    """Simulated episodes of `steps` samples, dt seconds apart, in float64 whatever JAX's setting is.

    Initial states and inputs are drawn as the system says, or given: `starts` (episodes, coordinates) and
    `actions` (episodes, steps, inputs), each held until the next sample.
    """
    law = system.law()
    for value, what in ((episodes, "episodes"), (steps, "steps"), (substeps, "substeps")):
        if value < 1:
            raise ValueError(f"{what} is {value}; expected at least 1. Ask for one or more.")
    refuse_bad_dt(dt)
    _refuse_coarse(law, dt, substeps)
    starts = _given(starts, "starts", (episodes, len(law.coordinates)))
    actions = _given(actions, "actions", (episodes, steps, len(law.inputs)))
    with jax.enable_x64(True):
        draw = draws(system, episodes, steps, dt, key)
        draw = draw if starts is None else draw._replace(start=jnp.asarray(starts))
        draw = draw if actions is None else draw._replace(actions=jnp.asarray(actions))
        way = jax.tree.map(np.asarray, tracks(system, dt, dt / substeps, draw))
    _refuse_unreached(way, dt)
    return Simulation(way.states, way.modes, np.asarray(draw.actions), way.changes, dt, system)


def _refuse_coarse(law: Law | Textbook, dt: float, substeps: int) -> None:
    turn = fastest(law) * dt / substeps
    if turn > LARGEST_TURN:
        raise ValueError(
            f"the fastest motion turns {turn:.2g} rad in one substep (dt {dt:g} s, {substeps} substeps); "
            f"expected at most {LARGEST_TURN} rad. Use a smaller dt, or "
            f"substeps={ceil(substeps * turn / LARGEST_TURN)}."
        )


def _given(values, what: str, shape: tuple[int, ...]) -> np.ndarray | None:
    if values is None:
        return None
    array = np.asarray(values, np.float64)
    if array.shape != shape:
        raise ValueError(f"{what} have shape {array.shape}; expected {shape}. Give one row for each episode.")
    if not np.isfinite(array).all():
        raise ValueError(f"{what} hold a value that is not finite; expected finite numbers. Remove NaN and infinity.")
    return array


def _refuse_unreached(way: Track, dt: float) -> None:
    bad = ~np.asarray(way.reached) | ~np.isfinite(way.states[:, 1:]).all(-1)
    if bad.any():
        episode, step = np.argwhere(bad)[0]
        raise ValueError(
            f"episode {episode} could not be followed past sample {step} ({step * dt:g} s): {MOST_CHANGES} "
            "changes of mode between two samples, or a state beyond the range of floats. Expected fewer, "
            "and finite; use a smaller dt or milder constants."
        )


def held(steps: int, dt, hold: float, *, key: PRNGKeyArray) -> Float[Array, "steps"]:
    """Uniform numbers in [−1, 1], a new one every `hold` seconds (at every sample, if that is longer)."""
    values = jax.random.uniform(key, (steps,), minval=-1.0, maxval=1.0)
    samples = jnp.maximum(jnp.round(hold / dt), 1).astype(jnp.int32)
    return values[jnp.arange(steps) // samples]


def to_episodes(simulation: Simulation, noise: ArrayLike, *, key: PRNGKeyArray) -> list[Episode]:
    """What sensors would log: positions with Gaussian noise (a standard deviation, or one per position)."""
    law = simulation.system.law()
    width = law.positions
    scale = np.asarray(noise, np.float64)
    if scale.shape not in ((), (width,)) or not (np.isfinite(scale).all() and (scale >= 0).all()):
        raise ValueError(
            f"noise is {noise}; expected one standard deviation, or one for each of "
            f"{law.coordinates[:width]}, finite and not negative. Use 0 for perfect sensors."
        )
    positions = simulation.states[..., :width]
    with jax.enable_x64(True):
        observations = positions + scale * np.asarray(jax.random.normal(key, positions.shape))
    channels = tuple(Channel(n, unit=u) for n, u in zip(law.coordinates[:width], law.units[:width], strict=True))
    name = type(simulation.system).__name__.lower()
    return [
        Episode(seen, action, simulation.dt, channels, labels={"mode": mode}, source=f"{name} {i}")
        for i, (seen, action, mode) in enumerate(zip(observations, simulation.actions, simulation.modes, strict=True))
    ]
