"""Branches cut down to the particle count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vhydro.filter.resampling import DEEP, cut_to_once
from vhydro.particles import systematic
from vhydro.small import running_max


@pytest.mark.parametrize("spread", [0.1, 2.0, 8.0])
def test_no_branch_is_expected_more_than_once(spread):
    rng = np.random.default_rng(0)
    for _ in range(20):
        log_weight = jax.nn.log_softmax(jnp.asarray(spread * rng.normal(size=90)))
        chance = np.exp(cut_to_once(log_weight, 30)[0])
        weight = np.exp(log_weight)
        assert chance.sum() == pytest.approx(1)
        assert (30 * chance).max() <= 1 + 1e-6
        # The heavy ones are kept for certain, the light ones in proportion to their weight, the lightest more often.
        light = 30 * chance < 1 - 1e-6
        assert weight[light].max() <= weight[~light].min(initial=np.inf)
        ratio, deep = chance / weight, np.asarray(log_weight) < -DEEP
        np.testing.assert_allclose(ratio[light & ~deep], ratio[light & ~deep].max(initial=0.0), rtol=1e-9)
        assert (ratio[deep] > ratio[~deep].max()).all()
        assert (np.diff(chance[np.argsort(weight)]) >= 0).all()


def test_what_is_kept_once_is_kept_once():
    log_weight = jax.nn.log_softmax(jnp.asarray(3 * np.random.default_rng(1).normal(size=64)))
    chance = jnp.exp(cut_to_once(log_weight, 16)[0])
    for u in np.linspace(0.01, 0.99, 25):
        ancestors = np.asarray(systematic(chance, jnp.asarray(u), 16))
        assert np.bincount(ancestors).max() == 1


@pytest.mark.parametrize(
    ("weight", "count"),
    [
        ([0.5, 0.5, 1e-10], 2),
        ([0.3, 0.27, 0.23, 0.2, 1e-9, 1e-18, 1e-27, 1e-36], 4),
        ([0.3, 0.27, 0.23, 0.2, 1e-9, 1e-10, 1e-11, 1e-12], 4),
    ],
)
def test_dust_takes_no_place_from_what_matters(weight, count):
    """Weights below the rounding of the others: what is sure stays sure."""
    log_weight = jnp.log(jnp.asarray(weight, jnp.float32))
    copies = count * np.exp(cut_to_once(log_weight, count)[0])
    np.testing.assert_allclose(copies[:count], 1, rtol=1e-5)


@pytest.mark.parametrize("alive", [1, 5, 16])
def test_fewer_live_branches_than_particles(alive):
    log_weight = jnp.where(jnp.arange(48) < alive, -jnp.log(float(alive)) + jnp.arange(48) * 0.01, -jnp.inf)
    chance = np.exp(cut_to_once(log_weight - jax.nn.logsumexp(log_weight), 16)[0])
    assert np.isfinite(chance).all()
    assert chance.sum() == pytest.approx(1)
    np.testing.assert_allclose(16 * chance[:alive], 1, rtol=1e-6)  # each kept, none twice
    assert (16 * chance[alive:] <= 1).all()


def test_weights_that_underflow_keep_a_chance():
    """Ten branches matter, two are at and past the end of the numbers, the rest are impossible."""
    log_weight = jnp.where(jnp.arange(48) < 10, 0.0, -jnp.inf).at[20].set(-84.7).at[21].set(-900).astype(jnp.float32)
    log_weight = log_weight - jax.nn.logsumexp(log_weight)
    chance = cut_to_once(log_weight, 16)[0]
    alive = jnp.isfinite(log_weight)
    assert jnp.isfinite(chance[alive]).all()
    assert jnp.isfinite((log_weight - chance)[alive]).all()
    assert ((log_weight - chance)[~alive] == -jnp.inf).all()


def test_what_is_left_to_chance_is_the_variance_of_the_sum_that_independent_choices_would_have():
    """A branch kept with probability w/c, then of weight c, varies by w (c − w); one that is sure to be, not at all."""
    log_weight = jax.nn.log_softmax(3 * jax.random.normal(jax.random.key(3), (60,)))
    log_chance, chance = cut_to_once(log_weight, 20)
    weight, kept = np.exp(log_weight), 20 * np.exp(log_chance)
    after = weight / kept
    np.testing.assert_allclose(chance, (kept * after**2 - weight**2).sum(), rtol=1e-6)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 1000, 1025, 3000])
def test_the_running_maximum_is_the_cumulative_maximum(length):
    rng = np.random.default_rng(length)
    values = np.where(rng.random(length) < 0.3, rng.integers(0, 2**31 - 1, length), 0).astype(np.int32)
    np.testing.assert_array_equal(running_max(jnp.asarray(values)), np.maximum.accumulate(values))
