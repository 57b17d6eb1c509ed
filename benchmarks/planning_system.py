"""The switching system that planners are timed on: 3 linear modes, 14 coordinates, 7 inputs, a mode kernel of 16."""

import numpy as np

MODES, LATENT, INPUTS, HIDDEN = 3, 14, 7, 16
CANDIDATES, PARTICLES, HORIZON = 256, 64, 16
NOISE, DT, STAY = 0.1, 0.05, 0.9


def system(seed: int = 0) -> dict[str, np.ndarray]:
    """Its parameters; logits are of the transition matrix, to which the network of (z, a) is added."""
    rng = np.random.default_rng(seed)
    turns = [np.linalg.qr(np.eye(LATENT) + 0.1 * rng.normal(size=(LATENT, LATENT)))[0] for _ in range(MODES)]
    other = (1 - STAY) / (MODES - 1)
    return {
        "matrix": 0.98 * np.stack(turns),
        "port": 0.1 * rng.normal(size=(MODES, LATENT, INPUTS)),
        "logits": np.log(np.where(np.eye(MODES, dtype=bool), STAY, other)),
        "first": rng.normal(size=(HIDDEN, LATENT + INPUTS)) / (LATENT + INPUTS) ** 0.5,
        "last": rng.normal(size=(MODES, HIDDEN)) / HIDDEN**0.5,
        "start": 0.5 * rng.normal(size=LATENT),
    }
