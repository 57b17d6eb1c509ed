"""Runs of equal labels."""

import numpy as np

from vhydro.modes.segments import run_starts


def without_short_runs(labels: np.ndarray, minimum: int) -> np.ndarray:
    """The labels with every run shorter than `minimum` given to its longer neighbour, the shortest run first."""
    labels = np.array(labels)
    while len(starts := run_starts(labels)) > 1:
        lengths = np.diff(np.append(starts, len(labels)))
        shortest = int(lengths.argmin())
        if lengths[shortest] >= minimum:
            break
        sides = [i for i in (shortest - 1, shortest + 1) if 0 <= i < len(starts)]
        longer = max(sides, key=lambda i: lengths[i])
        labels[starts[shortest] : starts[shortest] + lengths[shortest]] = labels[starts[longer]]
    return labels
