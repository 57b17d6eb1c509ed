"""The filter in a control loop: one observation in, one belief and one certificate out."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from vhydro.emission import Observation
from vhydro.episodes import refuse_bad_dt, refuse_infinite
from vhydro.filter.branches import Trace, branch_step, corrects
from vhydro.filter.correction import WINDOW
from vhydro.filter.frames import Frame, Moments, Particles, Record
from vhydro.filter.probe import refuse_bad_likelihood
from vhydro.filter.run import Window, closed_window, first_window, log_units, prepared, reach, refuse_out_of_range
from vhydro.filter.settings import FilterSettings, engine_of, noise_layout, refuse_mismatch
from vhydro.filter.step import filter_step, initial
from vhydro.model import HybridModel
from vhydro.particles import step_noise
from vhydro.proposal import ConditionedProposal, Proposal


class Step(NamedTuple):
    """What one call of `Stream.step` returns, as numpy arrays."""

    record: Record
    moments: Moments

    @property
    def mode(self):
        """The probability of every mode."""
        return self.moments.mode

    @property
    def mean(self):
        """The mean of z."""
        return self.moments.mean

    @property
    def variance(self):
        """The variance of every coordinate of z."""
        return self.moments.variance


class _State(NamedTuple):
    """What a stream carries: its window, and the traces of the window's rows where they are corrected."""

    window: Window
    trace: Trace | None


def _empty_state(model: HybridModel, settings: FilterSettings, dt: float, corrects: bool) -> _State:
    if not corrects:
        return _State(Window(initial(model, settings), None, None), None)
    zero = jnp.zeros((), model.dtype)
    channels = len(model.channels)
    seen = Observation(jnp.zeros(channels, model.dtype), jnp.zeros(channels, bool))
    frame = Frame(jnp.zeros(model.inputs, model.dtype), seen, zero + dt, jnp.zeros((), bool), jnp.zeros((), bool))
    window = first_window(model, settings, frame)
    noise = {d.name: jnp.zeros(d.shape, model.dtype) for d in noise_layout(model, None, settings)}
    shape = jax.eval_shape(lambda p: branch_step(model, settings, p, frame, noise)[3], window.particles)
    return _State(window, jax.tree.map(lambda x: jnp.zeros((WINDOW, *x.shape), x.dtype), shape))


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
        settings = engine_of(model, proposal, settings)
        refuse_mismatch(model, proposal, settings)
        refuse_bad_dt(dt)
        if settings.particles == "auto" or settings.islands > 1:
            raise ValueError(
                "a stream filters once, with a number of particles; find it with `filter` on a whole log "
                "(particles='auto'), and pass that number with islands=1."
            )
        refuse_bad_likelihood(model)
        self._dtype, self._reach = np.dtype(model.dtype), reach(model)
        self._model = model = prepared(model, settings, jnp.asarray(dt, model.dtype))
        self.engine = settings.engine
        self._corrects = corrects(model, settings)
        layout = noise_layout(model, proposal, settings)

        # The model is baked into the program: a call then hands over the particles and one row, nothing else.
        def advance(state: _State, time, row):
            value, action = row[: len(model.channels)], row[len(model.channels) :]
            observed = ~jnp.isnan(value)
            seen = Observation(jnp.where(observed, (value - model.shift) / model.scale, 0.0), observed)
            frame = Frame(
                action / model.action_scale, seen, jnp.asarray(dt, model.dtype), time == 0, jnp.ones((), bool)
            )
            noise = step_noise(layout, key, time, model.dtype)
            particles = state.window.particles
            if self._corrects:
                after, record, belief, trace = branch_step(model, settings, particles, frame, noise)
                traces = jax.tree.map(lambda every, one: every.at[time % WINDOW].set(one), state.trace, trace)
                state = _State(state.window._replace(particles=after), traces)
            else:
                after, record, belief = filter_step(model, proposal, settings, particles, frame, noise)
                state = _State(state.window._replace(particles=after), None)
            log_normaliser = record.log_normaliser + log_units(model, observed)
            return state, time + 1, Step(record._replace(log_normaliser=log_normaliser), belief)

        def packed(state: _State, time, row):
            # One array comes back instead of fifteen: handing arrays over costs more than the step's arithmetic.
            after, time, out = advance(state, time, row)
            return after, time, jnp.concatenate([x.ravel().astype(model.dtype) for x in jax.tree.leaves(out)])

        def closed(state: _State, time):
            assert state.trace is not None
            window, log_factor = closed_window(model, settings, state.window, state.trace, time // WINDOW - 1, key)
            return _State(window, state.trace), log_factor

        row = jax.ShapeDtypeStruct((len(model.channels) + model.inputs,), self._dtype)
        time = jax.ShapeDtypeStruct((), jnp.int32)
        self._empty = _empty_state(model, settings, dt, self._corrects)
        self._leaves, self._structure = jax.tree.flatten(jax.eval_shape(advance, self._empty, time, row)[2])
        self._advance = jax.jit(packed).lower(self._empty, time, row).compile()
        self._close = jax.jit(closed).lower(self._empty, time).compile() if self._corrects else None
        self._state: _State = self._empty
        self._time = None
        self._count = 0

    @property
    def particles(self) -> Particles:
        """The current weighted population."""
        return self._state.window.particles

    def start(self, observation) -> Step:
        """The belief after the first observation; forgets everything before it."""
        self._state, self._count = self._empty, 0
        self._time = jnp.zeros((), jnp.int32)
        first = self._move(np.zeros(self._model.inputs, self._dtype), observation)
        refuse_bad_likelihood(self._model, [np.asarray(observation, self._dtype)[None]])
        return first

    def step(self, action, observation) -> Step:
        """The belief after this action and the observation that followed it; NaN means hidden."""
        if self._time is None:
            raise ValueError("the stream has not started; call `start(first_observation)` before `step`.")
        return self._move(action, observation)

    def _move(self, action, observation) -> Step:
        model = self._model
        action, observation = np.asarray(action, np.float64), np.asarray(observation, np.float64)
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
        refuse_out_of_range(model, self._reach, observation[None], action[None])
        row = np.concatenate([observation, action]).astype(self._dtype)
        self._state, self._time, packed = self._advance(self._state, self._time, row)
        self._count += 1
        step = self._unpacked(np.asarray(packed))
        if self._close is None or self._count % WINDOW:
            return step
        self._state, log_factor = self._close(self._state, self._time)
        evidence = step.record.log_normaliser + np.asarray(log_factor)
        return step._replace(record=step.record._replace(log_normaliser=evidence))

    def _unpacked(self, packed: np.ndarray) -> Step:
        leaves, start = [], 0
        for like in self._leaves:
            part = packed[start : start + like.size]
            leaves.append(part.reshape(like.shape).astype(like.dtype))
            start += like.size
        return jax.tree.unflatten(self._structure, leaves)
