"""Branches cut down to the particle count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vhydro.filter.resampling import cut_to_once
from vhydro.particles import systematic


@pytest.mark.parametrize("spread", [0.1, 2.0, 8.0])
def test_no_branch_is_expected_more_than_once(spread):
    rng = np.random.default_rng(0)
    for _ in range(20):
        log_weight = jax.nn.log_softmax(jnp.asarray(spread * rng.normal(size=90)))
        chance = np.exp(cut_to_once(log_weight, 30))
        weight = np.exp(log_weight)
        assert chance.sum() == pytest.approx(1)
        assert (30 * chance).max() <= 1 + 1e-6
        # The heavy ones are kept for certain, the light ones in proportion to their weight.
        light = 30 * chance < 1 - 1e-6
        assert weight[light].max() <= weight[~light].min(initial=np.inf)
        np.testing.assert_allclose(chance[light] / weight[light], (chance[light] / weight[light])[0], rtol=1e-9)


def test_what_is_kept_once_is_kept_once():
    log_weight = jax.nn.log_softmax(jnp.asarray(3 * np.random.default_rng(1).normal(size=64)))
    chance = jnp.exp(cut_to_once(log_weight, 16))
    for u in np.linspace(0.01, 0.99, 25):
        ancestors = np.asarray(systematic(chance, jnp.asarray(u), 16))
        assert np.bincount(ancestors).max() == 1


@pytest.mark.parametrize("alive", [1, 5, 16])
def test_fewer_live_branches_than_particles(alive):
    log_weight = jnp.where(jnp.arange(48) < alive, -jnp.log(float(alive)) + jnp.arange(48) * 0.01, -jnp.inf)
    chance = np.exp(cut_to_once(log_weight - jax.nn.logsumexp(log_weight), 16))
    assert np.isfinite(chance).all()
    assert chance.sum() == pytest.approx(1)
    assert (chance[:alive] > 0).all()
    assert (chance[alive:] == 0).all()
