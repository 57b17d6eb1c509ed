"""Modes that are the two directions of motion, read off the motion itself."""

from dataclasses import replace

import numpy as np

from vhydro.laws.problem import Problem
from vhydro.laws.recording import Recording
from vhydro.laws.tracks import prepared

SURE = 6.0  # standard deviations of a velocity's noise: a motion that never gets that fast is no turn
FORWARD, BACKWARD = "forward", "backward"


def by_direction(recording: Recording, problem: Problem, axis: int = 0) -> tuple[Recording, Problem]:
    """The same with two modes, forward and backward along a position, such as a law with dry friction has.

    The recording's own modes are not looked at: the way things go comes from smoothed positions, and a sign that only
    flickers is no turn.
    """
    if not recording.seen[..., axis].any():
        raise ValueError(
            f"position {problem.coordinates[axis]!r} is nowhere seen; expected stretches that say which way it goes. "
            "Give richer episodes."
        )
    tracks = prepared(recording, problem)
    there = recording.modes.sum(-1) > 0
    velocity, noise = tracks.smooth.velocity[..., axis], float(tracks.velocity_noise[axis])
    backward = np.stack([directions(v, noise) < 0 for v in velocity])
    modes = np.eye(2)[backward.astype(int)] * there[..., None]
    return recording._replace(modes=modes), replace(problem, modes=(FORWARD, BACKWARD))


def directions(velocity: np.ndarray, noise: float) -> np.ndarray:
    """Which way something moves at every sample, 1 or −1: of velocities (times,), NaN where they are not known."""
    seen = np.flatnonzero(np.isfinite(velocity))
    if not len(seen):
        return np.ones(len(velocity), int)
    v = velocity[seen]
    sign = np.where(v >= 0, 1, -1)
    run = np.concatenate([[0], np.cumsum(np.diff(sign) != 0)])
    fastest = np.zeros(run[-1] + 1)
    np.maximum.at(fastest, run, np.abs(v))
    sure = fastest[run] > SURE * noise
    last_sure = np.maximum.accumulate(np.where(sure, np.arange(len(run)), -1))
    way = sign[np.where(last_sure < 0, np.argmax(sure), last_sure)]
    # What is hidden goes on as it went.
    return way[np.maximum(np.searchsorted(seen, np.arange(len(velocity)), side="right") - 1, 0)]
