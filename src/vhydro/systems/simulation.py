"""Event-accurate simulation: RK4 steps that end exactly where a mode ends, many episodes at once, in float64."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from vhydro.episodes import Channel, Episode, refuse_bad_dt
from vhydro.systems.port_hamiltonian import State, System

MOST_PIECES = 64  # pieces one sample may be cut into, beyond its substeps
RESOLUTION = 1e-12  # of a substep, to which an event is located


class Simulation(NamedTuple):
    """Simulated episodes. `actions[:, t]` acts between samples t and t + 1; `modes[:, t]` is the mode at sample t."""

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
    reach: Float[Array, ""]  # longest piece to try next
    changes: Int[Array, ""]
    pieces: Int[Array, ""]


class Bracket(NamedTuple):
    """Search for the end of a mode between times `before` and `after`."""

    before: Float[Array, ""]
    after: Float[Array, ""]
    time: Float[Array, ""]
    state: State
    guard: Float[Array, ""]
    rate: Float[Array, ""]
    tries: Int[Array, ""]


def moved(z: State, velocity: State, time) -> State:
    return tuple(x + time * v for x, v in zip(z, velocity, strict=True))


def rk4(velocity, z: State, time) -> State:
    """Where a flow takes z in one Runge-Kutta step."""
    k1 = velocity(z)
    k2 = velocity(moved(z, k1, 0.5 * time))
    k3 = velocity(moved(z, k2, 0.5 * time))
    k4 = velocity(moved(z, k3, time))
    mean = tuple((a + 2 * b + 2 * c + d) / 6 for a, b, c, d in zip(k1, k2, k3, k4, strict=True))
    return moved(z, mean, time)


def chosen(condition, yes, no):
    return jax.tree.map(partial(jnp.where, condition), yes, no)


def flow(system: System, action: State, mode):
    """The vector field of the mode the state is in."""
    law = system.law()

    def velocity(z: State) -> State:
        out = law.velocity(0, z, action)
        for s in range(1, len(law.modes)):
            out = chosen(mode == s, law.velocity(s, z, action), out)
        return out

    return velocity


def event(velocity, guarded, z: State, end: Bracket, crosses) -> Bracket:
    """Where the guard reaches 0 on the way from z: Newton on the RK4 step's own length, kept inside a bracket."""

    def searching(b: Bracket):
        far = jnp.abs(b.guard) > RESOLUTION * end.time * jnp.abs(b.rate)
        return crosses & far & (b.after - b.before > RESOLUTION * end.time) & (b.tries < 60)

    def closer(b: Bracket) -> Bracket:
        newton = b.time - b.guard / b.rate
        # Start from the far end: an episode that has just entered a mode has a root at time 0 as well.
        time = jnp.where((newton > b.before) & (newton < b.after), newton, 0.5 * (b.before + b.after))
        state = rk4(velocity, z, time)
        guard, rate = guarded(state)
        before, after = jnp.where(guard > 0, time, b.before), jnp.where(guard > 0, b.after, time)
        return Bracket(before, after, time, state, guard, rate, b.tries + 1)

    return jax.lax.while_loop(searching, closer, end)


def piece(system: System, action: State, longest, m: Moment) -> Moment:
    """The moment after one RK4 step, which stops early where the mode ends."""
    velocity = flow(system, action, m.mode)

    def guarded(z: State):
        return jax.jvp(lambda x: system.guard(x, action, m.mode), (z,), (velocity(z),))

    # The last piece takes all that is left, so that rounding never leaves a sliver.
    time = jnp.where(m.left > m.reach * (1 + 1e-9), m.reach, m.left)
    zero = jnp.zeros_like(time)
    guard_before, rate_before = guarded(m.state)
    state = rk4(velocity, m.state, time)
    guard, rate = guarded(state)
    end = event(
        velocity, guarded, m.state, Bracket(zero, time, time, state, guard, rate, jnp.zeros_like(m.pieces)), guard < 0
    )

    # A guard that falls, turns and rises again may have crossed 0 twice unseen: try again up to the turn.
    turn = time * rate_before / jnp.where(rate_before < rate, rate_before - rate, -1.0)
    unseen = (rate_before < 0) & (rate > 0) & (guard > 0) & (guard_before < -rate_before * turn)

    after, mode = system.switch(end.state, action, m.mode)
    crossed = guard < 0
    stepped = Moment(
        chosen(crossed, after, end.state),
        jnp.where(crossed, mode, m.mode),
        m.left - end.time,
        longest,
        m.changes + crossed,
        m.pieces + 1,
    )
    return chosen(unseen, m._replace(reach=turn, pieces=m.pieces + 1), stepped)


def sample(system: System, z: State, action: State, dt, substeps: int) -> Moment:
    """The moment dt later, through every change of mode on the way."""
    longest = dt / substeps
    none = jnp.zeros((), jnp.int32)
    start = Moment(z, system.settle(z, action), dt, longest, none, none)
    return jax.lax.while_loop(
        lambda m: (m.left > 0) & (m.pieces < substeps + MOST_PIECES),
        partial(piece, system, action, longest),
        start,
    )


def one_episode(system: System, substeps: int, dt, z, actions, kicks):
    """States, modes, changes and whether each sample was reached, of one episode."""
    spread = jnp.sqrt(dt) * system.law().noise

    def step(z: State, now):
        action = tuple(now[0])
        m = sample(system, z, action, dt, substeps)
        z = m.state if kicks is None else moved(m.state, tuple(now[1] * spread[m.mode]), 1.0)
        return z, (jnp.stack(z), system.settle(z, action), m.changes, m.left <= 0)

    start = tuple(z)
    _, (states, modes, changes, reached) = jax.lax.scan(step, start, (actions, kicks))
    first = system.settle(start, tuple(actions[0]))
    return (
        jnp.concatenate([z[None], states]),
        jnp.concatenate([first[None], modes]),
        changes,
        reached,
    )


@partial(jax.jit, static_argnames=("system", "steps", "substeps"))
def batch(system: System, steps: int, substeps: int, dt, keys, starts, actions):
    """`one_episode` for every key; what is None is drawn."""

    def one(key, z, action):
        start_key, action_key, noise_key = jax.random.split(key, 3)
        z = jnp.stack(system.starts(key=start_key)) if z is None else z
        action = system.excitation(steps, dt, key=action_key) if action is None else action
        quiet = not system.law().noise.any()
        kicks = None if quiet else jax.random.normal(noise_key, (steps, z.shape[0]))
        return action, one_episode(system, substeps, dt, z, action, kicks)

    axes = (0, None if starts is None else 0, None if actions is None else 0)
    return jax.vmap(one, in_axes=axes)(keys, starts, actions)


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
    """`episodes` simulated episodes of `steps` samples, dt seconds apart, in float64 whatever JAX's setting is.

    Initial states and inputs are drawn as the system says, or given: `starts` (episodes, coordinates) and
    `actions` (episodes, steps, inputs), each held until the next sample.
    """
    law = system.law()
    for value, what in ((episodes, "episodes"), (steps, "steps"), (substeps, "substeps")):
        if value < 1:
            raise ValueError(f"{what} is {value}; expected at least 1. Ask for one or more.")
    refuse_bad_dt(dt)
    starts = _given(starts, "starts", (episodes, len(law.coordinates)))
    actions = _given(actions, "actions", (episodes, steps, len(law.inputs)))
    with jax.enable_x64(True):
        keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(episodes))
        out = batch(system, steps, substeps, jnp.float64(dt), keys, starts, actions)
        actions, (states, modes, changes, reached) = jax.tree.map(np.asarray, out)
    _refuse_unreached(reached, states, dt)
    return Simulation(states, modes, actions, changes, dt, system)


def _given(values, what: str, shape: tuple[int, ...]) -> np.ndarray | None:
    if values is None:
        return None
    array = np.asarray(values, np.float64)
    if array.shape != shape:
        raise ValueError(f"{what} have shape {array.shape}; expected {shape}. Give one row for each episode.")
    if not np.isfinite(array).all():
        raise ValueError(f"{what} hold a value that is not finite; expected finite numbers. Remove NaN and infinity.")
    return array


def _refuse_unreached(reached: np.ndarray, states: np.ndarray, dt: float) -> None:
    bad = ~reached | ~np.isfinite(states[:, 1:]).all(-1)
    if bad.any():
        episode, step = np.argwhere(bad)[0]
        raise ValueError(
            f"episode {episode} could not be followed past sample {step} (time {step * dt:g} s): more than "
            f"{MOST_PIECES} changes of mode between two samples, or a state that left the range of floats. "
            "Expected a dt short beside the contacts; use a smaller dt, more substeps or softer constants."
        )


def held(steps: int, dt, hold: float, *, key: PRNGKeyArray) -> Float[Array, "steps"]:
    """Uniform numbers in [−1, 1], a new one every `hold` seconds."""
    values = jax.random.uniform(key, (steps,), minval=-1.0, maxval=1.0)
    return values[(jnp.arange(steps) * dt / hold + 1e-9).astype(jnp.int32)]


def to_episodes(simulation: Simulation, noise: float | np.ndarray, *, key: PRNGKeyArray) -> list[Episode]:
    """What sensors would log: positions with Gaussian noise (a standard deviation, or one per position)."""
    law = simulation.system.law()
    width = law.positions
    scale = np.asarray(noise, np.float64)
    if scale.shape not in ((), (width,)) or not (np.isfinite(scale).all() and (scale >= 0).all()):
        raise ValueError(
            f"noise is {noise}; expected one standard deviation, or one for each of {law.coordinates[:width]}, "
            "finite and not negative. Use 0 for perfect sensors."
        )
    positions = simulation.states[..., :width]
    with jax.enable_x64(True):
        observations = positions + scale * np.asarray(jax.random.normal(key, positions.shape))
    channels = tuple(
        Channel(n, unit=u) for n, u in zip(law.coordinates[:width], law.units[:width], strict=True)
    )
    name = type(simulation.system).__name__.lower()
    return [
        Episode(seen, action, simulation.dt, channels, {"mode": mode}, f"{name} {i}")
        for i, (seen, action, mode) in enumerate(
            zip(observations, simulation.actions, simulation.modes, strict=True)
        )
    ]
