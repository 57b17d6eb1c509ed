"""Modes of channels as they are: in each, the next step is a linear law of the channels and the inputs.

`z' = z + K_s z + B_s u + p_s + noise_s`, a switching vector autoregression. Nothing is known of the channels, so that
a mode may be told by its law or by its noise alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.cluster import KMeans

from vhydro.episodes import Episode
from vhydro.filter.run import padded_length
from vhydro.learning.noise import quiet_noise, seen_mean
from vhydro.learning.start import AUTO, FEWEST_ROWS, LEAST_MOVE, Start, Tried, best_count, most_words, refuse_too_few
from vhydro.learning.switching import (
    Regression,
    Switching,
    SwitchingConfig,
    baum_welch,
    mean_log_likelihood,
    mode_shares,
    start_from_labels,
    structure,
)
from vhydro.model import HybridModel, axis_emission, hybrid_model, linear_flow, mode_kernel
from vhydro.progress import counted

MOST = 4  # modes that `auto` tries
RESTARTS = 4
COUPLED_CHANNELS = 6  # up to so many may act on one another; of more, each follows itself and the inputs
LEAST_NOISE = 0.01  # of a channel's own step, root mean square
LEAST_SENSOR = 0.1  # of the same
CONFIG = SwitchingConfig(own_noise=True, floor=LEAST_NOISE)


def plain_start(
    train: Sequence[Episode], validation: Sequence[Episode], modes: int | Literal["auto"] = AUTO, *, seed: int = 0
) -> Start:
    """The switching autoregression of logs as a plain view shows them; `auto` tries up to four modes."""
    refuse_too_few(train, validation)
    if modes != AUTO and modes < 1:
        raise ValueError(f"modes is {modes}; expected at least 1, or `auto`.")
    units = _Units(train)
    rows = padded_length(max(e.steps for e in (*train, *validation)) or 1)
    data, held = (_regression(logs, units, rows) for logs in (train, validation))
    for part, name in ((data, "training"), (held, "validation")):
        if not bool(part.seen.any()):
            raise ValueError(
                f"no two rows in a row were seen in any {name} log; expected some, to see what changes. Give logs "
                "that show more."
            )
    counts = range(1, MOST + 1) if modes == AUTO else (modes,)
    found = [_best(data, held, count, seed) for count in counted(counts, "finding modes: numbers of modes tried")]
    tried = tuple(
        Tried(n, value, int((share >= FEWEST_ROWS).sum())) for n, (_, share, value) in zip(counts, found, strict=True)
    )
    best, share, _ = found[best_count(tried)]
    order = np.argsort(best.noise.mean(1) + np.abs(best.coefficients).mean((1, 2)))
    best = best._replace(
        coefficients=best.coefficients[order], noise=best.noise[order], logits=best.logits[order][:, order],
        log_start=best.log_start[order],
    )  # fmt: skip
    names = tuple(f"regime {i + 1}" for i in range(len(order))) if len(order) > 1 else ("everything",)
    collapsed = tuple(np.flatnonzero(share[order] < FEWEST_ROWS).tolist())
    return Start(_model(best, units, train), names, tried, collapsed, notes=most_words(len(order), tried))


class _Units:
    """What channels and inputs are measured by: their means, the size of their steps, their sensors' noise."""

    def __init__(self, train: Sequence[Episode]):
        values = np.concatenate([e.observations for e in train])
        steps = np.concatenate([np.diff(e.observations, axis=0) for e in train])
        actions = np.concatenate([e.actions for e in train])
        size = np.sqrt(seen_mean(steps**2))
        if not size.any():
            raise ValueError("nothing changes in any of the logs; expected channels that do. Choose others.")
        self.shift = seen_mean(values)
        self.scale = np.where(size > 0, size, size[size > 0].min())
        self.action = np.maximum(np.sqrt((actions**2).mean(0)), 1e-12) if len(actions) else np.ones(actions.shape[1])
        self.spread = np.maximum(np.sqrt(seen_mean(((values - self.shift) / self.scale) ** 2)), 1.0)
        self.sensor = np.maximum(quiet_noise(train) / self.scale, LEAST_SENSOR)
        self.together = len(self.scale) <= COUPLED_CHANNELS


def _regression(episodes: Sequence[Episode], units: _Units, rows: int) -> Regression:
    """Steps as responses to the channels (in their spread), the inputs and 1."""
    channels, inputs = len(units.scale), len(units.action)
    own = channels if units.together else 1
    shape = (len(episodes), rows, channels)
    response, design = np.zeros(shape, np.float32), np.zeros((*shape, own + inputs + 1), np.float32)
    seen, valid = np.zeros(shape, bool), np.zeros(shape[:2], bool)
    for i, e in enumerate(episodes):
        y, n = (e.observations - units.shift) / units.scale, e.steps
        place = y[:-1] / units.spread
        columns = np.broadcast_to(place[:, None], (n, channels, channels)) if units.together else place[..., None]
        told = np.broadcast_to((e.actions / units.action)[:, None], (n, channels, inputs))
        whole = np.concatenate([columns, told, np.ones((n, channels, 1))], -1)
        known = ~np.isnan(np.diff(y, axis=0)) & ~np.isnan(columns).any(-1)
        response[i, :n] = np.where(known, np.diff(y, axis=0), 0.0)
        design[i, :n] = np.where(known[..., None], whole, 0.0)
        seen[i, :n], valid[i, :n] = known, True
    return Regression(*(jnp.asarray(x) for x in (response, design, seen, valid, np.zeros((*shape[:2], 0), np.float32))))


def _best(data: Regression, held: Regression, modes: int, seed: int) -> tuple[Switching, np.ndarray, float]:
    """The start that makes validation logs likeliest, the share of rows in its modes, and how likely it makes them."""
    places = np.arange(np.prod(data.design.shape[2:])).reshape(data.design.shape[2:])
    assumed = structure(places, modes, precision=0.0, prior_rows=1.0)
    labels = jnp.asarray(_labels(data, modes, seed))
    found = baum_welch(data, assumed, start_from_labels(data, assumed, labels, CONFIG), CONFIG)
    share = np.asarray(mode_shares(data, found, CONFIG), np.float64)
    value = np.nan_to_num(np.asarray(mean_log_likelihood(held, found, CONFIG), np.float64), nan=-np.inf)
    best = int(np.lexsort((value, share.min(1) >= FEWEST_ROWS))[-1])
    return jax.tree.map(lambda x: np.asarray(x[best], np.float64), found), share[best], float(value[best])


def _labels(data: Regression, modes: int, seed: int) -> np.ndarray:
    """Modes to start from, (starts, logs, rows): clusters of steps and of their sizes around every row."""
    moved, valid = np.asarray(data.response), np.asarray(data.valid)
    local = np.concatenate([np.arcsinh(moved), np.log1p(np.abs(moved))], -1)
    around = np.sum([np.roll(local, k, 1) for k in (-2, -1, 0, 1, 2)], 0)[valid]
    distinct = len(np.unique(around, axis=0))
    out = np.zeros((RESTARTS if modes > 1 else 1, *valid.shape), np.int32)
    for k in range(len(out) if modes > 1 else 0):
        means = KMeans(min(modes, distinct), init="random", n_init=1, random_state=seed * RESTARTS + k)  # pyright: ignore[reportArgumentType]
        out[k][valid] = means.fit_predict(around)
    return out


def _model(found: Switching, units: _Units, train: Sequence[Episode]) -> HybridModel:
    """The hybrid model of what was found, in units of the channels' steps."""
    modes, width = found.noise.shape
    inputs = len(units.action)
    by_channel = found.coefficients[..., : -inputs - 1] / (units.spread if units.together else units.spread[:, None])
    change = by_channel if units.together else by_channel * np.eye(width)
    first = (np.stack([e.observations[0] for e in train]) - units.shift) / units.scale
    middle = seen_mean(first)
    spread = np.sqrt(seen_mean((first - middle) ** 2))
    variance = np.maximum(found.noise**2 - 2 * units.sensor**2, (0.3 * found.noise) ** 2)
    moves = jnp.asarray(np.maximum(found.logits, np.log(LEAST_MOVE)), jnp.float32)
    return hybrid_model(
        replace(mode_kernel(modes), logits=moves),
        linear_flow(
            np.eye(width) + change,
            port=found.coefficients[..., -inputs - 1 : -1],
            offset=found.coefficients[..., -1],
        ),
        axis_emission(width, range(width), noise=units.sensor),
        noise=np.maximum(np.sqrt(variance), LEAST_NOISE),
        start_mode=np.exp(found.log_start),
        start_mean=middle,
        start_scale=np.maximum(np.where(spread > 0, spread, units.spread), 1.0),
        shift=units.shift,
        scale=units.scale,
        action_scale=units.action,
        channels=[c.name for c in train[0].channels],
    )
