"""Inverse-dynamics least squares, as robots are identified with: positions filtered, differentiated, and regressed on.

Gautier's recipe: a zero-phase Butterworth low-pass, central differences, `force = M a + Fv v + Fc sign(v) + offset` by
least squares on the filtered and decimated force.
"""

from typing import NamedTuple

import numpy as np
from scipy.signal import butter, sosfiltfilt

ORDER = 4
EDGE = 100  # samples at either end, where filters and differences are off
DECIMATION = 10  # samples: neighbours say the same after filtering


class Drive(NamedTuple):
    """Constants of a single axis."""

    mass: float
    viscous: float
    dry: float
    offset: float

    def force(self, velocity: np.ndarray, acceleration: np.ndarray) -> np.ndarray:
        """The force that moves the axis so."""
        return self.mass * acceleration + self.viscous * velocity + self.dry * np.sign(velocity) + self.offset


class Motion(NamedTuple):
    """Filtered velocity, acceleration and force of a record, all (samples,)."""

    velocity: np.ndarray
    acceleration: np.ndarray
    force: np.ndarray


def motion(position: np.ndarray, force: np.ndarray, dt: float, *, cutoff: float = 30.0) -> Motion:
    """The motion of a record; `cutoff` in Hz is of the low-pass on positions and forces alike."""
    if not 0 < cutoff < 0.5 / dt:
        raise ValueError(
            f"cutoff is {cutoff:g} Hz; expected between 0 and {0.5 / dt:g}, half the sampling rate. Take a lower one."
        )
    if len(position) <= 4 * EDGE:
        raise ValueError(f"the record has {len(position)} samples; expected more than {4 * EDGE}. Give a longer one.")
    low_pass = butter(ORDER, 2 * cutoff * dt, output="sos")
    smooth = sosfiltfilt(low_pass, position)
    velocity = np.gradient(smooth, dt)
    return Motion(velocity, np.gradient(velocity, dt), sosfiltfilt(low_pass, force))


def inverse_dynamics(record: Motion) -> Drive:
    """The constants of an axis by ordinary least squares."""
    kept = slice(EDGE, -EDGE, DECIMATION)
    v, a, force = (x[kept] for x in record)
    columns = np.stack([a, v, np.sign(v), np.ones_like(v)], -1)
    return Drive(*map(float, np.linalg.lstsq(columns, force, rcond=None)[0]))
