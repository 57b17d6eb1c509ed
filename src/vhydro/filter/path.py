"""What can be said of a whole log: independent islands, and as many particles as an accuracy needs.

A certified step bounds the error of that step given its ancestors. Whether a branch was lost on the way is seen only by
runs that could have kept it: K islands with random numbers of their own, in one program. Their evidences `Ẑ_k` are
independent and unbiased, which alone proves a lower bound: by Markov's inequality all of them exceed `a Z` with
probability at most `a^−K`, so

    log Z ≥ min_k log Ẑ_k − log(1/β)/K       with probability 1 − β, whatever the model, engine and guide.

No such bound exists from above: a branch that every island missed is not seen. What is said instead is an estimate, the
Student interval of `log Ẑ` around the log of the islands' mean, and how far the islands' beliefs lie apart.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp
from scipy.stats import t as student

ISLANDS = 8  # where an accuracy is asked for
CONFIDENCE = 0.95
# How much wider the interval is where linearised branches are corrected. The evidences of such islands have a longer
# upper tail than a few of them show, and Student's interval alone held in .90 to .93 of the logs this was chosen on.
WIDER = 1.5


class PathStatement(NamedTuple):
    """A statement on a whole log: what its islands say of the log evidence and of the belief."""

    log_evidence: float  # log of the islands' mean, in raw units
    half_width: float  # nats: Student interval of the islands' mean, wider where branches are corrected
    lower: float  # proven: log Z is at least this, at this confidence
    confidence: float
    spread: np.ndarray  # (rows,) largest difference between an island's mode probabilities and their mean
    islands: int
    particles: int  # of each island
    engine: str
    accuracy: float | None  # what was asked for, if anything
    reached: bool | None  # whether the half width is within it

    def __str__(self) -> str:
        """One or two lines to read."""
        said = (
            f"log Z = {self.log_evidence:.2f} ± {self.half_width:.2f} nats ({self.islands} islands × {self.particles} "
            f"particles, {self.engine} engine); proven: log Z ≥ {self.lower:.2f} at {self.confidence:.0%}."
        )
        if self.reached is False:
            said += f" The accuracy of {self.accuracy:g} nats was NOT reached: raise `budget`."
        return said


def path_of(
    log_evidence: np.ndarray,
    modes: np.ndarray,
    particles: int,
    engine: str,
    accuracy: float | None = None,
    corrected: bool = False,
) -> PathStatement:
    """The statement that islands with these log evidences (islands,) and mode beliefs (islands, rows, modes) make.

    `corrected` says that the evidences are those of linearised branches after their correction.
    """
    islands = len(log_evidence)
    values = np.asarray(log_evidence, np.float64)
    middle = float(logsumexp(values) - np.log(islands))
    half = _half_width(values) * (WIDER if corrected else 1.0)
    lower = float(values.min() + np.log(1 - CONFIDENCE) / islands)
    spread = np.abs(modes - modes.mean(0)).max((0, 2))
    reached = None if accuracy is None else bool(half <= accuracy)
    return PathStatement(middle, half, lower, CONFIDENCE, spread, islands, particles, engine, accuracy, reached)


def _half_width(values: np.ndarray) -> float:
    """Half the Student interval of the log of the mean, in logs, where evidences are nearly log-normal.

    The log of a mean of K log-normals is off by `σ²/2 · (1 − 1/K)` beside the spread of the mean: both are counted.
    """
    islands = len(values)
    if islands < 2 or not np.isfinite(values).all():
        return float("inf")
    sd = values.std(ddof=1)
    return float(student.ppf((1 + CONFIDENCE) / 2, islands - 1) * sd / np.sqrt(islands) + sd**2 / (2 * islands))
