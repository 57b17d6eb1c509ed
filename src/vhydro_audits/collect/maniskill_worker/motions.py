"""Smooth random motions in joint space."""

import numpy as np


def smooth_noise(
    generator: np.random.Generator, steps: int, width: int, *, deviation: float, correlation: float
) -> np.ndarray:
    """An Ornstein–Uhlenbeck path (steps, width) from 0, of this stationary deviation and correlation time in steps."""
    keep = np.exp(-1 / correlation)
    kicks = generator.normal(0.0, deviation * np.sqrt(1 - keep**2), (steps, width))
    path = np.zeros((steps, width))
    for step in range(1, steps):
        path[step] = keep * path[step - 1] + kicks[step]
    return path


def smooth_path(waypoints: np.ndarray, steps: int) -> np.ndarray:
    """Targets through waypoints (legs + 1, width) that start and stop smoothly at each, `steps` rows for each leg."""
    share = np.arange(1, steps + 1) / steps
    eased = (share**3 * (10 - 15 * share + 6 * share**2))[None, :, None]  # least jerk
    legs = waypoints[:-1, None] + eased * (waypoints[1:, None] - waypoints[:-1, None])
    return legs.reshape(-1, waypoints.shape[1])
