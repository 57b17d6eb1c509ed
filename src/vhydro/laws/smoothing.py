"""Local polynomials: position, velocity and acceleration of a noisy, gappy track."""

from math import factorial
from typing import NamedTuple

import numpy as np
from scipy.ndimage import correlate1d, maximum_filter1d, minimum_filter1d

SHORTEST_GAP = 6  # samples: fewer in a row are hidden by chance


class Smooth(NamedTuple):
    """A track and its derivatives, each (episodes, times, positions)."""

    position: np.ndarray
    velocity: np.ndarray
    acceleration: np.ndarray


def local_polynomial(tracks: np.ndarray, dt: float, half_width: int, degree: int = 3) -> Smooth:
    """The track and its derivatives, by a weighted least-squares polynomial around every sample.

    `tracks` is (episodes, times, positions) with NaN where hidden. Where too little is seen for the degree
    the polynomial falls back towards a constant, and to NaN where nothing is seen.
    """
    offsets = np.arange(-half_width, half_width + 1) / half_width
    kernel = (1 - (np.abs(offsets) * half_width / (half_width + 1)) ** 3) ** 3
    seen = np.isfinite(tracks).astype(float)
    filled = np.where(seen > 0, tracks, 0.0)

    def moment(of: np.ndarray, power: int) -> np.ndarray:
        return correlate1d(of, kernel * offsets**power, axis=1, mode="constant")

    sums = np.stack([moment(seen, k) for k in range(2 * degree + 1)], -1)
    right = np.stack([moment(filled, k) for k in range(degree + 1)], -1)
    orders = np.arange(degree + 1)
    normal = sums[..., orders[:, None] + orders]
    # A ridge far below any information that is there: without it a gap would be singular.
    ridge = 1e-9 * np.diag(10.0**orders)
    weight = np.maximum(sums[..., :1, None], 1e-300)
    fit = np.linalg.solve(normal / weight + ridge, (right / weight[..., 0])[..., None])[..., 0]
    fit = np.where(sums[..., :1] > 0, fit, np.nan)
    scale = half_width * dt
    return Smooth(*(factorial(k) * fit[..., k] / scale**k for k in range(3)))


def without_gaps(smooth: Smooth, seen: np.ndarray, half_width: int) -> Smooth:
    """The same with NaN in gaps too long to be bridged: what a polynomial says there is made up.

    A gap is a stretch of hidden samples longer than half the smoothing's width. Beside it, where only one side is
    seen, accelerations are too uncertain to be used. `seen` is (episodes, times, positions) bool.
    """
    size = max(half_width, SHORTEST_GAP) + 1
    # An opening keeps runs of hidden samples of at least this length; beyond either end of a log nothing is a gap.
    hidden = np.pad(~seen, ((0, 0), (size, size), (0, 0)), constant_values=False)
    long = maximum_filter1d(minimum_filter1d(hidden, size, axis=1), size, axis=1, origin=-1 if size % 2 == 0 else 0)
    gap = long[:, size:-size]
    beside = maximum_filter1d(gap, 2 * half_width + 1, axis=1)
    position, velocity = (np.where(gap, np.nan, x) for x in (smooth.position, smooth.velocity))
    return Smooth(position, velocity, np.where(beside, np.nan, smooth.acceleration))


def sensor_noise(tracks: np.ndarray) -> np.ndarray:
    """The standard deviation of the noise on every position: (positions,).

    From third differences, whose smooth part is small, by their median, which contacts do not move. Readings that only
    take certain values are no finer than these: their step is a noise of its own.
    """
    third = np.diff(tracks, 3, axis=1)
    spread = np.nanmedian(np.abs(third), axis=(0, 1)) / 0.6745
    return np.maximum(spread / np.sqrt(20.0), _resolution(tracks))


def _resolution(tracks: np.ndarray) -> np.ndarray:
    """What readings in steps leave unsaid, as a standard deviation; 0 where hardly two are the same."""
    out = np.zeros(tracks.shape[-1])
    for i in range(tracks.shape[-1]):
        change = np.abs(np.diff(tracks[..., i], axis=1))
        change = change[np.isfinite(change)]
        size = np.nanmax(np.abs(tracks[..., i]), initial=0.0)
        moved = change[change > 1e-9 * size]
        if len(moved) and len(moved) < 0.98 * len(change):
            out[i] = np.quantile(moved, 0.02) / np.sqrt(12.0)
    return out


def noise_gains(half_width: int, dt: float) -> Smooth:
    """The standard deviation that unit noise leaves in a local polynomial's position, velocity and acceleration."""
    impulse = np.zeros((1, 4 * half_width + 1, 1))
    impulse[0, 2 * half_width] = 1.0
    return Smooth(*(np.sqrt(np.sum(part**2)) for part in local_polynomial(impulse, dt, half_width)))
