"""Modes without labels: which responses follow their drives, found by expectation maximisation from several starts.

`z' = z + g_s u + noise`, one gain per mode and channel. The noise is shared by all modes and has a floor: a mode with
a noise of its own would tell speeds apart and not contacts. Starts come from clustering the gains of short windows.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from sklearn.cluster import KMeans

from vhydro.chains import chain_posterior, sticky
from vhydro.episodes import Episode
from vhydro.filter.run import padded_length
from vhydro.modes.view import MACHINE
from vhydro.robots import PRIOR, STAY

WINDOW = 8  # rows whose gains are clustered
ROUNDS, STARTS = 40, 6
FLOOR = 0.1  # of the RMS displacement of a channel's kind
SERVO = 2.0  # times that floor: arms lag by themselves when they speed up, whatever they touch
FINGER_RANGE = 0.04  # metres: an opening that hardly moves is not blown up


class Pairs(NamedTuple):
    """Displacements and drives in units of the noise floor; what is not seen, or padding, is 0 and does not count."""

    moved: Float[Array, "*axes rows channels"]
    drive: Float[Array, "*axes rows channels"]
    seen: Float[Array, "*axes rows channels"]
    valid: Bool[Array, "*axes rows"]


class Switching(NamedTuple):
    """Gains, noise and moves of every mode; noise in units of the floor."""

    gain: Float[Array, "*starts modes channels"]
    transition: Float[Array, "*starts modes modes"]
    start: Float[Array, "*starts modes"]
    noise: Float[Array, "*starts channels"]


class Found(NamedTuple):
    """Where one start has come to."""

    switching: Switching
    share: Float[np.ndarray, "modes"]  # of the training rows that are in each mode
    validation: float  # log likelihood per row of validation logs


def floors(episodes: Sequence[Episode]) -> np.ndarray:
    """The noise floor of every channel, in its unit: a share of how far things of its kind move in a step."""
    steps = np.concatenate([np.diff(e.observations, axis=0) for e in episodes])
    square, known = seen_mean(steps**2), (~np.isnan(steps)).any(0)
    if not square.any():
        raise ValueError("nothing moves in any of the logs; expected motion, without which there is nothing to tell.")
    kinds = np.array([_kind(c.group) for c in episodes[0].channels])
    out = np.empty(len(kinds))
    for kind in set(kinds):
        mine = kinds == kind
        share = FLOOR * (SERVO if kind == "joints" else 1.0)
        out[mine] = share * np.sqrt(square[mine & known].mean()) if (mine & known).any() else 0.0
    out = np.where(kinds == "gripper", np.maximum(out, FLOOR * FINGER_RANGE), out)
    return np.where(out > 0, out, out[out > 0].min())


def seen_mean(values: np.ndarray) -> np.ndarray:
    """The mean of every column over the rows that were seen; 0 of one that never was."""
    return np.nansum(values, axis=0) / np.maximum((~np.isnan(values)).sum(0), 1)


def _kind(group: str) -> str:
    return group if group in MACHINE else "body"


def pairs_of(episodes: Sequence[Episode], floor: np.ndarray, rows: int) -> Pairs:
    """The displacements and drives of logs as a view shows them, padded to so many rows."""
    shape = (len(episodes), rows, len(floor))
    moved, drive, valid = np.zeros(shape, np.float32), np.zeros(shape, np.float32), np.zeros(shape[:2], bool)
    seen = np.zeros(shape, np.float32)
    for i, e in enumerate(episodes):
        step = np.diff(e.observations, axis=0) / floor
        moved[i, : e.steps], seen[i, : e.steps] = np.nan_to_num(step), ~np.isnan(step)
        drive[i, : e.steps], valid[i, : e.steps] = e.actions / floor, True
    return Pairs(*(jnp.asarray(x) for x in (moved, drive, seen, valid)))


def switching(
    train: Sequence[Episode], validation: Sequence[Episode], modes: int, floor: np.ndarray, *, seed: int
) -> list[Found]:
    """The likeliest modes of the training logs from every start."""
    rows = padded_length(max(max(e.steps for e in (*train, *validation)), 1))  # logs alike share a program
    data, held = pairs_of(train, floor, rows), pairs_of(validation, floor, rows)
    if not bool(data.seen.any()):
        raise ValueError("no two rows in a row were seen in any training log; expected some, to see what moves.")
    if not bool(held.seen.any()):
        raise ValueError("no two rows in a row were seen in any validation log; expected some, to choose a start by.")
    starts = jnp.asarray(_starts(data, modes, seed), jnp.float32)
    found, share = _climbed(data, starts)
    value = np.nan_to_num(np.asarray(_scored(held, found), np.float64), nan=-np.inf)
    every = [jax.tree.map(lambda x, i=i: np.asarray(x[i], np.float64), (found, share)) for i in range(len(value))]
    return [Found(one, rows_in, float(v)) for (one, rows_in), v in zip(every, value, strict=True)]


def _starts(data: Pairs, modes: int, seed: int) -> np.ndarray:
    """Gains to start from: clusters of the gains of short windows, and moments of motion beside a mode of rest."""
    windows, random = _window_gains(data), np.random.default_rng(seed)
    distinct = len(np.unique(windows, axis=0))
    out = []
    for k in range(STARTS):
        means = KMeans(min(modes, distinct), n_init=1, random_state=seed * STARTS + k)  # pyright: ignore[reportArgumentType]
        clusters = means.fit(windows).cluster_centers_
        extra = windows[random.choice(len(windows), modes - len(clusters))] if len(clusters) < modes else clusters[:0]
        out.append(np.concatenate([clusters, extra]))
        out.append(_moments(data, modes, random))
    return np.stack(out)


def _window_gains(data: Pairs) -> np.ndarray:
    """The gain of every channel over windows that overlap by half, shrunk to 0 where nothing drives it."""
    moved, drive, valid = (np.asarray(x) for x in (data.moved, data.drive * data.seen, data.valid))
    out = []
    for first in range(0, max(moved.shape[1] - WINDOW, 0) + 1, WINDOW // 2):
        part = slice(first, first + WINDOW)
        up, down = (moved[:, part] * drive[:, part]).sum(1), (drive[:, part] ** 2).sum(1) + 4.0
        out.append((up / down)[valid[:, part].any(1)])
    return np.clip(np.concatenate(out), -1.5, 1.5)


def _moments(data: Pairs, modes: int, random: np.random.Generator) -> np.ndarray:
    """A mode in which nothing responds, and others that respond as at some moments of motion."""
    moved, drive = (np.asarray(x).reshape(-1, x.shape[-1]) for x in (data.moved, data.drive))
    gain = np.zeros((modes, moved.shape[1]))
    chance = (moved**2).sum(-1) * ((drive**2).sum(-1) > 0)
    if chance.sum() > 0 and modes > 1:
        picks = random.choice(chance.size, modes - 1, p=chance / chance.sum())
        still = np.abs(drive[picks]) < 0.3  # of the noise floor
        gain[1:] = np.clip(np.where(still, 0.0, moved[picks] / np.where(still, 1.0, drive[picks])), -0.5, 1.5)
    return gain


@jax.jit
def _climbed(data: Pairs, gain: Float[Array, "starts modes channels"]):
    """Every start improved, and the share of the rows in each of its modes."""
    return jax.vmap(partial(_climbed_once, data))(gain)


def _climbed_once(data: Pairs, gain: Float[Array, "modes channels"]):
    modes, dtype = gain.shape[0], gain.dtype
    count = jnp.maximum(data.seen.sum((0, 1)), 1.0)
    spread = jnp.sqrt((data.moved**2).sum((0, 1)) / count)
    first = Switching(
        gain=gain,
        transition=jnp.asarray(sticky(modes, STAY), dtype),
        start=jnp.full(modes, 1 / modes, dtype),
        noise=jnp.maximum(spread, 1.0),
    )
    after = jax.lax.fori_loop(0, ROUNDS, lambda _, now: _improved(data, now, count), first)
    weight = _believed(data, after)[0]
    return after, (weight * data.valid[..., None]).sum((0, 1)) / data.valid.sum()


def _believed(data: Pairs, now: Switching):
    """Who was in which mode, how often it changed, and how likely every log is."""
    error = data.moved[:, :, None] - now.gain * data.drive[:, :, None]
    terms = (-0.5 * (error / now.noise) ** 2 - jnp.log(now.noise)) * data.seen[:, :, None]
    return jax.vmap(chain_posterior, in_axes=(0, 0, None, None))(terms.sum(-1), data.valid, now.transition, now.start)


def _improved(data: Pairs, now: Switching, count) -> Switching:
    """One round: the gains and moves that make what is believed likeliest, and the noise that the gains before left."""
    weight, moves, _ = _believed(data, now)
    weight = weight * data.valid[..., None]

    def total(values: Float[Array, "logs rows channels"]) -> Float[Array, "modes channels"]:
        return jnp.einsum("lrm,lrc->mc", weight, values * data.seen)

    # A gain is 0 or about 1: a prior of that width keeps a mode of few rows from inventing one.
    gain = total(data.moved * data.drive) / (total(data.drive**2) + now.noise**2)
    missed = jnp.square(data.moved[:, :, None] - now.gain * data.drive[:, :, None]) * data.seen[:, :, None]
    noise = jnp.sqrt(jnp.einsum("lrm,lrmc->c", weight, missed) / count)
    moves, starts = moves.sum(0) + PRIOR, weight[:, 0].sum(0) + PRIOR
    return Switching(gain, moves / moves.sum(1, keepdims=True), starts / starts.sum(), jnp.maximum(noise, 1.0))


@jax.jit
def _scored(data: Pairs, found: Switching) -> Float[Array, "starts"]:
    """The log likelihood per row of every start."""
    return jax.vmap(lambda one: _believed(data, one)[2].sum() / jnp.maximum(data.valid.sum(), 1))(found)
