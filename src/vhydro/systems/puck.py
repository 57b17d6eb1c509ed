"""A puck that bounces between two compliant walls."""

from dataclasses import dataclass
from math import exp, pi, sqrt

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from vhydro.library import Monomial, Penetration
from vhydro.systems.port_hamiltonian import Energy, Law, State, canonical, refuse_constants
from vhydro.systems.simulation import held

FREE, LEFT, RIGHT = range(3)


@dataclass(frozen=True)
class Puck:
    """State (q, p). A wall is a spring and damper, acting while the puck is past it; the input is a force."""

    mass: float = 0.5  # kg
    wall: float = 1.0  # m: the walls are at −wall and wall
    stiffness: float = 1200.0  # N/m, of a wall
    damping: float = 5.5  # N s/m, of a wall
    friction: float = 0.1  # N s/m, of the table, everywhere
    drive: float = 3.0  # N: largest random force; 0 for none
    hold: float = 0.25  # s: how long a random force lasts
    noise: float = 0.0  # kg m/s: process noise on the momentum, gathered in one second
    start_position: float = 0.8  # m: starts are uniform in ± this …
    start_momentum: float = 2.0  # kg m/s: … and ± this

    def __post_init__(self):
        refuse_constants(
            self,
            positive=("mass", "wall", "stiffness", "hold"),
            not_negative=("damping", "friction", "drive", "noise", "start_position", "start_momentum"),
        )
        if self.damping_ratio >= 1:
            raise ValueError(
                f"the walls of Puck have damping ratio {self.damping_ratio:g}; expected less than 1, or "
                "the puck never bounces off. Lower `damping` or raise `stiffness`."
            )

    @property
    def constants(self) -> dict[str, tuple[float, str]]:
        """Every physical constant: its value and its unit."""
        return {
            "mass": (self.mass, "kg"),
            "wall": (self.wall, "m"),
            "stiffness": (self.stiffness, "N/m"),
            "damping": (self.damping, "N s/m"),
            "friction": (self.friction, "N s/m"),
        }

    @property
    def damping_ratio(self) -> float:
        return (self.damping + self.friction) / (2 * sqrt(self.stiffness * self.mass))

    @property
    def restitution(self) -> float:
        """Speed off a wall over speed onto it, without a force."""
        return exp(-pi * self.damping_ratio / sqrt(1 - self.damping_ratio**2))

    def law(self) -> Law:
        free: Energy = {Monomial((0, 2)): 0.5 / self.mass}
        left = free | {Penetration(0, -self.wall, "below"): self.stiffness}
        right = free | {Penetration(0, self.wall, "above"): self.stiffness}
        touching = self.friction + self.damping
        return Law(
            modes=("free", "left wall", "right wall"),
            coordinates=("q", "p"),
            units=("m", "kg m/s"),
            inputs=("force",),
            energies=(free, left, right),
            interconnection=canonical(3, 1),
            dissipation=np.array([np.diag([0.0, r]) for r in (self.friction, touching, touching)]),
            port=np.tile([[0.0], [1.0]], (3, 1, 1)),
            noise=np.tile([0.0, self.noise], (3, 1)),
        )

    def settle(self, z: State, action: State):  # noqa: ARG002
        """The mode at z: which wall it is past."""
        return jnp.where(z[0] < -self.wall, LEFT, jnp.where(z[0] > self.wall, RIGHT, FREE))

    def guard(self, z: State, action: State, mode):  # noqa: ARG002
        """The distance to the nearer wall when free, the depth in a wall when touching."""
        clear = self.wall - jnp.abs(z[0])
        return jnp.where(mode == FREE, clear, -clear)

    def switch(self, z: State, action: State, mode):  # noqa: ARG002
        return z, jnp.where(mode == FREE, jnp.where(z[0] < 0, LEFT, RIGHT), FREE)

    def starts(self, *, key: PRNGKeyArray) -> State:
        q, p = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        return self.start_position * q, self.start_momentum * p

    def excitation(self, steps: int, dt, *, key: PRNGKeyArray):
        return self.drive * held(steps, dt, self.hold, key=key)[:, None]
