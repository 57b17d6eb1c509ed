"""A mass on a spring with friction, pushed by a force that is held between samples: its exact motion."""

import numpy as np
from scipy.linalg import expm

MASS, STIFFNESS, FRICTION = 2.0, 8.0, 0.3
DT, HOLD = 0.005, 50  # s; samples for which a force lasts


def oscillator(episodes: int, steps: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """States (episodes, steps + 1, 2) of `q̇ = p/m`, `ṗ = −kq − cp/m + f`, and forces (episodes, steps, 1)."""
    rng = np.random.default_rng(seed)
    whole = np.array([[0, 1 / MASS, 0], [-STIFFNESS, -FRICTION / MASS, 1], [0, 0, 0]])
    ahead = expm(whole * DT)
    forces = 3.0 * rng.uniform(-1, 1, (episodes, steps // HOLD + 1, 1)).repeat(HOLD, 1)[:, :steps]
    states = np.zeros((episodes, steps + 1, 2))
    states[:, 0] = rng.uniform(-1, 1, (episodes, 2)) * [1.0, 4.0]
    for t in range(steps):
        states[:, t + 1] = states[:, t] @ ahead[:2, :2].T + forces[:, t] @ ahead[:2, 2:].T
    return states, forces
