"""Readings of modes by what they couple: what the hand is on, what stands on what, contact or none, and the regime.

A model's modes say what goes with the hand. What rests on another thing does not show in motion, but gravity says it:
a body that nothing holds and that stands higher than it began stands on something else than before.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from vhydro.episodes import Episode
from vhydro.views.contact import ContactView

FREE, IMPACT, SUSTAINED = 0, 1, 2
HIGHER = 0.005  # metres: more than a body tilts when it is pushed


class Readings(NamedTuple):
    """One path of modes, read in four ways."""

    modes: Int[np.ndarray, "rows"]
    kinds: Int[np.ndarray, "rows"]  # 1 where the hand is on something, and 2 more where something stands
    contact: Int[np.ndarray, "rows"]  # 1 where anything touches
    regime: Int[np.ndarray, "rows"]  # free, impact, sustained: a window around every make and break


def readings(
    path: Int[np.ndarray, "rows"], couples: Bool[np.ndarray, "modes things"], view: ContactView, seen: Episode
) -> Readings:
    """The readings of the modes of a log that was seen through the view."""
    held = np.asarray(couples.any(1))[path]
    stand = np.asarray(standing(path, couples, view, seen).any(1))
    touching = np.logical_or(held, stand)
    return Readings(path, held + 2 * stand, touching.astype(int), regime_of(touching))


def regime_of(touching: np.ndarray, impact: int = 3) -> np.ndarray:
    """Free or sustained, with an impact window around each make and break."""
    regime = np.where(touching, SUSTAINED, FREE)
    for change in 1 + np.flatnonzero(np.diff(touching.astype(int))):
        begin = max(0, change - impact // 2)
        regime[begin : change - impact // 2 + impact] = IMPACT
    return regime


def standing(
    path: Int[np.ndarray, "rows"], couples: Bool[np.ndarray, "modes things"], view: ContactView, seen: Episode
) -> Bool[np.ndarray, "rows bodies"]:
    """Which bodies stand higher than where the log first shows them, and are held by nothing; cloths never do.

    Of hidden heights the straight line between seen ones is taken: what nobody holds stays where it is.
    """
    names, out = [c.name for c in seen.channels], np.zeros((len(path), len(view.bodies)), bool)
    for body, name in enumerate(view.bodies):
        height = seen.observations[:, names.index(f"{name}.z")]
        known = np.flatnonzero(~np.isnan(height))
        if name not in view.cloths and len(known):
            now = np.interp(np.arange(len(path)), known, height[known])
            out[:, body] = (now - height[known[0]] > HIGHER) & ~couples[path, body]
    return out
