"""How a log is read where its format leaves a choice."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class ReadOptions:
    """Which part of the logs is read, and what their format does not tell."""

    topics: tuple[str, ...] = ()
    """Topics of a ROS 2 bag to read; all that are understood where none is named."""
    rate: float | None = None
    """Rows per second: of the clock that all topics of a bag are put on, or of a file that tells no rate."""
    episodes: tuple[str, ...] = ()
    """Episodes to read: names, numbers from 0, or ranges of numbers such as 0:20; all where none is named."""

    def __post_init__(self):
        if not all(self.topics):
            raise ValueError(f"topics are {self.topics!r}; expected names such as /joint_states.")
        if self.rate is not None and not (math.isfinite(self.rate) and 1e-9 < self.rate < 1e9):
            raise ValueError(f"the rate is {self.rate}; expected a positive number of rows per second.")

    @property
    def dt(self) -> float | None:
        """Seconds between two rows, where a rate was given."""
        return None if self.rate is None else 1 / self.rate


DEFAULT = ReadOptions()
