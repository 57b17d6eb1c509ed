"""A contact model driven by commands; its state: hand, its last step, opening, bodies, their last steps, a memory.

Servo networks say where the hand and the fingers go; a servo lags, so that they also see the step before the last, how
the fingers moved and the command before. Every body rests, goes with the hand, or coasts; a kernel that sees the gap
before and after the hand's step says which, and contact beyond reach is infeasible.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vhydro.network import Network
from vhydro.small import log_softmax, over

REST, HELD, COAST = range(3)
REGIMES = ("rests", "goes with the hand", "coasts")
MEMORY = 8  # the hand's step before the last, the opening's last step, the last command: three, one, four


class ScaledNetwork(eqx.Module):
    """A network of whitened inputs and outputs."""

    net: Network
    given: Float[Array, "two _inputs"]  # shift and scale
    told: Float[Array, "two _outputs"]

    def __call__(self, x: Float[Array, "inputs ..."]) -> Float[Array, "outputs ..."]:
        axes = x.ndim - 1
        whitened = (x - over(self.given[0], axes)) / over(self.given[1], axes)
        return self.net(whitened) * over(self.told[1], axes) + over(self.told[0], axes)


class CommandedModel(eqx.Module):
    """What `learn_commanded` finds; lengths are in metres, a step is one sample of the logs."""

    hand: ScaledNetwork  # the hand's step; see `hand_inputs`
    fingers: ScaledNetwork  # the opening's step; see `finger_inputs`
    servo_noise: Float[Array, "four"]  # how far these two are off
    kernels: tuple[ScaledNetwork, ...]  # one for each body: what it does next, of `body_inputs` and what it did
    flows: tuple[ScaledNetwork, ...]  # one for each body: its step, of `body_inputs` and what it does
    noise: Float[Array, "bodies regimes three"]
    reach: Float[Array, "bodies"]  # m: beyond it nothing can begin to move
    bodies: tuple[str, ...] = eqx.field(static=True)
    moves: tuple[str, ...] = eqx.field(static=True)
    grip: str = eqx.field(static=True)

    @property
    def latent(self) -> int:
        return 7 + 6 * len(self.bodies) + MEMORY

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
        return jnp.concatenate([self.hand(hand_inputs(z, command)), self.fingers(finger_inputs(z, command))])

    def log_regime(
        self, body: int, regime: Int[Array, "..."], z: Float[Array, "latent ..."], step: Float[Array, "4 ..."],
        command: Float[Array, "inputs ..."],
    ) -> Float[Array, "3 ..."]:  # fmt: skip
        """Log probabilities of what the body does next; −∞ where nothing is near enough to make it."""
        before = z[self.place(body)] - z[:3]
        near = jnp.minimum(_length(before), _length(before - step[:3]))
        for other in range(len(self.bodies)):
            if other != body:
                near = jnp.minimum(near, _length(z[self.place(body)] - z[self.place(other)]))
        far = near > self.reach[body]
        logits = self.kernels[body](body_inputs(body, len(self.bodies), regime, z, step, command))
        none = jnp.full_like(logits[0], -jnp.inf)
        held = jnp.where(far, none, logits[HELD])
        coast = jnp.where(far & (regime == REST), none, logits[COAST])
        return log_softmax(jnp.stack([logits[REST], held, coast]))

    def body_step(
        self, body: int, regime: Int[Array, "..."], z: Float[Array, "latent ..."], step: Float[Array, "4 ..."],
        command: Float[Array, "inputs ..."],
    ) -> Float[Array, "3 ..."]:  # fmt: skip
        """The mean step of a body that does this; one that rests stays."""
        moved = self.flows[body](body_inputs(body, len(self.bodies), regime, z, step, command))
        return jnp.where(regime == REST, 0.0, moved)


def body_inputs(
    body: int, bodies: int, regime: Int[Array, "..."], z: Float[Array, "latent ..."], step: Float[Array, "4 ..."],
    command: Float[Array, "inputs ..."],
) -> Float[Array, "features ..."]:  # fmt: skip
    """What a body's step depends on: gaps before and after the hand's step, fingers, its last step, a regime."""
    place = lambda i: z[7 + 3 * i : 10 + 3 * i]  # noqa: E731
    own = z[7 + 3 * (bodies + body) : 10 + 3 * (bodies + body)]
    before = place(body) - z[:3]
    fingers = jnp.concatenate([z[6:7], z[6:7] + step[3:4], command[3:4]])
    doing = jnp.stack([(regime == r).astype(z.dtype) for r in range(3)])
    others = [place(body) - place(i) for i in range(bodies) if i != body]
    return jnp.concatenate([before, before - step[:3], step[:3], own, fingers, place(body)[2:3], doing, *others])


def hand_inputs(z: Float[Array, "latent ..."], command: Float[Array, "inputs ..."]) -> Float[Array, "features ..."]:
    """What the hand's step depends on: its place, its last two steps, the opening, the command and the one before."""
    return jnp.concatenate([z[:7], z[-MEMORY:], command])


def finger_inputs(z: Float[Array, "latent ..."], command: Float[Array, "inputs ..."]) -> Float[Array, "features ..."]:
    """What the opening's step depends on: itself, its last step, height and motion of the hand, two grip commands."""
    return jnp.concatenate([z[2:7], z[-5:-4], z[-1:], command[3:4]])


def _length(vector: Float[Array, "3 ..."]) -> Float[Array, "..."]:
    return jnp.sqrt(vector[0] ** 2 + vector[1] ** 2 + vector[2] ** 2)
