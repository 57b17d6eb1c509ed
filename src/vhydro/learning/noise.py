"""How noisy sensors are, told from logs alone."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.lib.stride_tricks import sliding_window_view

from vhydro.episodes import Episode

WINDOW = 8  # rows
QUIET, QUIET_SHARE = 0.2, 0.72  # the quantile of windows, and how large it is for windows of noise alone


def quiet_noise(episodes: Sequence[Episode]) -> Float[np.ndarray, "channels"]:
    """The standard deviation of every channel's readings, from second differences where they are quietest.

    Noise is everywhere and motion is not: of short windows the quiet ones show noise alone. 0 where no window is whole.
    """
    second = [np.diff(e.observations, 2, axis=0) for e in episodes if e.steps >= WINDOW + 1]
    if not second:
        return np.zeros(len(episodes[0].channels))
    windows = np.concatenate([sliding_window_view(s, WINDOW, axis=0)[:: WINDOW // 2] for s in second])
    size = np.sqrt((windows**2).mean(-1))  # NaN where anything is hidden
    quiet = np.array([np.quantile(c[~np.isnan(c)], QUIET) if (~np.isnan(c)).any() else 0.0 for c in size.T])
    return quiet / (QUIET_SHARE * np.sqrt(6))


def seen_mean(values: np.ndarray) -> np.ndarray:
    """The mean of every column over the rows that were seen; 0 of one that never was."""
    return np.nansum(values, axis=0) / np.maximum((~np.isnan(values)).sum(0), 1)
