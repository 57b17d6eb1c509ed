"""The filter in a control loop: one observation in, one belief and one certificate out."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from vhydro.emission import Observation
from vhydro.episodes import refuse_bad_dt
from vhydro.filter.branches import Trace, branch_step, corrects
from vhydro.filter.correction import WINDOW
from vhydro.filter.exported import PLATFORMS, write_stream
from vhydro.filter.frames import Frame, Particles
from vhydro.filter.loop import Loop, Program, Step
from vhydro.filter.probe import refuse_bad_likelihood
from vhydro.filter.run import Window, closed_window, first_window, log_units, reach
from vhydro.filter.settings import FilterSettings, engine_of, noise_layout, prepared, refuse_mismatch
from vhydro.filter.step import filter_step, initial
from vhydro.model import HybridModel
from vhydro.particles import step_noise
from vhydro.proposal import ConditionedProposal, Proposal


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
        self._dtype = np.dtype(model.dtype)
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
        empty = _empty_state(model, settings, dt, self._corrects)
        outputs, structure = jax.tree.flatten(jax.eval_shape(advance, empty, time, row)[2])
        self._functions = packed, closed if self._corrects else None
        self._loop = Loop(
            Program(
                advance=jax.jit(packed).lower(empty, time, row).compile(),
                close=jax.jit(closed).lower(empty, time).compile() if self._corrects else None,
                window=WINDOW, empty=empty, outputs=tuple(outputs), structure=structure, channels=model.channels,
                inputs=model.inputs, dtype=np.dtype(self._dtype), dt=float(dt), reach=reach(model),
            )
        )  # fmt: skip

    @property
    def particles(self) -> Particles:
        """The current weighted population."""
        return self._loop.state.window.particles

    def start(self, observation) -> Step:
        """The belief after the first observation; forgets everything before it."""
        first = self._loop.start(observation)
        refuse_bad_likelihood(self._model, [np.asarray(observation, self._dtype)[None]])
        return first

    def step(self, action, observation) -> Step:
        """The belief after this action and the observation that followed it; NaN means hidden."""
        return self._loop.step(action, observation)

    @property
    def program(self) -> Program:
        """The compiled step."""
        return self._loop.program

    def export(
        self,
        path: str | PathLike[str],
        *,
        platforms: Sequence[str] = PLATFORMS,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes the running filter to a file that `vhydro.load_stream` starts without the model's code.

        The step is kept as StableHLO for these platforms, with the model, the settings and the key in it. A stream that
        is loaded starts anew and gives the same numbers. `notes`, as JSON has them, are kept with it.
        """
        write_stream(path, self._loop.program, *self._functions, platforms=platforms, notes=notes)
