"""A pendulum that swings between two compliant stops."""

from dataclasses import dataclass
from math import pi

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from vhydro.library import Cosine, Monomial, Penetration
from vhydro.systems.port_hamiltonian import Energy, Law, State, canonical, refuse_constants
from vhydro.systems.simulation import held

FREE, LOWER, UPPER = range(3)


@dataclass(frozen=True)
class Pendulum:
    """State (angle, angular momentum), angle 0 hanging down. A point mass on a rod; its input is a torque."""

    mass: float = 0.5  # kg
    length: float = 0.5  # m
    gravity: float = 9.81  # m/s²
    stop: float = 1.0  # rad: the stops are at −stop and stop
    stiffness: float = 300.0  # N m/rad, of a stop
    damping: float = 1.2  # N m s/rad, of a stop
    friction: float = 0.02  # N m s/rad, of the bearing, everywhere
    drive: float = 1.0  # N m: largest random torque; 0 for none
    hold: float = 0.25  # s: how long a random torque lasts
    noise: float = 0.0  # kg m²/s: process noise on the angular momentum, gathered in one second
    start_angle: float = 0.8  # rad: starts are uniform in ± this …
    start_momentum: float = 0.8  # kg m²/s: … and ± this

    def __post_init__(self):
        refuse_constants(
            self,
            positive=("mass", "length", "gravity", "stop", "stiffness", "hold"),
            not_negative=("damping", "friction", "drive", "noise", "start_angle", "start_momentum"),
        )
        if self.stop >= pi:
            raise ValueError(
                f"the stops of Pendulum are at ±{self.stop:g} rad; expected less than π, or the two "
                "meet above. Lower `stop`."
            )

    @property
    def constants(self) -> dict[str, tuple[float, str]]:
        """Every physical constant: its value and its unit."""
        return {
            "mass": (self.mass, "kg"),
            "length": (self.length, "m"),
            "gravity": (self.gravity, "m/s²"),
            "stop": (self.stop, "rad"),
            "stiffness": (self.stiffness, "N m/rad"),
            "damping": (self.damping, "N m s/rad"),
            "friction": (self.friction, "N m s/rad"),
        }

    @property
    def inertia(self) -> float:
        return self.mass * self.length**2

    def law(self) -> Law:
        weight = self.mass * self.gravity * self.length
        free: Energy = {Monomial((0, 2)): 0.5 / self.inertia, Cosine(0): -weight}
        lower = free | {Penetration(0, -self.stop, "below"): self.stiffness}
        upper = free | {Penetration(0, self.stop, "above"): self.stiffness}
        touching = self.friction + self.damping
        return Law(
            modes=("free", "lower stop", "upper stop"),
            coordinates=("angle", "momentum"),
            units=("rad", "kg m²/s"),
            inputs=("torque",),
            energies=(free, lower, upper),
            interconnection=canonical(3, 1),
            dissipation=np.array([np.diag([0.0, r]) for r in (self.friction, touching, touching)]),
            port=np.tile([[0.0], [1.0]], (3, 1, 1)),
            noise=np.tile([0.0, self.noise], (3, 1)),
        )

    def settle(self, z: State, action: State):  # noqa: ARG002
        """The mode at z: which stop it is past."""
        return jnp.where(z[0] < -self.stop, LOWER, jnp.where(z[0] > self.stop, UPPER, FREE))

    def guard(self, z: State, action: State, mode):  # noqa: ARG002
        """The angle to the nearer stop when free, the depth in a stop when touching."""
        clear = self.stop - jnp.abs(z[0])
        return jnp.where(mode == FREE, clear, -clear)

    def switch(self, z: State, action: State, mode):  # noqa: ARG002
        return z, jnp.where(mode == FREE, jnp.where(z[0] < 0, LOWER, UPPER), FREE)

    def starts(self, *, key: PRNGKeyArray) -> State:
        angle, momentum = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        return self.start_angle * angle, self.start_momentum * momentum

    def excitation(self, steps: int, dt, *, key: PRNGKeyArray):
        return self.drive * held(steps, dt, self.hold, key=key)[:, None]
