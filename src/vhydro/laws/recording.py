"""What laws are fitted to: positions as sensors saw them, inputs, and who believes which mode when."""

from typing import NamedTuple

import numpy as np


class Recording(NamedTuple):
    """Episodes side by side; a shorter one is padded with hidden positions, and its modes with weight 0.

    `actions[:, t]` is held from sample t to t + 1, as in an `Episode`.
    """

    positions: np.ndarray  # (episodes, times, positions): NaN where hidden
    actions: np.ndarray  # (episodes, times − 1, inputs)
    modes: np.ndarray  # (episodes, times, modes): the weight of every mode, their sum 1 (0 in padding)
    dt: float  # s

    @property
    def seen(self) -> np.ndarray:
        """Where a position was observed: (episodes, times, positions)."""
        return np.isfinite(self.positions)

    def only(self, episodes) -> "Recording":
        """Some of the episodes."""
        return Recording(self.positions[episodes], self.actions[episodes], self.modes[episodes], self.dt)


def varying(actions: np.ndarray, modes: np.ndarray) -> np.ndarray:
    """Which inputs ever change, beside the padding of shorter episodes: (inputs,)."""
    given = actions[modes[:, 1:].sum(-1) > 0]
    if not len(given):
        return np.zeros(actions.shape[-1], bool)
    return np.ptp(given, axis=0) > 1e-9 * np.abs(given).max(0)
