"""The filter in a control loop: one observation in, one belief and one certificate out."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from vhydro.emission import Observation
from vhydro.episodes import refuse_bad_dt, refuse_infinite
from vhydro.filter.laws import Frame, Particles
from vhydro.filter.run import log_units
from vhydro.filter.settings import FilterSettings, noise_layout, refuse_mismatch
from vhydro.filter.step import Belief, Record, filter_step, initial
from vhydro.model import HybridModel
from vhydro.particles import step_noise
from vhydro.proposal import ConditionedProposal, Proposal


class Step(NamedTuple):
    """What one call of `Stream.step` returns, as numpy arrays."""

    record: Record
    belief: Belief


class Stream:
    """A running filter. `start(observation)` once, then `step(action, observation)` for every sample.

    Same numbers as `filter` on the whole log with the same key. Compiled when it is made, so that no step waits.
    """

    def __init__(
        self,
        model: HybridModel,
        *,
        dt: float,
        key: PRNGKeyArray,
        proposal: Proposal | None = ConditionedProposal(),  # noqa: B008
        settings: FilterSettings = FilterSettings(),  # noqa: B008
    ):
        model.validate()
        refuse_mismatch(model, proposal, settings)
        refuse_bad_dt(dt)
        self._model = model
        self._dtype = np.dtype(model.dtype)
        layout = noise_layout(model, proposal, settings)

        # The model is baked into the program: a call then hands over the particles and one row, nothing else.
        def advance(particles: Particles, time, row):
            value, action = row[: len(model.channels)], row[len(model.channels) :]
            observed = ~jnp.isnan(value)
            seen = Observation(jnp.where(observed, (value - model.shift) / model.scale, 0.0), observed)
            frame = Frame(
                action / model.action_scale, seen, jnp.asarray(dt, model.dtype), time == 0, jnp.ones((), bool)
            )
            noise = step_noise(layout, key, time, model.dtype)
            after, record, belief = filter_step(model, proposal, settings, particles, frame, noise)
            log_normaliser = record.log_normaliser + log_units(model, observed)
            return after, time + 1, Step(record._replace(log_normaliser=log_normaliser), belief)

        def packed(particles: Particles, time, row):
            # One array comes back instead of fifteen: handing arrays over costs more than the step's arithmetic.
            after, time, out = advance(particles, time, row)
            return after, time, jnp.concatenate([x.ravel().astype(model.dtype) for x in jax.tree.leaves(out)])

        self._empty = initial(model, settings)
        row = jax.ShapeDtypeStruct((len(model.channels) + model.inputs,), self._dtype)
        time = jax.ShapeDtypeStruct((), jnp.int32)
        self._leaves, self._structure = jax.tree.flatten(jax.eval_shape(advance, self._empty, time, row)[2])
        self._advance = jax.jit(packed).lower(self._empty, time, row).compile()
        self._particles: Particles = self._empty
        self._time = None

    @property
    def particles(self) -> Particles:
        """The current weighted population."""
        return self._particles

    def start(self, observation) -> Step:
        """The belief after the first observation; forgets everything before it."""
        self._particles = self._empty
        self._time = jnp.zeros((), jnp.int32)
        return self._move(np.zeros(self._model.inputs, self._dtype), observation)

    def step(self, action, observation) -> Step:
        """The belief after this action and the observation that followed it; NaN means hidden."""
        if self._time is None:
            raise ValueError("the stream has not started; call `start(first_observation)` before `step`.")
        return self._move(action, observation)

    def _move(self, action, observation) -> Step:
        model = self._model
        action, observation = np.asarray(action, self._dtype), np.asarray(observation, self._dtype)
        if observation.shape != (len(model.channels),):
            raise ValueError(
                f"the observation has shape {observation.shape}; expected ({len(model.channels)},) for channels "
                f"{list(model.channels)}. Put NaN where a channel is hidden."
            )
        if action.shape != (model.inputs,):
            raise ValueError(f"the action has shape {action.shape}; expected ({model.inputs},).")
        refuse_infinite(observation[None], "the observation", model.channels)
        if not np.isfinite(action).all():
            raise ValueError(f"the action is {action}; every entry must be finite.")
        self._particles, self._time, packed = self._advance(
            self._particles, self._time, np.concatenate([observation, action])
        )
        return self._unpacked(np.asarray(packed))

    def _unpacked(self, packed: np.ndarray) -> Step:
        leaves, start = [], 0
        for like in self._leaves:
            part = packed[start : start + like.size]
            leaves.append(part.reshape(like.shape).astype(like.dtype))
            start += like.size
        return jax.tree.unflatten(self._structure, leaves)
