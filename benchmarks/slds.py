"""The switching linear system that every filter here is timed on: 3 modes, 4-dim state, 2-dim observation."""

import numpy as np

MODES, LATENT, CHANNELS = 3, 4, 2


def slds(seed: int = 0, steps: int = 1000) -> dict:
    """Parameters and one simulated log; the state starts at N(0, I) in mode 0 and moves before it is first seen."""
    rng = np.random.default_rng(seed)

    def rotation(angle):
        c, s = np.cos(angle), np.sin(angle)
        return np.kron(np.eye(2), [[c, -s], [s, c]])

    matrix = np.array([0.97 * rotation(a) for a in (0.05, 0.25, 0.6)])
    offset = np.array([[0.1, 0, 0, 0], [-0.1, 0.1, 0, 0], [0, 0, 0.2, -0.1]])
    table = 0.94 * np.eye(MODES) + 0.02
    emission = 0.7 * rng.normal(size=(CHANNELS, LATENT))
    noise, sensor = 0.1, 0.3
    mode, z, log = 0, rng.normal(size=LATENT), []
    for _ in range(steps):
        mode = rng.choice(MODES, p=table[mode])
        z = matrix[mode] @ z + offset[mode] + noise * rng.normal(size=LATENT)
        log.append(emission @ z + sensor * rng.normal(size=CHANNELS))
    return {
        "matrix": matrix, "offset": offset, "table": table, "emission": emission,
        "noise": noise, "sensor": sensor, "log": np.array(log),
    }  # fmt: skip
