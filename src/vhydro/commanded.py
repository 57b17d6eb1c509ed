"""A contact model driven by commands: hand, its last step, opening, bodies and their last steps are the state.

A servo network says where the hand goes. Every body rests, goes with the hand, or coasts; a kernel that sees the gap
before and after the hand's step says which, and contact beyond reach is infeasible.
"""

from functools import reduce
from operator import add

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vhydro.network import Network
from vhydro.small import log_softmax, over, stacked

REST, HELD, COAST = range(3)
REGIMES = ("rests", "goes with the hand", "coasts")


class CommandedModel(eqx.Module):
    """What `learn_commanded` finds; lengths are in metres, a step is one sample of the logs."""

    servo: Network  # (place, last step, opening, command) → the hand's step and the opening's, standardised
    servo_in: Float[Array, "two servo_inputs"]  # shift and scale
    servo_out: Float[Array, "two four"]
    servo_noise: Float[Array, "four"]
    kernels: tuple[Network, ...]  # one for each body: (gap before and after, opening, command, last step, regime)
    gains: Float[Array, "bodies regimes three features"]  # of (hand's step, own last step, gap, 1)
    noise: Float[Array, "bodies regimes three"]
    reach: Float[Array, "bodies"]  # m: beyond it nothing can begin to move
    bodies: tuple[str, ...] = eqx.field(static=True)
    moves: tuple[str, ...] = eqx.field(static=True)
    grip: str = eqx.field(static=True)

    @property
    def latent(self) -> int:
        return 7 + 6 * len(self.bodies)

    @property
    def modes(self) -> int:
        return 3 ** len(self.bodies)

    def place(self, body: int) -> slice:
        return slice(7 + 3 * body, 10 + 3 * body)

    def last_step(self, body: int) -> slice:
        first = 7 + 3 * (len(self.bodies) + body)
        return slice(first, first + 3)

    def servo_step(self, z: Float[Array, "latent ..."], command: Float[Array, "inputs ..."]) -> Float[Array, "4 ..."]:
        """The mean step of the hand and of the opening."""
        given = jnp.concatenate([z[:7], command])
        axes = given.ndim - 1
        whitened = (given - over(self.servo_in[0], axes)) / over(self.servo_in[1], axes)
        return self.servo(whitened) * over(self.servo_out[1], axes) + over(self.servo_out[0], axes)

    def log_regime(
        self, body: int, regime: Int[Array, "..."], z: Float[Array, "latent ..."], step: Float[Array, "4 ..."],
        command: Float[Array, "inputs ..."],
    ) -> Float[Array, "3 ..."]:  # fmt: skip
        """Log probabilities of what the body does next; −∞ where nothing is near enough to make it."""
        before = z[self.place(body)] - z[:3]
        after = before - step[:3]
        own = z[self.last_step(body)]
        was = jnp.stack([(regime == r).astype(z.dtype) for r in range(3)])
        given = jnp.concatenate([20 * before, 20 * after, 30 * z[6:7], command, 100 * own, was])
        near = jnp.minimum(_length(before), _length(after))
        for other in range(len(self.bodies)):
            if other != body:
                near = jnp.minimum(near, _length(z[self.place(body)] - z[self.place(other)]))
        far = near > self.reach[body]
        logits = self.kernels[body](given)
        none = jnp.full_like(logits[0], -jnp.inf)
        held = jnp.where(far, none, logits[HELD])
        coast = jnp.where(far & (regime == REST), none, logits[COAST])
        return log_softmax(jnp.stack([logits[REST], held, coast]))

    def body_step(self, body: int, z: Float[Array, "latent ..."], step: Float[Array, "4 ..."]):
        """The mean step of the body in every regime, (3 regimes, 3, …)."""
        gap = z[self.place(body)] - z[:3] - step[:3]
        given = jnp.concatenate([step[:3], z[self.last_step(body)], gap, jnp.ones_like(gap[:1])])
        axes = given.ndim - 1
        gains = self.gains[body]
        return stacked([reduce(add, (over(gains[r, :, k], axes) * given[k] for k in range(10))) for r in range(3)])


def _length(vector: Float[Array, "3 ..."]) -> Float[Array, "..."]:
    return jnp.sqrt(vector[0] ** 2 + vector[1] ** 2 + vector[2] ** 2)
