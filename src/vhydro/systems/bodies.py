"""Single bodies: a ball in a bowl, a sled with two frictions, a ball that bounces off the floor."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from vhydro.systems.linkages import OneMode
from vhydro.systems.port_hamiltonian import State, refuse_constants
from vhydro.systems.simulation import held
from vhydro.systems.textbook import Textbook


@dataclass(frozen=True)
class Bowl(OneMode):
    """State (x, ẋ): a ball that rolls in a bowl of height `depth x²`, pushed along the bowl's floor plan.

    Its inertia changes with its place, `1.4 m (1 + 4 depth² x²)`: it rolls, and rises as it goes.
    """

    mass: float = 0.4  # kg, of a solid ball
    depth: float = 1.2  # 1/m
    friction: float = 0.15  # N s/m
    gravity: float = 9.81  # m/s²
    drive: float = 4.0  # N
    hold: float = 0.3  # s

    def __post_init__(self):
        refuse_constants(self, positive=("mass", "depth", "gravity", "hold"), not_negative=("friction", "drive"))

    def law(self) -> Textbook:
        m, b, g, c = 1.4 * self.mass, 4 * self.depth**2, self.gravity, self.friction

        def accelerations(_mode, q, v, a):
            force = a[0] - c * v[0] - m * b * q[0] * v[0] ** 2 - 2 * self.mass * g * self.depth * q[0]
            return (force / (m * (1 + b * q[0] ** 2)),)

        truth = {"M[x,x]": m, "M[x,x] x^2": m * b, "V x^2": self.mass * g * self.depth, "friction v_x": c}
        return Textbook(("rolls",), ("x", "v_x"), ("m", "m/s"), ("force",), accelerations, (truth,))

    def starts(self, *, key: PRNGKeyArray) -> State:
        x, v = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        return 0.5 * x, 1.0 * v

    def excitation(self, steps: int, dt, *, key: PRNGKeyArray):
        return self.drive * held(steps, dt, self.hold, key=key)[:, None]


STICK, FORWARD, BACKWARD = range(3)


@dataclass(frozen=True)
class Sled:
    """State (x, ẋ): a sled on a spring, slowed by dry friction and by the air's quadratic drag. It may stick.

    Where `more` is not 0 its dry friction is more by that at a standstill, and fades to `dry` with speed (Stribeck).
    """

    mass: float = 0.8  # kg
    stiffness: float = 15.0  # N/m
    dry: float = 1.0  # N
    drag: float = 0.6  # N s²/m²
    more: float = 0.0  # N
    fades: float = 0.1  # m/s
    drive: float = 9.0  # N
    hold: float = 0.5  # s

    def __post_init__(self):
        refuse_constants(
            self, positive=("mass", "hold", "fades"), not_negative=("stiffness", "dry", "drag", "more", "drive")
        )

    def law(self) -> Textbook:
        def accelerations(mode, q, v, a):
            if mode == STICK:
                return (0.0 * q[0],)
            sign = 1.0 if mode == FORWARD else -1.0
            dry = self.dry + self.more * jnp.exp(-jnp.abs(v[0]) / self.fades)
            return ((a[0] - self.stiffness * q[0] - sign * (dry + self.drag * v[0] ** 2)) / self.mass,)

        slides = {
            "M[x,x]": self.mass,
            "V x^2": 0.5 * self.stiffness,
            "friction sign(v_x)": self.dry,
            "friction |v_x| v_x": self.drag,
        }
        if self.more:
            slides |= {"friction sign(v_x) exp(−|v_x|/s)": self.more, "s of v_x": self.fades}
        modes = ("stick", "forward", "backward")
        return Textbook(modes, ("x", "v_x"), ("m", "m/s"), ("force",), accelerations, ({}, slides, slides))

    def settle(self, z: State, action: State):
        force = action[0] - self.stiffness * z[0]
        push = jnp.where(z[1] != 0, z[1], jnp.where(jnp.abs(force) > self.dry + self.more, force, 0.0))
        return jnp.where(push > 0, FORWARD, jnp.where(push < 0, BACKWARD, STICK))

    def guard(self, z: State, action: State, mode):  # noqa: ARG002
        return jnp.where(mode == STICK, 1.0, jnp.where(mode == FORWARD, z[1], -z[1]))

    def switch(self, z: State, action: State, mode):  # noqa: ARG002
        stopped = (z[0], jnp.zeros_like(z[1]))
        return stopped, self.settle(stopped, action)

    def starts(self, *, key: PRNGKeyArray) -> State:
        x, v = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        return 0.3 * x, 1.5 * v

    def excitation(self, steps: int, dt, *, key: PRNGKeyArray):
        return self.drive * held(steps, dt, self.hold, key=key)[:, None]


FLIES, LIES = range(2)


@dataclass(frozen=True)
class Ball:
    """State (height, ẏ): a ball that bounces off the floor with restitution, pushed up and down by a known force.

    A bounce is an instant: `ẏ ← −restitution ẏ`. Below a slow speed the ball stays on the floor until it is lifted.
    """

    mass: float = 0.3  # kg
    restitution: float = 0.8
    gravity: float = 9.81  # m/s²
    slow: float = 0.15  # m/s: a slower bounce is none
    drive: float = 1.5  # N
    hold: float = 0.5  # s

    def __post_init__(self):
        refuse_constants(self, positive=("mass", "gravity", "hold", "slow"), not_negative=("restitution", "drive"))

    def law(self) -> Textbook:
        def accelerations(mode, q, v, a):  # noqa: ARG001
            return (a[0] / self.mass - self.gravity if mode == FLIES else 0.0 * q[0],)

        flies = {"M[y,y]": self.mass, "V y": self.mass * self.gravity, "restitution": self.restitution, "floor": 0.0}
        return Textbook(("flies", "lies"), ("y", "v_y"), ("m", "m/s"), ("force",), accelerations, (flies, {}))

    def settle(self, z: State, action: State):
        down = action[0] <= self.mass * self.gravity
        return jnp.where((z[0] <= 1e-9) & (jnp.abs(z[1]) < 1e-9) & down, LIES, FLIES)

    def guard(self, z: State, action: State, mode):  # noqa: ARG002
        return jnp.where(mode == LIES, 1.0, z[0] + 1e-12)

    def switch(self, z: State, action: State, mode):  # noqa: ARG002
        bounced = -self.restitution * z[1]
        lies = bounced < self.slow
        return (jnp.zeros_like(z[0]), jnp.where(lies, 0.0, bounced)), jnp.where(lies, LIES, FLIES)

    def starts(self, *, key: PRNGKeyArray) -> State:
        y, v = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        return 0.8 + 0.4 * y, 1.0 * v

    def excitation(self, steps: int, dt, *, key: PRNGKeyArray):
        return self.drive * held(steps, dt, self.hold, key=key)[:, None]
