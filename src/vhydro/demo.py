"""The demo: a puck between soft bumpers, seen through noisy positions that are often hidden."""

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
from vhydro.systems import Puck, Simulation, simulate, to_episodes
from vhydro.training import Parts

# Bumpers soft enough that a contact lasts about nine samples.
PUCK = Puck(
    mass=1.0, wall=0.5, stiffness=12.0, damping=0.5, friction=0.05, drive=0.8, hold=0.5, noise=0.05,
    start_position=0.4, start_momentum=1.5,
)  # fmt: skip
DT, STEPS, SENSOR_NOISE = 0.1, 100, 0.02


class Split(NamedTuple):
    """Episodes by purpose, and the simulation they came from."""

    train: list[Episode]
    validation: list[Episode]
    test: list[Episode]
    truth: Simulation


def puck_episodes(*, key: PRNGKeyArray, train: int = 48, validation: int = 16, test: int = 16) -> Split:
    """Noisy positions of simulated pucks, split by episode."""
    simulated, sensed = jax.random.split(key)
    truth = simulate(PUCK, train + validation + test, STEPS, DT, key=simulated)
    episodes = to_episodes(truth, SENSOR_NOISE, key=sensed)
    return Split(episodes[:train], episodes[train : train + validation], episodes[train + validation :], truth)


def puck_start(key: PRNGKeyArray, *, guide: Literal["conditioned", "amortized"] = "amortized") -> Parts:
    """One seed's untrained model: three modes, a quadratic energy each, modes chosen by a line in (q, p, a)."""
    energy_key, kernel_key, guide_key = jax.random.split(key, 3)
    coefficients = 0.3 * np.asarray(jax.random.normal(energy_key, (3, 5)))
    coefficients[:, 4] = 0.5  # p²/2: a unit mass to begin with
    drive = network(3, (), 3, key=kernel_key, dtype=jnp.float32)
    flow = port_hamiltonian(
        3, 2, 1, polynomial(2, 2), coefficients=coefficients, dissipation=np.diag([0.1, 0.3]), port=[[0.0], [1.0]],
        integrator="midpoint", substeps=2,
    )  # fmt: skip
    model = hybrid_model(
        mode_kernel(3, stay=0.9, drive=drive),
        flow,
        axis_emission(2, [0], noise=0.03, noise_floor=0.005),
        noise=0.1,
        noise_floor=0.005,
        channels=["q"],
    )
    if guide == "conditioned":
        return Parts(model, conditioned_proposal(model))
    return Parts(model, amortized_proposal(model, hidden=(32, 32), key=guide_key))
