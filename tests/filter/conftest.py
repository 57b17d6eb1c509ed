"""Switching linear systems as models, the exact answers for them, and a filter repeated under many keys."""

from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import linear

from vhydro.episodes import episode, pad
from vhydro.filter import filtered
from vhydro.gaussian import LOG_2PI  # noqa: F401
from vhydro.model import axis_emission, hybrid_model, linear_emission, linear_flow, mode_kernel
from vhydro.proposal import amortized_proposal, conditioned_proposal


def switching_model(modes: int, *, dense: bool = True, dtype=jnp.float64, seed: int = 0, **options):
    """A stable model of two coordinates and two channels, whose modes push apart."""
    s = linear.random_system(np.random.default_rng(seed), modes, 2, 2)
    kernel = eqx.tree_at(lambda k: k.logits, mode_kernel(modes, dtype=dtype), jnp.asarray(np.log(s.table), dtype))
    if dense:
        emission = linear_emission(s.C, noise=np.sqrt(np.diag(s.R)), offset=s.c, dtype=dtype)
    else:
        emission = axis_emission(2, (1, 0), noise=np.sqrt(np.diag(s.R)), dtype=dtype)
    return hybrid_model(
        kernel,
        linear_flow(s.F, s.f, dtype=dtype),
        emission,
        noise=np.sqrt(np.diagonal(s.Q, axis1=1, axis2=2)),
        start_mode=s.start_prob,
        start_mean=s.start_mean,
        start_scale=np.sqrt(np.diagonal(s.start_cov, axis1=1, axis2=2)),
        **options,
    )


def system_of(model) -> linear.System:
    """The same system in the oracle's words."""
    start, eye = model.start(), np.eye(model.latent)
    return linear.System(
        *(np.exp(start.log_mode), start.mean, start.scale[..., None] ** 2 * eye),
        jax.nn.softmax(jnp.where(model.kernel.feasible, model.kernel.logits, -jnp.inf), axis=-1),
        *(model.flow.matrix, model.flow.offset, model.noise[..., None] ** 2 * eye),
        *(model.emission.dense(), model.emission.offset, np.diag(model.emission.noise**2)),
    )
