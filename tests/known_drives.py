"""A drive with inertia and friction whose force is known exactly."""

import numpy as np

from vhydro.laws import Problem, Recording
from vhydro.library import Monomial

MASS, FORWARD, BACKWARD, DRY, OFFSET = 95.0, 180.0, 240.0, 20.0, -3.0
DT = 0.001
# Inertia and constant forces, the modes not yet those of direction.
TEXTBOOK = Problem(
    ("q", "p"), ("m", "kg m/s"), ("force",), ("all",), (Monomial((0, 2)), Monomial((1, 0))),
    dissipation=np.array([np.nan]), port=np.array([[0.0], [1.0]]),
)  # fmt: skip


def drive(backward: float = BACKWARD, *, noise: float = 1e-7, seconds: float = 10.0) -> Recording:
    """One record of an axis that swings at two frequencies, at 1 kHz; its forces are those between samples."""
    steps = round(seconds / DT)

    def course(t: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        parts = [(0.1, 2.0), (0.01, 7.0)]
        q, v = (np.sum([s * w**k * f(w * t) for s, w in parts], 0) for k, f in ((0, np.sin), (1, np.cos)))
        return q, v, -np.sum([s * w**2 * np.sin(w * t) for s, w in parts], 0)

    q = course(DT * np.arange(steps))[0]
    _, v, a = course(DT * (np.arange(steps - 1) + 0.5))
    force = MASS * a + np.where(v < 0, backward, FORWARD) * v + DRY * np.sign(v) + OFFSET
    seen = q + noise * np.random.default_rng(0).standard_normal(steps)
    return Recording(seen[None, :, None], force[None, :, None], np.ones((1, steps, 1)), DT)
