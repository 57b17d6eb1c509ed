"""One shape of run for every test, so that each system is compiled once."""

import jax
import numpy as np
import pytest

from vhydro.systems import simulate

EPISODES, STEPS = 16, 200


@pytest.fixture(scope="session")
def played():
    """A simulation from given starts (repeated to fill the batch) under a constant action per episode."""

    def played(system, starts, action=None, *, dt=0.005, substeps=4):
        starts = np.resize(np.asarray(starts, float), (EPISODES, len(system.law().coordinates)))
        inputs = len(system.law().inputs)
        action = np.zeros(inputs) if action is None else action
        actions = np.resize(np.asarray(action, float), (EPISODES, inputs))
        held = np.repeat(actions[:, None], STEPS, axis=1)
        key = jax.random.key(0)  # nothing is drawn: starts and actions are given
        return simulate(system, EPISODES, STEPS, dt, key=key, starts=starts, actions=held, substeps=substeps)

    return played


@pytest.fixture(scope="session")
def drawn():
    """A simulation whose starts and actions are drawn by the system."""

    def drawn(system, seed=0):
        return simulate(system, EPISODES, STEPS, 0.005, key=jax.random.key(seed))

    return drawn
