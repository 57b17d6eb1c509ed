"""The `cuthbert` peer: its bootstrap filter of the switching linear system, jitted, float32."""

import jax
import jax.numpy as jnp
from cuthbert import filter as run_filter
from cuthbert.smc import particle_filter
from cuthbertlib.resampling import adaptive, systematic

from slds import CHANNELS, LATENT, slds


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

    resampling = adaptive.ess_decorator(systematic.resampling, 0.5)
    peer = particle_filter.build_filter(start, moved, log_likelihood, count, resampling)

    def log_evidence(key):
        first, rest = jax.random.split(key)
        states = run_filter(peer, system["log"], peer.init_prepare(key=first), key=rest)
        return states.log_normalizing_constant[-1]

    return log_evidence
