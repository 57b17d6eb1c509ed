"""Gravity and restitution of a real cube, from 400 tosses filmed by motion capture.

Data: poses of the cube, nothing else; recorded velocities are low-pass filtered and are not used. Model: a rigid cube
of known size, a flat table, contact where its lowest corner comes down to the height at which corners rest, free fall
before that, and a corner that leaves the table at a fraction of the speed at which it came. (ContactNets, CoRL 2020.)

    python examples/cube_toss_law.py --path cube_tosses.npz
"""

from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro
from scipy.spatial.transform import Rotation

from vhydro.data import read

DATA = Path(__file__).parents[1] / ".." / "shared" / "data" / "real" / "cube_tosses.npz"
CLEARANCE = 0.002  # m: nine in ten resting corners are within a third of that
SHORTEST_FLIGHT = 8  # samples: below, a parabola says little
EACH_SIDE = 5  # samples on each side of an impact that a corner's speed is read from
DEEPEST = 4  # samples after touching down within which a corner turns round
RESAMPLES = 1000


class Toss(NamedTuple):
    """One toss, from its first sample on; heights are above the table."""

    centre: np.ndarray  # (times,) m: of the centre of mass
    corners: np.ndarray  # (times, 8) m
    dt: float

    @property
    def touchdown(self) -> int:
        """The first sample at which a corner is on the table; the number of samples if none ever is."""
        down = self.corners.min(1) < CLEARANCE
        return int(np.argmax(down)) if down.any() else len(down)


def tosses(path: Path) -> tuple[list[Toss], dict]:
    """All tosses, heights counted from where corners come to rest, and what the file says about itself."""
    episodes = read(path)
    half = float(episodes[0].info["half_width"])
    found = [(*_heights(e.observations, half), e.dt) for e in episodes]
    table = np.median([corners[-5:].min(1).mean() for _, corners, _ in found])
    return [Toss(centre - table, corners - table, dt) for centre, corners, dt in found], dict(episodes[0].info)


def _heights(poses: np.ndarray, half: float) -> tuple[np.ndarray, np.ndarray]:
    """Heights of the centre and of every corner, from positions and quaternions (w first)."""
    body = half * np.array(list(product((-1, 1), repeat=3)))
    up = Rotation.from_quat(poses[:, 3:7], scalar_first=True).as_matrix()[:, 2]
    return poses[:, 2], poses[:, 2:3] + up @ body.T


def gravity(flights: list[Toss], rng: np.random.Generator) -> tuple[float, tuple[float, float]]:
    """The acceleration of the centre of mass in flight, one for all tosses, with its 95 % interval.

    Every flight has its own height and speed at the start. Tosses, not samples, are drawn again for the interval.
    """
    parts = []
    for toss in flights:
        t = np.arange(toss.touchdown) * toss.dt
        if len(t) < SHORTEST_FLIGHT:
            continue
        own = np.linalg.qr(np.stack([np.ones_like(t), t], 1))[0]
        fall = t**2 / 2 - own @ (own.T @ t**2) / 2
        parts.append((fall @ toss.centre[: len(t)], fall @ fall))
    drawn = np.array(parts)[rng.integers(0, len(parts), (RESAMPLES, len(parts)))].sum(1)
    low, high = np.percentile(drawn[:, 0] / drawn[:, 1], [2.5, 97.5])
    cross, square = np.sum(parts, 0)
    return float(cross / square), (float(low), float(high))


def restitution(toss: Toss, each_side: int = EACH_SIDE, degree: int = 2) -> float:
    """The speed of the first corner to touch down after its impact, over that before; NaN without enough samples.

    Before, a parabola through its height is followed to the table. After, a polynomial begins where it turns round.
    """
    down = toss.touchdown
    if down < each_side or down + DEEPEST + each_side >= len(toss.corners):
        return np.nan
    height = toss.corners[:, np.argmin(toss.corners[down])]
    turn = down + int(np.argmin(height[down : down + DEEPEST])) + 1
    before = np.polynomial.Polynomial.fit(np.arange(-each_side, 0.0), height[down - each_side : down], 2)
    after = np.polynomial.Polynomial.fit(np.arange(0.0, each_side), height[turn : turn + each_side], degree)
    landing = [r.real for r in before.roots() if abs(r.imag) < 1e-9 and -1 <= r.real < 2]
    return float(-after.deriv()(0.0) / before.deriv()(min(landing))) if landing else np.nan


def restitutions(flights: list[Toss], each_side: int = EACH_SIDE, degree: int = 2) -> np.ndarray:
    """Those of all tosses that have one."""
    found = np.array([restitution(toss, each_side, degree) for toss in flights])
    return found[np.isfinite(found)]


def median_interval(values: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """The 95 % interval of a median, by drawing again."""
    low, high = np.percentile(np.median(rng.choice(values, (RESAMPLES, len(values))), 1), [2.5, 97.5])
    return float(low), float(high)


def main(path: Path = DATA, seed: int = 0) -> None:
    """Print the law of flight and of the first impact."""
    flights, info = tosses(path)
    rng = np.random.default_rng(seed)
    g, (low, high) = gravity(flights, rng)
    print(f"flight   z̈ = {g:.3f} m/s²   [{low:.3f}, {high:.3f}]")
    found = restitutions(flights)
    (first, median, third), (low, high) = np.percentile(found, [25, 50, 75]), median_interval(found, rng)
    print(f"impact   ḣ⁺ = −{median:.3f} ḣ⁻   [{low:.3f}, {high:.3f}]   of the corner that touches down first")
    print(f"         {len(found)} of {len(flights)} tosses, middle half {first:.2f} … {third:.2f}")
    print(f"         the authors' value: {float(info['restitution_reported']):.3f}")
    print("The median by how the speed after impact is read:")
    for each_side, degree in ((3, 1), (4, 1), (6, 1), (4, 2), (5, 2), (6, 2)):
        kind = "line" if degree == 1 else "parabola"
        print(f"         {kind} through {each_side} samples: {np.median(restitutions(flights, each_side, degree)):.3f}")


if __name__ == "__main__":
    tyro.cli(main)
