"""Blocks of numbers from a file, put side by side as named channels."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from vhydro.episodes import Channel

POSITION = (("x", "m"), ("y", "m"), ("z", "m"))
QUATERNION = (("qw", ""), ("qx", ""), ("qy", ""), ("qz", ""))
VELOCITY = (("vx", "m/s"), ("vy", "m/s"), ("vz", "m/s"))
SPIN = (("wx", "rad/s"), ("wy", "rad/s"), ("wz", "rad/s"))
POSE = POSITION + QUATERNION


@dataclass
class Columns:
    """Channels and their values, block by block."""

    channels: list[Channel] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)

    def add(self, body: str, values: np.ndarray, quantities: Sequence[tuple[str, str]], group: str) -> None:
        """One block (rows, quantities) of a body; each quantity is a name and a unit."""
        self.channels += [Channel(f"{body}.{name}" if body else name, group, unit) for name, unit in quantities]
        self.values.append(values if values.ndim == 2 else values.reshape(len(values), -1))

    def array(self) -> np.ndarray:
        return np.concatenate(self.values, axis=1)


def numbered(name: str, count: int, unit: str = "") -> tuple[tuple[str, str], ...]:
    """`name_1 … name_count` with one unit."""
    return tuple((f"{name}_{i + 1}", unit) for i in range(count))
