"""The models that the ManiSkill part of the planning audit compares, all learned from the same rollouts.

`ours` is the contact model that `fit(logs, commands=True)` keeps and plans on, learned without the rest of a fit.
`no-gap` is the same with a kernel that is blind to where the hand is and lets contact begin anywhere. `one-mode` is one
linear map of state and command, `ensemble` three networks of the same budget of steps; both see the same state.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from vhydro.commanded import ScaledNetwork
from vhydro.episodes import Episode
from vhydro.filter import Particles
from vhydro.learning.commanded import learn_commanded, regression, track, whitening
from vhydro.network import Network
from vhydro.particles import Draw, step_noise
from vhydro.planning import contact_dynamics
from vhydro.planning.contact_dynamics import readouts, seen_state
from vhydro.planning.dynamics import Noise, population
from vhydro.planning.task import Readout
from vhydro.small import beside, over
from vhydro.views import ContactView

MODELS = ("ours", "one-mode", "no-gap", "ensemble")
MEMBERS, HIDDEN = 3, (96, 96)


class StepDynamics(eqx.Module):
    """Networks that give the steps of hand, opening and bodies, one drawn for each path; no modes."""

    members: tuple[ScaledNetwork, ...]
    off: jax.Array  # (members, outputs): how far each is off
    readout: Readout
    actions: Readout
    latent: int = eqx.field(static=True)
    seconds: float = eqx.field(static=True)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.actions.names

    @property
    def dtype(self):
        return self.off.dtype

    def population(self, belief: Any):
        """The points of a belief; see `seen`."""
        return population(belief, self.latent, 1)

    def seen(self, view: ContactView, rows: Sequence[Any], command: Any = None, mode: int = 0) -> Particles:  # noqa: ARG002
        """The belief where everything is seen, as of `ContactDynamics`."""
        z, one = seen_state(view, rows, command), jnp.ones((1,), self.dtype)
        return Particles(jnp.zeros((1,), jnp.int32), jnp.asarray(z[:, None], self.dtype), 0 * one, one[0], None)

    def noise(self, key, steps: int, particles: int) -> Noise:
        """Normal numbers for every step, and which network a path follows."""
        layout = (Draw("step", (self.off.shape[1], particles), "normal"),)
        drawn = jax.vmap(lambda t: step_noise(layout, jax.random.fold_in(key, 1), t, self.dtype))(jnp.arange(steps))
        member = jax.random.permutation(key, jnp.arange(particles) % len(self.members))
        return {"step": drawn["step"], "member": jnp.broadcast_to(member, (steps, particles))}  # pyright: ignore

    def settle(self, mode, z, action):  # noqa: ARG002
        """The start as it is."""
        return mode, z

    def step(self, mode, z, action, noise: Noise):
        """Every particle moved by its network."""
        shape = mode.shape
        command = jnp.broadcast_to(beside(action, len(shape)), (action.shape[0], *shape))
        given = jnp.concatenate([z, command])
        moved = jnp.zeros((self.off.shape[1], *shape), z.dtype)
        for k, member in enumerate(self.members):
            mine = member(given) + over(self.off[k], len(shape)) * noise["step"]
            moved = jnp.where(noise["member"] == k, mine, moved)
        bodies = (self.off.shape[1] - 4) // 3
        opening = jnp.maximum(z[6:7] + moved[3:4], 0.0)
        places = z[7 : 7 + 3 * bodies] + moved[4:]
        memory = [z[3:6], opening - z[6:7], command]
        return mode, jnp.concatenate([z[:3] + moved[:3], moved[:3], opening, places, moved[4:], *memory])

    def compared(self, *_):
        """Refused: a network has no path law."""
        raise ValueError("networks have no path law to compare; certify by `conformal(record)` of held-out episodes.")

    def refuse_unlike(self, truth: Any) -> None:  # noqa: ARG002
        """Refused: a network has no path law."""
        raise ValueError("networks have no path law to compare; certify by `conformal(record)` of held-out episodes.")


def learned(method: str, view: ContactView, train: Sequence[Episode], seed: int) -> Any:
    """The dynamics of a method, learned from rollouts."""
    if method in ("ours", "no-gap"):
        model = learn_commanded(view, train, seed=seed, sees_gap=method == "ours")
        return contact_dynamics(model, view, train[0].dt)
    return _steps(method, view, train, seed)


def _steps(method: str, view: ContactView, train: Sequence[Episode], seed: int) -> StepDynamics:
    tracks = [track(view, log) for log in train]
    z, after = (np.concatenate([t.z[part] for t in tracks]) for part in (slice(None, -1), slice(1, None)))
    given = np.hstack([z, np.concatenate([t.command for t in tracks])])
    first = 7 + 3 * len(view.bodies)
    moved = np.hstack([after[:, 3:6], after[:, 6:7] - z[:, 6:7], after[:, first : first + 3 * len(view.bodies)]])
    if method == "one-mode":
        pairs = [_linear(given, moved)]
    else:
        pairs = [regression(key, given, moved, HIDDEN) for key in jax.random.split(jax.random.key(seed), MEMBERS)]
    off = jnp.asarray(np.stack([left.std(0) for _, left in pairs]), jnp.float32)
    shown = readouts(view, z.shape[1])
    return StepDynamics(tuple(p[0] for p in pairs), off, *shown, latent=z.shape[1], seconds=train[0].dt)


def _linear(given: np.ndarray, moved: np.ndarray) -> tuple[ScaledNetwork, np.ndarray]:
    """The steps as an affine map, by least squares with a little ridge, and what it leaves."""
    into, out = whitening(given), whitening(moved)
    x, y = (given - into[0]) / into[1], (moved - out[0]) / out[1]
    weights = np.linalg.solve(x.T @ x + 1e-3 * len(x) * np.eye(x.shape[1]), x.T @ y)
    single = lambda values: jnp.asarray(values, jnp.float32)  # noqa: E731
    net = Network((single(weights.T),), (jnp.zeros(y.shape[1], jnp.float32),))
    return ScaledNetwork(net, single(into), single(out)), (y - x @ weights) * out[1]
