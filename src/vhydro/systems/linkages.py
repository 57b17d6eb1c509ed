"""Linkages whose inertia couples their joints and changes with their pose."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from vhydro.systems.port_hamiltonian import State, refuse_constants
from vhydro.systems.simulation import held
from vhydro.systems.textbook import Textbook, two_by_two


class OneMode:
    """What the simulator asks of a system that has no contacts."""

    def settle(self, z: State, action: State):  # noqa: ARG002
        return jnp.zeros_like(z[0], dtype=jnp.int32)

    def guard(self, z: State, action: State, mode):  # noqa: ARG002
        return jnp.ones_like(z[0])

    def switch(self, z: State, action: State, mode):  # noqa: ARG002
        return z, mode


@dataclass(frozen=True)
class DoublePendulum(OneMode):
    """State (q1, q2, v1, v2), both angles from hanging down. Point masses on rods; a torque on the first joint only."""

    masses: tuple[float, float] = (1.0, 0.6)  # kg
    lengths: tuple[float, float] = (0.5, 0.4)  # m
    friction: tuple[float, float] = (0.08, 0.05)  # N m s/rad: of each bob in the air, about its pivot
    gravity: float = 9.81  # m/s²
    drive: float = 4.0  # N m: largest random torque
    hold: float = 0.3  # s

    def law(self) -> Textbook:
        (m1, m2), (l1, l2), (c1, c2), g = self.masses, self.lengths, self.friction, self.gravity

        def accelerations(_mode, q, v, a):
            apart = q[0] - q[1]
            coupled = m2 * l1 * l2
            force1 = a[0] - c1 * v[0] - coupled * jnp.sin(apart) * v[1] ** 2 - (m1 + m2) * g * l1 * jnp.sin(q[0])
            force2 = -c2 * v[1] + coupled * jnp.sin(apart) * v[0] ** 2 - m2 * g * l2 * jnp.sin(q[1])
            return two_by_two((m1 + m2) * l1**2, coupled * jnp.cos(apart), m2 * l2**2, force1, force2)

        truth = {
            "M[q1,q1]": (m1 + m2) * l1**2,
            "M[q2,q2]": m2 * l2**2,
            "M[q1,q2] cos(q1 − q2)": m2 * l1 * l2,
            "V cos(q1)": -(m1 + m2) * g * l1,
            "V cos(q2)": -m2 * g * l2,
            "friction v_q1": c1,
            "friction v_q2": c2,
        }
        names = ("q1", "q2", "v_q1", "v_q2"), ("rad", "rad", "rad/s", "rad/s")
        return Textbook(("swings",), *names, ("torque",), accelerations, (truth,))

    def starts(self, *, key: PRNGKeyArray) -> State:
        draw = jax.random.uniform(key, (4,), minval=-1.0, maxval=1.0)
        return tuple(draw * jnp.array([1.2, 1.2, 2.0, 2.0]))

    def excitation(self, steps: int, dt, *, key: PRNGKeyArray):
        return self.drive * held(steps, dt, self.hold, key=key)[:, None]


@dataclass(frozen=True)
class Arm(OneMode):
    """State (q1, q2, v1, v2): a level arm of two links, each angle counted from the link before. Torques on both."""

    inertias: tuple[float, float] = (0.12, 0.05)  # kg m², of the links about their joints
    tip: float = 0.8  # kg, at the second link's end
    lengths: tuple[float, float] = (0.4, 0.3)  # m
    friction: tuple[float, float] = (0.15, 0.08)  # N m s/rad
    drive: float = 1.5  # N m: largest random torque on the first joint, half of it on the second
    hold: float = 0.3  # s

    def law(self) -> Textbook:
        (i1, i2), m, (l1, l2), (c1, c2) = self.inertias, self.tip, self.lengths, self.friction
        outer = i2 + m * l2**2
        first, bent = i1 + m * l1**2 + outer, m * l1 * l2

        def accelerations(_mode, q, v, a):
            cosine, sine = jnp.cos(q[1]), jnp.sin(q[1])
            force1 = a[0] - c1 * v[0] + bent * sine * (2 * v[0] * v[1] + v[1] ** 2)
            force2 = a[1] - c2 * v[1] - bent * sine * v[0] ** 2
            return two_by_two(first + 2 * bent * cosine, outer + bent * cosine, outer, force1, force2)

        truth = {
            "M[q1,q1]": first,
            "M[q1,q1] cos(q2)": 2 * bent,
            "M[q1,q2]": outer,
            "M[q1,q2] cos(q2)": bent,
            "M[q2,q2]": outer,
            "friction v_q1": c1,
            "friction v_q2": c2,
        }
        names = ("q1", "q2", "v_q1", "v_q2"), ("rad", "rad", "rad/s", "rad/s")
        return Textbook(("moves",), *names, ("torque 1", "torque 2"), accelerations, (truth,))

    def starts(self, *, key: PRNGKeyArray) -> State:
        draw = jax.random.uniform(key, (4,), minval=-1.0, maxval=1.0)
        return tuple(draw * jnp.array([1.0, 1.5, 1.0, 1.0]))

    def excitation(self, steps: int, dt, *, key: PRNGKeyArray):
        one, two = jax.random.split(key)
        pair = held(steps, dt, self.hold, key=one), 0.5 * held(steps, dt, self.hold, key=two)
        return self.drive * jnp.stack(pair, -1)


@dataclass(frozen=True)
class SpringPendulum(OneMode):
    """State (r, angle, ṙ, angle's rate): a bob on a spring that swings; its inertia grows with r². A torque only."""

    mass: float = 0.5  # kg
    stiffness: float = 60.0  # N/m
    length: float = 0.4  # m, of the slack spring
    friction: tuple[float, float] = (0.3, 0.02)  # N s/m along the spring, N m s/rad
    gravity: float = 9.81  # m/s²
    drive: float = 0.8  # N m
    hold: float = 0.3  # s

    def __post_init__(self):
        refuse_constants(self, positive=("mass", "stiffness", "length", "gravity", "hold"), not_negative=("drive",))

    def law(self) -> Textbook:
        m, k, slack, (c1, c2), g = self.mass, self.stiffness, self.length, self.friction, self.gravity

        def accelerations(_mode, q, v, a):
            r, angle = q
            outward = m * r * v[1] ** 2 - k * (r - slack) + m * g * jnp.cos(angle) - c1 * v[0]
            around = a[0] - m * g * r * jnp.sin(angle) - c2 * v[1] - 2 * m * r * v[0] * v[1]
            return outward / m, around / (m * r**2)

        truth = {
            "M[r,r]": m,
            "M[angle,angle] r^2": m,
            "V r": -k * slack,
            "V r^2": 0.5 * k,
            "V r cos(angle)": -m * g,
            "friction v_r": c1,
            "friction v_angle": c2,
        }
        names = ("r", "angle", "v_r", "v_angle"), ("m", "rad", "m/s", "rad/s")
        rest = (self.length + m * g / k, 0.0, 0.0, 0.0)
        return Textbook(("swings",), *names, ("torque",), accelerations, (truth,), rest)

    def starts(self, *, key: PRNGKeyArray) -> State:
        r, angle, v, w = jax.random.uniform(key, (4,), minval=-1.0, maxval=1.0)
        rest = self.length + self.mass * self.gravity / self.stiffness
        return rest + 0.08 * r, 0.8 * angle, 0.3 * v, 1.0 * w

    def excitation(self, steps: int, dt, *, key: PRNGKeyArray):
        return self.drive * held(steps, dt, self.hold, key=key)[:, None]
