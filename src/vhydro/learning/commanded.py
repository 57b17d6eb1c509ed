"""Learning the contact model that commands drive, from logs with hand commands and without labels."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from vhydro.commanded import COAST, HELD, REST, CommandedModel
from vhydro.episodes import Episode
from vhydro.network import Network, network
from vhydro.views import ContactView
from vhydro.views.view import columns, commands

MOVED = 4e-4  # m a step: less is rest
FOLLOWS = 0.6  # of the hand's step: a body that differs by less goes with it
MARGIN = 1.1  # on the largest gap at which contact was seen
STEPS, RATE = 1500, 5e-3
FLOOR = 2e-4  # m: least noise of a step


class Track(NamedTuple):
    """One log: states, commands, and what every body did in each step."""

    z: np.ndarray  # (rows, latent)
    command: np.ndarray  # (steps, inputs)
    regime: np.ndarray  # (steps, bodies)


def is_commanded(view: ContactView) -> bool:
    """Whether logs of this view hold what a planner can choose: moves of the hand and a gripper."""
    return bool(view.moves and view.grip and view.fingers and not view.cloths)


def track(view: ContactView, log: Episode) -> Track:
    """The states that a log passes through; hidden bodies stay where they were last seen."""
    hand, opening = columns(log, view.hand), view.width(log)[:, None]
    bodies = [_filled(columns(log, names)) for names in view.bodies.values()]
    steps = [np.vstack([np.zeros((1, 3)), np.diff(x, axis=0)]) for x in (hand, *bodies)]
    z = np.concatenate([hand, steps[0], opening, *bodies, *steps[1:]], 1)
    regime = np.stack([regime_of(s[1:], steps[0][1:]) for s in steps[1:]], 1)
    return Track(z, commands(log, [*view.moves, view.grip]), regime)


def _filled(values: np.ndarray) -> np.ndarray:
    seen = np.asarray(~np.isnan(values).any(1))
    if not seen.any():
        raise ValueError("a body is hidden in a whole log; expected it in some rows. Leave the log out.")
    last = np.maximum.accumulate(np.where(seen, np.arange(len(seen)), 0))
    last[: np.argmax(seen)] = np.argmax(seen)
    return values[last]


def regime_of(body: np.ndarray, hand: np.ndarray) -> np.ndarray:
    """What a body does in every step, by its displacement and the hand's."""
    moves = np.linalg.norm(body, axis=1) > MOVED
    follows = np.linalg.norm(body - hand, axis=1) < FOLLOWS * np.linalg.norm(hand, axis=1)
    return np.where(moves, np.where(follows, HELD, COAST), REST)


def learn_commanded(view: ContactView, logs: Sequence[Episode], *, seed: int = 0) -> CommandedModel:
    """The model that these logs speak for: servo and kernels by gradient descent, flows by least squares."""
    tracks = [track(view, log) for log in logs]
    z, after = (np.concatenate([t.z[part] for t in tracks]) for part in (slice(None, -1), slice(1, None)))
    command = np.concatenate([t.command for t in tracks])
    keys = jax.random.split(jax.random.key(seed), 1 + len(view.bodies))
    given, wanted = np.hstack([z[:, :7], command]), np.hstack([after[:, 3:6], after[:, 6:7] - z[:, 6:7]])
    whiten = lambda x: np.stack([x.mean(0), x.std(0) + 1e-6])  # noqa: E731
    into, out = whiten(given), whiten(wanted)
    servo = _regression(keys[0], (given - into[0]) / into[1], (wanted - out[0]) / out[1])
    left = (wanted - out[0]) / out[1] - np.asarray(servo(jnp.asarray(((given - into[0]) / into[1]).T, jnp.float32))).T
    parts = [_body(view, tracks, i, z, after, command, keys[1 + i]) for i in range(len(view.bodies))]
    single = lambda values: jnp.asarray(np.asarray(values), jnp.float32)  # noqa: E731
    return CommandedModel(
        servo=servo, servo_in=single(into), servo_out=single(out), servo_noise=single(left.std(0) * out[1]),
        kernels=tuple(p[0] for p in parts), gains=single([p[1] for p in parts]), noise=single([p[2] for p in parts]),
        reach=single([p[3] for p in parts]), bodies=tuple(view.bodies), moves=view.moves, grip=view.grip,
    )  # fmt: skip


def _body(view, tracks, i, z, after, command, key):
    """Kernel, gains, noise and reach of one body."""
    n, first = len(view.bodies), 7 + 3 * i
    own, step = slice(7 + 3 * (n + i), 10 + 3 * (n + i)), after[:, 3:6]
    before = z[:, first : first + 3] - z[:, :3]
    moved, regime = after[:, own], np.concatenate([t.regime[:, i] for t in tracks])
    was = np.concatenate([np.concatenate([[REST], t.regime[:-1, i]]) for t in tracks])
    features = np.hstack([step, z[:, own], before - step, np.ones((len(z), 1))])
    gains, noise = np.zeros((3, 3, 10)), np.full((3, 3), FLOOR)
    for r, use in ((HELD, range(10)), (COAST, (3, 4, 5, 9))):
        rows = regime == r
        if rows.sum() > 5 * len(use):
            x = features[rows][:, list(use)]
            ridge = 1e-8 * len(x) * np.eye(len(use))
            gains[r][:, list(use)] = np.linalg.solve(x.T @ x + ridge, x.T @ moved[rows]).T
            noise[r] = np.maximum((moved[rows] - features[rows] @ gains[r].T).std(0), FLOOR)
    near = np.minimum(*(np.linalg.norm(g, axis=1) for g in (before, before - step)))
    begun = near[(regime == HELD) | ((regime == COAST) & (was == REST))]
    reach = MARGIN * np.quantile(begun, 0.98) if len(begun) else 0.0
    given = np.hstack(
        [20 * before, 20 * (before - step), 30 * z[:, 6:7], command, 100 * z[:, own], np.eye(3)[was]]
    )  # fmt: skip
    return _classifier(key, given, regime), gains, noise, reach


def _regression(key, given: np.ndarray, wanted: np.ndarray) -> Network:
    net = network(given.shape[1], (48, 48), wanted.shape[1], key=key, dtype=jnp.float32)
    x, y = jnp.asarray(given.T, jnp.float32), jnp.asarray(wanted.T, jnp.float32)
    return _descended(net, lambda net: ((net(x) - y) ** 2).mean())


def _classifier(key, given: np.ndarray, label: np.ndarray) -> Network:
    net = network(given.shape[1], (32, 32), 3, key=key, dtype=jnp.float32)
    x, y = jnp.asarray(given.T, jnp.float32), jnp.asarray(np.eye(3)[label].T, jnp.float32)
    return _descended(net, lambda net: -(jax.nn.log_softmax(net(x), axis=0) * y).sum(0).mean())


def _descended(net: Network, loss: Callable[[Network], Array]) -> Network:
    optimiser = optax.adamw(optax.cosine_decay_schedule(RATE, STEPS), weight_decay=1e-3)

    @eqx.filter_jit
    def run(net):
        def step(carry, _):
            net, state = carry
            value, slope = jax.value_and_grad(loss)(net)
            change, state = optimiser.update(slope, state, net)
            return (eqx.apply_updates(net, change), state), value

        return jax.lax.scan(step, (net, optimiser.init(eqx.filter(net, eqx.is_array))), None, length=STEPS)[0][0]

    return run(net)
