"""How well dynamics predict recorded rollouts open loop, given the commands alone, in the protocol of the audit.

Errors are those of the particles' mean, divided by every channel's standard deviation over the rollouts that were
learned from: hand, opening and bodies' places; channels that hardly vary are left out and named.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from vhydro.episodes import Episode
from vhydro.learning.commanded import Track, track
from vhydro.small import precise
from vhydro.views import ContactView

HORIZON, STRIDE, PARTICLES = 16, 4, 64
VARIES = 0.002  # m: channels whose standard deviation is less are left out
LEAST = 1e-4  # m a step: spread of a last step below which it counts as this
MOVED = 0.005  # m over a window: a body that moves more than this is one that moves
BAND = (0.05, 0.95)


class Windows(NamedTuple):
    """Starts of windows and what followed, of all held-out rollouts."""

    z: np.ndarray  # (windows, latent)
    regime: np.ndarray  # (windows, bodies): what every body did in the step before
    command: np.ndarray  # (windows, HORIZON, inputs)
    after: np.ndarray  # (windows, HORIZON, latent)


class Scale(NamedTuple):
    """What errors are divided by: of the places, and of the last steps."""

    place: np.ndarray
    step: np.ndarray


def parts(bodies: int) -> tuple[np.ndarray, np.ndarray]:
    """The coordinates that are places (hand, opening, bodies) and those that are last steps (hand, bodies)."""
    first = 7 + 3 * bodies
    return np.r_[0:3, 6:first], np.r_[3:6, first : first + 3 * bodies]


def windows(view: ContactView, logs: Sequence[Episode]) -> Windows:
    """Every `STRIDE`th window of the logs."""
    out: list[tuple] = []
    for one in (track(view, log) for log in logs):
        for t in range(1, len(one.command) - HORIZON + 1, STRIDE):
            ahead = slice(t, t + HORIZON)
            out.append((one.z[t], one.regime[t - 1], one.command[ahead], one.z[t + 1 : t + 1 + HORIZON]))
    if not out:
        raise ValueError(f"no held-out rollout has {HORIZON + 1} steps; expected longer ones to predict.")
    return Windows(*(np.stack(x) for x in zip(*out, strict=True)))


def scale(tracks: Sequence[Track], bodies: int) -> Scale:
    """The spread of every coordinate over the rollouts that were learned from."""
    places, steps = parts(bodies)
    z = np.concatenate([t.z for t in tracks])
    return Scale(z[:, places].std(0), np.maximum(z[:, steps].std(0), LEAST))


def predicted(dynamics: Any, given: Windows, seed: int, particles: int = PARTICLES) -> np.ndarray:
    """The particles' states, (HORIZON, latent, windows, particles)."""
    count = len(given.z)
    digits = 3 ** np.arange(given.regime.shape[1])
    mode = jnp.asarray(np.repeat(given.regime @ digits, particles), jnp.int32)
    z = jnp.asarray(np.repeat(given.z, particles, 0).T, jnp.float32)
    command = jnp.asarray(np.repeat(given.command, particles, 0).transpose(1, 2, 0), jnp.float32)
    states = _rolled(dynamics, mode, z, command, jax.random.key(seed))
    return np.asarray(states).reshape(HORIZON, z.shape[0], count, particles)


@eqx.filter_jit
@precise
def _rolled(dynamics, mode, z, command, key):
    noise = dynamics.noise(key, HORIZON, z.shape[1])

    def step(now, given):
        after = dynamics.step(*now, *given)
        return after, after[1]

    return jax.lax.scan(step, dynamics.settle(mode, z, command[0]), (command, noise))[1]


def persistence(given: Windows) -> np.ndarray:
    """Everything stays where it is, and stops."""
    still = given.z.copy()
    still[:, parts(given.regime.shape[1])[1]] = 0.0
    return np.broadcast_to(still.T[None, :, :, None], (HORIZON, *still.T.shape, 1))


def scores(states: np.ndarray, given: Windows, spread: Scale) -> dict[str, float | None]:
    """Errors at one step, at 16 and on average, of everything and apart; coverage of 90 % bands; drift of energy."""
    bodies = given.regime.shape[1]
    places, steps = parts(bodies)
    varies = spread.place >= VARIES
    mean, truth = states.mean(-1), given.after.transpose(1, 2, 0)  # (HORIZON, latent, windows)
    error = (mean - truth)[:, places] / np.maximum(spread.place, 1e-9)[:, None]
    rmse = lambda chosen: np.sqrt((error[:, chosen] ** 2).mean((1, 2)))  # noqa: E731
    every, hand, things = rmse(varies), rmse(varies & (np.arange(len(places)) < 4)), varies.copy()
    things[:4] = False
    out: dict[str, float | None] = {
        "rmse_h1": every[0],
        "rmse_h16": every[-1],
        "rmse_mean16": every.mean(),
        "rmse_h16_hand": hand[-1],
    }
    out["rmse_h16_bodies"] = rmse(things)[-1]
    energy = lambda z: 0.5 * ((z[steps] / spread.step[:, None]) ** 2).sum(0)  # noqa: E731
    inside = _covered(states[-1], truth[-1], given, spread)
    return out | {"energy_drift": float(np.abs(energy(mean[-1]) - energy(truth[-1])).mean())} | inside


def _covered(states: np.ndarray, truth: np.ndarray, given: Windows, spread: Scale) -> dict[str, float | None]:
    """The share of places after 16 steps inside the 90 % bands: of all that varies, of bodies that moved and rested."""
    if states.shape[-1] < 2:
        return dict.fromkeys(("coverage90", "coverage90_moving", "coverage90_resting"))
    bodies = given.regime.shape[1]
    low, high = np.quantile(states, BAND, axis=-1)
    inside = (truth >= low - 1e-3) & (truth <= high + 1e-3)
    places = parts(bodies)[0][spread.place >= VARIES]
    moving, resting = [], []
    for i in range(bodies):
        at = [k for k in range(7 + 3 * i, 10 + 3 * i) if k in places]
        moves = np.linalg.norm(truth[7 + 3 * i : 10 + 3 * i] - given.z[:, 7 + 3 * i : 10 + 3 * i].T, axis=0) > MOVED
        moving.append(inside[at][:, moves].ravel())
        resting.append(inside[at][:, ~moves].ravel())
    share = lambda hits: float(np.concatenate(hits).mean()) if sum(map(len, hits)) else None  # noqa: E731
    return {"coverage90": float(inside[places].mean()), "coverage90_moving": share(moving),
            "coverage90_resting": share(resting)}  # fmt: skip
