"""A body that nobody holds, as the steps it makes: how far it goes and how far it turns from each row to the next."""

import numpy as np
from scipy.spatial.transform import Rotation

from vhydro.episodes import Channel, Episode
from vhydro.robots import AXES

TURN = ("qw", "qx", "qy", "qz")
LEVEL, UPRIGHT, SPIN = "along the ground", "up and down", "turning"  # channels of a group share a law


def body_steps(episode: Episode, body: str) -> Episode:
    """The log of a body's steps, a row less than the log of its poses; without labels, and without anything else.

    Steps and turns (rotation vectors, in radians) are along the axes of the world, z upwards: a body on which nothing
    acts but gravity keeps them all, except that it falls. A step from or to a hidden pose is hidden.
    """
    if episode.steps < 2:
        raise ValueError(
            f"{episode.source or 'the log'} has {episode.steps + 1} rows; expected at least 3, for a step and the one "
            "after it."
        )
    place = episode.select([f"{body}.{a}" for a in AXES]).observations.astype(np.float64)
    turned = episode.select([f"{body}.{q}" for q in TURN]).observations.astype(np.float64)
    steps = np.concatenate([np.diff(place, axis=0), _turns(turned)], 1)
    groups = (LEVEL, LEVEL, UPRIGHT, SPIN, SPIN, SPIN)
    names = [f"{body}.d{a}" for a in AXES] + [f"{body}.turn_{a}" for a in AXES]
    return Episode(
        observations=steps,
        actions=np.zeros((len(steps) - 1, 0)),
        dt=episode.dt,
        channels=tuple(Channel(n, g, "rad" if g == SPIN else "m") for n, g in zip(names, groups, strict=True)),
        source=episode.source,
    )


def _turns(quaternions: np.ndarray) -> np.ndarray:
    """The rotation from each row to the next, in the frame of the world."""
    seen = ~np.isnan(quaternions.sum(1))
    known = np.where(seen[:, None], quaternions, [1.0, 0.0, 0.0, 0.0])
    pose = Rotation.from_quat(known, scalar_first=True)
    turns = (pose[1:] * pose[:-1].inv()).as_rotvec()
    return np.where((seen[1:] & seen[:-1])[:, None], turns, np.nan)
