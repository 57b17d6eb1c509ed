"""Gains and noise of a contact model where sensors are noisy: EM whose E step is the filter of merged Gaussians.

Displacements of noisy readings are moving averages of the noise, so that gains by plain least squares trust each of
them too little or too much. Filtered by `v_t = x_t + θ v_{t−1}` their noise is white, and least squares is right again.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from vhydro.episodes import Batch, Episode, pad
from vhydro.filter.merged import branch_shares, merged_run, smoothed_moments
from vhydro.filter.run import frames_of, padded_length
from vhydro.filter.settings import FilterSettings
from vhydro.learning.contact import CONFIG, Scales
from vhydro.learning.forward_backward import ChainPosterior
from vhydro.learning.switching import driven_chain
from vhydro.model import HybridModel
from vhydro.progress import counted
from vhydro.small import precise

PSEUDO = CONFIG.pseudo_moves
ROUNDS, DRIVEN_ROUNDS = 8, 4
ROUGH = (0.1, 0.3)  # of the hand's step: the least and the most by which what goes with it may miss it
LEAST = 1.0  # noise of a step, in noise floors
OWN = 0.5  # the chance that a step is of one of the law's modes, for it to count
NEGLIGIBLE = 1e-9  # of sensors, in squared noise floors
KEEP = FilterSettings(engine="merged", history=True)


class ContactLaw(NamedTuple):
    """What is learned, in noise floors."""

    gain: Float[np.ndarray, "modes channels"]
    walk: Float[np.ndarray, "channels"]  # deviation of a step
    logits: Float[np.ndarray, "modes modes"]
    drive: Float[np.ndarray, "inputs modes"]  # what a feature of the step adds to the logit of the next mode
    log_start: Float[np.ndarray, "modes"]
    rough: Float[np.ndarray, "channels"]  # share of a drive by which what goes with it may miss it; 0 for a machine


@eqx.filter_jit
@precise
def _posterior(model: HybridModel, batch: Batch) -> ChainPosterior:
    """The modes of every log, given all of it."""

    def one(log: Batch) -> ChainPosterior:
        frames = frames_of(model, log)
        (_, _, history), *_ = merged_run(model, None, KEEP, frames, None)
        history = jax.tree.map(lambda x: x[0], history)
        mode = smoothed_moments(model, history, frames).mode
        pairs = jax.vmap(lambda joint, later: branch_shares(joint, 0) * later)(history.log_branch[1:], mode[1:])
        return ChainPosterior(mode, pairs * log.valid[1:, None, None], jnp.zeros((), model.dtype))

    return jax.vmap(one)(batch)


def refined_law(
    start: ContactLaw,
    model_of: Callable[[ContactLaw], HybridModel],
    together_of: Callable[[ContactLaw], Bool[np.ndarray, "modes channels channels"]],
    seen: Sequence[Episode],
    scales: Scales,
    features: Float[Array, "logs rows features"],
    show: Callable[[Episode], Episode] = lambda log: log,
    told_as: Sequence[int] | None = None,
) -> ContactLaw:
    """The law after some rounds, the last of them with a chain that is driven by the features of every step.

    `model_of` makes a model of a law, `together_of` says which channels are of one body that goes with the hand. The
    model may see logs in a way of its own (`show`) and have more modes than the law: each is told as one of the law's
    (`told_as`), and the steps of those further ones say nothing of gains.
    """
    rows = padded_length(max(e.steps + 1 for e in seen))
    now, channels = start, len(start.walk)
    steps = [np.diff(e.observations, axis=0) / scales.floor for e in seen]
    drives = [e.actions[:, :channels] / scales.floor for e in seen]
    width = features.shape[-1]
    fold = np.eye(len(start.gain)) if told_as is None else np.eye(len(start.gain))[list(told_as)]
    batch = jax.tree.map(jnp.asarray, pad([show(e) for e in seen], dtype=model_of(start).dtype, length=rows))
    for number in counted(range(ROUNDS + (DRIVEN_ROUNDS if width else 0)), "finding modes: rounds of EM"):
        chain = _posterior(model_of(now), batch)
        mode, pairs = np.asarray(chain.mode, np.float64), fold.T @ np.asarray(chain.pairs, np.float64) @ fold
        weights = [m[1 : e.steps + 1, : len(fold.T)] for m, e in zip(mode, seen, strict=True)]
        now = _m_step(now, steps, drives, weights, (scales.sensor / scales.floor) ** 2, together_of(now))
        begun = (mode[:, 0] @ fold).sum(0) + PSEUDO
        now = now._replace(log_start=np.log(begun / begun.sum()))
        if number < ROUNDS:
            moves = pairs.sum((0, 1)) + PSEUDO
            now = now._replace(logits=np.log(moves / moves.sum(1, keepdims=True)))
        else:
            if not now.drive.size:
                now = now._replace(drive=np.zeros((width, len(now.gain))))
            logits, drive = driven_chain(
                features[:, : rows - 1], jnp.asarray(pairs, chain.pairs.dtype), now.logits, now.drive, PSEUDO
            )
            now = now._replace(logits=np.asarray(logits, np.float64), drive=np.asarray(drive, np.float64))
    return now


def _m_step(now: ContactLaw, steps, drives, weights, sensor, together) -> ContactLaw:
    """The M step of gains and noise, channel by channel, from the modes' probabilities in every step."""
    rough = together * now.rough[:, None] ** 2
    found = [
        _channel(now.walk[c] ** 2, sensor[c], c, steps, drives, weights, rough[:, c]) for c in range(len(now.walk))
    ]
    gains, walks = zip(*found, strict=True)
    now = now._replace(gain=np.stack(gains, 1), walk=np.array(walks))
    return now._replace(rough=_roughness(now, steps, drives, weights, sensor, together))


def _roughness(now: ContactLaw, steps, drives, weights, sensor, together) -> np.ndarray:
    """By what share of the hand's step each body misses it while they go together, beyond what is noise."""
    step, drive, weight = (np.concatenate(x) for x in (steps, drives, weights))
    missed, gone = np.zeros_like(now.rough), np.zeros_like(now.rough)
    for mode, gain in enumerate(now.gain):
        held = together[mode]  # channels of one body
        own = held.any(1)
        known = weight[:, mode : mode + 1] * ~np.isnan(step)
        left = np.nan_to_num(step - gain * drive) ** 2 - now.walk**2 - 2 * sensor
        missed += held @ np.where(own, (known * left).sum(0), 0.0)
        gone += held @ np.where(own, (known * (drive**2 @ held.T)).sum(0), 0.0)
    share = np.sqrt(np.maximum(missed, 0.0) / np.maximum(gone, 1.0))
    return np.where(now.rough > 0, np.clip(share, *ROUGH), 0.0)


def _channel(walk: float, sensor: float, c: int, steps, drives, weights, rough) -> tuple[np.ndarray, float]:
    """The gain of one channel in every mode and the deviation of its steps; `walk`, `sensor`, `rough` are variances."""
    root = np.sqrt(walk**2 + 4 * walk * sensor)
    theta = ((walk + 2 * sensor) - root) / (2 * sensor) if sensor > NEGLIGIBLE else 0.0
    spread = (walk + 2 * sensor + root) / 2  # variance of the white innovations
    modes = len(rough)
    gram, cross, parts = spread * np.eye(modes), np.zeros(modes), []
    for x, u, w in zip(steps, drives, weights, strict=True):
        known = ~np.isnan(x[:, c]) & (w.sum(1) > OWN)
        regressors = np.where(known[:, None], w * u[:, c : c + 1], 0.0)
        white = _whitened(np.column_stack([np.nan_to_num(x[:, c]), regressors]), known, theta)
        trust = known / (1 + (w * (u**2 @ rough.T)).sum(1) / spread)
        doubt = np.einsum("t,tij->ij", trust * u[:, c] ** 2, _doubt(w)) / (1 - theta**2)
        gram += white[:, 1:].T @ (trust[:, None] * white[:, 1:]) + doubt
        cross += white[:, 1:].T @ (trust * white[:, 0])
        parts.append((white, trust, doubt, known.sum()))
    gain = np.linalg.solve(gram, cross)
    square = sum((t * (v[:, 0] - v[:, 1:] @ gain) ** 2).sum() + gain @ d @ gain for v, t, d, _ in parts)
    left = square / max(sum(n for *_, n in parts), 1)  # variance of what the gains leave: innovations, again
    return gain, np.sqrt(max((left - sensor) ** 2 / left if left > sensor else 0.0, LEAST**2))


def _doubt(w: np.ndarray) -> np.ndarray:
    """The covariance of being in every mode, of every row."""
    return np.einsum("ti,ij->tij", w, np.eye(w.shape[1])) - w[:, :, None] * w[:, None, :]


def _whitened(values: np.ndarray, known: np.ndarray, theta: float) -> np.ndarray:
    """The values filtered by `v_t = x_t + θ v_{t−1}`, begun anew after what is hidden."""
    if not theta:
        return values
    out = np.empty_like(values)
    last = np.zeros(values.shape[1])
    for t, row in enumerate(values):
        last = row + theta * last if known[t] else np.zeros_like(last)
        out[t] = last
    return out
