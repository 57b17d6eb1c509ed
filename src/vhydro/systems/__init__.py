"""Known-equation contact systems: simulated exactly, labelled exactly, their law known."""

from vhydro.systems.block import Block
from vhydro.systems.pendulum import Pendulum
from vhydro.systems.port_hamiltonian import Law, System, law
from vhydro.systems.puck import Puck
from vhydro.systems.pushing import Pushing
from vhydro.systems.simulation import Simulation, simulate, to_episodes

__all__ = [
    "Block",
    "Law",
    "Pendulum",
    "Puck",
    "Pushing",
    "Simulation",
    "System",
    "law",
    "simulate",
    "to_episodes",
]
