"""Learning the contact model that commands drive, from logs with hand commands and without labels."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from vhydro.commanded import COAST, HELD, REST, CommandedModel, ScaledNetwork, body_inputs, finger_inputs, hand_inputs
from vhydro.episodes import Episode
from vhydro.network import Network, network
from vhydro.small import precise
from vhydro.views import ContactView
from vhydro.views.view import columns, commands

MOVED = 4e-4  # m a step: less is rest
FOLLOWS = 0.6  # of the hand's step: a body that differs by less goes with it
MARGIN = 1.1  # on the largest gap at which contact was seen
STEPS, BATCH, RATE, DECAY = 3000, 2048, 5e-3, 0.2
FLOOR = 2e-4  # m: least noise of a step
FEWEST_MOVES = 5  # steps of a body, to learn from how it moves
GAPS = 6  # first of `body_inputs`


class Track(NamedTuple):
    """One log: states, commands, and what every body did in each step."""

    z: np.ndarray  # (rows, latent)
    command: np.ndarray  # (steps, inputs)
    regime: np.ndarray  # (steps, bodies)


def is_commanded(view: ContactView) -> bool:
    """Whether logs of this view hold what a planner can choose: moves of the hand and a gripper."""
    return bool(view.moves and view.grip and view.fingers and not view.cloths)


def track(view: ContactView, log: Episode, unit: float = 1.0) -> Track:
    """The states that a log passes through, its unit of length in metres; hidden bodies stay where last seen."""
    hand, opening = columns(log, view.hand), view.width(log)[:, None]
    bodies = [_filled(columns(log, names)) for names in view.bodies.values()]
    steps = [np.vstack([np.zeros((1, 3)), np.diff(x, axis=0)]) for x in (hand, *bodies)]
    told = commands(log, [*view.moves, view.grip])
    earlier, change = np.vstack([np.zeros((1, 3)), steps[0][:-1]]), np.diff(opening, axis=0, prepend=opening[:1])
    memory = [earlier, change, np.vstack([np.zeros((1, 4)), told])]
    z = np.concatenate([hand, steps[0], opening, *bodies, *steps[1:], *memory], 1)
    regime = np.stack([regime_of(s[1:], steps[0][1:], unit) for s in steps[1:]], 1)
    return Track(z, told, regime)


def _filled(values: np.ndarray) -> np.ndarray:
    seen = np.asarray(~np.isnan(values).any(1))
    if not seen.any():
        raise ValueError("a body is hidden in a whole log; expected it in some rows. Leave the log out.")
    last = np.maximum.accumulate(np.where(seen, np.arange(len(seen)), 0))
    last[: np.argmax(seen)] = np.argmax(seen)
    return values[last]


def regime_of(body: np.ndarray, hand: np.ndarray, unit: float = 1.0) -> np.ndarray:
    """What a body does in every step, by its displacement and the hand's, in this many metres."""
    moves = np.linalg.norm(body, axis=1) > MOVED / unit
    follows = np.linalg.norm(body - hand, axis=1) < FOLLOWS * np.linalg.norm(hand, axis=1)
    return np.where(moves, np.where(follows, HELD, COAST), REST)


def learn_commanded(
    view: ContactView, logs: Sequence[Episode], *, seed: int = 0, sees_gap: bool = True, unit: float = 1.0
) -> CommandedModel:
    """The model that these logs speak for, by gradient descent.

    Without `sees_gap` its kernels do not know how far a body is from hand and others, and anything may begin anywhere:
    for comparison. `unit` is of the logs' lengths, in metres.
    """
    tracks = [track(view, log, unit) for log in logs]
    z, after = (np.concatenate([t.z[part] for t in tracks]) for part in (slice(None, -1), slice(1, None)))
    command = np.concatenate([t.command for t in tracks])
    keys = jax.random.split(jax.random.key(seed), 2 + len(view.bodies))
    opened = after[:, 6:7] - z[:, 6:7]
    hand, left = regression(keys[0], _columns(hand_inputs(_single(z.T), _single(command.T))), after[:, 3:6])
    fingers, also_left = regression(keys[1], _columns(finger_inputs(_single(z.T), _single(command.T))), opened)
    step = np.hstack([after[:, 3:6], opened])
    parts = [
        _body(i, tracks, z, after, step, command, keys[2 + i], sees_gap, FLOOR / unit) for i in range(len(view.bodies))
    ]
    return CommandedModel(
        hand=hand, fingers=fingers, servo_noise=_single(np.hstack([left.std(0), also_left.std(0)])),
        kernels=tuple(p[0] for p in parts), flows=tuple(p[1] for p in parts), noise=_single([p[2] for p in parts]),
        reach=_single([p[3] for p in parts]), bodies=tuple(view.bodies), moves=view.moves, grip=view.grip,
    )  # fmt: skip


def _single(values) -> Array:
    return jnp.asarray(np.asarray(values), jnp.float32)


def _columns(rows: Array) -> np.ndarray:
    return np.asarray(rows).T


def _body(i: int, tracks: Sequence[Track], z, after, step, command, key, sees_gap: bool, floor: float):
    """Kernel, flow, noise and reach of one body."""
    kernel_key, flow_key = jax.random.split(key)
    n = tracks[0].regime.shape[1]
    regime = np.concatenate([t.regime[:, i] for t in tracks])
    was = np.concatenate([np.concatenate([[REST], t.regime[:-1, i]]) for t in tracks])
    parts = [_single(x.T) for x in (z, step, command)]
    given = lambda doing: _columns(body_inputs(i, n, jnp.asarray(doing), *parts))  # noqa: E731
    moves, noise = regime != REST, np.zeros((3, 3))
    if moves.sum() < FEWEST_MOVES:  # too little to learn from: it stays where it is
        moves = np.ones(len(regime), bool)
    flow, left = regression(flow_key, given(regime)[moves], after[moves, 7 + 3 * (n + i) : 10 + 3 * (n + i)])
    for r in (HELD, COAST):
        rows = regime[moves] == r
        noise[r] = np.maximum(left[rows].std(0) if rows.sum() > 1 else left.std(0), floor)
    before = z[:, 7 + 3 * i : 10 + 3 * i] - z[:, :3]
    near = np.minimum(*(np.linalg.norm(g, axis=1) for g in (before, before - step[:, :3])))
    begun = near[(regime == HELD) | ((regime == COAST) & (was == REST))]
    reach = (MARGIN * np.quantile(begun, 0.98) if len(begun) else 0.0) if sees_gap else np.inf
    rows = given(was)
    blind = [] if sees_gap else [*range(GAPS), *range(rows.shape[1] - 3 * (n - 1), rows.shape[1])]
    return _classifier(kernel_key, rows, regime, blind), flow, noise, reach


def regression(
    key: PRNGKeyArray, given: np.ndarray, wanted: np.ndarray, hidden: tuple[int, ...] = (48, 48)
) -> tuple[ScaledNetwork, np.ndarray]:
    """The outputs as a network of the inputs, and what it leaves."""
    into, out = whitening(given), whitening(wanted)
    x, y = _single(((given - into[0]) / into[1]).T), _single(((wanted - out[0]) / out[1]).T)
    net = network(len(x), hidden, len(y), key=key, dtype=jnp.float32)
    net = _descended(key, net, x, y, lambda net, x, y: ((net(x) - y) ** 2).mean())
    return ScaledNetwork(net, _single(into), _single(out)), np.asarray(y - net(x)).T * out[1]


def whitening(values: np.ndarray) -> np.ndarray:
    """The shift and the scale of every column."""
    return np.stack([values.mean(0), values.std(0) + 1e-6])


def _classifier(key, given: np.ndarray, label: np.ndarray, blind: Sequence[int]) -> ScaledNetwork:
    """The logits of the labels as a network of the inputs, but not of the blind ones."""
    into = whitening(given)
    into[:, list(blind)] = [[0.0], [np.inf]]
    x, y = _single(((given - into[0]) / into[1]).T), _single(np.eye(3)[label].T)
    net = network(len(x), (32, 32), 3, key=key, dtype=jnp.float32)
    net = _descended(key, net, x, y, lambda net, x, y: -(jax.nn.log_softmax(net(x), axis=0) * y).sum(0).mean())
    return ScaledNetwork(net, _single(into), _single([[0.0] * 3, [1.0] * 3]))


def _descended(key, net: Network, x: Array, y: Array, loss: Callable[[Network, Array, Array], Array]) -> Network:
    """The network after descending the loss over batches."""
    optimiser = optax.adamw(optax.cosine_decay_schedule(RATE, STEPS), weight_decay=DECAY)

    @eqx.filter_jit
    @precise
    def run(net, x, y):
        def step(carry, key):
            net, state = carry
            rows = jax.random.randint(key, (min(BATCH, x.shape[1]),), 0, x.shape[1])
            slope = jax.grad(loss)(net, x[:, rows], y[:, rows])
            change, state = optimiser.update(slope, state, net)
            return (eqx.apply_updates(net, change), state), None

        begun = net, optimiser.init(eqx.filter(net, eqx.is_array))
        return jax.lax.scan(step, begun, jax.random.split(key, STEPS))[0][0]

    return run(net, x, y)
