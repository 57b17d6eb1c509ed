"""Inverse-dynamics least squares, as robots are identified with: positions filtered, differentiated, and regressed on.

Gautier's recipe: a zero-phase Butterworth low-pass, central differences, `force = M a + Fv v + Fc sign(v) + offset` by
least squares, the columns behind the same low-pass as the force, both decimated.
"""

from typing import NamedTuple

import numpy as np

from vhydro.laws import Recording
from vhydro.laws.force_left import EDGE, low_passed, motion

DECIMATION = 10  # samples: neighbours say the same after filtering


class Drive(NamedTuple):
    """Constants of a single axis."""

    mass: float
    viscous: float
    dry: float
    offset: float
    more_backward: float = 0.0  # viscous friction that moving backward adds

    def force(self, velocity: np.ndarray, acceleration: np.ndarray) -> np.ndarray:
        """The force that moves the axis so."""
        return columns(velocity, acceleration) @ np.array(self)

    def force_left(self, recording: Recording) -> float:
        """The root mean square force that it leaves over on one episode, as `vhydro.laws.force_left` of a law."""
        design, force = filtered(recording)
        return float(np.sqrt(np.mean((design @ np.array(self) - force) ** 2)))


def inverse_dynamics(recording: Recording, *, one_friction: bool = True) -> Drive:
    """The constants of an axis by ordinary least squares on one episode; viscous friction is one for both directions,
    or one for each.
    """
    design, force = (x[::DECIMATION] for x in filtered(recording))
    count = 4 if one_friction else 5
    return Drive(*map(float, np.linalg.lstsq(design[:, :count], force, rcond=None)[0]))


def columns(velocity: np.ndarray, acceleration: np.ndarray) -> np.ndarray:
    """What each constant is multiplied by: (samples, constants)."""
    backward = velocity * (velocity < 0)
    return np.stack([acceleration, velocity, np.sign(velocity), np.ones_like(velocity), backward], -1)


def filtered(recording: Recording) -> tuple[np.ndarray, np.ndarray]:
    """Columns and force of one episode, both behind the same low-pass, its ends left out."""
    actions, dt = recording.actions[0, :, 0], recording.dt
    force = 0.5 * (np.append(actions[0], actions) + np.append(actions, actions[-1]))  # held from sample to sample
    seen = motion(recording.positions[0], dt)
    velocity, acceleration = seen.velocity[:, 0], seen.acceleration[:, 0]
    design = columns(velocity, acceleration)
    design[:, 2:] = low_passed(design[:, 2:], dt)  # velocity and acceleration are behind it already
    return design[EDGE:-EDGE], low_passed(force, dt)[EDGE:-EDGE]
