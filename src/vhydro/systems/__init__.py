"""Known-equation contact systems: simulated exactly, labelled exactly, their law known."""

from vhydro.systems.port_hamiltonian import Law, law
from vhydro.systems.puck import Puck
from vhydro.systems.simulation import Simulation, simulate, to_episodes

__all__ = ["Law", "Puck", "Simulation", "law", "simulate", "to_episodes"]
