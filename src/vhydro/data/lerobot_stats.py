"""What LeRobot keeps of every column to normalise it by: range, mean, spread, quantiles; hidden values left out."""

from dataclasses import dataclass

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}

Stats = dict[str, list]


def stats(values: np.ndarray, *, quantiles: bool = False) -> Stats:
    """Minimum, maximum, mean and spread of each number over an episode, and quantiles where they are asked for."""
    wide = values.reshape(len(values), -1).astype(np.float64)
    seen = np.isfinite(wide)
    some, count = seen.any(axis=0), np.maximum(seen.sum(axis=0), 1)
    mean = np.where(seen, wide, 0).sum(axis=0) / count
    spread = np.sqrt(np.where(seen, (wide - mean) ** 2, 0).sum(axis=0) / count)
    least = np.where(some, np.where(seen, wide, np.inf).min(axis=0), 0)
    most = np.where(some, np.where(seen, wide, -np.inf).max(axis=0), 0)
    found = {"min": least, "max": most, "mean": mean, "std": spread}
    if quantiles:
        # A column that is never seen has no quantiles: zeros stand in, as for its range.
        known = np.where(seen | ~some, np.where(some, wide, 0), np.nan)
        found |= dict(zip(QUANTILES, np.nanquantile(known, list(QUANTILES.values()), axis=0), strict=True))
    return {name: numbers.tolist() for name, numbers in found.items()} | {"count": [len(wide)]}


@dataclass
class Running:
    """The statistics of one column over all episodes so far."""

    frames: int
    seen: np.ndarray  # values of each number that were not hidden
    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    squares: np.ndarray  # the sum of squared distances from the mean
    quantiles: np.ndarray  # (quantiles, width): sums over episodes, weighted by their rows

    @classmethod
    def of(cls, values: np.ndarray, found: Stats) -> "Running":
        """Of one episode."""
        wide = values.reshape(len(values), -1)
        seen = np.isfinite(wide.astype(np.float64)).sum(axis=0)
        low = np.where(seen > 0, found["min"], np.inf)
        high = np.where(seen > 0, found["max"], -np.inf)
        ranks = np.array([found[q] for q in QUANTILES]) * len(wide)
        return cls(len(wide), seen, low, high, np.array(found["mean"]), np.square(found["std"]) * seen, ranks)

    def add(self, other: "Running") -> None:
        """Takes the numbers of further rows in (Chan, Golub & LeVeque 1983)."""
        total = np.maximum(self.seen + other.seen, 1)
        gap = other.mean - self.mean
        self.squares = self.squares + other.squares + gap**2 * self.seen * other.seen / total
        self.mean = self.mean + gap * other.seen / total
        self.low, self.high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        self.frames, self.seen = self.frames + other.frames, self.seen + other.seen
        self.quantiles = self.quantiles + other.quantiles

    def stats(self) -> Stats:
        """As `meta/stats.json` has them; quantiles are the mean of the episodes', as LeRobot takes them."""
        count = np.maximum(self.seen, 1)
        found = {
            "min": np.where(self.seen > 0, self.low, 0), "max": np.where(self.seen > 0, self.high, 0),
            "mean": self.mean, "std": np.sqrt(self.squares / count),
        } | dict(zip(QUANTILES, self.quantiles / self.frames, strict=True))  # fmt: skip
        return {name: numbers.tolist() for name, numbers in found.items()} | {"count": [self.frames]}
