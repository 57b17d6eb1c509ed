"""Cutting a recording into windows that a law can be followed through."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.ndimage import maximum_filter1d

from vhydro.laws.form import AnyForm
from vhydro.laws.guards import labels
from vhydro.laws.shooting import CHUNK, LANES
from vhydro.laws.tracks import Tracks

SHORTEST = 8  # samples in a window
MARGIN = 6  # samples between a contact and the start of a window
TRIM = 2  # samples left out where a mode without a surface begins or ends: the label may be off by one or two


class Windows(NamedTuple):
    """Stretches of a recording, padded with weight 0 to whole chunks and whole lanes."""

    positions: np.ndarray  # (windows, length, positions)
    weights: np.ndarray  # (windows, length, positions): 1/σ where seen, 0 where not
    actions: np.ndarray  # (windows, length, inputs)
    on: np.ndarray  # (windows, blocks): which blocks without a guard are on, all through


def phases(form: AnyForm, modes: np.ndarray) -> np.ndarray:
    """The block that the modes switch on at every sample: −1 for none, −2 where no window may be."""
    now = labels(modes)
    block = np.full(now.shape, -1)
    for b, added in enumerate(form.blocks):
        if added.guard is None:
            block[now == added.mode] = b
    block[np.isin(now, form.resting) | (now < 0)] = -2
    return block


def runs(phase: np.ndarray) -> list[tuple[int, int, int]]:
    """The (begin, end, phase) of every stretch of one phase, trimmed where it borders on another."""
    edges = np.flatnonzero(np.diff(phase)) + 1
    bounds = [0, *edges.tolist(), len(phase)]
    out = []
    for begin, end in pairwise(bounds):
        first = begin + TRIM * (begin > 0)
        last = end - TRIM * (end < len(phase))
        if phase[begin] > -2 and last - first >= SHORTEST:
            out.append((first, last, int(phase[begin])))
    return out


def cut(form: AnyForm, tracks: Tracks, length: int) -> tuple[Windows, np.ndarray]:
    """Windows of about `length` samples, and (episode, first sample) of each."""
    phase, calm = phases(form, tracks.modes), _calm(form, tracks.modes)
    pieces = []
    for episode in range(len(phase)):
        for begin, end, block in runs(phase[episode]):
            count = max(1, round((end - begin) / length))
            bounds = _away(np.linspace(begin, end, count + 1).astype(int), calm[episode]).tolist()
            pieces += [(episode, a, b, block) for a, b in pairwise(bounds)]
    pieces = [p for p in pieces if _seen(tracks, p) >= SHORTEST]
    # Long windows first: those that share lanes then end at about the same time.
    return _filled(form, tracks, sorted(pieces, key=lambda p: p[1] - p[2]))


def _filled(form: AnyForm, tracks: Tracks, pieces: list[tuple[int, int, int, int]]) -> tuple[Windows, np.ndarray]:
    room = LANES * max(1, -(-len(pieces) // LANES))
    length = CHUNK * max([1, *(-(-(b - a) // CHUNK) for _, a, b, _ in pieces)])
    n, m = tracks.positions.shape[-1], tracks.actions.shape[-1]
    positions, weights = np.zeros((room, length, n)), np.zeros((room, length, n))
    actions, on = np.zeros((room, length, m)), np.zeros((room, len(form.blocks)))
    for i, (episode, a, b, block) in enumerate(pieces):
        y = tracks.positions[episode, a:b]
        positions[i, : b - a] = np.nan_to_num(y)
        weights[i, : b - a] = np.isfinite(y) / tracks.noise
        held = tracks.actions[episode, a:b]
        actions[i, : len(held)] = held
        on[i] = np.arange(len(form.blocks)) == block
    where = np.zeros((room, 2), int)
    where[: len(pieces)] = np.array([(p[0], p[1]) for p in pieces]).reshape(-1, 2)
    return Windows(positions, weights, actions, on), where


def _calm(form: AnyForm, modes: np.ndarray) -> np.ndarray:
    """Where no contact is on, nor within a few samples: there a start is well known."""
    touching = np.isin(labels(modes), [b.mode for b in form.blocks if b.guard])
    return np.logical_not(maximum_filter1d(touching, 2 * MARGIN + 1, axis=1))


def _away(bounds: np.ndarray, calm: np.ndarray) -> np.ndarray:
    """The inner bounds moved to the nearest calm sample, where there is one before the next bound."""
    out, places = bounds.copy(), np.flatnonzero(calm)
    for i in range(1, len(bounds) - 1):
        near = places[(places > out[i - 1] + SHORTEST) & (places < bounds[i + 1] - SHORTEST)]
        if len(near):
            out[i] = near[np.argmin(np.abs(near - bounds[i]))]
    return out


def _seen(tracks: Tracks, piece: tuple[int, int, int, int]) -> int:
    episode, a, b, _ = piece
    return int(np.isfinite(tracks.positions[episode, a:b]).all(-1).sum())
