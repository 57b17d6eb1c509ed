"""Carts on a rail: two that bump into each other, one that carries a pole between walls, two on springs."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from vhydro.systems.linkages import OneMode
from vhydro.systems.port_hamiltonian import State
from vhydro.systems.simulation import held
from vhydro.systems.textbook import Textbook, two_by_two

APART, TOUCHING = range(2)


@dataclass(frozen=True)
class Carts:
    """State (x, gap, ẋ, gap's rate): two carts, the second ahead of the first by a gap. A force on the first only.

    Seen through their gap they share their inertia: `M = [[m1 + m2, m2], [m2, m2]]`. They bump where the gap is 0.
    """

    masses: tuple[float, float] = (1.0, 0.6)  # kg
    stiffness: float = 900.0  # N/m, of the bumper
    damping: float = 4.0  # N s/m
    springs: tuple[float, float] = (12.0, 15.0)  # N/m, that hold each cart at home
    friction: tuple[float, float] = (0.4, 0.3)  # N s/m: of the first cart's wheels, of a damper between the carts
    home: float = 0.15  # m: the gap at rest
    drive: float = 6.0  # N
    hold: float = 0.3  # s

    def law(self) -> Textbook:
        (m1, m2), k, c, (s1, s2), (f1, f2) = self.masses, self.stiffness, self.damping, self.springs, self.friction

        def accelerations(mode, q, v, a):
            x, gap = q
            bump = k * gap + c * v[1] if mode == TOUCHING else 0.0
            on_second = -s2 * (x + gap - self.home)
            first = a[0] - s1 * x - f1 * v[0] + on_second
            return two_by_two(m1 + m2, m2, m2, first, on_second - f2 * v[1] - bump)

        apart = {
            "M[x,x]": m1 + m2,
            "M[x,gap]": m2,
            "M[gap,gap]": m2,
            "V x": -s2 * self.home,
            "V gap": -s2 * self.home,
            "V x^2": 0.5 * (s1 + s2),
            "V gap^2": 0.5 * s2,
            "V x gap": s2,
            "friction v_x": f1,
            "friction v_gap": f2,
        }
        names = ("x", "gap", "v_x", "v_gap"), ("m", "m", "m/s", "m/s")
        both = (apart, apart | {"stiffness": k, "damping": c})
        return Textbook(("apart", "touching"), *names, ("force",), accelerations, both)

    def settle(self, z: State, action: State):  # noqa: ARG002
        return jnp.where(z[1] < 0, TOUCHING, APART)

    def guard(self, z: State, action: State, mode):  # noqa: ARG002
        return jnp.where(mode == APART, z[1], -z[1])

    def switch(self, z: State, action: State, mode):  # noqa: ARG002
        return z, 1 - mode

    def starts(self, *, key: PRNGKeyArray) -> State:
        x, gap, v, w = jax.random.uniform(key, (4,), minval=-1.0, maxval=1.0)
        return 0.2 * x, self.home * (1 + 0.8 * gap), 0.5 * v, 0.8 * w

    def excitation(self, steps: int, dt, *, key: PRNGKeyArray):
        return self.drive * held(steps, dt, self.hold, key=key)[:, None]


FREE, LEFT, RIGHT = range(3)


@dataclass(frozen=True)
class CartPole:
    """State (x, angle, ẋ, angle's rate): a pole that hangs from a cart between two walls. A force on the cart only."""

    cart: float = 1.0  # kg
    pole: float = 0.3  # kg, at the pole's end
    length: float = 0.5  # m
    wall: float = 0.4  # m: the walls are at −wall and wall
    stiffness: float = 800.0  # N/m, of a wall
    damping: float = 6.0  # N s/m, of a wall
    friction: tuple[float, float] = (0.5, 0.02)  # N s/m of the cart, N m s/rad of the joint
    gravity: float = 9.81  # m/s²
    drive: float = 8.0  # N
    hold: float = 0.3  # s

    def law(self) -> Textbook:
        m, mp, arm, g, (c1, c2) = self.cart, self.pole, self.length, self.gravity, self.friction

        def accelerations(mode, q, v, a):
            x, angle = q
            wall = {FREE: 0.0, LEFT: -self.wall, RIGHT: self.wall}[mode]
            push = self.stiffness * (x - wall) + self.damping * v[0] if mode != FREE else 0.0
            force = a[0] - c1 * v[0] + mp * arm * jnp.sin(angle) * v[1] ** 2 - push
            torque = -c2 * v[1] - mp * g * arm * jnp.sin(angle)
            return two_by_two(m + mp, mp * arm * jnp.cos(angle), mp * arm**2, force, torque)

        free = {
            "M[x,x]": m + mp,
            "M[x,angle] cos(angle)": mp * arm,
            "M[angle,angle]": mp * arm**2,
            "V cos(angle)": -mp * g * arm,
            "friction v_x": c1,
            "friction v_angle": c2,
        }
        touching = free | {"stiffness": self.stiffness, "damping": self.damping}
        names = ("x", "angle", "v_x", "v_angle"), ("m", "rad", "m/s", "rad/s")
        modes = ("free", "left wall", "right wall")
        return Textbook(modes, *names, ("force",), accelerations, (free, touching, touching))

    def settle(self, z: State, action: State):  # noqa: ARG002
        return jnp.where(z[0] < -self.wall, LEFT, jnp.where(z[0] > self.wall, RIGHT, FREE))

    def guard(self, z: State, action: State, mode):  # noqa: ARG002
        clear = self.wall - jnp.abs(z[0])
        return jnp.where(mode == FREE, clear, -clear)

    def switch(self, z: State, action: State, mode):  # noqa: ARG002
        return z, jnp.where(mode == FREE, jnp.where(z[0] < 0, LEFT, RIGHT), FREE)

    def starts(self, *, key: PRNGKeyArray) -> State:
        draw = jax.random.uniform(key, (4,), minval=-1.0, maxval=1.0)
        return tuple(draw * jnp.array([0.3, 1.0, 0.8, 2.0]))

    def excitation(self, steps: int, dt, *, key: PRNGKeyArray):
        return self.drive * held(steps, dt, self.hold, key=key)[:, None]


@dataclass(frozen=True)
class Train(OneMode):
    """State (x1, x2, v1, v2): two wagons on springs, the first to a post, the second to the first. A force on x1."""

    masses: tuple[float, float] = (1.2, 0.7)  # kg
    stiffness: tuple[float, float] = (30.0, 45.0)  # N/m
    coupling: float = 0.5  # N s/m, of the damper between the wagons
    friction: float = 0.3  # N s/m, of the first wagon's wheels
    drive: float = 8.0  # N
    hold: float = 0.3  # s

    def law(self) -> Textbook:
        (m1, m2), (k1, k2), c, f = self.masses, self.stiffness, self.coupling, self.friction

        def accelerations(_mode, q, v, a):
            between = k2 * (q[1] - q[0]) + c * (v[1] - v[0])
            return (a[0] - k1 * q[0] - f * v[0] + between) / m1, -between / m2

        truth = {
            "M[x1,x1]": m1,
            "M[x2,x2]": m2,
            "V x1^2": 0.5 * (k1 + k2),
            "V x2^2": 0.5 * k2,
            "V x1 x2": -k2,
            "friction v_x1": f,
            "friction (v_x1 − v_x2)": c,
        }
        names = ("x1", "x2", "v_x1", "v_x2"), ("m", "m", "m/s", "m/s")
        return Textbook(("runs",), *names, ("force",), accelerations, (truth,))

    def starts(self, *, key: PRNGKeyArray) -> State:
        draw = jax.random.uniform(key, (4,), minval=-1.0, maxval=1.0)
        return tuple(draw * jnp.array([0.2, 0.2, 0.5, 0.5]))

    def excitation(self, steps: int, dt, *, key: PRNGKeyArray):
        return self.drive * held(steps, dt, self.hold, key=key)[:, None]
