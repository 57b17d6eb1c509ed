"""Small models that the tests of planning share; all of one shape, so that programs are compiled once."""

import jax.numpy as jnp
import numpy as np

from vhydro.filter import Particles
from vhydro.model import HybridModel, axis_emission, hybrid_model, linear_flow, mode_kernel
from vhydro.planning import HybridDynamics, Plan, Task, hybrid_dynamics, mppi

LATENT, MODES, HORIZON, DT = 3, 2, 8, 0.1
SMALL = mppi(horizon=HORIZON, knots=4, candidates=32, particles=16, first_rounds=4)


def matrices(seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.stack([0.9 * np.linalg.qr(np.eye(LATENT) + 0.3 * random.normal(size=(LATENT, LATENT)))[0]] * MODES)


PORT = np.array([[[1.0], [0.0], [0.0]], [[0.0], [1.0], [0.0]]])


def switching(matrix=None, *, feasible=None, noise=0.1, stay: float = 0.9) -> HybridModel:
    """Two linear modes; the input pushes x in the first and y in the second."""
    return hybrid_model(
        mode_kernel(MODES, stay=stay, feasible=feasible, dtype=jnp.float64),
        linear_flow(matrices() if matrix is None else matrix, port=PORT, dtype=jnp.float64),
        axis_emission(LATENT, range(LATENT), noise=0.1, dtype=jnp.float64),
        noise=noise,
        channels=("x", "y", "w"),
    )


def moving(model: HybridModel | None = None) -> HybridDynamics:
    return hybrid_dynamics(switching() if model is None else model, DT, inputs=("push",))


def belief(count: int = 8, latent: int = LATENT, mode: int = 0) -> Particles:
    z = np.random.default_rng(1).normal(scale=0.2, size=(latent, count))
    weight = jnp.full(count, -np.log(count))
    return Particles(jnp.full(count, mode, jnp.int32), jnp.asarray(z), weight, jnp.ones(()))


def cost(z, mode, a):
    return jnp.minimum((z["x"] - 1) ** 2, 9.0) / 10 + 0.01 * a["push"] ** 2


def too_far(z, mode, a):
    return z["x"] > 2.0


TASK = Task(cost, too_far, 1.0, (-1.0, 1.0))


def plan(value: float = 0.2, steps: int = HORIZON) -> Plan:
    return Plan(np.full((steps, 1), value), 0.1, 0.0, SMALL, ("push",), DT)
