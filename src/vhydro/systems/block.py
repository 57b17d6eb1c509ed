"""A block on a rough table, held by a spring and driven by a force: it sticks and slips."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from vhydro.library import Monomial
from vhydro.systems.port_hamiltonian import Energy, Law, State, canonical, refuse_constants
from vhydro.systems.simulation import held

STICK, FORWARD, BACKWARD = range(3)


@dataclass(frozen=True)
class Block:
    """State (q, p), q from where the spring is slack. Coulomb friction; its input is a force.

    In a slip mode friction is a constant force, so a linear term of that mode's H. A stuck block does not
    move at all: friction answers every force, H has no term, and process noise does not shake it loose.
    """

    mass: float = 1.0  # kg
    stiffness: float = 20.0  # N/m, of the spring
    static_friction: float = 0.3  # friction coefficient that a stuck block has to overcome
    kinetic_friction: float = 0.25  # friction coefficient while it slips
    viscosity: float = 0.2  # N s/m, while it slips
    gravity: float = 9.81  # m/s²
    drive: float = 8.0  # N: largest random force; 0 for none
    hold: float = 0.5  # s: how long a random force lasts
    noise: float = 0.0  # kg m/s: process noise on the momentum while it slips, gathered in one second
    start_position: float = 0.3  # m: starts are uniform in ± this …
    start_momentum: float = 1.0  # kg m/s: … and ± this

    def __post_init__(self):
        refuse_constants(
            self,
            positive=("mass", "gravity", "hold"),
            not_negative=(
                *("stiffness", "static_friction", "kinetic_friction", "viscosity"),
                *("drive", "noise", "start_position", "start_momentum"),
            ),
        )
        if self.static_friction < self.kinetic_friction:
            raise ValueError(
                f"static_friction of Block is {self.static_friction:g}, below its kinetic_friction "
                f"{self.kinetic_friction:g}; expected at least that, or a block could neither stick nor "
                "slip. Raise `static_friction`."
            )

    @property
    def constants(self) -> dict[str, tuple[float, str]]:
        """Every physical constant: its value and its unit."""
        return {
            "mass": (self.mass, "kg"),
            "stiffness": (self.stiffness, "N/m"),
            "static_friction": (self.static_friction, "1"),
            "kinetic_friction": (self.kinetic_friction, "1"),
            "viscosity": (self.viscosity, "N s/m"),
            "gravity": (self.gravity, "m/s²"),
        }

    def law(self) -> Law:
        smooth: Energy = {Monomial((0, 2)): 0.5 / self.mass, Monomial((2, 0)): 0.5 * self.stiffness}
        drag = self.kinetic_friction * self.mass * self.gravity
        forward, backward = smooth | {Monomial((1, 0)): drag}, smooth | {Monomial((1, 0)): -drag}
        slips = np.array([0.0, 1.0, 1.0])[:, None, None]
        return Law(
            modes=("stick", "slip forward", "slip backward"),
            coordinates=("q", "p"),
            units=("m", "kg m/s"),
            inputs=("force",),
            energies=({}, forward, backward),
            interconnection=canonical(3, 1),
            dissipation=slips * np.diag([0.0, self.viscosity]),
            port=slips * np.array([[0.0], [1.0]]),
            noise=slips[:, :, 0] * np.array([0.0, self.noise]),
        )

    def settle(self, z: State, action: State):
        """The mode at z: the direction it moves in, or that it is pulled in hard enough to start."""
        q, p = z
        force = action[0] - self.stiffness * q
        breaks = jnp.abs(force) > self.static_friction * self.mass * self.gravity
        push = jnp.where(p != 0, p, jnp.where(breaks, force, 0.0))
        return jnp.where(push > 0, FORWARD, jnp.where(push < 0, BACKWARD, STICK))

    def guard(self, z: State, action: State, mode):  # noqa: ARG002
        """The momentum along the slip; a stuck block stays so, as its force is constant between samples."""
        return jnp.where(mode == STICK, 1.0, jnp.where(mode == FORWARD, z[1], -z[1]))

    def switch(self, z: State, action: State, mode):  # noqa: ARG002
        stopped = (z[0], jnp.zeros_like(z[1]))
        return stopped, self.settle(stopped, action)

    def starts(self, *, key: PRNGKeyArray) -> State:
        q, p = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        return self.start_position * q, self.start_momentum * p

    def excitation(self, steps: int, dt, *, key: PRNGKeyArray):
        return self.drive * held(steps, dt, self.hold, key=key)[:, None]
