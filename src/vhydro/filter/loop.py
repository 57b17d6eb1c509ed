"""What a running filter does with every row: it checks it, hands it to a compiled step and keeps what that carries."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vhydro.episodes import refuse_infinite
from vhydro.filter.frames import Moments, Record
from vhydro.filter.run import refuse_out_of_range


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


class Program(NamedTuple):
    """A compiled step with everything that a row needs to go through it."""

    advance: Callable[..., Any]  # (state, time, row) -> state, time, what the step says in one array
    close: Callable[..., Any] | None  # (state, time) -> state, log factor; after every window of rows
    window: int
    empty: Any  # the state before the first row
    outputs: tuple[jax.ShapeDtypeStruct, ...]  # what the one array holds, in order
    structure: Any  # of a `Step` made of them
    channels: tuple[str, ...]
    inputs: int
    dtype: np.dtype
    dt: float
    reach: tuple[np.ndarray, np.ndarray]  # the largest readings and inputs that the program can compute with


class Loop:
    """A program and where it is in a log. `start(observation)` once, then `step(action, observation)`."""

    def __init__(self, program: Program):
        self.program = program
        self.state = program.empty
        self._time = None
        self._count = 0

    def start(self, observation) -> Step:
        """The belief after the first observation; forgets everything before it."""
        self.state, self._count = self.program.empty, 0
        self._time = jnp.zeros((), jnp.int32)
        return self._move(np.zeros(self.program.inputs), observation)

    def step(self, action, observation) -> Step:
        """The belief after this action and the observation that followed it; NaN means hidden."""
        if self._time is None:
            raise ValueError("the stream has not started; call `start(first_observation)` before `step`.")
        return self._move(action, observation)

    def _move(self, action, observation) -> Step:
        program = self.program
        row = self._row(np.asarray(action, np.float64), np.asarray(observation, np.float64))
        self.state, self._time, packed = program.advance(self.state, self._time, row)
        self._count += 1
        step = self._unpacked(np.asarray(packed))
        if program.close is None or self._count % program.window:
            return step
        self.state, log_factor = program.close(self.state, self._time)
        evidence = step.record.log_normaliser + np.asarray(log_factor)
        return step._replace(record=step.record._replace(log_normaliser=evidence))

    def _row(self, action: np.ndarray, observation: np.ndarray) -> np.ndarray:
        channels, inputs = self.program.channels, self.program.inputs
        if observation.shape != (len(channels),):
            raise ValueError(
                f"the observation has shape {observation.shape}; expected ({len(channels)},) for channels "
                f"{list(channels)}. Put NaN where a channel is hidden."
            )
        if action.shape != (inputs,):
            raise ValueError(f"the action has shape {action.shape}; expected ({inputs},).")
        refuse_infinite(observation[None], "the observation", channels)
        if not np.isfinite(action).all():
            raise ValueError(f"the action is {action}; every entry must be finite.")
        refuse_out_of_range(channels, self.program.reach, observation[None], action[None])
        return np.concatenate([observation, action]).astype(self.program.dtype)

    def _unpacked(self, packed: np.ndarray) -> Step:
        leaves, start = [], 0
        for like in self.program.outputs:
            part = packed[start : start + like.size]
            leaves.append(part.reshape(like.shape).astype(like.dtype))
            start += like.size
        return jax.tree.unflatten(self.program.structure, leaves)
