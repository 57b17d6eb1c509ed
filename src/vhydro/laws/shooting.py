"""Hybrid multiple shooting: windows of a recording simulated through their contacts, and their sensitivities.

A window starts from a state of its own and follows the law with RK4; where a contact begins or ends inside a
step, the step is split there. The split point moves with the parameters, so its derivative is exact. Windows of any
number and length go through one compiled program, LANES at a time and CHUNK samples after CHUNK.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from vhydro.lagrangian import Lagrangian, Reversal
from vhydro.laws.form import AnyForm
from vhydro.library import Penetration, slope

LANES, CHUNK = 32, 60
LEAST = 4  # steps of integration that a simulated sample takes
FAR = 1e6  # beyond which a state is held, for its misfit to stay finite
LARGEST_TURN = 0.3  # rad of the stiffest contact in one step of integration
SWEEPS = 8  # over the dry frictions of things that rest, each of which moves the others
State = tuple  # one scalar for each coordinate


def field(form: AnyForm, theta, on, z: State, action) -> State:
    """ż of the law with some of its blocks on."""
    if isinstance(form, Lagrangian):
        return tuple(jnp.asarray(x) for x in form.field(theta, on, z, action))
    n = form.positions
    gradient, drag, push = [0.0] * (2 * n), [0.0] * n, [0.0] * n
    base = 1.0 if form.additive else 1.0 - sum(on)
    for i, e in enumerate(form.entries):
        if form.known[i] == 0:
            continue
        share = theta[i] * (base if e.block < 0 else on[e.block])
        if e.kind == "energy":
            assert e.term is not None
            place = theta[form.places[e.block]] if e.block in form.places else 0.0
            for j in range(2 * n):
                gradient[j] = gradient[j] + share * slope(e.term, j, z, place)
        elif e.kind == "dissipation":
            drag[e.axis] = drag[e.axis] + share
        elif e.kind == "port":
            push[e.axis] = push[e.axis] + share * action[e.column]
    carried = [sum(g * action[j] for j, g in enumerate(form.known_port[i]) if g) for i in range(n)]
    velocity = [gradient[n + i] + carried[i] for i in range(n)]
    force = [-gradient[i] - drag[i] * gradient[n + i] + push[i] for i in range(n)]
    return tuple(jnp.asarray(x) for x in (*velocity, *force))


def substeps(form: AnyForm, theta: np.ndarray, dt: float, largest_turn: float = LARGEST_TURN) -> int:
    """How many steps of integration a sample of dt seconds takes, for its stiffest contact to be followed."""
    if isinstance(form, Lagrangian):
        return max(1, int(np.ceil(form.stiffest(theta) * dt / largest_turn)))
    mass = min(0.5 / theta[i] for i, e in enumerate(form.entries) if e.is_kinetic)
    springs = [theta[i] for i, e in enumerate(form.entries) if isinstance(e.term, Penetration) and e.term.power == 2]
    turn = np.sqrt(max(springs, default=0.0) / mass) * dt if mass > 0 and max(springs, default=0.0) > 0 else 0.0
    return max(1, int(np.ceil(turn / largest_turn)))


def moved(z: State, rate: State, time) -> State:
    return tuple(x + time * v for x, v in zip(z, rate, strict=True))


def runge_kutta(form: AnyForm, theta, on, z: State, action, time) -> State:
    """The state `time` later by RK4; its stages are a loop, which compiles four times as fast as four copies."""

    def stage(carry, weights):
        rate, total = carry
        rate = field(form, theta, on, moved(z, rate, weights[0] * time), action)
        return (rate, moved(total, rate, weights[1] * time)), None

    none = tuple(jnp.zeros_like(x) for x in z)
    stages = jnp.array([[0.0, 1 / 6], [0.5, 1 / 3], [0.5, 1 / 3], [1.0, 1 / 6]])
    return jax.lax.scan(stage, (none, z), stages)[0][1]


def switches(form: AnyForm) -> list:
    """What turns every block on, and of Lagrange's equations dry friction too; None where something else does."""
    if isinstance(form, Lagrangian):
        return [*form.switches]
    ways = form.ways or (None,) * len(form.blocks)
    return [b.guard or way for b, way in zip(form.blocks, ways, strict=True)]


def depths(form: AnyForm, theta, z: State) -> list:
    """How deep z is in every block's contact; of a block without a guard, nothing that changes sign."""
    place = {i: theta[index] for i, index in form.places.items()}
    return [
        g.sign * (g.along(z) - place.get(i, 0.0)) if g else jnp.ones_like(z[0]) for i, g in enumerate(switches(form))
    ]


def crossing(before, before_rate, after, after_rate, time):
    """When the cubic through two depths and their rates is 0, by bisection; `time` where it never is."""

    def depth(s):
        value = before * (1 + 2 * s) * (1 - s) ** 2 + after * s * s * (3 - 2 * s)
        return value + time * (before_rate * s * (1 - s) ** 2 - after_rate * s * s * (1 - s))

    def halved(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        same = depth(middle) * before > 0
        return jnp.where(same, middle, low), jnp.where(same, high, middle)

    low, high = jax.lax.fori_loop(0, 12, halved, (jnp.zeros_like(before), jnp.ones_like(before)))
    return jnp.where(before * after < 0, 0.5 * (low + high) * time, time)


def _crossings(form: AnyForm, theta, on, z: State, whole: State, action, time) -> list:
    """When each contact begins or ends inside a step from z to `whole`."""
    rate, last = field(form, theta, on, z, action), field(form, theta, on, whole, action)
    begun, ended = depths(form, theta, z), depths(form, theta, whole)
    guards = [(i, g) for i, g in enumerate(switches(form)) if g]
    return [crossing(begun[i], g.sign * g.along(rate), ended[i], g.sign * g.along(last), time) for i, g in guards]


def step(form: AnyForm, theta, set_on, z: State, action, time) -> State:
    """The state `time` later, through at most one beginning or end of a contact."""
    begun = depths(form, theta, z)
    set_on = [*set_on, *([0.0] * (len(begun) - len(set_on)))]
    on = [_begins(form, g, d) if g else s for g, d, s in zip(switches(form), begun, set_on, strict=True)]
    stops = _stops(form, theta, on, z, action)
    for stop in stops:
        on[stop.switch] = jnp.where(stop.rests, stop.share, on[stop.switch])
    whole = runge_kutta(form, theta, on, z, action, time)
    if not any(switches(form)):
        return whole
    guards = [(i, g) for i, g in enumerate(switches(form)) if g]
    times = _crossings(form, *jax.lax.stop_gradient((theta, on, z, whole, action)), time)
    split = first = jnp.min(jnp.stack(times), 0)
    there = runge_kutta(form, theta, on, z, action, split)
    # One Newton step on the depth of the contact that changes puts the split on its surface, derivative included.
    near, speed = depths(form, theta, there), field(form, theta, on, there, action)
    late = [near[i] / jnp.where(g.along(speed) == 0, 1.0, g.sign * g.along(speed)) for i, g in guards]
    changes = [(t <= first) & (t < time) for t in times]
    shift = sum(jnp.where(c, -x, 0.0) for c, x in zip(changes, late, strict=True))
    shift = jnp.clip(shift, -split, time - split)
    there = moved(there, speed, shift)
    toggled, stopped = list(on), {stop.switch: stop for stop in stops}
    for (i, _), change in zip(guards, changes, strict=True):
        other = 1.0 - on[i]
        if i in stopped:  # what stops and is held goes neither way
            other = jnp.where(stopped[i].held, stopped[i].share, other)
        toggled[i] = jnp.where(change, other, on[i])
    beyond = runge_kutta(form, theta, toggled, there, action, time - split - shift)
    any_change = first < time
    after = [jnp.where(any_change, a, b) for a, b in zip(beyond, whole, strict=True)]
    changed = dict(zip((i for i, _ in guards), changes, strict=True))
    for stop in stops:
        q, v = stop.axis, form.positions + stop.axis
        after[q] = jnp.where(
            stop.held & stop.rests, z[q], jnp.where(stop.held & changed[stop.switch], there[q], after[q])
        )
        after[v] = jnp.where(stop.held & (stop.rests | changed[stop.switch]), 0.0, after[v])
    return tuple(after)


def _begins(form: AnyForm, switch, depth):
    """Whether a switch is on at a depth: of Lagrange's equations, dry friction acts neither way where nothing slips."""
    still = 0.5 if isinstance(form, Lagrangian) and isinstance(switch, Reversal) else 0.0
    return jnp.where(depth > 0, 1.0, jnp.where(depth == 0, still, 0.0))


class Stop(NamedTuple):
    """A velocity that may come to a stop and stay there, as dry friction has it."""

    switch: int
    axis: int
    rests: Bool[Array, "..."]  # it is 0
    held: Bool[Array, "..."]  # at 0 whatever moves it either way is pushed back
    share: Float[Array, "..."]  # of going its switch's way: what keeps it at 0 where it is held


def _stops(form: AnyForm, theta, on: list, z: State, action) -> list[Stop]:
    """The stops of all positions whose direction switches the law by itself.

    What rests is held by all frictions at once: their shares are found by projected Gauss–Seidel.
    """
    n = form.positions
    may = [
        (i, g)
        for i, g in enumerate(switches(form))
        if isinstance(g, Reversal) and g.other is None and not _is_carried(form, g.axis)
    ]

    def rates(ways: dict) -> list:
        """How fast every velocity changes where it is 0."""
        out, chosen = [], [ways.get(i, x) for i, x in enumerate(on)]
        for _, g in may:
            still = tuple(jnp.zeros_like(x) if k == n + g.axis else x for k, x in enumerate(z))
            out.append(g.sign * g.along(field(form, theta, chosen, still, action)))
        return out

    back = {i: 0.0 for i, _ in may}
    least = rates(back)
    pulls = [[y - x for x, y in zip(least, rates(back | {i: 1.0}), strict=True)] for i, _ in may]
    rests = [z[n + g.axis] == 0 for _, g in may]
    shares = [jnp.where(rest, 0.5, on[i]) for rest, (i, _) in zip(rests, may, strict=True)]
    out: list[Stop] = []
    for _ in range(SWEEPS if len(may) > 1 else 1):
        out = []
        for k, (i, g) in enumerate(may):
            returns = least[k] + sum(pulls[j][k] * share for j, share in enumerate(shares) if j != k)
            goes = returns + pulls[k][k]
            held = (goes <= 0) & (returns >= 0) & (goes < returns)
            between = returns / jnp.where(held, returns - goes, 1.0)
            share = jnp.where(held, between, jnp.where(goes > 0, 1.0, 0.0))
            shares[k] = jnp.where(rests[k], share, shares[k])
            out.append(Stop(i, g.axis, rests[k], held, share))
    return out


def _is_carried(form: AnyForm, axis: int) -> bool:
    """Whether an input moves a position by itself: it rests nowhere."""
    return not isinstance(form, Lagrangian) and any(form.known_port[axis])


def path(form: AnyForm, substeps, theta, start, actions, on, dt):
    """The state at every sample of one window, and after the last: (length, coordinates), (coordinates,)."""

    def sample(z: State, action):
        seen = jnp.stack(z)
        part = partial(step, form, theta, tuple(on), action=tuple(action), time=dt / substeps)
        z = jax.lax.fori_loop(0, substeps, lambda _, z: part(z), z)
        # A start far off may leave the floats: hold it where its misfit is plainly bad but finite.
        z = tuple(jnp.clip(x, -FAR, FAR) for x in z)
        return z, seen

    last, states = jax.lax.scan(sample, tuple(start), actions)
    return states, jnp.stack(last)


class Piece(NamedTuple):
    """A stretch of CHUNK samples of every lane: its states, the state after it, and what both feel."""

    states: Float[Array, "lanes chunk coordinates"]
    last: Float[Array, "lanes coordinates"]
    by_theta: Float[Array, "lanes samples picked"]  # samples: CHUNK rows and the state after, flattened
    by_start: Float[Array, "lanes samples coordinates"]


def followed(form: AnyForm, substeps: int, theta, starts, actions, on, dt):
    """The states of a stretch, and after it."""
    return _followed(*_shared(form), substeps, theta, starts, actions, on, dt)


def simulated(form: AnyForm, theta, start, actions, on, dt: float, count: int | None = None) -> np.ndarray:
    """The states at every sample from one start, by so many steps each, or as many as the stiffest contact takes."""
    steps = max(LEAST, substeps(form, theta, dt)) if count is None else count
    with jax.enable_x64(True):
        states = np.array(followed(form, steps, theta, start[None], actions[None], on[None], dt)[0][0])
    lost = ~(np.abs(states) < FAR).all(1)
    states[np.maximum.accumulate(lost)] = np.nan
    return states


def sensed(form: AnyForm, substeps: int, theta, picked, starts, actions, on, dt) -> Piece:
    """The states of a stretch with their derivatives by the picked parameters and by its starts."""
    return _sensed(*_shared(form), substeps, theta, picked, starts, actions, on, dt)


def _shared(form: AnyForm) -> tuple[AnyForm, tuple[float, ...]]:
    """The form as all logs have it, and the creep of its own log: an argument, so that logs share programs."""
    if not isinstance(form, Lagrangian):
        return form, ()
    return replace(form, creep=(1.0,) * len(form.creep)), form.creep


def _own(form: AnyForm, creep) -> AnyForm:
    """The form with the creep of its log."""
    if not isinstance(form, Lagrangian):
        return form
    own = replace(form)
    object.__setattr__(own, "creep", tuple(creep))  # traced, and not the numbers that a file holds
    return own


@partial(jax.jit, static_argnames="form")
def _followed(form: AnyForm, creep, substeps, theta, starts, actions, on, dt):
    return jax.vmap(partial(path, _own(form, creep), substeps), (None, 0, 0, 0, None))(theta, starts, actions, on, dt)


@partial(jax.jit, static_argnames="form")
def _sensed(form: AnyForm, creep, substeps, theta, picked, starts, actions, on, dt) -> Piece:
    form = _own(form, creep)

    def one(start, actions, on):
        def f(change, start):
            states, last = path(form, substeps, theta.at[picked].add(change), start, actions, on, dt)
            both = jnp.concatenate([states[:, : form.positions].ravel(), last])
            return both, (states, last)

        (by_theta, by_start), (states, last) = jax.jacfwd(f, (0, 1), has_aux=True)(jnp.zeros(picked.shape), start)
        return Piece(states, last, jnp.nan_to_num(by_theta), jnp.nan_to_num(by_start))

    return jax.vmap(one)(starts, actions, on)
