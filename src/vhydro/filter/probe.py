"""A sensor of one's own is tried before it is filtered with: inside compiled code nothing can say what was wrong."""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from vhydro.emission import PEAK_SLACK, LinearEmission, NetworkEmission, Observation
from vhydro.model import HybridModel
from vhydro.sensors import RangeBearingEmission, StudentEmission
from vhydro.small import precise

OURS = LinearEmission | NetworkEmission | StudentEmission | RangeBearingEmission  # tests have tried them
READINGS = 8  # rows of the log, evenly spread, and one with nothing observed
DRAWS = 256  # states tried at a time
ROUNDS = 14  # around the likeliest state so far, each time closer
CLOSER = 0.5  # 2⁻¹⁴ start scales at last: near enough to find the peak of a precise sensor


class Tried(NamedTuple):
    """What a likelihood said of one reading."""

    log_best: Float[Array, "*readings"]
    best: Float[Array, "*readings latent"]
    log_least: Float[Array, "*readings"]
    log_peak: Float[Array, "*readings"]
    unknown: Float[Array, "*readings latent"]  # a state for which it is NaN; NaN if there is none


def refuse_bad_likelihood(model: HybridModel, logs: Sequence[Shaped[np.ndarray, "_rows channels"]] = ()) -> None:
    """Raises if a sensor of one's own breaks its contract for states it may meet and some readings of these logs.

    States are drawn from the start law, then ever closer to the likeliest one. A search can miss what it does not meet;
    it finds the common slips: NaN, a mask that is ignored, a peak without its normaliser, a sum that was forgotten.
    """
    if isinstance(model.emission, OURS):
        return
    _refuse_bad_shapes(model)
    rows = _readings(model, logs)
    observed = ~np.isnan(rows)
    values = np.where(observed, (rows - np.asarray(model.shift)) / np.asarray(model.scale), 0.0)
    seen = Observation(jnp.asarray(values, model.dtype), jnp.asarray(observed))
    noise = np.random.default_rng(0).standard_normal((ROUNDS, model.latent, DRAWS))  # a search, not an estimate
    tried = jax.tree.map(np.asarray, _tried(model, seen, jnp.asarray(noise, model.dtype)))
    for i, row in enumerate(rows):
        _refuse(type(model.emission).__name__, row, Tried(*(x[i] for x in tried)))


def _readings(model: HybridModel, logs: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of a log in its own units, always as many so that one program serves all; the last has nothing observed."""
    hidden = np.full((1, len(model.channels)), np.nan)
    rows = np.concatenate([*logs, hidden])
    some = np.flatnonzero(~np.isnan(rows).all(1))
    chosen = some[np.linspace(0, len(some) - 1, READINGS).astype(int)] if len(some) else [-1] * READINGS
    return np.concatenate([rows[chosen], hidden])


def _refuse_bad_shapes(model: HybridModel) -> None:
    emission, width = model.emission, len(model.channels)
    seen = Observation(jnp.zeros(width, model.dtype), jnp.zeros(width, bool))
    cases = {
        "log_likelihood of one z": (lambda z: emission.log_likelihood(z, seen), (model.latent,), ()),
        "log_likelihood of 3 z": (lambda z: emission.log_likelihood(z, seen), (model.latent, 3), (3,)),
        "log_peak": (lambda _: emission.log_peak(seen), (), ()),
    }
    for what, (function, given, expected) in cases.items():
        found = jax.eval_shape(function, jax.ShapeDtypeStruct(given, model.dtype))
        if (found.shape, found.dtype) != (expected, model.dtype):
            raise ValueError(
                f"{type(emission).__name__}: {what} is {found.dtype}{list(found.shape)}; expected "
                f"{model.dtype}{list(expected)}. z is (latent, *particles), the result one number for each particle: "
                "sum over the channels, and make constants of the model's type."
            )


@eqx.filter_jit
@precise
def _tried(model: HybridModel, seen: Observation, noise: Float[Array, "rounds latent draws"]) -> Tried:
    return jax.vmap(lambda each: _tried_once(model, each, noise))(seen)


def _tried_once(model: HybridModel, seen: Observation, noise: Float[Array, "rounds latent draws"]) -> Tried:
    emission, start = model.emission, model.start()
    scales = start.scale.max(0) * CLOSER ** jnp.arange(ROUNDS, dtype=model.dtype)[:, None]

    def evaluated(held: Tried, z) -> Tried:
        log_g = emission.log_likelihood(z, seen)
        fair = jnp.isfinite(z).all(0)
        nan = jnp.isnan(log_g) & fair
        log_g = jnp.where(fair & ~nan, log_g, -jnp.inf)
        top = jnp.argmax(log_g)
        better = log_g[top] > held.log_best
        return Tried(
            jnp.where(better, log_g[top], held.log_best),
            jnp.where(better, z[:, top], held.best),
            jnp.minimum(held.log_least, jnp.where(fair, log_g, jnp.inf).min()),
            held.log_peak,
            jnp.where(nan.any(), z[:, jnp.argmax(nan)], held.unknown),
        )

    # Where the guide would go is a place to look too, if it is one.
    led = jax.vmap(emission.condition, in_axes=(0, 0, None))(start.mean[..., None], start.scale[..., None], seen)
    nothing = jnp.full(model.latent, jnp.nan, model.dtype)
    infinite = jnp.asarray(jnp.inf, model.dtype)
    held = Tried(-infinite, start.mean[0], infinite, emission.log_peak(seen), nothing)
    mode = np.arange(DRAWS) % model.modes
    drawn = start.mean[mode].T + start.scale[mode].T * noise[0]
    held = evaluated(held, jnp.concatenate([drawn, led.mean[..., 0].T], axis=1))

    def closer(held: Tried, inputs):
        near, scale = inputs
        return evaluated(held, held.best[:, None] + scale[:, None] * near), None

    return jax.lax.scan(closer, held, (noise, scales))[0]


def _refuse(name: str, row: np.ndarray, tried: Tried) -> None:
    where = f"for the reading {row} (NaN is hidden) at z = "
    if not np.isnan(tried.unknown).any():
        raise ValueError(
            f"{name}.log_likelihood is nan {where}{tried.unknown}; expected a number, or −inf where the reading is "
            "impossible. Guard square roots, logarithms and divisions with `jnp.where` inside and outside."
        )
    if not np.isfinite(tried.log_peak):
        raise ValueError(
            f"{name}.log_peak is {tried.log_peak} for the reading {row}; expected a finite number. A density without "
            "a largest value cannot be certified: give it a noise floor."
        )
    if tried.log_best > tried.log_peak + PEAK_SLACK:
        raise ValueError(
            f"{name}.log_likelihood is {tried.log_best} {where}{tried.best}, above its log_peak {tried.log_peak}; "
            "expected no more than the peak. Both need the same normalisers, over the observed channels alone."
        )
    if np.isnan(row).all() and max(tried.log_best, -tried.log_least) > PEAK_SLACK:
        raise ValueError(
            f"{name}.log_likelihood is from {tried.log_least} to {tried.log_best} where nothing was observed; expected "
            "0. Count a channel only where it was: `jnp.where(seen.observed, terms, 0.0)`."
        )
