"""The `cuthbert` peer, jitted, float32: its filter of the switching linear system, and its best of a hybrid model."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from cuthbert import filter as run_filter
from cuthbert.smc import particle_filter
from cuthbertlib.resampling import adaptive, systematic
from jaxtyping import Array, Float

from slds import CHANNELS, LATENT, slds
from vhydro.emission import LinearEmission
from vhydro.episodes import Batch, pad
from vhydro.filter.run import frames_of, log_units
from vhydro.flow import LinearFlow, as_linear
from vhydro.gaussian import as_factor, coloured, conditioned_one_by_one, factored
from vhydro.model import Branches, HybridModel
from vhydro.particles import categorical
from vhydro.small import log_sum, pick

RESAMPLING = adaptive.ess_decorator(systematic.resampling, 0.5)


def cuthbert_log_evidence(count: int):
    """A function of a key: log Z with `count` particles, systematic resampling at ESS < N/2."""
    system = {k: jnp.asarray(v, jnp.float32) for k, v in slds().items()}
    log_table = jnp.log(system["table"])

    def start(key):
        return {"mode": jnp.zeros((), jnp.int32), "z": jax.random.normal(key, (LATENT,))}

    def moved(key, state, _):
        mode_key, noise_key = jax.random.split(key)
        mode = jax.random.categorical(mode_key, log_table[state["mode"]]).astype(jnp.int32)
        noise = system["noise"] * jax.random.normal(noise_key, (LATENT,))
        return {"mode": mode, "z": system["matrix"][mode] @ state["z"] + system["offset"][mode] + noise}

    def log_likelihood(_, state, seen):
        error = (seen - system["emission"] @ state["z"]) / system["sensor"]
        return -0.5 * jnp.sum(error**2) - CHANNELS * jnp.log(system["sensor"] * jnp.sqrt(2 * jnp.pi))

    peer = particle_filter.build_filter(start, moved, log_likelihood, count, RESAMPLING)

    def log_evidence(key):
        first, rest = jax.random.split(key)
        states = run_filter(peer, system["log"], peer.init_prepare(key=first), key=rest)
        return states.log_normalizing_constant[-1]

    return log_evidence


class Ahead(NamedTuple):
    """A particle that looks one reading ahead: the law of its next (mode, z) given that reading, and its evidence."""

    log_mode: Float[Array, "modes"]
    mean: Float[Array, "modes latent"]
    scale: Float[Array, "modes latent ..."]
    log_evidence: Float[Array, ""]


def cuthbert_hybrid(model: HybridModel, logs, count: int):
    """A function of a seed: the log evidence of every log, all equally long, with `count` particles.

    cuthbert takes any proposal and potential, and any tree as a particle. The best that fits in it is the fully adapted
    filter: z and its mode are drawn from their exact conditional, and weighed by the evidence of the next reading.
    Where the modes are linear, z is not drawn at all: a particle holds its Kalman moments.

    Logs go one after the other. Mapped side by side they are up to three times slower, for cuthbert then resamples in
    every step, due or not.
    """
    batch = pad(logs, dtype=model.dtype)
    if not batch.valid.all():
        raise ValueError("the logs differ in length; cuthbert has no padding. Give logs of one length.")
    kept = model.flow.affine and model.reset is None and model.kernel.drive is None

    def log_evidence(inputs) -> Float[Array, ""]:
        log, key = inputs
        flow = as_linear(model.flow, log.dt) if model.flow.affine else model.flow
        return _log_evidence(eqx.tree_at(lambda m: m.flow, model, flow), log, key, count, kept)

    call = jax.jit(lambda batch, keys: jax.lax.map(log_evidence, (batch, keys)))
    return lambda seed: np.asarray(call(batch, jax.random.split(jax.random.key(seed), len(logs))))


def _log_evidence(model: HybridModel, log: Batch, key, count: int, kept: bool) -> Float[Array, ""]:
    """One log by cuthbert's filter; its row t draws what reading t made of (mode, z) and looks at reading t + 1."""
    frames = frames_of(model, log)
    law, move = (_kalman_law, _kalman_move) if kept else (_law, _drawn_move)
    start = model.start()
    scale = jax.vmap(as_factor)(start.scale) if kept else start.scale
    first = law(model, Branches(start.log_mode, start.mean, scale), jax.tree.map(lambda x: x[0], frames.seen))

    def moved(key, particle, frame) -> Ahead:
        return law(model, move(model, key, particle, frame), frame.seen)

    def log_potential(_, particle, __):
        return particle.log_evidence

    peer = particle_filter.build_filter(lambda _: first, moved, log_potential, count, RESAMPLING)
    start_key, key = jax.random.split(key)
    states = run_filter(peer, jax.tree.map(lambda x: x[1:], frames), peer.init_prepare(key=start_key), key=key)
    return first.log_evidence + states.log_normalizing_constant[-1] + log_units(model, log.observed).sum()


def _ahead(carrier: Branches, after) -> Ahead:
    log_mode = carrier.log_mode + after.log_evidence
    log_evidence = log_sum(log_mode)
    return Ahead(log_mode - log_evidence, after.mean, after.scale, log_evidence)


def _law(model: HybridModel, carrier: Branches, seen) -> Ahead:
    return _ahead(carrier, jax.vmap(model.emission.condition, in_axes=(0, 0, None))(carrier.mean, carrier.scale, seen))


def _drawn_move(model: HybridModel, key, particle: Ahead, frame) -> Branches:
    """Where the model takes a mode and a z that are drawn; one call of the generator for both.

    z is taken by a product, not by `pick`: XLA would otherwise draw it anew in every evaluation of the flow.
    """
    normal = jax.random.normal(key, (1 + model.latent,), model.dtype)
    mode = categorical(particle.log_mode, jax.scipy.stats.norm.cdf(normal[0]))
    each = particle.mean + jax.vmap(coloured, in_axes=(0, None))(particle.scale, normal[1:])
    z = jax.nn.one_hot(mode, model.modes, dtype=model.dtype) @ each
    return model.transition(mode, z, frame.action, frame.dt)


def _kalman_law(model: HybridModel, carrier: Branches, seen) -> Ahead:
    """The same where every particle has a covariance of its own."""
    emission = model.emission
    assert isinstance(emission, LinearEmission)
    assert emission.noise_lower is None

    def condition(mean, factor):
        residual = seen.value - emission.mean(mean)
        return conditioned_one_by_one(mean, factor, emission.dense(), emission.noise, residual, seen.observed)

    return _ahead(carrier, jax.vmap(condition)(carrier.mean, carrier.scale))


def _kalman_move(model: HybridModel, key, particle: Ahead, frame) -> Branches:
    """Where the model takes a mode that is drawn and the Gaussian that z has in it."""
    assert isinstance(model.flow, LinearFlow)
    mode = categorical(particle.log_mode, jax.scipy.stats.norm.cdf(jax.random.normal(key, (), model.dtype)))
    mean, factor = pick(particle.mean, mode), pick(particle.scale, mode)
    spread, noise = model.flow.matrix @ factor, jax.vmap(as_factor)(model.noise_scale)
    covariance = spread @ spread.mT + noise @ noise.mT
    log_mode = model.kernel.log_probability(mode, mean, frame.action)
    return Branches(log_mode, model.next_means(mode, mean, frame.action, frame.dt), jax.vmap(factored)(covariance))
