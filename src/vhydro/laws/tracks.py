"""A recording made ready: gaps filled, velocities estimated, the motion an input imposes taken out."""

from typing import NamedTuple

import numpy as np

from vhydro.laws.problem import Problem
from vhydro.laws.recording import Recording
from vhydro.laws.smoothing import Smooth, local_polynomial, noise_gains, sensor_noise, without_gaps

HALF_WIDTHS = (4, 6, 8, 12, 16)  # samples: the smoothing is chosen among them


class Tracks(NamedTuple):
    """What the estimators share. `ground` is the frame in which inputs move no position: there q̇ = ∂H/∂p."""

    positions: np.ndarray  # (episodes, times, positions), NaN where hidden
    carried: np.ndarray  # ∫G_q a: positions = ground + carried
    smooth: Smooth  # in the ground's frame
    noise: np.ndarray  # (positions,): the sensors' standard deviation …
    velocity_noise: np.ndarray  # … and what of it is left in the smoothed velocities
    actions: np.ndarray
    modes: np.ndarray
    dt: float

    @property
    def filled(self) -> np.ndarray:
        """Positions in the ground's frame, smoothed where hidden."""
        ground = self.positions - self.carried
        return np.where(np.isfinite(ground), ground, self.smooth.position)

    @property
    def states(self) -> np.ndarray:
        """Smoothed (positions, velocities): (coordinates, episodes, times)."""
        q = self.smooth.position + self.carried
        return np.concatenate([np.moveaxis(q, -1, 0), np.moveaxis(self.smooth.velocity, -1, 0)])


def prepared(recording: Recording, problem: Problem) -> Tracks:
    """The tracks of a recording."""
    n = problem.positions
    rate = recording.actions @ np.nan_to_num(problem.port[:n]).T
    carried = np.concatenate([np.zeros_like(rate[:, :1]), np.cumsum(rate, 1) * recording.dt], 1)
    ground = recording.positions - carried
    half_width = _half_width(ground, recording.dt)
    noise = sensor_noise(ground)
    return Tracks(
        recording.positions,
        carried,
        without_gaps(local_polynomial(ground, recording.dt, half_width), np.isfinite(ground), half_width),
        noise,
        noise * noise_gains(half_width, recording.dt).velocity,
        recording.actions,
        recording.modes,
        recording.dt,
    )


def _half_width(ground: np.ndarray, dt: float) -> int:
    """The smoothing that best predicts every third sample from the others."""
    held_out = np.zeros(ground.shape[1], bool)
    held_out[1::3] = True
    kept = np.where(held_out[:, None], np.nan, ground)

    def error(half_width: int) -> float:
        guess = local_polynomial(kept, dt, half_width).position
        return float(np.nanmean((guess - ground)[:, held_out] ** 2))

    widths = [h for h in HALF_WIDTHS if 2 * h < ground.shape[1]] or [max(1, (ground.shape[1] - 1) // 2)]
    return min(widths, key=error)
