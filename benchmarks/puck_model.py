"""The puck that estimators are compared on: its logs, and a model that knows nothing of it yet."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from vhydro.episodes import Episode
from vhydro.library import polynomial
from vhydro.model import axis_emission, hybrid_model, mode_kernel, port_hamiltonian
from vhydro.network import network
from vhydro.proposal import amortized_proposal, conditioned_proposal
from vhydro.systems import Puck, simulate, to_episodes
from vhydro.training import Parts

# Bumpers soft enough that a contact lasts about nine samples.
PUCK = Puck(
    mass=1.0, wall=0.5, stiffness=12.0, damping=0.5, friction=0.05, drive=0.8, hold=0.5, noise=0.1,
    start_position=0.4, start_momentum=1.5,
)  # fmt: skip
DT, STEPS, SENSOR_NOISE = 0.1, 100, 0.03
MODES, NOISE_FLOOR = 3, 0.005


class Split(NamedTuple):
    """Logs to learn from, and logs to choose by."""

    train: list[Episode]
    validation: list[Episode]


def puck_episodes(*, key: PRNGKeyArray, train: int = 48, validation: int = 16, test: int = 16) -> Split:
    """Noisy positions of simulated pucks, split by episode; the last `test` of them are left out."""
    simulated, sensed = jax.random.split(key)
    truth = simulate(PUCK, train + validation + test, STEPS, DT, key=simulated)
    episodes = to_episodes(truth, SENSOR_NOISE, key=sensed)
    return Split(episodes[:train], episodes[train : train + validation])


def puck_start(key: PRNGKeyArray, *, guide: Literal["conditioned", "amortized"] = "amortized") -> Parts:
    """One seed's untrained model, ignorant of the data: random springs, modes by lines in (q, p, a)."""
    energy_key, kernel_key, guide_key = jax.random.split(key, 3)
    coefficients = 0.3 * np.asarray(jax.random.normal(energy_key, (MODES, 5)))
    coefficients[:, 4] = 0.5  # p²/2: a unit mass to begin with
    flow = port_hamiltonian(
        MODES, 2, 1, polynomial(2, 2), coefficients=coefficients, dissipation=np.diag([0.01, 0.09]),
        port=[[0.0], [1.0]], integrator="midpoint", substeps=2,
    )  # fmt: skip
    emission = axis_emission(2, [0], noise=0.03, noise_floor=NOISE_FLOOR)
    kernel = mode_kernel(MODES, stay=0.9, drive=network(3, (), MODES, key=kernel_key, dtype=jnp.float32))
    model = hybrid_model(kernel, flow, emission, noise=0.1, noise_floor=NOISE_FLOOR, channels=["q"])
    if guide == "conditioned":
        return Parts(model, conditioned_proposal(model))
    return Parts(model, amortized_proposal(model, hidden=(32, 32), key=guide_key))
