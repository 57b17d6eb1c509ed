"""The log evidence with samples held fixed, and its gradient in two parts.

With samples fixed the gradient reaches back in time through the weights alone: what a particle of a later row owes its
ancestors. So the filter runs once without a gradient, what every particle is owed is added up along the ancestors, and
the steps, each from the particles that were there, are differentiated all at once: nothing of that is a recursion.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vhydro.episodes import Batch
from vhydro.filter.frames import Frame, Particles
from vhydro.filter.run import frames_of, log_units
from vhydro.filter.settings import FilterSettings, noise_layout
from vhydro.filter.step import filter_step, initial, keeps_ancestors
from vhydro.particles import Noise, step_noise
from vhydro.small import precise


def has_two_parts(settings: FilterSettings) -> bool:
    """Whether the gradient is taken so: with fixed samples, where it reaches back through weights alone.

    And on accelerators: on a CPU, where a row costs its work and not its launches, every step done once more is time
    lost, half as much again.
    """
    return jax.default_backend() != "cpu" and keeps_ancestors(settings) and settings.soft == 1


class _Rows(NamedTuple):
    """What every step began with, and what it left."""

    noise: Noise
    before: Particles
    log_weight: Float[Array, "rows particles"]
    ancestor: Int[Array, "rows particles"]
    counted: Bool[Array, "rows"]  # its evidence: neither padding nor drawn again


@eqx.filter_custom_vjp
@precise
def fixed_log_evidence(parts, settings: FilterSettings, batch: Batch, key) -> Float[Array, ""]:
    """The log evidence of one episode by the filter (model, proposal), without the steps that were drawn again."""
    return _filtered(parts, settings, batch, key)[0]


def _step(parts, settings: FilterSettings, before: Particles, frame: Frame, noise: Noise):
    """The weights after a step, the evidence it counts, and the rest."""
    model, proposal = parts
    after, record, _ = filter_step(model, proposal, settings, before, frame, noise)
    counted = frame.valid & ~record.redrawn
    return (after.log_weight, jnp.where(counted, record.log_normaliser, 0.0)), (after, counted)


def _filtered(parts, settings: FilterSettings, batch: Batch, key):
    model, proposal = parts
    layout, rows = noise_layout(model, proposal, settings), batch.valid.shape[0]
    noise = jax.vmap(lambda t: step_noise(layout, key, t, model.dtype))(jnp.arange(rows))
    frames = frames_of(model, batch)

    def one(before: Particles, inputs):
        (_, evidence), (after, counted) = _step(parts, settings, before, *inputs)
        return after, (evidence, before, after, counted)

    begun = initial(model, settings)
    _, (evidence, before, after, counted) = jax.lax.scan(one, begun, (frames, noise))
    assert after.ancestor is not None
    rows = _Rows(noise, before, after.log_weight, after.ancestor, counted)
    return evidence.sum() + _units(model, batch, counted), rows


def _units(model, batch: Batch, counted) -> Float[Array, ""]:
    return jnp.where(counted, log_units(model, batch.observed), 0.0).sum()


@fixed_log_evidence.def_fwd
@precise
def _forward(perturbed, parts, settings, batch, key):
    del perturbed
    return _filtered(parts, settings, batch, key)


@fixed_log_evidence.def_bwd
@precise
def _backward(rows: _Rows, slope, perturbed, parts, settings, batch, key):
    del perturbed, key
    owed = _owed(rows, batch.valid)
    arrays, rest = eqx.partition(parts, eqx.is_inexact_array)

    def steps(arrays):
        parts = eqx.combine(arrays, rest)
        each = jax.vmap(lambda *given: _step(parts, settings, *given)[0])
        return each(rows.before, frames_of(parts[0], batch), rows.noise), _units(parts[0], batch, rows.counted)

    _, pulled = jax.vjp(steps, arrays)
    return pulled(((slope * owed, jnp.full(owed.shape[:1], slope)), slope))[0]


def _owed(rows: _Rows, valid: Bool[Array, "rows"]) -> Float[Array, "rows particles"]:
    """How much of the evidence still to come hangs on the log weight of every particle after every row."""

    def back(owed, inputs):
        log_weight, ancestor, counted, valid = inputs
        # Weights are divided by their sum, whose logarithm is the row's evidence.
        own = owed + (counted - owed.sum()) * jnp.exp(log_weight)
        return jnp.where(valid, jnp.zeros_like(owed).at[ancestor].add(own), owed), owed

    given = rows.log_weight, rows.ancestor, rows.counted, valid
    return jax.lax.scan(back, jnp.zeros_like(rows.log_weight[0]), given, reverse=True)[1]
