"""The same step again and again from the same ancestors: how much its normaliser really varies, beside its bound."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from vhydro.filter.frames import Frame, Particles
from vhydro.filter.settings import FilterSettings, noise_layout
from vhydro.filter.step import filter_step
from vhydro.model import HybridModel
from vhydro.particles import step_noise
from vhydro.proposal import Proposal


def repeated_steps(
    model: HybridModel,
    proposal: Proposal | None,
    settings: FilterSettings,
    before: Particles,
    frame: Frame,
    times: Int[Array, "rows"],
    key: PRNGKeyArray,
    repeats: int,
) -> tuple[Float[Array, "rows"], Float[Array, "rows repeats"]]:
    """The bound of every row's step, and the log normaliser of each of its repeats.

    `before` holds the particles before each row, `frame` what came next. Resampling is drawn once for all repeats of a
    row, since the bound is one given the ancestors; everything after it is drawn anew.
    """
    layout = noise_layout(model, proposal, settings)

    def once(particles: Particles, frame: Frame, time, again):
        noise = step_noise(layout, jax.random.fold_in(key, again), time, model.dtype)
        noise["resample"] = step_noise(layout, key, time, model.dtype)["resample"]
        _, record, _ = filter_step(model, proposal, settings, particles, frame, noise)
        return record.bound, record.log_normaliser

    every = jax.vmap(jax.vmap(once, in_axes=(None, None, None, 0)), in_axes=(0, 0, 0, None))
    bound, log_normaliser = every(before, frame, times, 1 + jnp.arange(repeats))
    return bound[:, 0], log_normaliser
