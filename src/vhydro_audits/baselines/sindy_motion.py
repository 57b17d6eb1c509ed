"""The motion behind a recording as PySINDy sees it: smoothed, differentiated, in and out of segments."""

from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.interpolate import PchipInterpolator

from vhydro.laws.problem import Problem
from vhydro.laws.recording import Recording

WINDOWS = (5, 9, 15, 31)  # samples, of the Savitzky-Golay smoother
CLEAR = 2  # samples next to a change of mode that no setting is judged by: the reference smears them


class Track(NamedTuple):
    """Smoothed motion, (episodes, times, positions) each; NaN where a segment is shorter than the window."""

    positions: np.ndarray
    velocity: np.ndarray
    acceleration: np.ndarray


class Motion(NamedTuple):
    """All that a regression may use; a label is −1 where nothing is known."""

    labels: np.ndarray  # (episodes, times)
    inner: np.ndarray  # (episodes, times): away from changes of the label
    inputs: np.ndarray  # (episodes, times, inputs)
    tracks: tuple[Track, ...]  # over whole episodes: one for every window
    cut: tuple[Track, ...]  # inside segments: one for every window, or none
    dt: float


def smoothed_motion(peer, recording: Recording, problem: Problem, modes: bool, cut: bool) -> Motion:
    """The motion behind a recording, smoothed with every window, and again inside segments if it is to be `cut`."""
    gap = _held(recording.actions, problem.port[: problem.positions], recording.dt)
    positions, known = _filled(recording.positions - gap)
    labels = np.where(known & (recording.modes.sum(-1) > 0), recording.modes.argmax(-1) if modes else 0, -1)
    stretches = runs(labels)
    inner = np.zeros(labels.shape, bool)
    for episode, start, stop in stretches:
        inner[episode, start + CLEAR : stop - CLEAR] = True
    a = recording.actions
    inputs = 0.5 * (np.concatenate([a[:, :1], a], 1) + np.concatenate([a, a[:, -1:]], 1))
    whole = [(episode, 0, positions.shape[1]) for episode in range(len(positions))]
    smooth = partial(_track, peer, positions, gap, recording.dt)
    tracks = tuple(smooth(window, whole) for window in WINDOWS)
    inside = tuple(smooth(window, stretches) for window in WINDOWS) if cut else ()
    return Motion(labels, inner, inputs, tracks, inside, recording.dt)


def _held(actions: np.ndarray, port: np.ndarray, dt: float) -> np.ndarray:
    """How far held inputs alone have moved each position at every sample."""
    moved = np.cumsum(dt * actions @ port.T, 1)
    return np.concatenate([np.zeros_like(moved[:, :1]), moved], 1)


def _filled(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions without gaps, and where they are known: between an episode's first and last sight of all of them."""
    filled, known = np.zeros_like(positions), np.ones(positions.shape[:2], bool)
    times = np.arange(positions.shape[1])
    for episode, i in np.ndindex(positions.shape[0], positions.shape[2]):
        seen = np.flatnonzero(np.isfinite(positions[episode, :, i]))
        if len(seen) < 2:
            known[episode] = False
            continue
        spline = PchipInterpolator(seen, positions[episode, seen, i])
        filled[episode, :, i] = spline(np.clip(times, seen[0], seen[-1]))
        known[episode] &= (times >= seen[0]) & (times <= seen[-1])
    return filled, known


def runs(labels: np.ndarray) -> list[tuple[int, int, int]]:
    """(episode, start, stop) of every stretch with one label."""
    found = []
    for episode, row in enumerate(labels):
        edges = np.flatnonzero(np.diff(row)) + 1
        bounds = zip((0, *edges), (*edges, len(row)), strict=True)
        found += [(episode, int(start), int(stop)) for start, stop in bounds if row[start] >= 0]
    return found


def _track(peer, positions: np.ndarray, gap: np.ndarray, dt: float, window: int, pieces: list) -> Track:
    """The motion smoothed and differentiated inside each piece by itself."""
    track = Track(*(np.full(positions.shape, np.nan) for _ in Track._fields))
    pieces = [piece for piece in pieces if piece[2] - piece[1] > window]
    for length in {stop - start for _, start, stop in pieces}:
        # Pieces of one length go through the smoother side by side: that is what makes short ones affordable.
        same = [(e, slice(start, stop)) for e, start, stop in pieces if stop - start == length]
        stacked = np.concatenate([positions[piece] for piece in same], 1)
        for out, values in zip(track, _smoothed(peer, stacked, window, dt), strict=True):
            for k, piece in enumerate(same):
                out[piece] = values[:, k * positions.shape[2] : (k + 1) * positions.shape[2]]
    return track._replace(positions=track.positions + gap)


def _smoothed(peer, positions: np.ndarray, window: int, dt: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Smoothed positions, velocity and acceleration of (times, …)."""
    smooth = {"window_length": window, "polyorder": 3}
    first, second = (peer.SmoothedFiniteDifference(smoother_kws=dict(smooth)) for _ in range(2))
    acceleration = second(first(positions, dt), dt)
    return first.smoothed_x_, second.smoothed_x_, acceleration
