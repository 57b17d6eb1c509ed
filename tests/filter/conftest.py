"""Switching linear systems as models, and the same systems in the oracle's words.

Fixtures that return functions: a test names them as arguments and calls them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import linear
from vhydro.model import axis_emission, hybrid_model, linear_emission, linear_flow, mode_kernel

TURN = 0.95 * np.array([[np.cos(0.3), np.sin(0.3)], [-np.sin(0.3), np.cos(0.3)]])


def _switching_model(modes=2, *, dense=True, inputs=0, dtype=jnp.float64, feasible=None, sharp=1.0, **units):
    """A model of two coordinates and two channels whose modes turn or settle, and push apart.

    `dense` channels mix the coordinates; otherwise each reads one. `sharp` divides the sensors' noise.
    """
    noise = np.array([0.9, 0.8]) / sharp
    emission = (
        linear_emission([[1.0, 0.5], [-0.3, 0.8]], noise=noise, offset=[0.2, -0.1], dtype=dtype)
        if dense
        else axis_emission(2, (1, 0), noise=noise, dtype=dtype)
    )
    kernel = mode_kernel(modes, stay=0.75, feasible=feasible, dtype=dtype)
    port = np.array([[[0.6], [-0.3]], [[0.2], [0.4]]])[:modes, :, :inputs]
    return hybrid_model(
        kernel,
        linear_flow(np.stack([TURN, 0.6 * np.eye(2)])[:modes], [[0.4, 0.1], [-0.5, 0.2]][:modes], port, dtype=dtype),
        emission,
        noise=np.array([[0.5, 0.4], [0.3, 0.6]])[:modes],
        start_mode=np.array([0.6, 0.4])[:modes] / sum([0.6, 0.4][:modes]),
        start_mean=[[0.5, 0.0], [-0.5, 0.3]][:modes],
        start_scale=0.6,
        **units,
    )


def _system_of(model) -> linear.System:
    """The same system, in raw units, as the oracle takes it; without inputs."""
    start, eye, unit = model.start(), np.eye(model.latent), model.scale
    table = jax.nn.softmax(jnp.where(model.kernel.feasible, model.kernel.logits, -jnp.inf), axis=-1)
    each = (
        *(jnp.exp(start.log_mode), start.mean, start.scale[..., None] ** 2 * eye),
        *(table, model.flow.matrix, model.flow.offset, model.noise[..., None] ** 2 * eye),
        unit[:, None] * model.emission.dense(),
        model.shift + unit * model.emission.offset,
        jnp.diag((unit * model.emission.noise) ** 2),
    )
    return linear.System(*(np.asarray(x, np.float64) for x in each))


def _roughened(proposal, size, *, key):
    """The proposal with random last weights: a guide that is wrong about modes, means and scales."""

    def last(p):
        return (getattr(p, "network", None) or p.residual).weights[-1]

    return eqx.tree_at(
        last,
        proposal,
        replace_fn=lambda w: size * jax.random.normal(key, w.shape, w.dtype) / float(np.sqrt(w.shape[1])),
    )


@pytest.fixture(scope="session")
def switching_model():
    return _switching_model


@pytest.fixture(scope="session")
def system_of():
    return _system_of


@pytest.fixture(scope="session")
def roughened():
    return _roughened
