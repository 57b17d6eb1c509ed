"""Contact modes without labels: which responses follow their drives, as a switching regression of displacements.

`z' = z + g_s u + noise`, one gain per mode and channel. The noise is shared by all modes and has a floor: a mode with
a noise of its own would tell speeds apart and not contacts. Starts come from clustering the gains of short windows.
Which mode is next depends on the gap between the hand and every body and on the fingers: see `vhydro.gap`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from sklearn.cluster import KMeans

from vhydro.episodes import Episode
from vhydro.filter.run import padded_length
from vhydro.gap import Geometry
from vhydro.learning.noise import WINDOW, median_deviation, seen_mean, smoothed
from vhydro.learning.switching import (
    Regression,
    Rows,
    Structure,
    Switching,
    SwitchingConfig,
    baum_welch,
    mean_log_likelihood,
    rows_of_modes,
    start_from_coefficients,
    structure,
)
from vhydro.occlusion import straight_lines
from vhydro.small import precise
from vhydro.views.contact import AXES, GAP, MACHINE

RESTARTS = 6  # of each of two kinds
FLOOR = 0.1  # of the RMS displacement of a channel's kind
SERVO = 2.0  # times that floor: arms lag by themselves when they speed up, whatever they touch
FINGER_FLOOR = 0.0015  # metres: an opening that hardly moves is not blown up
NOISY = 0.5  # of the floor: sensor noise beyond which bodies are smoothed before displacements are taken
SLOPE = 0.376  # deviation of a smoothed displacement, in sensor noises, times the window's width to the power 1.5
WIDEST = 4.0  # rows of a smoothing window
CONFIG = SwitchingConfig()


class ContactFit(NamedTuple):
    """Where one start has come to."""

    switching: Switching
    rows: Rows  # of the training logs
    validation: float  # log likelihood per row of validation logs


class Scales(NamedTuple):
    """What every channel is measured by, in its unit."""

    shift: Float[np.ndarray, "channels"]  # the mean reading
    floor: Float[np.ndarray, "channels"]  # of the noise of a step
    sensor: Float[np.ndarray, "channels"]  # standard deviation of a reading
    action: Float[np.ndarray, "inputs"]  # the usual size of drives: one far beyond it is a fault to the filter
    width: float = 0.0  # rows of the window that bodies are smoothed by; 0 where sensors are good

    @property
    def jitter(self) -> Float[np.ndarray, "channels"]:
        """What sensors leave of noise in a displacement, in its unit."""
        return self.sensor * (SLOPE / self.width**1.5 if self.width else np.sqrt(2))


# What drives nothing by itself, but says when a contact may begin, is measured by these.
CIRCUMSTANCES = {**{f"hand.{a}": 1.0 for a in AXES}, "opening": 0.04, "opening.change": 0.01}  # metres
CLOTH = 0.0025  # metres of the gap to a cloth, which is thin


def scales_of(episodes: Sequence[Episode]) -> Scales:
    """The units of logs as a view shows them: means, floors, sensor noise."""
    sensor = sensor_noise(episodes)
    floor = floors(episodes, sensor)
    width = _smoothing(sensor, floor)
    if width:  # noise makes raw steps larger than motion does
        floor = floors([smoothed_log(e, width) for e in episodes], SLOPE / width**1.5 * sensor / np.sqrt(2))
    about = [CLOTH if c.name.endswith(GAP) else CIRCUMSTANCES[c.name] for c in episodes[0].inputs[len(floor) :]]
    drives = np.concatenate([e.actions[:, : len(floor)] for e in episodes])
    action = np.append(np.maximum(np.sqrt((drives**2).mean(0)), floor), about)
    shift = seen_mean(np.concatenate([e.observations for e in episodes]))
    return Scales(shift, floor, sensor, action, width)


def _smoothing(sensor: np.ndarray, floor: np.ndarray) -> float:
    """Rows of the window that brings the noise of a displacement down to a share of the floor; 0 if it is there."""
    worst = float((sensor / floor).max())
    return float(np.clip((SLOPE * worst / NOISY) ** (2 / 3), 1.0, WIDEST)) if worst > NOISY else 0.0


def smoothed_log(log: Episode, width: float) -> Episode:
    """The log with its bodies smoothed, and their drives as those of smoothed paths: gains stay as they are."""
    body = np.array([c.group not in MACHINE for c in log.channels])
    count = len(body)
    seen = ~np.isnan(log.observations[:, body])
    paths = np.concatenate([np.zeros((1, body.sum())), np.cumsum(log.actions[:, :count][:, body], 0)])
    values, actions = log.observations.astype(np.float64), log.actions.astype(np.float64)
    values[:, body] = smoothed(values[:, body], seen, width)
    actions[:, np.flatnonzero(body)] = np.nan_to_num(np.diff(smoothed(paths, seen, width), axis=0))
    return replace(log, observations=values, actions=actions)


def geometry_of(episodes: Sequence[Episode], scales: Scales, bodies: Sequence[str]) -> Geometry:
    """Where hand and bodies are in the standardised `(z, a)` of logs as a view shows them."""
    names, inputs = [c.name for c in episodes[0].channels], [c.name for c in episodes[0].inputs]
    width = len(names) + len(inputs)
    before, after = np.zeros((len(bodies), 3, width)), np.zeros((len(bodies), 3, width))
    offset = np.zeros((len(bodies), 3))
    for b, body in enumerate(bodies):
        for k, axis in enumerate(AXES):
            own = names.index(f"{body}.{axis}")
            before[b, k, own], offset[b, k] = -scales.floor[own], -scales.shift[own]
            before[b, k, len(names) + inputs.index(f"hand.{axis}")] = CIRCUMSTANCES[f"hand.{axis}"]
            after[b, k] = before[b, k]
            after[b, k, len(names) + own] = scales.action[own]
    others = np.eye(width)[
        [len(names) + i for i, name in enumerate(inputs) if name.startswith("opening") or name.endswith(GAP)]
    ]
    steps = np.concatenate([e.actions[:, :3] for e in episodes])  # of the first body: the hand's own
    closing = max(float(np.sqrt((steps**2).sum(1).mean())), 1e-4)
    return Geometry(*(jnp.asarray(x, jnp.float32) for x in (before, after, offset, others, closing)))


def sensor_noise(episodes: Sequence[Episode]) -> Float[np.ndarray, "channels"]:
    """The standard deviation of every channel's readings; that of encoders counts as 0, on the scale of what moves.

    From second differences where the hand goes steadily: whatever it holds does so too, and the rest is at rest.
    """
    body = np.array([c.group not in MACHINE for c in episodes[0].channels])
    second = np.concatenate([np.diff(e.observations, 2, axis=0) for e in episodes])
    jerk = np.concatenate([np.abs(np.diff(e.actions[:, : len(body)], axis=0)) for e in episodes])
    steady = jerk <= np.median(jerk, axis=0)
    return np.where(body, median_deviation(np.where(steady, second, np.nan)) / np.sqrt(6), 0.0)


def floors(episodes: Sequence[Episode], sensor: Float[np.ndarray, "channels"] | None = None) -> np.ndarray:
    """The noise floor of every channel, in its unit: a share of how far things of its kind move in a step.

    Of a cloth, of which only a patch goes along and not all the way, the same share of how far the hand moves: by less
    than that it settles and creases of itself.
    """
    steps = np.concatenate([np.diff(e.observations, axis=0) for e in episodes])
    square, known = seen_mean(steps**2), (~np.isnan(steps)).any(0)
    if not square.any():
        raise ValueError(
            "nothing moves in any of the logs; expected motion, without which there is nothing to tell. Give logs "
            "of it."
        )
    if sensor is not None:  # what only jitters does not move
        square = np.maximum(square - 2 * sensor**2, 0.05 * square)
    kinds = np.array([_kind(c.group) for c in episodes[0].channels])
    out = np.empty(len(kinds))
    cloths = [c.group for c in episodes[0].inputs if c.name.endswith(GAP)]
    soft = np.array([c.group in cloths for c in episodes[0].channels])
    if soft.any():
        drive = np.concatenate([e.actions[:, : len(kinds)][:, soft] for e in episodes])
        square, kinds = np.where(soft, (drive**2).mean(), square), np.where(soft, "cloth", kinds)
    for kind in set(kinds):
        mine = kinds == kind
        share = FLOOR * (SERVO if kind in ("joints", "end_effector") else 1.0)
        out[mine] = share * np.sqrt(square[mine & known].mean()) if (mine & known).any() else 0.0
    out = np.where(kinds == "gripper", np.maximum(out, FINGER_FLOOR), out)
    return np.where(out > 0, out, out[out > 0].min())


def _kind(group: str) -> str:
    return group if group in MACHINE else "body"


def contact_regression(
    episodes: Sequence[Episode], scales: Scales, rows: int, aside: Sequence[np.ndarray] | None = None
) -> Regression:
    """Displacements as responses to drives, in noise floors, padded to so many rows.

    `aside` says of every log which steps of which channels are told by something else, and not looked at.
    """
    shape = (len(episodes), rows, len(scales.floor))
    moved, drive, seen = (np.zeros(shape, np.float32) for _ in range(3))
    valid = np.zeros(shape[:2], bool)
    for i, e in enumerate(episodes):
        n, calm = e.steps, smoothed_log(e, scales.width) if scales.width else e
        step = np.diff(calm.observations, axis=0) / scales.floor
        moved[i, :n], seen[i, :n] = np.nan_to_num(step), ~np.isnan(step)
        if aside is not None:
            moved[i, :n] *= ~aside[i]
            seen[i, :n] *= ~aside[i]
        drive[i, :n], valid[i, :n] = calm.actions[:, : shape[2]] / scales.floor, True
    arrays = [jnp.asarray(x) for x in (moved, drive[..., None], seen > 0, valid)]
    return Regression(*arrays, inputs=jnp.zeros((*shape[:2], 0), jnp.float32))


def step_features(
    episodes: Sequence[Episode], scales: Scales, rows: int, geometry: Geometry
) -> Float[Array, "logs rows features"]:
    """What the chance of a mode depends on in every step; gaps to a hidden body are taken along straight lines."""
    about = np.zeros((len(episodes), rows, len(scales.floor) + len(scales.action)), np.float32)  # z and a
    for i, e in enumerate(episodes):
        z = (straight_lines(e.observations) - scales.shift) / scales.floor
        about[i, : e.steps] = np.concatenate([z[:-1], e.actions / scales.action], 1)
    return _features(geometry, jnp.asarray(about))


@jax.jit
@precise
def _features(geometry: Geometry, about: Float[Array, "logs rows width"]) -> Float[Array, "logs rows features"]:
    return jnp.moveaxis(geometry(jnp.moveaxis(about, -1, 0)), 0, -1)


def contact_fits(
    train: Sequence[Episode],
    validation: Sequence[Episode],
    modes: int,
    scales: Scales,
    *,
    seed: int,
    aside: Callable[[Episode], np.ndarray] | None = None,
) -> list[ContactFit]:
    """The likeliest modes of the training logs from every start; `aside` as in `contact_regression`, of any log."""
    rows = padded_length(max(max(e.steps for e in (*train, *validation)), 1))  # logs alike share a program
    data, held = (
        contact_regression(logs, scales, rows, None if aside is None else [aside(e) for e in logs])
        for logs in (train, validation)
    )
    for part, name in ((data, "training"), (held, "validation")):
        if not bool(part.seen.any()):
            raise ValueError(
                f"no two rows in a row were seen in any {name} log; expected some, to see what moves. Give logs "
                "that show more."
            )
    assumed = _assumed(modes, len(scales.floor))
    starts = start_from_coefficients(data, _starts(data, modes, seed), CONFIG)
    found = baum_welch(data, assumed, starts, CONFIG)
    rows_of = rows_of_modes(data, found, CONFIG)
    value = np.nan_to_num(np.asarray(mean_log_likelihood(held, found, CONFIG), np.float64), nan=-np.inf)
    every = [jax.tree.map(lambda x, i=i: np.asarray(x[i], np.float64), (found, rows_of)) for i in range(len(value))]
    return [ContactFit(one, own, v) for (one, own), v in zip(every, value.tolist(), strict=True)]


def _assumed(modes: int, channels: int) -> Structure:
    # A gain is 0 or about 1: a prior of that width keeps a mode of few rows from inventing one.
    return structure(np.arange(channels)[:, None], modes, precision=1.0)


def _starts(data: Regression, modes: int, seed: int) -> np.ndarray:
    """Gains to start from: clusters of the gains of short windows, and moments of motion beside a mode of rest."""
    windows, random = _window_gains(data), np.random.default_rng(seed)
    distinct = len(np.unique(windows, axis=0))
    out = []
    for k in range(RESTARTS):
        means = KMeans(min(modes, distinct), n_init=1, random_state=seed * RESTARTS + k)  # pyright: ignore[reportArgumentType]
        clusters = means.fit(windows).cluster_centers_
        extra = windows[random.choice(len(windows), modes - len(clusters))] if len(clusters) < modes else clusters[:0]
        out.append(np.concatenate([clusters, extra]))
        out.append(_moments(data, modes, random))
    return np.stack(out)[..., None]


def _window_gains(data: Regression) -> np.ndarray:
    """The gain of every channel over windows that overlap by half, shrunk to 0 where nothing drives it."""
    moved, valid = np.asarray(data.response), np.asarray(data.valid)
    drive = np.asarray(data.design[..., 0] * data.seen)
    out = []
    for first in range(0, max(moved.shape[1] - WINDOW, 0) + 1, WINDOW // 2):
        part = slice(first, first + WINDOW)
        up, down = (moved[:, part] * drive[:, part]).sum(1), (drive[:, part] ** 2).sum(1) + 4.0
        out.append((up / down)[valid[:, part].any(1)])
    return np.clip(np.concatenate(out), -1.5, 1.5)


def _moments(data: Regression, modes: int, random: np.random.Generator) -> np.ndarray:
    """A mode in which nothing responds, and others that respond as at some moments of motion."""
    moved, drive = (np.asarray(x).reshape(-1, data.response.shape[-1]) for x in (data.response, data.design))
    gain = np.zeros((modes, moved.shape[1]))
    chance = (moved**2).sum(-1) * ((drive**2).sum(-1) > 0)
    if chance.sum() > 0 and modes > 1:
        picks = random.choice(chance.size, modes - 1, p=chance / chance.sum())
        still = np.abs(drive[picks]) < 0.3  # of the noise floor
        gain[1:] = np.clip(np.where(still, 0.0, moved[picks] / np.where(still, 1.0, drive[picks])), -0.5, 1.5)
    return gain
