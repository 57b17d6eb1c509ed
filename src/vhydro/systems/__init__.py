"""Known-equation contact systems: simulated exactly, labelled exactly, their law known."""

from vhydro.systems.block import Block
from vhydro.systems.bodies import Ball, Bowl, Sled
from vhydro.systems.carts import CartPole, Carts, Train
from vhydro.systems.linkages import Arm, DoublePendulum, SpringPendulum
from vhydro.systems.pendulum import Pendulum
from vhydro.systems.port_hamiltonian import Law, System, law
from vhydro.systems.puck import Puck
from vhydro.systems.pushing import Pushing
from vhydro.systems.simulation import Simulation, simulate, to_episodes
from vhydro.systems.textbook import Textbook

__all__ = [
    "Arm",
    "Ball",
    "Block",
    "Bowl",
    "CartPole",
    "Carts",
    "DoublePendulum",
    "Law",
    "Pendulum",
    "Puck",
    "Pushing",
    "Simulation",
    "Sled",
    "SpringPendulum",
    "System",
    "Textbook",
    "Train",
    "law",
    "simulate",
    "to_episodes",
]
