"""Where a plan of a commanded contact model starts: the hand by its encoders, bodies by the filter.

`p(hand, bodies | commands) = p(hand | commands) p(bodies | hand)`: given the path that the hand really took, commands
say nothing more of bodies. So the filter, whose input is that path, tells the bodies exactly, and the servo model is
asked only where the hand is in the dark, and by a plan for what is to come.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from vhydro.commanded import MEMORY, REST, CommandedModel
from vhydro.emission import LinearEmission
from vhydro.episodes import Episode
from vhydro.filter import Particles
from vhydro.flow import LinearFlow
from vhydro.learning.commanded import regime_of
from vhydro.model import HybridModel
from vhydro.planning.dynamics import drawn, population
from vhydro.small import precise
from vhydro.views import ContactView
from vhydro.views.view import columns, commands

PATHS = 64  # of a hand in the dark
POINTS = 256  # particles that a plan starts from
STEADY = 2e-4  # metres: sensor noise that does not hide whether a body rests
SURELY = 6.0  # noises that two readings of a body that rests do not differ by
ENCODERS = {"end_effector": slice(0, 3), "gripper": slice(3, 4)}  # groups of what a view shows, in `machine_readings`

Hands = Float[np.ndarray, "15 paths"]  # place, last step, opening, then the memory of a `CommandedModel`


class Recent(NamedTuple):
    """What a plan needs of the last rows of a log beside the filter's belief."""

    hands: Hands  # all alike where the hand is seen
    bodies: Float[np.ndarray, "rows bodies three"]  # readings of the last two rows; NaN: hidden, or a sensor fault
    row: int


# --- the hand -------------------------------------------------------------------------------------------------------


def machine_readings(view: ContactView, log: Episode) -> Float[np.ndarray, "rows 4"]:
    """The place of the hand and how wide its fingers are open; NaN where an encoder is hidden."""
    return np.column_stack([columns(log, view.hand), np.abs(columns(log, view.fingers)).mean(1)])


def carried(
    model: CommandedModel, view: ContactView, log: Episode, hands: Hands | None = None, first: int = 0
) -> tuple[Episode, Hands]:
    """The log with a hand in every row, carried on by the servo model where it is hidden, and the hands at the end.

    Those have the noise of the servo, the log their mean. `hands` are those of the log's first row, number `first`.
    """
    shown, told = machine_readings(view, log), commands(log, [*view.moves, view.grip])
    hidden = np.isnan(shown)
    if hands is None and hidden[0].any():
        raise ValueError(
            f"{log.source or 'the log'} hides the hand or a finger in its first row; expected both there, for the "
            "servo model carries them on from where they were seen. Begin with a row that shows them."
        )
    begin = 0 if hands is not None or hidden.any() else max(len(shown) - 3, 0)  # what a hand remembers
    hands = _resting(shown[begin]) if hands is None else hands
    for t in range(begin + 1, len(shown)):
        hands = _moved(model, hands, told[t - 1], shown[t], first + t)
        shown[t] = np.where(hidden[t], hands[[0, 1, 2, 6]].mean(1), shown[t])
    return _filled(view, log, shown) if hidden.any() else log, hands


def hidden_as(log: Episode, seen: Episode, view: ContactView) -> Episode:
    """What a view shows of a log that was `carried`, without the readings that the log hides."""
    hidden, out = np.isnan(machine_readings(view, log)), seen.observations.copy()
    for i, channel in enumerate(seen.channels):
        if channel.group in ENCODERS:
            out[hidden[:, ENCODERS[channel.group]].any(1), i] = np.nan
    return replace(seen, observations=out)


def _resting(shown: Float[np.ndarray, "4"]) -> Hands:
    hands = np.zeros((7 + MEMORY, PATHS))
    hands[[0, 1, 2, 6]] = shown[:, None]
    return hands


def _moved(model: CommandedModel, hands: Hands, command: np.ndarray, shown: np.ndarray, row: int) -> Hands:
    """The hands one row on: where the encoders see them, or where the servo takes them."""
    before, after = hands[[0, 1, 2, 6]], np.repeat(shown[:, None], PATHS, 1)
    told = np.repeat(np.asarray(command, float)[:, None], PATHS, 1)
    if np.isnan(shown).any():
        normal = jax.random.normal(jax.random.fold_in(jax.random.key(0), row), (4, PATHS))
        step = _servo_step(model, jnp.asarray(hands, jnp.float32), jnp.asarray(told, jnp.float32), normal)
        after = np.where(np.isnan(after), before + np.asarray(step, np.float64), after)
        after[3] = np.maximum(after[3], 0.0)
    step = after - before
    return np.concatenate([after[:3], step[:3], after[3:], hands[3:6], step[3:], told])


@eqx.filter_jit
@precise
def _servo_step(model: CommandedModel, hands: Array, told: Array, normal: Array) -> Array:
    return model.servo_step(hands, told) + model.servo_noise[:, None] * normal


def _filled(view: ContactView, log: Episode, shown: Float[np.ndarray, "rows 4"]) -> Episode:
    out, names = log.observations.astype(np.float64), [c.name for c in log.channels]
    for name, i in [*zip(view.hand, range(3), strict=True), *((finger, 3) for finger in view.fingers)]:
        column = out[:, names.index(name)]
        column[:] = np.where(np.isnan(column), shown[:, i], column)
    return replace(log, observations=out)


# --- the bodies -----------------------------------------------------------------------------------------------------


def body_readings(view: ContactView, log: Episode, outliers: Any = 0) -> Float[np.ndarray, "rows bodies three"]:
    """The place of every body; NaN where it is hidden, even in part, and in rows with sensor faults."""
    places = np.stack([columns(log, names) for names in view.bodies.values()], 1)
    return np.where(
        np.isnan(places).any(2, keepdims=True) | (np.asarray(outliers).reshape(-1, 1, 1) > 0), np.nan, places
    )


def present(
    commanded: CommandedModel,
    view: ContactView,
    model: HybridModel,
    couples: Bool[np.ndarray, "modes things"],
    state: Any,
    recent: Recent,
    *,
    unit: float,
    key: PRNGKeyArray,
) -> Particles:
    """Particles of a commanded model, as the filter's state and the last rows say.

    A body lies where the filter believes. What it did last is told by its readings if both of the last rows show it
    and they differ by more than noise, else by the mode: what the mode couples went with the hand, anything else
    rested. `unit` is of the log, in metres.
    """
    mode, z = (np.asarray(x) for x in drawn(population(state, model.latent, model.modes), key, POINTS))
    hands, n = recent.hands[:, np.arange(POINTS) % PATHS], len(view.bodies)
    believed = z * np.asarray(model.scale)[:, None] + np.asarray(model.shift)[:, None]
    places = believed[: 3 * n].reshape(n, 3, POINTS) / unit
    noise = list(body_noise(model, view).values())
    gain = _gain(model)[: 3 * n].reshape(n, 3, -1)[..., mode]
    astray, went = (x - m for x, m in ((hands[:3], hands[:3].mean(1)[:, None]), (hands[3:6], 0.0)))
    steps, regimes = np.zeros((n, 3, POINTS)), np.full((n, POINTS), REST)
    for i in range(n):
        follows = couples[mode, i]
        if np.isnan(recent.bodies[-1, i]).any():  # what is held is where the hand is, wherever that is
            places[i] += np.where(follows, gain[i] * astray, 0.0)
        if len(recent.bodies) < 2:
            continue
        steps[i], regimes[i] = _done(recent.bodies[:, i], noise[i] / unit, follows, gain[i], went, unit)
    latent = [hands[:7], places.reshape(3 * n, -1), steps.reshape(3 * n, -1), hands[7:]]
    return _particles(regimes, np.concatenate(latent), commanded.noise.dtype)


def _done(
    read: np.ndarray, noise: float, follows: np.ndarray, gain: np.ndarray, went: np.ndarray, unit: float
) -> tuple[np.ndarray, np.ndarray]:
    """The last step of a body in every particle, and what it did in it; readings tell it where noise cannot."""
    step = read[1] - read[0]
    if np.linalg.norm(step) >= (0.0 if noise <= STEADY / unit else SURELY * noise):  # not where one is hidden
        step = np.repeat(step[:, None], went.shape[1], 1)
        return step, regime_of(step.T, went.T, unit)
    step = np.where(follows, gain * went, 0.0)
    regime = regime_of(step.T, went.T, unit)
    return np.where(regime == REST, 0.0, step), regime


def body_noise(model: HybridModel, view: ContactView) -> dict[str, float]:
    """The standard deviation of every body's readings along its worst axis, in metres, as the fit found it."""
    assert isinstance(model.emission, LinearEmission)
    each = np.asarray(model.emission.channel_noise) * np.asarray(model.scale)
    return {body: float(each[3 * i : 3 * i + 3].max()) for i, body in enumerate(view.bodies)}


def _gain(model: HybridModel) -> Float[np.ndarray, "channels modes"]:
    """By how much of its drive every channel goes in every mode."""
    flow = model.flow
    assert isinstance(flow, LinearFlow)  # of every contact model
    scale = np.asarray(model.scale, np.float64)
    own = np.stack([np.diagonal(port[:, : len(scale)]) for port in np.asarray(flow.port, np.float64)], 1)
    return own * (scale / np.asarray(model.action_scale, np.float64)[: len(scale)])[:, None]


def _particles(regimes: Int[np.ndarray, "bodies points"], z: np.ndarray, dtype) -> Particles:
    mode = (regimes * 3 ** np.arange(len(regimes))[:, None]).sum(0)
    even = jnp.full((POINTS,), -np.log(POINTS), dtype)
    return Particles(jnp.asarray(mode, jnp.int32), jnp.asarray(z, dtype), even, jnp.ones((), dtype))
