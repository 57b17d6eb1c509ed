"""A body that nobody holds, as the steps it makes: how far it goes and how far it turns from each row to the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.spatial.transform import Rotation

from vhydro.episodes import Channel, Episode
from vhydro.views.view import AXES, columns, looked_up

TURN = ("qw", "qx", "qy", "qz")
LEVEL, UPRIGHT, SPIN = "along the ground", "up and down", "turning"  # channels of a group share a law


@dataclass(frozen=True)
class BodyView:
    """The place and, where the log has it, the orientation of one body; called with a log, the log of its steps."""

    place: tuple[str, ...]  # channels of its place along x, y and z, z upwards
    turn: tuple[str, ...] = ()  # channels of its quaternion: w, x, y, z
    name: str = "body"

    kind: ClassVar[str] = "body"
    example: ClassVar[str] = 'BodyView(place=("cube_x", "cube_y", "cube_z"))'

    def __post_init__(self):
        if len(self.place) != 3 or len(self.turn) not in (0, 4):
            raise ValueError(
                f"a body has {len(self.place)} channels of its place and {len(self.turn)} of its orientation; expected "
                f"3 (x, y, z) and 4 (w, x, y, z) or none. For example {self.example}."
            )

    @property
    def channels(self) -> tuple[str, ...]:
        """The raw channels it needs."""
        return (*self.place, *self.turn)

    @property
    def inputs(self) -> tuple[str, ...]:
        """It needs no inputs."""
        return ()

    def __call__(self, episode: Episode) -> Episode:
        """The log of the body's steps, a row less than the log of its poses.

        Steps and turns (rotation vectors, in radians) are along the axes of the world, z upwards: a body on which
        nothing acts but gravity keeps them all, except that it falls. A step from or to a hidden pose is hidden.
        """
        log = looked_up(self, episode)
        if not log.steps:
            raise ValueError(f"{log.source or 'the log'} has one row; expected at least two, for a step. Leave it out.")
        parts = [np.diff(columns(log, self.place), axis=0)]
        channels = [Channel(f"{self.name}.d{a}", UPRIGHT if a == "z" else LEVEL, "m") for a in AXES]
        if self.turn:
            parts.append(_turns(columns(log, self.turn)))
            channels += [Channel(f"{self.name}.turn_{a}", SPIN, "rad") for a in AXES]
        steps = np.concatenate(parts, 1)
        return Episode(steps, np.zeros((len(steps) - 1, 0)), log.dt, tuple(channels), source=log.source)


def _turns(quaternions: np.ndarray) -> np.ndarray:
    """The rotation from each row to the next, in the frame of the world."""
    seen = ~np.isnan(quaternions.sum(1))
    known = np.where(seen[:, None], quaternions, [1.0, 0.0, 0.0, 0.0])
    pose = Rotation.from_quat(known, scalar_first=True)
    turns = (pose[1:] * pose[:-1].inv()).as_rotvec()
    return np.where((seen[1:] & seen[:-1])[:, None], turns, np.nan)


def body_view(episodes: Sequence[Episode], body: str | None = None) -> BodyView:
    """The view of the only body whose place the logs show, or of the one that is named."""
    names = [c.name for c in episodes[0].channels]
    bodies = [
        n.removesuffix(".x") for n in names if n.endswith(".x") and f"{n[:-1]}y" in names and f"{n[:-1]}z" in names
    ]
    if body is None and len(bodies) != 1:
        raise ValueError(
            f"the log shows the places of {', '.join(bodies) or 'no body'}; expected one. Say which: "
            f"{BodyView.example}, or --body cube=X,Y,Z."
        )
    name = bodies[0] if body is None else body
    turn = tuple(f"{name}.{q}" for q in TURN)
    return BodyView(tuple(f"{name}.{a}" for a in AXES), turn if all(t in names for t in turn) else (), name)
