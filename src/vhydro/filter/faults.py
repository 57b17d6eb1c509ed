"""Sensor faults: what a reading says when no branch of the belief can explain it.

The surprise of a reading is `−log₁₀ Σ_b ω_b exp(−d_b²/2)`, d_b its distance from branch b in that branch's own standard
deviations and ω_b the branch's weight. `exp(−d²/2)` is at least the two-sided tail probability of a Gaussian, so under
the model a reading has surprise x or more with probability at most about 10^−x. A reading beyond the threshold is
hidden, counted, and never certified. When readings have contradicted the belief `PATIENCE` times in a row the fault may
be its own: it is widened, once, by `REACH` times the start law, and believes what that explains. What it then believes
may be the fault: should a reading contradict it soon after, it gives way at once.

An action more than `FAR` times as large as those before it is a fault too: it is taken as unknown, of their size. That
size grows by at most a few percent a step, so that a burst of wild actions does not become what is expected.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vhydro.emission import Observation
from vhydro.filter.frames import Frame, Watch
from vhydro.model import HybridModel
from vhydro.small import over

SURPRISE = 6.0  # one reading in a million, under the model
PATIENCE = 3  # readings of one channel that are hidden in a row, before the belief gives way
REACH = 5.0
QUIET = 10  # steps after a fault before anything is certified again; twice as many once the belief gave way
FAR = 30.0
GROWTH = 2.0  # the most by which an action counts as larger than those before it
FORGET = 0.05  # weight of the newest action in the size of those before it
LOG_10 = 2.302585092994046


class Verdict(NamedTuple):
    """What one step makes of its readings and its action."""

    seen: Observation  # without the faults
    surprise: Float[Array, "channels"]  # of every reading
    outliers: Int[Array, ""]  # readings hidden as faults
    refused: Bool[Array, ""]  # the action was a fault
    trusted: Bool[Array, ""]  # nothing was a fault lately, nothing is impossible: the step may be certified
    watch: Watch | None


class Alarm(NamedTuple):
    """What is known of faults before a step's readings are looked at. Without a watch nothing is hidden."""

    watch: Watch | None
    refused: Bool[Array, ""]
    widened: Bool[Array, ""]  # the belief gives way in this step
    extra: Float[Array, "modes latent"] | None  # variance to add to the transition's
    threshold: float | None

    def verdict(self, model: HybridModel, frame: Frame, surprise: Float[Array, "channels"] | None) -> Verdict:
        """What the step makes of its readings, given how surprising each is; None and NaN: unknown."""
        none = jnp.zeros((), jnp.int32)
        if surprise is None:
            unknown = jnp.full(len(model.channels), -1.0, model.dtype)
            return Verdict(frame.seen, unknown, none, self.refused, ~self.refused, self.watch)
        limit = SURPRISE if self.threshold is None else self.threshold
        most = jnp.full_like(surprise, limit) if model.outliers is None else jnp.maximum(model.outliers, limit)
        wild = (surprise > most) & frame.seen.observed
        fault = jnp.any(wild) | self.refused
        if self.watch is None:
            return Verdict(frame.seen, surprise, none, self.refused, ~fault, None)
        before, missed = self.watch.quiet, self.watch.missed
        quiet = jnp.where(fault | jnp.any(missed > 0), jnp.minimum(before, 0), jnp.minimum(before + 1, QUIET))
        quiet = jnp.where(self.widened, -QUIET, quiet)
        # A channel that is hidden anyway says nothing about whether it would have been believed.
        again = jnp.where((before > -QUIET) & (before < 0), PATIENCE, missed + 1)
        missed = jnp.where(wild, again, jnp.where(frame.seen.observed, 0, missed))
        seen = Observation(frame.seen.value, frame.seen.observed & ~wild)
        watch = self.watch._replace(missed=missed, quiet=quiet)
        return Verdict(seen, surprise, wild.sum(), self.refused, quiet >= QUIET, watch)


def fresh_watch(model: HybridModel) -> Watch:
    """Nothing has happened yet."""
    channels, inputs = len(model.channels), model.inputs
    return Watch(jnp.zeros(channels, jnp.int32), jnp.full((), QUIET, jnp.int32), jnp.ones(inputs, model.dtype))


def checked(model: HybridModel, watch: Watch | None, frame: Frame, threshold: float | None) -> tuple[Frame, Alarm]:
    """The frame with faulty inputs at 0, and what that and the readings before say."""
    if watch is None:
        return frame, Alarm(None, jnp.zeros((), bool), jnp.zeros((), bool), None, threshold)
    size = jnp.sqrt(watch.level)
    far = jnp.abs(frame.action) > FAR * size
    level = (1 - FORGET) * watch.level + FORGET * jnp.clip(frame.action, -GROWTH * size, GROWTH * size) ** 2
    rescue = jnp.any(watch.missed == PATIENCE)
    push = model.flow.push(frame.dt) ** 2 @ jnp.where(far, watch.level, 0.0)
    extra = jnp.where(rescue, (REACH * model.start_scale) ** 2, 0.0) + jnp.where(frame.first, 0.0, push)
    alarm = Alarm(watch._replace(level=jnp.maximum(level, 1.0)), jnp.any(far), rescue, extra, threshold)
    return frame._replace(action=jnp.where(far, 0.0, frame.action)), alarm


def surprises(
    expected: Float[Array, "modes channels particles"],
    variance: Float[Array, "modes channels _particles"],
    log_prior: Float[Array, "modes particles"],
    seen: Observation,
) -> Float[Array, "channels"]:
    """How surprising every channel's reading is to the whole belief; 0 where it is hidden.

    `log_prior` are the normalised weights of the branches before the reading. Beyond what a float holds the surprise is
    infinite.
    """
    distance = (over(seen.value, 1) - expected) ** 2 * (0.5 / variance)
    tail = jnp.exp(log_prior[:, None] - distance)
    tail = jnp.where(distance < jnp.inf, tail, 0.0).sum((0, 2))  # a branch that left the numbers explains nothing
    return jnp.where(seen.observed, -jnp.log(tail) / LOG_10, 0.0)
