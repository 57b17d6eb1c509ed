"""Is a richer law worth it: nested laws compared on the same weak-form rows, whose errors last longer than a row."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2

from vhydro.laws.weak import Rows
from vhydro.laws.weak_errors import memory, robust_covariance, tapered


class Comparison(NamedTuple):
    """A law and a richer one on the same rows."""

    narrow: float  # misfits: sums of squares
    wide: float
    effective_rows: float  # independent rows that would tell as much
    bic_gain: float  # by how much the richer law's BIC is smaller: positive speaks for it
    wald: float  # how far what it adds is from 0, squared, in units of its robust covariance
    added: int

    @property
    def p_value(self) -> float:
        """The probability of a Wald statistic this large if what is added were 0."""
        return float(chi2.sf(self.wald, self.added))

    @property
    def preferred(self) -> bool:
        """Whether the richer law is proposed: both BIC and significance at 1 in 1000 ask for it."""
        return self.bic_gain > 0 and self.p_value < 1e-3


def misfit(rows: Rows, support: np.ndarray) -> float:
    """The sum of squares that least squares on a support leaves."""
    return float(np.sum(rows.residuals(rows.solution(support)) ** 2))


def comparison(rows: Rows, narrow: np.ndarray, wide: np.ndarray) -> Comparison:
    """The comparison of two supports (entries,), the first inside the second."""
    if (narrow & ~wide).any() or not (wide & ~narrow).any():
        raise ValueError(
            f"The narrow law has entries {np.flatnonzero(narrow)}, the wide one {np.flatnonzero(wide)}; expected "
            "the first inside the second and smaller. Take the union of both as the wide law."
        )
    added = wide & ~narrow
    theta, covariance = rows.solution(wide)[added], robust_covariance(rows, wide)[np.ix_(added, added)]
    size = np.sqrt(np.diag(covariance))
    wald = theta / size @ np.linalg.solve(covariance / np.outer(size, size), theta / size)
    less, more, n = misfit(rows, narrow), misfit(rows, wide), effective_rows(rows, wide)
    gain = n * np.log(less / more) - added.sum() * np.log(n)
    return Comparison(less, more, n, float(gain), float(wald), int(added.sum()))


def effective_rows(rows: Rows, support: np.ndarray) -> float:
    """How many independent rows would determine a mean as well as these, from how long the residuals last."""
    left = rows.residuals(rows.solution(support))[..., None]
    weights = tapered(max(memory(left), len(rows.overlap)))
    lagged = [np.sum(left[:, lag:] * left[:, : left.shape[1] - lag]) for lag in range(len(weights))]
    inflation = 1 + 2 * float(weights[1:] @ np.array(lagged[1:])) / max(lagged[0], 1e-300)
    return rows.number / max(inflation, 1.0)


class Step(NamedTuple):
    """One entry added to a law."""

    entry: int
    support: np.ndarray  # with it
    against: Comparison  # with the law before


def ladder(rows: Rows, start: np.ndarray, optional: np.ndarray) -> tuple[Step, ...]:
    """The entries that a law asks for one after the other, each the one that fits best, while each is preferred."""
    support, steps = start.copy(), []
    while (pool := np.flatnonzero(optional & ~support)).size:
        tried = np.tile(support, (len(pool), 1))
        tried[np.arange(len(pool)), pool] = True
        best = int(np.argmin([misfit(rows, t) for t in tried]))
        found = comparison(rows, support, tried[best])
        if not found.preferred:
            break
        support = tried[best]
        steps.append(Step(int(pool[best]), support, found))
    return tuple(steps)


def held_out_width(rows_of: Callable[[int], Rows], widths: Iterable[int], support: np.ndarray) -> int:
    """The bump whose law, fitted on one half of a recording, predicts the other half best.

    A prediction is judged on the rows of all widths together, by the mean logarithm of its misfit: no width is
    judged by its own rows alone. Both halves take their turn.
    """
    all_rows = {width: rows_of(width) for width in widths}
    halves = ((0.0, 0.5), (0.5, 1.0))
    ahead = [{w: r.between(*half) for w, r in all_rows.items()} for half in halves]

    def error(width: int) -> float:
        logs = [
            np.log(np.mean(test.residuals(fitted[width].solution(support)) ** 2))
            for fitted, tests in (ahead, ahead[::-1])
            for test in tests.values()
        ]
        return float(np.mean(logs))

    return min(all_rows, key=error)
