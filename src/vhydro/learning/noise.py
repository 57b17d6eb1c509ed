"""How noisy sensors are, told from logs alone."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.lib.stride_tricks import sliding_window_view

from vhydro.episodes import Episode

WINDOW = 8  # rows
LEAST_SEEN = 0.3  # of a smoothing window
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


def median_deviation(values: Float[np.ndarray, "rows channels"]) -> Float[np.ndarray, "channels"]:
    """The standard deviation of every column as a normal one's median size tells it; NaN is left out, 0 if all are."""
    known = [np.abs(c[~np.isnan(c)]) for c in values.T]
    return np.array([1.4826 * np.median(c) if len(c) else 0.0 for c in known])


def seen_mean(values: np.ndarray) -> np.ndarray:
    """The mean of every column over the rows that were seen; 0 of one that never was."""
    return np.nansum(values, axis=0) / np.maximum((~np.isnan(values)).sum(0), 1)


def smoothed(
    values: Float[np.ndarray, "rows channels"], seen: np.ndarray, width: float
) -> Float[np.ndarray, "rows channels"]:
    """Means of every channel's seen rows under a Gaussian window so many rows wide; NaN where too few are seen.

    What is linear stays true: of two series with the same rows seen, one times a gain is so after smoothing too.
    """
    reach = int(np.ceil(3 * width))
    window = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    mixed = [
        np.stack([np.convolve(column, window)[reach : reach + len(column)] for column in part.T], 1)
        for part in (np.where(seen, values, 0.0), seen.astype(float))
    ]
    return np.where(mixed[1] > LEAST_SEEN * window.sum(), mixed[0] / np.maximum(mixed[1], 1e-9), np.nan)
