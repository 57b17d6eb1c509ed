"""The force that a law leaves over on a record: what a robot's identification is judged by, in newtons."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.signal import butter, sosfiltfilt

from vhydro.laws.lagrange_law import AnyLaw, LagrangeLaw
from vhydro.laws.law import Law
from vhydro.laws.problem import Problem
from vhydro.laws.recording import Recording
from vhydro.laws.recover import LawsConfig, recover
from vhydro.library import Monomial

ORDER = 4
CUTOFF = 30.0  # Hz: of the low-pass
EDGE = 100  # samples at either end of a stretch, where filters and differences are off


class Motion(NamedTuple):
    """Filtered position, velocity and acceleration of a stretch, all (samples, positions)."""

    position: np.ndarray
    velocity: np.ndarray
    acceleration: np.ndarray


def motion(position: np.ndarray, dt: float, *, cutoff: float = CUTOFF) -> Motion:
    """The motion of a stretch without gaps (samples, positions), as inverse dynamics has it: low-passed, then
    differences; `cutoff` is in Hz.
    """
    smooth = low_passed(position, dt, cutoff=cutoff)
    velocity = np.gradient(smooth, dt, axis=0)
    return Motion(smooth, velocity, np.gradient(velocity, dt, axis=0))


def low_passed(values: np.ndarray, dt: float, *, cutoff: float = CUTOFF) -> np.ndarray:
    """Values (samples, …) through a zero-phase Butterworth low-pass."""
    if not 0 < cutoff < 0.5 / dt:
        raise ValueError(
            f"cutoff is {cutoff:g} Hz; expected between 0 and {0.5 / dt:g}, half the sampling rate. Take a lower one."
        )
    if len(values) <= 4 * EDGE:
        raise ValueError(f"the record has {len(values)} samples; expected more than {4 * EDGE}. Give a longer one.")
    return sosfiltfilt(butter(ORDER, 2 * cutoff * dt, output="sos"), values, axis=0)


def force_left(law: AnyLaw, recording: Recording, *, cutoff: float = CUTOFF) -> np.ndarray:
    """The root mean square force (positions,) that a law leaves over on a recording, in its units of force.

    The law of each sample is that of the mode which the recording has as likeliest. Stretches between gaps that are
    shorter than 400 samples are left out.
    """
    if recording.modes.shape[-1] != len(law.modes):
        raise ValueError(
            f"the recording has {recording.modes.shape[-1]} modes; expected {len(law.modes)}, those of the law. Give "
            "the recording with the law's modes."
        )
    squares, count = np.zeros(law.positions), 0
    for episode, stretch in _stretches(recording):
        inputs = _between(recording.actions[episode])[stretch]
        seen = motion(recording.positions[episode][stretch], recording.dt, cutoff=cutoff)
        mode = np.argmax(recording.modes[episode][stretch], -1)
        force, moving = _forces(law, mode, seen, inputs)
        left = (low_passed(force, recording.dt, cutoff=cutoff) - moving)[EDGE:-EDGE]
        squares, count = squares + np.sum(left**2, 0), count + len(left)
    if not count:
        raise ValueError(
            f"no stretch of the recording is seen for more than {4 * EDGE} samples in a row; expected one, to filter. "
            "Give a longer one."
        )
    return np.sqrt(squares / count)


def _stretches(recording: Recording):
    """Every episode and slice of it without gaps that is long enough to be filtered."""
    whole = recording.seen.all(-1) & (recording.modes.sum(-1) > 0)
    for episode, row in enumerate(whole):
        edges = np.flatnonzero(np.diff(np.pad(row, 1).astype(int))).tolist()
        for first, last in zip(edges[::2], edges[1::2], strict=True):
            if last - first > 4 * EDGE:
                yield episode, slice(first, last)


def _between(actions: np.ndarray) -> np.ndarray:
    """Inputs at samples, of inputs held from each sample to the next: (samples, inputs)."""
    return 0.5 * (np.concatenate([actions[:1], actions]) + np.concatenate([actions, actions[-1:]]))


def _forces(law: AnyLaw, mode: np.ndarray, seen: Motion, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the law of each sample's mode says accelerates, and what does: (samples, positions) in units of force."""
    inside = seen.position, seen.velocity - inputs @ _rates(law).T, inputs
    each = np.stack([law.acceleration(m, *inside) for m in range(len(law.modes))], 1)
    moved = each[np.arange(len(mode)), mode]
    if isinstance(law, LagrangeLaw):
        inertia = law.mass_matrix(seen.position)
        return tuple(np.einsum("sij,sj->si", inertia, a) for a in (moved, seen.acceleration))
    return _masses(law) * moved, _masses(law) * seen.acceleration


def _rates(law: AnyLaw) -> np.ndarray:
    """The velocity that each input gives each position: (positions, inputs)."""
    n, m = law.positions, len(law.inputs)
    return np.array([[x.value for x in row] for row in law.port(0)[:n]]) if isinstance(law, Law) else np.zeros((n, m))


def _masses(law: Law) -> np.ndarray:
    n, energy = law.positions, law.energy(law.form.base)
    squares = [Monomial(tuple(2 * (i == n + axis) for i in range(2 * n))) for axis in range(n)]
    return np.array([0.5 / energy[square].value for square in squares])


def halves(recording: Recording) -> tuple[Recording, Recording]:
    """A recording in two: of several episodes every other, of one the first half of the time and the second."""
    if len(recording.positions) > 1:
        return recording.only(slice(0, None, 2)), recording.only(slice(1, None, 2))
    q, a, w, dt = recording
    middle = q.shape[1] // 2
    return Recording(q[:, :middle], a[:, : middle - 1], w[:, :middle], dt), Recording(
        q[:, middle:], a[:, middle:], w[:, middle:], dt
    )


class Tried(NamedTuple):
    """One way to fit a law, and the force it leaves over on the half it was not fitted to, each half in its turn."""

    problem: Problem
    config: LawsConfig
    left: tuple[np.ndarray, np.ndarray]  # (positions,) each

    @property
    def score(self) -> float:
        """The root mean square over both halves, positions alike."""
        return float(np.sqrt(np.mean(np.square(self.left))))


def chosen_by_halves(
    recording: Recording, problems: Sequence[Problem], configs: Sequence[LawsConfig], *, cutoff: float = CUTOFF
) -> tuple[AnyLaw, tuple[Tried, ...]]:
    """The law of the whole recording, in the way that leaves the least force over on held-out halves; all ways tried.

    Every problem is tried with every configuration. A way without a law on a half, or whose laws leave no
    finite force over, scores infinity and is not taken.
    """
    first, second = halves(recording)
    turns, tried, failed = ((first, second), (second, first)), [], None
    for problem in problems:
        for config in configs:
            quick = replace(config, held_out=False)
            try:
                one, two = (force_left(recover(own, problem, quick), other, cutoff=cutoff) for own, other in turns)
            except ValueError as error:  # this way has no law on a half; another may
                failed = error
                one = two = np.full(problem.positions, np.inf)
            tried.append(Tried(problem, config, (one, two)))
    best = min(tried, key=lambda one: one.score if np.isfinite(one.score) else np.inf, default=None)
    if best is None or not np.isfinite(best.score):
        raise ValueError(
            f"none of {len(tried)} ways leaves a finite force over on both halves ({failed or 'none gave numbers'}); "
            "expected one at least. Give a longer record, or further problems or configurations."
        )
    return recover(recording, best.problem, best.config), tuple(tried)
