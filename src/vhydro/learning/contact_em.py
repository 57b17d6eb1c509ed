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
from jaxtyping import Array, Float

from vhydro.episodes import Batch, Episode, pad
from vhydro.filter.merged import merged_run, smoothed_moments
from vhydro.filter.run import frames_of, padded_length
from vhydro.filter.settings import FilterSettings
from vhydro.model import HybridModel

ROUNDS = 8
LEAST = 1.0  # noise of a step, in noise floors
KEEP = FilterSettings(engine="merged", history=True)


class Law(NamedTuple):
    """What is learned, in noise floors."""

    gain: Float[np.ndarray, "modes channels"]
    walk: Float[np.ndarray, "channels"]  # deviation of a step


@eqx.filter_jit
def _modes(model: HybridModel, batch: Batch) -> Float[Array, "logs rows modes"]:
    def one(log: Batch):
        frames = frames_of(model, log)
        (_, _, history), *_ = merged_run(model, None, KEEP, frames, None)
        return smoothed_moments(model, jax.tree.map(lambda x: x[0], history), frames).mode

    return jax.vmap(one)(batch)


def refined_law(
    start: Law,
    model_of: Callable[[Law], HybridModel],
    seen: Sequence[Episode],
    scales,
    rough: Callable[[np.ndarray], Float[np.ndarray, "modes channels"]],
) -> Law:
    """The law after some rounds; `model_of` makes a model of one, `rough` says which channels are rough in which mode."""
    rows = padded_length(max(e.steps + 1 for e in seen))
    now, channels = start, len(start.walk)
    sensor = np.maximum(scales.sensor / scales.floor, 0.0)
    steps = [np.diff(e.observations, axis=0) / scales.floor for e in seen]
    drives = [e.actions[:, :channels] / scales.floor for e in seen]
    for _ in range(ROUNDS):
        model = model_of(now)
        batch = pad(seen, dtype=model.dtype, length=rows)
        mode = np.asarray(_modes(model, jax.tree.map(jnp.asarray, batch)), np.float64)
        weights = [m[1 : e.steps + 1] for m, e in zip(mode, seen, strict=True)]
        now = _m_step(now, steps, drives, weights, sensor**2, rough(now.gain))
    return now


def _m_step(now: Law, steps, drives, weights, sensor, rough) -> Law:
    modes, channels = now.gain.shape
    gain, walk = np.empty_like(now.gain), np.empty_like(now.walk)
    for c in range(channels):
        q, r = now.walk[c] ** 2, sensor[c]
        root = np.sqrt(q**2 + 4 * q * r)
        theta = ((q + 2 * r) - root) / (2 * r) if r > 1e-9 else 0.0
        spread = (q + 2 * r + root) / 2  # of the white innovations
        gram, cross, square, count = spread * np.eye(modes), np.zeros(modes), 0.0, 0.0
        rest = []
        for x, u, w in zip(steps, drives, weights, strict=True):
            known = ~np.isnan(x[:, c])
            regressors = np.where(known[:, None], w * u[:, c : c + 1], 0.0)
            both = _whitened(np.column_stack([np.nan_to_num(x[:, c]), regressors]), known, theta)
            trust = 1 / (1 + (w @ (rough[:, c] ** 2)) * u[:, c] ** 2 / spread) * known
            doubt = np.einsum("t,tij->ij", trust * u[:, c] ** 2, _doubt(w)) / (1 - theta**2)
            gram += both[:, 1:].T @ (trust[:, None] * both[:, 1:]) + doubt
            cross += both[:, 1:].T @ (trust * both[:, 0])
            rest.append((both, trust, doubt, known))
        gain[:, c] = np.linalg.solve(gram, cross)
        for both, trust, doubt, known in rest:
            square += (trust * (both[:, 0] - both[:, 1:] @ gain[:, c]) ** 2).sum() + gain[:, c] @ doubt @ gain[:, c]
            count += known.sum()
        found = square / max(count, 1.0)
        walk[c] = np.sqrt(max(found + r**2 / found - 2 * r if found > r else 0.0, LEAST**2))
    return Law(gain, walk)


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
