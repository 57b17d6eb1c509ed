"""A first guess for shooting where noise has washed the mass out of the weak form: masses are tried."""

from dataclasses import replace

import numpy as np

from vhydro.laws.form import Form
from vhydro.laws.tracks import Tracks
from vhydro.laws.weak import Rows, masses
from vhydro.laws.weak_errors import robust_covariance

SURE = 4.0  # standard errors of what a known force does, from which the weak form's mass is believed
TRIED = 6  # masses, evenly spaced on a logarithmic scale
FEWEST = 8  # samples: the shortest time in which a known friction might stop a thing
WIDEST = 100.0  # the largest mass that an input is tried with, over the one whose acceleration is all that is seen


def anchors(form: Form, rows: Rows, theta: np.ndarray, support: np.ndarray) -> list[tuple[int, int]]:
    """The (position, entry) of every mass that the weak form leaves in doubt: the entry is what is known of its force.

    That is a mass that is not positive, or one whose known force does too little to be sure of.
    """
    found, errors = masses(form, theta), np.sqrt(np.diag(robust_covariance(rows, support)))
    given = [mass is not None for mass in form.known_masses] or [False] * form.positions
    entries = {
        e.axis: i
        for i, e in enumerate(form.entries)
        if e.block < 0 and e.kind in ("port", "dissipation") and np.isfinite(form.known[i]) and form.known[i]
    }
    return [
        (axis, i)
        for axis, i in entries.items()
        if not given[axis] and (not found[axis] > 0 or abs(theta[i]) < SURE * errors[i])
    ]


def offered(form: Form, tracks: Tracks, anchor: int) -> np.ndarray:
    """Masses to try where an entry's force is known: from what it could just be seen to do to what it hardly does.

    None of an input that never varies: it could do anything.
    """
    entry, known = form.entries[anchor], abs(form.known[anchor])
    if entry.kind == "dissipation":  # it stops a thing in the time mass / friction
        return known * tracks.dt * np.geomspace(FEWEST, tracks.positions.shape[1], TRIED)
    force = known * np.std(tracks.actions[..., entry.column])
    seen = np.sqrt(np.nanmean(tracks.smooth.acceleration[..., entry.axis] ** 2))
    return force / seen * np.geomspace(1.0, WIDEST, TRIED) if min(force, seen) > 0 else np.zeros(0)


def with_mass(rows: Rows, theta: np.ndarray, support: np.ndarray, anchor: int, value: float) -> np.ndarray:
    """The weak form's parameters where one of them is held at a value."""
    others = support & (np.arange(len(theta)) != anchor)
    held = replace(rows, left=rows.left - rows.design[..., anchor] * value)
    out = held.solution(others)
    out[anchor] = value
    return out
