"""Systems written as accelerations, as textbooks have them: coupled and changing inertia, friction of several kinds."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

State = tuple  # one scalar per coordinate


@dataclass(frozen=True)
class Textbook:
    """What is true of a system whose state is (positions, velocities), mode by mode."""

    modes: tuple[str, ...]
    coordinates: tuple[str, ...]  # positions first, then their velocities
    units: tuple[str, ...]  # of the coordinates
    inputs: tuple[str, ...]
    accelerations: Callable[[int, State, State, State], tuple]  # mode, positions, velocities, inputs
    truth: tuple[dict[str, float], ...]  # the terms of every mode's equations by name, with their values
    around: tuple[float, ...] = ()  # a state to look at rates of motion near; the origin if empty

    @property
    def positions(self) -> int:
        """How many coordinates are positions: the ones a sensor sees."""
        return len(self.coordinates) // 2

    @property
    def noise(self) -> np.ndarray:
        """No process noise: (modes, coordinates)."""
        return np.zeros((len(self.modes), len(self.coordinates)))

    def velocity(self, mode: int, z: State, action: State) -> State:
        """ż in one mode."""
        n = self.positions
        return (*z[n:], *self.accelerations(mode, z[:n], z[n:], action))


def two_by_two(first, coupled, second, force1, force2) -> tuple:
    """The accelerations that two forces give a symmetric mass matrix, by Cramer's rule."""
    determinant = first * second - coupled**2
    return (second * force1 - coupled * force2) / determinant, (first * force2 - coupled * force1) / determinant
