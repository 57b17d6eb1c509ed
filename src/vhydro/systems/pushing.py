"""Planar pushing: a pusher's tip shoves a slider over an oily table, and loses it, and catches it again."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from vhydro.library import Monomial, Penetration
from vhydro.systems.port_hamiltonian import Energy, Law, State, canonical, refuse_constants
from vhydro.systems.simulation import held

APART, PUSHING = range(2)


@dataclass(frozen=True)
class Pushing:
    """State (gap, y, px, py): the slider's face ahead of the tip along x, its lateral place, its momentum.

    The input is the tip's velocity (vx, vy). In the gap coordinate contact is at 0 wherever the tip is; on
    the table x is the gap plus the tip's own x. The table drags viscously, a touching tip drags the face
    along: the mode switches the port from the pusher to the slider.
    """

    mass: float = 0.4  # kg
    stiffness: float = 800.0  # N/m, of the contact
    damping: float = 4.0  # N s/m, of the contact, along x
    grip: float = 6.0  # N s/m, of the tip sliding along the face
    friction: float = 1.2  # N s/m, of the table
    speed: float = 0.3  # m/s: the tip's vx is uniform in [−speed, 2 speed], its vy in ± speed
    hold: float = 0.5  # s: how long a random velocity lasts
    noise: float = 0.0  # kg m/s: process noise on each momentum, gathered in one second
    start_gap: float = 0.1  # m: starts are uniform in [0, start_gap] …
    start_lateral: float = 0.2  # m: … ± this …
    start_momentum: float = 0.1  # kg m/s: … and ± this

    def __post_init__(self):
        refuse_constants(
            self,
            positive=("mass", "stiffness", "hold"),
            not_negative=(
                *("damping", "grip", "friction"),
                *("speed", "noise", "start_gap", "start_lateral", "start_momentum"),
            ),
        )

    @property
    def constants(self) -> dict[str, tuple[float, str]]:
        """Every physical constant: its value and its unit."""
        return {
            "mass": (self.mass, "kg"),
            "stiffness": (self.stiffness, "N/m"),
            "damping": (self.damping, "N s/m"),
            "grip": (self.grip, "N s/m"),
            "friction": (self.friction, "N s/m"),
        }

    def law(self) -> Law:
        apart: Energy = {Monomial((0, 0, 2, 0)): 0.5 / self.mass, Monomial((0, 0, 0, 2)): 0.5 / self.mass}
        pushing = apart | {Penetration(0, 0.0, "below"): self.stiffness}
        table = np.diag([0.0, 0.0, self.friction, self.friction])
        contact = np.diag([0.0, 0.0, self.damping, self.grip])
        tip = np.array([[-1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
        drag = np.array([[0.0, 0.0], [0.0, 0.0], [self.damping, 0.0], [0.0, self.grip]])
        return Law(
            modes=("apart", "pushing"),
            coordinates=("gap", "y", "px", "py"),
            units=("m", "m", "kg m/s", "kg m/s"),
            inputs=("vx", "vy"),
            energies=(apart, pushing),
            interconnection=canonical(2, 2),
            dissipation=np.array([table, table + contact]),
            port=np.array([tip, tip + drag]),
            noise=np.tile([0.0, 0.0, self.noise, self.noise], (2, 1)),
        )

    def settle(self, z: State, action: State):  # noqa: ARG002
        """The mode at z: pushing where the tip is inside the face."""
        return jnp.where(z[0] < 0, PUSHING, APART)

    def guard(self, z: State, action: State, mode):  # noqa: ARG002
        """The gap when apart, the depth of contact when pushing."""
        return jnp.where(mode == APART, z[0], -z[0])

    def switch(self, z: State, action: State, mode):  # noqa: ARG002
        return z, jnp.where(mode == APART, PUSHING, APART)

    def starts(self, *, key: PRNGKeyArray) -> State:
        gap, y, px, py = jax.random.uniform(key, (4,), minval=-1.0, maxval=1.0)
        width = self.start_momentum
        return 0.5 * self.start_gap * (1 + gap), self.start_lateral * y, width * px, width * py

    def excitation(self, steps: int, dt, *, key: PRNGKeyArray):
        along, across = jax.random.split(key)
        vx = self.speed * (0.5 + 1.5 * held(steps, dt, self.hold, key=along))
        return jnp.stack([vx, self.speed * held(steps, dt, self.hold, key=across)], -1)
