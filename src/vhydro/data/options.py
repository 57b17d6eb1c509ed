"""How a log is read where its format leaves a choice."""

import math
from dataclasses import dataclass

from vhydro.usage import UsageError


@dataclass(frozen=True)
class ReadOptions:
    """Which part of the logs is read, and what their format does not tell."""

    topics: tuple[str, ...] = ()
    """Topics of a ROS 2 bag to read; all that are understood where none is named."""
    rate: float | None = None
    """Rows per second: of the clock that all topics of a bag are put on, or of a file that tells no rate."""
    episodes: tuple[str, ...] = ()
    """Episodes to read: names, numbers from 0, or ranges of numbers such as 0:20; all where none is named."""
    only_rate: float | None = None
    """Only episodes of this sampling rate in Hz, where there are several; each is read to see which it has."""

    def __post_init__(self):
        if not all(self.topics):
            raise UsageError(f"--topics {' '.join(map(repr, self.topics))}; expected names such as /joint_states.")
        for name in ("rate", "only_rate"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and 1e-9 < value < 1e9):
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} {value:g}; expected a positive number of rows per second, such as {flag} 50.")

    @property
    def dt(self) -> float | None:
        """Seconds between two rows, where a rate was given."""
        return None if self.rate is None else 1 / self.rate


DEFAULT = ReadOptions()
