"""Where the velocity along a coordinate jumps within a sample: parabolas through the samples on either side."""

from typing import NamedTuple

import numpy as np

from vhydro.laws.smoothing import sensor_noise

EACH_SIDE = (8, 12, 20)  # samples of a parabola: where noise is small, where it is not, and where it is large
SEEN = 0.6  # of them that have to be
QUIET, LOUD = 0.004, 0.02  # of a position's spread: noise that counts as small, and as large
SURE = 7.0  # standard deviations of a velocity's jump


class Impacts(NamedTuple):
    """Impacts along one coordinate; each is between a sample and the next."""

    episode: np.ndarray  # (impacts,)
    sample: np.ndarray  # (impacts,): the last one before
    before: np.ndarray  # (impacts,): velocity
    after: np.ndarray
    place: np.ndarray
    error: np.ndarray  # (impacts,): standard error of a velocity


def found_impacts(track: np.ndarray, dt: float) -> Impacts:
    """Where the velocity of a coordinate (episodes, times) jumps by more than noise explains."""
    left, right, error, side = sides(track, dt)
    size = np.abs(right[..., 1] - left[..., 1]) / (np.sqrt(2) * error)
    size = np.where(np.isfinite(size), size, 0.0)
    episode, sample = np.nonzero((size > SURE) & (size >= _largest_near(size, side)))
    a, b = left[episode, sample], right[episode, sample]
    # Where the two parabolas meet: there both velocities are read.
    gap = np.where(b[:, 1] == a[:, 1], 1.0, b[:, 1] - a[:, 1])
    when = np.clip(-(b[:, 0] - a[:, 0]) / gap, -1.5 * dt, 1.5 * dt)
    before, after = (x[:, 1] + 2 * x[:, 2] * when for x in (a, b))
    place = a[:, 0] + a[:, 1] * when + a[:, 2] * when**2
    return Impacts(episode, sample, before, after, place, error[episode, sample])


class Sides(NamedTuple):
    """Parabolas on either side of the middle of every interval: (episodes, times, 3), counted from there."""

    left: np.ndarray
    right: np.ndarray
    error: np.ndarray  # (episodes, times): standard error of a velocity
    samples: int  # of a parabola


def sides(track: np.ndarray, dt: float) -> Sides:
    """What a coordinate (episodes, times) does on either side of every interval."""
    noise = float(sensor_noise(track[..., None])[0])
    spread = float(np.nanstd(track))
    side = EACH_SIDE[int(noise >= QUIET * spread) + int(noise >= LOUD * spread)]
    left, right, gain = _one_sided(track, dt, side)
    jump = np.abs(right[..., 1] - left[..., 1])
    # Where noise is small, parabolas leave more than it: what they leave in most places is no impact either.
    usual = 1.4826 * float(np.nanmedian(jump)) / np.sqrt(2) if np.isfinite(jump).any() else 0.0
    error = np.maximum(noise * gain / np.sqrt(2), max(usual, 1e-12 * spread / dt))
    return Sides(left, right, error, side)


def _one_sided(track: np.ndarray, dt: float, side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parabolas through the samples before and after the middle of every interval: (episodes, times, 3), and how much
    noise they leave in the difference of their velocities: (episodes, times). Counted from that middle; NaN where too
    few samples are seen.
    """
    seen, length = np.isfinite(track), track.shape[1]
    if length < side:
        nothing = np.full((*track.shape, 3), np.nan)
        return nothing, nothing, nothing[..., 0]
    windows = np.lib.stride_tricks.sliding_window_view(np.where(seen, track, 0.0), side, axis=1)
    masks = np.lib.stride_tricks.sliding_window_view(seen * 1.0, side, axis=1)
    left, right = np.full((*track.shape, 4), np.nan), np.full((*track.shape, 4), np.nan)
    left[:, side - 1 :] = _parabolas(windows[..., ::-1], masks[..., ::-1], -dt)
    right[:, : length - side] = _parabolas(windows, masks, dt)[:, 1:]
    return left[..., :3], right[..., :3], np.sqrt(left[..., 3] + right[..., 3])


def _parabolas(values: np.ndarray, seen: np.ndarray, dt: float) -> np.ndarray:
    """Parabolas from half a step on, by least squares: three coefficients and the variance that unit noise leaves in
    the second; NaN where too few samples are seen. Both arrays are (…, samples).
    """
    side = values.shape[-1]
    times = (np.arange(side) + 0.5) / side
    whole = np.linalg.pinv(np.stack([np.ones(side), times, times**2], 1))
    unit = 1 / (side * dt)
    scale = np.array([1.0, unit, unit**2, unit**2])
    out = np.concatenate([values @ whole.T, np.full((*values.shape[:-1], 1), whole[1] @ whole[1])], -1)
    gaps = ~(seen.all(-1))
    if gaps.any():
        mask = seen[gaps]
        normal = (mask @ (times[:, None] ** np.arange(5)))[:, np.arange(3)[:, None] + np.arange(3)]
        enough = mask.sum(1) >= SEEN * side
        inverse = np.linalg.inv(np.where(enough[:, None, None], normal, np.eye(3)))
        fit = inverse @ ((values[gaps] * mask) @ (times[:, None] ** np.arange(3)))[..., None]
        some = np.concatenate([fit[..., 0], inverse[:, 1, 1:2]], -1)
        out[gaps] = np.where(enough[:, None], some, np.nan)
    return out * scale


def _largest_near(size: np.ndarray, side: int) -> np.ndarray:
    from scipy.ndimage import maximum_filter1d

    return maximum_filter1d(size, side + 1, axis=1)
