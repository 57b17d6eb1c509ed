"""Robot logs: the hand and its fingers are inputs, the things they touch are what a model explains.

A thing rests, or it goes where the hand goes. A mode says which: it couples each axis of each body to the hand's
displacement, `z' = z + G_s d + noise`. In port-Hamiltonian words the hand is the port and the mode decides `G_s`.
Encoders are never in the dark, cameras are: only bodies can be hidden, each in bursts of its own.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from vhydro.chains import chain_posterior, sticky
from vhydro.episodes import Channel, Episode
from vhydro.model import HybridModel, axis_emission, hybrid_model, linear_flow, mode_kernel
from vhydro.network import network

AXES = ("x", "y", "z")
FINGER = re.compile(r"gripper\.finger_\d+")
INPUTS = (
    *(Channel(f"hand.d{a}", "end_effector", "m") for a in AXES),  # how far the hand goes in this step …
    *(Channel(f"hand.{a}", "end_effector", "m") for a in AXES),  # … from here,
    Channel("gripper.opening", "gripper", "m"),  # and how wide it is open afterwards …
    Channel("gripper.change", "gripper", "m"),  # … and by how much wider than before
)
NOISE_FLOOR = 0.002  # of the scale: a fifth of a millimetre where things move by ten centimetres
# What sensors and geometry say is kept; how things switch, how noisy they are and where they start is learned.
GIVEN = ("model.emission.matrix", "model.emission.offset", "model.flow")


def bodies_of(episode: Episode, most: int = 5) -> tuple[str, ...]:
    """The bodies whose places the log shows; of more than `most`, such as the knots of a cloth, the most spread."""
    bodies = dict.fromkeys(c.name.rpartition(".")[0] for c in episode.channels if c.group == "object")
    names = [b for b in bodies if b and len(_place(episode, b)) == 3]
    if not names:
        shown = sorted({c.group for c in episode.channels})
        raise ValueError(
            f"the log shows no place of an object; its channels are of the groups {shown}. Expected `NAME.x`, `NAME.y` "
            "and `NAME.z` of at least one body in the group `object`."
        )
    if len(names) <= most:
        return tuple(names)
    first = np.stack([episode.observations[0, _place(episode, b)] for b in names])
    return tuple(names[i] for i in sorted(_most_spread(first, most)))


def _place(episode: Episode, body: str) -> list[int]:
    return episode.columns(body=body, quantities=AXES)


def _most_spread(points: np.ndarray, count: int) -> list[int]:
    """Points chosen one after the other, each as far as can be from those before."""
    chosen = [int(np.argmax(np.linalg.norm(points - points.mean(0), axis=1)))]
    while len(chosen) < count:
        away = np.min([np.linalg.norm(points - points[i], axis=1) for i in chosen], axis=0)
        chosen.append(int(np.argmax(away)))
    return chosen


def seen_by_hand(episode: Episode, bodies: Sequence[str] | None = None) -> Episode:
    """The log with the places of bodies as channels, a group each, and the hand's motion as inputs."""
    bodies = bodies_of(episode) if bodies is None else bodies
    hand, names = _place(episode, "tcp"), [c.name for c in episode.channels]
    fingers = [i for i in episode.columns(group="gripper") if FINGER.fullmatch(names[i])]
    if len(hand) != 3 or not fingers:
        raise ValueError(
            f"{episode.source or 'the log'} shows {len(hand)} of tcp.x, tcp.y, tcp.z and {len(fingers)} fingers; "
            "expected the place of the end effector and at least one `gripper.finger_…`."
        )
    columns = [i for b in bodies for i in _place(episode, b)]
    place = episode.observations[:, hand]
    opening = np.abs(episode.observations[:, fingers]).sum(1, keepdims=True)
    inputs = np.concatenate([np.diff(place, axis=0), place[:-1], opening[1:], np.diff(opening, axis=0)], 1)
    if np.isnan(inputs).any():
        raise ValueError(f"{episode.source or 'the log'} hides the hand at times; encoders are never in the dark.")
    return replace(
        episode,
        observations=episode.observations[:, columns].astype(np.float64),
        channels=tuple(
            replace(episode.channels[i], group=episode.channels[i].name.rpartition(".")[0]) for i in columns
        ),
        actions=inputs.astype(np.float64),
        inputs=INPUTS,
    )


class Couplings(NamedTuple):
    """How every mode ties each channel to the hand, how modes follow each other, and what is left unexplained."""

    gain: Float[Array, "*seeds modes channels"]
    transition: Float[Array, "*seeds modes modes"]
    start: Float[Array, "*seeds modes"]
    residual: Float[Array, "*seeds channels"]  # standard deviation of a displacement over `SPAN` rows
    score: Float[Array, "*seeds"]  # log likelihood per row


class Displacements(NamedTuple):
    """Of every channel, and of the hand along its axis, over `SPAN` rows."""

    moved: Float[Array, "*seeds episodes rows channels"]
    hand: Float[Array, "*seeds episodes rows channels"]
    valid: Bool[Array, "*seeds episodes rows"]


SPAN, ROUNDS, RESTARTS = 3, 30, 4
STAY, PRIOR = 0.95, 0.1  # a mode's chance to go on at first; imagined transitions, so that none is impossible


def couplings(
    logs: Sequence[Sequence[Episode]], modes: int, sensor_noise: float, *, seeds: Sequence[int]
) -> list[Couplings]:
    """The likeliest couplings of every list of logs: a hidden Markov model of displacements given the hand's.

    The best of some starts, drawn from the list's seed. The noise is shared by all modes: a mode with a noise of its
    own would tell speeds apart and not contacts.
    """
    most, rows = max(len(log) for log in logs), max(e.steps for log in logs for e in log)
    data = [_displacements(log, most, rows) for log in logs]
    starts = [_guessed(d, modes, np.random.default_rng(seed)) for d, seed in zip(data, seeds, strict=True)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *data)
    found = _climbed(stacked, jnp.asarray(np.stack(starts), jnp.float32), float(np.sqrt(2) * sensor_noise))
    best = np.argmax(np.asarray(found.score), axis=1)
    return [jax.tree.map(lambda x, i=i, b=b: np.asarray(x[i, b], np.float64), found) for i, b in enumerate(best)]


def _displacements(episodes: Sequence[Episode], most: int, rows: int) -> Displacements:
    """The displacements of episodes, padded to this many of as many rows; those with a hidden end do not count."""
    shape = (most, rows, len(episodes[0].channels))
    moved, hand, valid = np.zeros(shape, np.float32), np.zeros(shape, np.float32), np.zeros(shape[:2], bool)
    axis = _axes(episodes[0])
    for i, e in enumerate(episodes):
        path = np.concatenate([np.zeros((1, 3)), np.cumsum(e.actions[:, :3], axis=0)])
        n = max(e.steps + 1 - SPAN, 0)
        moved[i, :n] = e.observations[SPAN:] - e.observations[:-SPAN]
        hand[i, :n] = (path[SPAN:] - path[:-SPAN])[:, axis]
        valid[i, :n] = ~np.isnan(moved[i, :n]).any(-1)
    moved = np.nan_to_num(moved)
    if not valid.any():
        raise ValueError(
            f"no {SPAN + 1} rows in a row were seen in {len(episodes)} episodes, the longest of {rows} steps; "
            "expected some, to see what moves with the hand."
        )
    return Displacements(*(jnp.asarray(x) for x in (moved * valid[..., None], hand * valid[..., None], valid)))


def _axes(episode: Episode) -> list[int]:
    """The axis of the hand along which each channel lies."""
    return [AXES.index(c.name.rpartition(".")[2]) for c in episode.channels]


def _guessed(data: Displacements, modes: int, random: np.random.Generator) -> np.ndarray:
    """Gains to start from: in the first mode nothing moves, in the others as at some moments of motion."""
    moved, hand = (np.asarray(x).reshape(-1, x.shape[-1]) for x in (data.moved, data.hand))
    gain = np.zeros((RESTARTS, modes, moved.shape[1]))
    chance = (moved**2).sum(-1) * ((hand**2).sum(-1) > 0)
    if chance.sum() > 0:
        picks = random.choice(chance.size, (RESTARTS, modes - 1), p=chance / chance.sum())
        still = np.abs(hand[picks]) < 1e-4
        gain[:, 1:] = np.clip(np.where(still, 0.0, moved[picks] / np.where(still, 1.0, hand[picks])), -0.5, 1.5)
    return gain


@partial(jax.jit, static_argnums=2)
def _climbed(data: Displacements, gain: Float[Array, "seeds restarts modes channels"], floor: float) -> Couplings:
    """Expectation maximisation of every seed from each of its starts."""
    one = partial(_climbed_once, floor=floor)
    return jax.vmap(jax.vmap(one, in_axes=(None, 0)))(data, gain)


def _climbed_once(data: Displacements, gain: Float[Array, "modes channels"], floor: float) -> Couplings:
    modes, dtype = gain.shape[0], gain.dtype
    count = jnp.maximum(data.valid.sum(), 1).astype(dtype)
    spread = jnp.sqrt((data.moved**2).sum((0, 1)) / count)
    first = Couplings(
        gain=gain,
        transition=jnp.asarray(sticky(modes, STAY), dtype),
        start=jnp.full(modes, 1 / modes, dtype),
        residual=jnp.maximum(spread, floor),
        score=jnp.zeros((), dtype),
    )
    return jax.lax.fori_loop(0, ROUNDS, lambda _, now: _improved(data, now, count, floor), first)


def _improved(data: Displacements, now: Couplings, count, floor: float) -> Couplings:
    """One round: who was in which mode, then the gains, noises and moves that make it likeliest."""
    moved, hand = data.moved[:, :, None], data.hand[:, :, None]
    error = moved - now.gain * hand
    likely = (-0.5 * (error / now.residual) ** 2 - jnp.log(now.residual)).sum(-1)
    likely = jnp.where(data.valid[..., None], likely, 0.0)
    chains = jax.vmap(chain_posterior, in_axes=(0, 0, None, None))
    weight, pairs, value = chains(likely, data.valid, now.transition, now.start)
    share = (weight * data.valid[..., None])[..., None]
    # A gain is 0 or about 1: a prior of that width keeps a mode of few rows from inventing one.
    gain = (share * moved * hand).sum((0, 1)) / ((share * hand**2).sum((0, 1)) + now.residual**2)
    residual = jnp.sqrt((share * error**2).sum((0, 1, 2)) / count)
    moves, starts = pairs.sum(0) + PRIOR, (weight[:, 0] * data.valid[:, :1]).sum(0) + PRIOR
    return Couplings(
        gain, moves / moves.sum(1, keepdims=True), starts / starts.sum(), jnp.maximum(residual, floor),
        value.sum() / count,
    )  # fmt: skip


def robot_model(
    episodes: Sequence[Episode], found: Couplings, *, sensor_noise: float, hidden: int = 16, key: PRNGKeyArray
) -> HybridModel:
    """A model of logs as `seen_by_hand` shows them, started where the couplings found in these episodes put it.

    `sensor_noise` is the standard deviation of a reading, in metres. One scale for all channels: a thing that never
    moves along an axis is not blown up there.
    """
    readings = np.concatenate([e.observations for e in episodes])
    shift = np.nanmean(readings, axis=0)
    scale = float(np.sqrt(np.nanmean((readings - shift) ** 2)))
    modes, width = found.gain.shape
    port = np.zeros((modes, width, len(INPUTS)))
    port[:, np.arange(width), _axes(episodes[0])] = found.gain
    walk = np.sqrt(np.maximum(found.residual**2 - 2 * sensor_noise**2, 0.0) / SPAN) / scale
    first = (np.stack([e.observations[0] for e in episodes]) - shift) / scale
    drive = network(width + len(INPUTS), (hidden,), modes, key=key, dtype=jnp.float32, last=0.01)
    kernel = mode_kernel(modes, drive=drive)
    kernel = replace(kernel, logits=jnp.asarray(np.log(np.maximum(found.transition, 1e-4)), jnp.float32))
    return hybrid_model(
        kernel,
        linear_flow(np.broadcast_to(np.eye(width), (modes, width, width)), port=port),
        axis_emission(width, range(width), noise=max(sensor_noise / scale, 2 * NOISE_FLOOR), noise_floor=NOISE_FLOOR),
        noise=np.maximum(walk, 2 * NOISE_FLOOR),
        start_mode=found.start,
        start_mean=np.nanmean(first, axis=0),
        start_scale=np.maximum(np.nanstd(first, axis=0), 5 * NOISE_FLOOR),
        shift=shift,
        scale=scale,
        action_scale=scale,
        noise_floor=NOISE_FLOOR,
        channels=[c.name for c in episodes[0].channels],
    )
