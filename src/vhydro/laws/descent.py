"""Gauss–Newton with damping on the parameters a law shares and on every window's own start."""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from vhydro.laws.form import AnyForm
from vhydro.laws.shooting import CHUNK, LANES, followed, sensed
from vhydro.laws.windows import Windows

ENOUGH = 1e-2  # of misfit for each parameter: a step that gains less changes nothing that matters
PICKS = 4  # parameters are picked in multiples of this, so that few programs are compiled


class Course(NamedTuple):
    """What a law makes of the windows."""

    states: np.ndarray  # (windows, length, coordinates)
    misfit: np.ndarray  # (windows,)


class Normal(NamedTuple):
    """Gauss–Newton's equations for some parameters, with every window's own start eliminated."""

    gram: np.ndarray  # (picked, picked)
    cross: np.ndarray  # (picked,): −½ the misfit's gradient
    start_step: np.ndarray  # (windows, coordinates): of the starts, with the parameters as they are …
    start_slope: np.ndarray  # (windows, coordinates, picked): … and what a step of theirs takes off it


class Fit(NamedTuple):
    """Where a descent has come to."""

    theta: np.ndarray
    starts: np.ndarray  # (windows, coordinates)
    course: Course


class Shooter:
    """Windows, and how a law is followed through them."""

    def __init__(self, form: AnyForm, windows: Windows, dt: float, substeps: int):
        self.form, self.windows, self.dt, self.substeps = form, windows, dt, substeps

    @cached_property
    def freedom(self) -> np.ndarray:
        """The misfit that noise alone would leave in every window: its samples, less what its start absorbs."""
        return np.maximum((self.windows.weights > 0).sum((1, 2)) - 2 * self.form.positions, 0)

    @cached_property
    def used(self) -> np.ndarray:
        """Whether a window counts."""
        return self.freedom > 0

    @cached_property
    def last(self) -> np.ndarray:
        """The samples up to the last one seen in every window."""
        seen = np.asarray((self.windows.weights > 0).any(-1))
        return np.where(seen.any(1), seen.shape[1] - np.argmax(seen[:, ::-1], axis=1), 0)

    def without(self, dropped: np.ndarray) -> "Shooter":
        """The same, with some of the windows counting for nothing."""
        kept = np.where(dropped, 0.0, 1.0)[:, None, None]
        return Shooter(self.form, self.windows._replace(weights=self.windows.weights * kept), self.dt, self.substeps)

    def only(self, kept: np.ndarray) -> "Shooter":
        """The same with some of the windows alone, in order, padded with nothing to whole lanes."""
        room = LANES * max(1, -(-int(kept.sum()) // LANES))

        def some(values: np.ndarray) -> np.ndarray:
            return np.pad(values[kept], [(0, room - int(kept.sum()))] + [(0, 0)] * (values.ndim - 1))

        return Shooter(self.form, Windows(*map(some, self.windows)), self.dt, self.substeps)

    def _stretches(self):
        """Every (lanes, first chunk, samples) that has something to be followed."""
        for lane in range(0, len(self.last), LANES):
            lanes = slice(lane, lane + LANES)
            for first in range(0, int(self.last[lanes].max(initial=0)), CHUNK):
                yield lanes, first == 0, slice(first, first + CHUNK)

    def course(self, theta: np.ndarray, starts: np.ndarray) -> Course:
        """The states of every window and its misfit."""
        w = self.windows
        states = np.zeros((*w.positions.shape[:2], starts.shape[1]))
        z = starts
        for lanes, begins, samples in self._stretches():
            z = starts[lanes] if begins else z
            path, z = followed(self.form, self.substeps, theta, z, w.actions[lanes, samples], w.on[lanes], self.dt)
            states[lanes, samples] = path
        off = w.weights * (w.positions - states[..., : self.form.positions])
        return Course(states, np.sum(off**2, (1, 2)))

    def normal(self, theta: np.ndarray, picked: np.ndarray, starts: np.ndarray, damping: np.ndarray) -> Normal:
        """Gauss–Newton's equations for the picked parameters, the chain rule carried from chunk to chunk."""
        w, n, size = self.windows, self.form.positions, starts.shape[1]
        padded = np.concatenate([picked, np.zeros(-len(picked) % PICKS, int)])
        own = np.zeros((len(starts), size, size))
        mixed = np.zeros((len(starts), size, len(padded) + 1))  # with the residuals as a last column
        gram = np.zeros(2 * (len(padded) + 1,))
        begun = np.zeros((LANES, size, len(padded))), np.tile(np.eye(size), (LANES, 1, 1))
        z, (by_theta, by_start) = starts, begun
        for lanes, begins, samples in self._stretches():
            if begins:
                z, (by_theta, by_start) = starts[lanes], begun
            piece = sensed(self.form, self.substeps, theta, padded, z, w.actions[lanes, samples], w.on[lanes], self.dt)
            felt, through = np.asarray(piece.by_theta), np.asarray(piece.by_start)
            felt = felt + through @ by_theta
            through = through @ by_start
            weight = w.weights[lanes, samples].reshape(LANES, -1, 1)
            off = (w.positions[lanes, samples] - np.asarray(piece.states)[..., :n]).reshape(LANES, -1, 1)
            rows = weight * np.concatenate([-felt[:, : CHUNK * n], off], -1)
            back = weight * -through[:, : CHUNK * n]
            own[lanes] += back.swapaxes(1, 2) @ back
            mixed[lanes] += back.swapaxes(1, 2) @ rows
            flat = rows.reshape(-1, rows.shape[-1])
            gram += flat.T @ flat
            z, by_theta, by_start = np.asarray(piece.last), felt[:, CHUNK * n :], through[:, CHUNK * n :]
        return _eliminated(own, mixed, gram, damping, len(picked))


def _eliminated(own, mixed, gram, damping: np.ndarray, count: int) -> Normal:
    """The normal equations without the starts."""
    diagonal = np.einsum("wii->wi", own)
    damped = own + ((damping[:, None] + 1e-12) * diagonal + 1e-12)[..., None] * np.eye(own.shape[1])
    solved = np.linalg.solve(damped, mixed)
    reduced = gram - np.einsum("wsi,wsj->ij", mixed, solved)
    return Normal(reduced[:count, :count], -reduced[:count, -1], -solved[..., -1], solved[..., :count])


def started(shooter: Shooter, theta: np.ndarray, starts: np.ndarray, steps: int) -> np.ndarray:
    """Starts improved with the law held as it is, every window with a damping of its own."""
    damping, nothing = np.full(len(starts), 1e-2), np.zeros(0, int)
    misfit = shooter.course(theta, starts).misfit
    for _ in range(steps):
        tried = starts + shooter.normal(theta, nothing, starts, damping).start_step
        after = shooter.course(theta, tried).misfit
        better = after < misfit
        gain = np.sum((misfit - after)[better])
        starts = np.where(better[:, None], tried, starts)
        misfit = np.where(better, after, misfit)
        damping = np.where(better, 0.2 * damping, 10 * damping)
        if gain < ENOUGH * len(starts):
            break
    return starts


def descended(shooter: Shooter, theta: np.ndarray, active: np.ndarray, starts: np.ndarray, steps: int = 12) -> Fit:
    """The fit after descending on the active parameters, the others held."""
    picked, damping = np.flatnonzero(active), 1e-3
    now = shooter.course(theta, starts)
    for _ in range(steps):
        normal = shooter.normal(theta, picked, starts, np.full(len(starts), damping))
        for _ in range(6):
            change = _solved(normal.gram, normal.cross, damping)
            tried = theta.copy()
            tried[picked] += change
            moved = starts + normal.start_step - normal.start_slope @ change
            after = shooter.course(tried, moved)
            gain = now.misfit[shooter.used].sum() - after.misfit[shooter.used].sum()
            if np.isfinite(gain) and gain >= 0:
                break
            damping = 8 * damping + 1e-4
        else:
            break
        theta, starts, now, damping = tried, moved, after, 0.2 * damping
        if gain < ENOUGH * (len(picked) + 1):
            break
    return Fit(theta, starts, now)


def _solved(gram: np.ndarray, cross: np.ndarray, damping: float) -> np.ndarray:
    size = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    scaled = gram / np.outer(size, size) + (damping + 1e-13) * np.eye(len(size))
    return np.linalg.solve(scaled, cross / size) / size
