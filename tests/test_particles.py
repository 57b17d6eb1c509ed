"""Randomness, resampling and diagnostics: one contract for all resamplers, frequencies within errors."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base import array_stats

from vhydro.particles import (
    RESAMPLERS,
    Draw,
    _from_words,
    categorical,
    effective_share,
    pareto_k,
    residual,
    step_noise,
    strata,
    stratified,
    stratified_choice,
    stratified_uniforms,
    systematic,
)

DTYPES = [jnp.float32, jnp.float64]
SCHEMES = list(RESAMPLERS)


def least(dtype):
    """The least uniform that `step_noise` makes; the greatest is as far from 1."""
    return 2.0**-24 if dtype == jnp.float32 else 2.0**-33


def uniforms(shape, dtype, seed=0):
    """Uniforms as `step_noise` makes them, without compiling its generator again for every shape."""
    step = 2 * least(dtype)
    words = np.random.default_rng(seed).integers(0, round(1 / step), shape)
    return jnp.asarray((words + 0.5) * step, dtype)


@partial(jax.jit, static_argnums=(0, 3))
def ancestors_of(scheme, weight, uniform, count):
    return jax.vmap(lambda w, u: RESAMPLERS[scheme].ancestors(w, u, count))(weight, uniform)


def resampled(scheme, weight, count, repeats, dtype):
    """Ancestors (repeats, count) of the same weights, or a row for each row of weights."""
    weight = jnp.broadcast_to(jnp.asarray(weight, dtype), (repeats, np.shape(weight)[-1]))
    uniform = uniforms((repeats, *RESAMPLERS[scheme].uniforms(count)), dtype)
    return np.asarray(ancestors_of(scheme, weight, uniform, count))


def counts(ancestors, parents):
    return (ancestors[..., None] == np.arange(parents)).sum(-2)


def within_errors(sample, expected, errors=4.0):
    """Whether column means lie within so many standard errors of what is expected; exact if none vary."""
    sample = np.asarray(sample, np.float64)
    error = sample.std(0, ddof=1) / np.sqrt(len(sample))
    return (np.abs(sample.mean(0) - expected) <= errors * error + 1e-6).all()


# --- resampling ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parents", "count", "dtype"), [(8, 8, jnp.float32), (12, 5, jnp.float32), (3, 16, jnp.float64)]
)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_resampler_keeps_its_contract(scheme, parents, count, dtype):
    """Sorted, of the right size, unbiased, and blind to how the weights are scaled."""
    weight = np.random.default_rng(parents).exponential(size=parents)
    weight[1] = 0.0
    ancestors = resampled(scheme, weight, count, 4000, dtype)
    assert ancestors.shape == (4000, count)
    assert ancestors.dtype == np.int32
    assert (np.diff(ancestors, axis=1) >= 0).all()
    assert ((ancestors >= 0) & (ancestors < parents)).all()
    assert within_errors(counts(ancestors, parents), count * weight / weight.sum())
    np.testing.assert_array_equal(resampled(scheme, 2.0**-40 * weight, count, 4000, dtype), ancestors)


ZEROS = {
    "leading": [0, 0, 0, 2, 1, 5, 1, 1],
    "trailing": [2, 1, 5, 1, 1, 0, 0, 0],
    "between": [2, 0, 0, 1, 0, 3, 0, 4],
    "all but the first": [1, 0, 0, 0, 0, 0, 0, 0],
    "all but the last": [0, 0, 0, 0, 0, 0, 0, 1],
    "all but one": [0, 0, 0, 1, 0, 0, 0, 0],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_parent_without_weight_has_no_children(scheme, dtype):
    rng = np.random.default_rng(0)
    pattern = np.array(list(ZEROS.values()), float)
    weight = np.resize(pattern, (4000, 8)) * rng.exponential(size=(4000, 8))
    ancestors = resampled(scheme, weight, 8, len(weight), dtype)
    assert (np.take_along_axis(weight, ancestors, 1) > 0).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_child_comes_from_a_thousand_empty_parents(scheme):
    """Long float32 sums round: a parent of weight 0 must not profit from that. Half the parents are empty."""
    rng = np.random.default_rng(1)
    repeats, n = 200, 4096
    weight = rng.exponential(size=(repeats, n)) * (rng.random((repeats, n)) < 0.1)
    ancestors = resampled(scheme, weight, n, repeats, jnp.float32)
    assert (np.take_along_axis(weight, ancestors, 1) > 0).all()


@pytest.mark.parametrize("scheme", [systematic, stratified], ids=["systematic", "stratified"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("edge", ["lowest", "highest"])
def test_no_uniform_is_extreme_enough_to_pick_an_empty_parent(scheme, dtype, edge):
    """The least and the greatest uniform that `step_noise` can make, with empty parents at both ends."""
    n, repeats = 64, 500
    weight = np.random.default_rng(2).exponential(size=(repeats, n))
    weight[:, :3] = weight[:, -3:] = 0.0
    at = least(dtype) if edge == "lowest" else 1 - least(dtype)
    uniform = jnp.full(() if scheme is systematic else (n,), at, dtype)
    ancestors = np.asarray(jax.jit(jax.vmap(lambda w: scheme(w, uniform, n)))(jnp.asarray(weight, dtype)))
    assert (np.take_along_axis(weight, ancestors, 1) > 0).all()


def random_counts(scheme, dtype, repeats=300, parents=40, count=64):
    weight = np.random.default_rng(3).exponential(size=(repeats, parents)).astype(dtype)
    expected = count * weight / weight.sum(1, keepdims=True, dtype=np.float64)
    return counts(resampled(scheme, weight, count, repeats, dtype), parents), expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_systematic_counts_are_the_expected_rounded_up_or_down(dtype):
    found, expected = random_counts("systematic", dtype)
    assert (np.abs(found - expected) < 1 + 1e-4).all()
    assert (found > expected).any()
    assert (found < expected).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_stratified_counts_stay_within_two(dtype):
    """A parent spans at most two strata it does not own."""
    found, expected = random_counts("stratified", dtype)
    assert (np.abs(found - expected) < 2 + 1e-4).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_residual_counts_keep_the_whole_copies(dtype):
    found, expected = random_counts("residual", dtype)
    assert (found > expected - 1 - 1e-4).all()
    # The remainder is shared out at random: a parent can be lucky twice.
    assert (found > expected + 1).any()


def test_residual_draws_nothing_when_all_is_whole():
    weight = jnp.array([0.25, 0.0, 0.5, 0.25])
    ancestors = jax.jit(residual, static_argnums=2)(weight, uniforms((9,), jnp.float64), 8)
    np.testing.assert_array_equal(ancestors, [0, 0, 2, 2, 2, 2, 3, 3])


def test_multinomial_children_are_independent():
    """Counts have the multinomial's variance `N p (1 − p)`, which no other scheme reaches."""
    weight, n = np.array([0.2, 0.5, 0.3]), 16
    expected = n * weight * (1 - weight)
    square = {s: (counts(resampled(s, weight, n, 4000, jnp.float64), 3) - n * weight) ** 2 for s in SCHEMES}
    assert within_errors(square["multinomial"], expected)
    for scheme in ("systematic", "stratified", "residual"):
        assert (square[scheme].mean(0) < 0.7 * expected).all()


# --- components and modes -----------------------------------------------------------------------------------


def choices(share, repeats, dtype):
    share = jnp.asarray(share, dtype)
    uniform = uniforms((repeats, share.size + 2 * strata(share.size)[0]), dtype)
    return np.asarray(jax.jit(jax.vmap(stratified_choice, (None, 0)))(share, uniform))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_particle_keeps_its_own_share(dtype):
    share = np.random.default_rng(0).random((3, 20)).astype(dtype)
    share[0, :4] = [0.0, 1.0, 0.0, 1.0]
    chosen = choices(share, 6000, dtype)
    assert chosen.shape == (6000, 3, 20)
    assert within_errors(chosen, share)
    assert not chosen[:, 0, [0, 2]].any()
    assert chosen[:, 0, [1, 3]].all()


@pytest.mark.parametrize("n", [1, 2, 40, 257, 40_000])
def test_no_two_particles_of_a_block_share_a_cell(n):
    blocks, prime = strata(n)
    assert prime >= min(n, 2**15)
    uniform = np.asarray(stratified_uniforms(uniforms((n + 2 * blocks,), jnp.float64), n))
    assert ((uniform >= 0) & (uniform < 1)).all()
    for start in range(0, n, 2**15):
        cells = np.floor(uniform[start : start + 2**15] * prime)
        assert len(np.unique(cells)) == len(cells)


def test_the_number_of_choices_is_nearly_fixed():
    share = 0.3
    total = choices(np.full(61, share), 4000, jnp.float64).sum(1)  # 61 is prime: only the cut cell is left to chance
    assert len(np.unique(total)) == 2
    independent = 64 * share * (1 - share)
    assert choices(np.full(64, share), 4000, jnp.float64).sum(1).var() < 0.2 * independent


@pytest.mark.parametrize("sign", ["same", "alternating", "random"])
def test_stratified_sums_vary_at_most_as_proved(sign):
    rng, n, repeats = np.random.default_rng(1), 24, 40_000
    share = rng.random(n)
    effect = {"same": np.ones(n), "alternating": (-1.0) ** np.arange(n), "random": rng.standard_normal(n)}[sign]
    sums = choices(share, repeats, jnp.float64) @ effect
    prime = strata(n)[1]
    proved = prime / (prime - 1) * np.sum(effect**2 * share * (1 - share))
    deviation = (sums - sums.mean()) ** 2
    assert deviation.mean() - 4 * deviation.std() / repeats**0.5 <= proved


@pytest.mark.parametrize("dtype", DTYPES)
def test_modes_come_with_their_probability(dtype):
    probability = np.array([0.0, 0.15, 0.0, 0.6, 0.25, 0.0])
    repeats = 20_000
    uniform = uniforms((repeats,), dtype)
    log_probability = jnp.broadcast_to(jnp.log(jnp.asarray(probability, dtype))[:, None], (6, repeats))
    mode = np.asarray(jax.jit(categorical)(log_probability, uniform))
    assert mode.dtype == np.int32
    assert within_errors(mode[:, None] == np.arange(6), probability)
    assert (probability[mode] > 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("modes", [2, 3, 5, 8])
def test_a_mode_of_probability_zero_is_never_returned(modes, dtype):
    """Random laws with zeros anywhere, at the least and the greatest uniform `step_noise` can make."""
    rng, repeats = np.random.default_rng(modes), 100_000
    logits = rng.standard_normal((modes, repeats)).astype(dtype)
    zero = (rng.random((modes, repeats)) < 0.4) & (np.arange(modes)[:, None] != rng.integers(modes, size=repeats))
    log_probability = jax.nn.log_softmax(jnp.where(zero, -jnp.inf, logits), axis=0)
    together, alone = jax.jit(categorical), jax.jit(jax.vmap(categorical))
    for at in (least(dtype), 1 - least(dtype)):
        uniform = jnp.full(repeats, at, dtype)
        for mode in (together(log_probability, uniform), alone(log_probability.T, uniform)):
            assert not zero[np.asarray(mode), np.arange(repeats)].any()


# --- randomness ---------------------------------------------------------------------------------------------

LAYOUT = (Draw("a", (), "uniform"), Draw("b", (3, 400), "normal"), Draw("c", (501,), "uniform"))


@partial(jax.jit, static_argnums=1)
def noise_at(step, dtype, seed=0):
    return step_noise(LAYOUT, jax.random.key(seed), jnp.asarray(step), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_noise_has_its_shapes_and_its_law(dtype):
    noise = jax.jit(jax.vmap(lambda t: noise_at(t, dtype)))(jnp.arange(200))
    assert {name: (x.shape[1:], x.dtype) for name, x in noise.items()} == {d.name: (d.shape, dtype) for d in LAYOUT}
    uniform, normal = (np.asarray(noise[name], np.float64).reshape(-1) for name in ("c", "b"))
    assert uniform.min() > 0
    assert uniform.max() < 1
    for sample, moments in ((uniform, [1 / 2, 1 / 3, 1 / 5]), (normal, [0, 1, 3])):
        powers = sample[:, None] ** ([1, 2, 4])
        assert within_errors(powers, moments)
    assert within_errors(normal[:, None] * normal[::-1, None], 0.0)
    # The two words of one call of the generator stand far apart in the layout; they must not know each other.
    half = noise["b"].reshape(200, -1)
    assert within_errors((half[:, :600] * half[:, 600:]).reshape(-1, 1), 0.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_extreme_words_stay_inside(dtype):
    """Uniforms at the generator's least and greatest word are inside (0, 1), and their normals are finite."""
    words = jnp.array([0, 1, 2**32 - 2, 2**32 - 1], jnp.uint32)
    uniform, normal = (np.asarray(_from_words(words, kind, dtype)) for kind in ("uniform", "normal"))
    assert uniform.dtype == normal.dtype == dtype
    assert ((uniform > 0) & (uniform < 1)).all()
    np.testing.assert_allclose(uniform, 1 - uniform[::-1], rtol=1e-6)
    assert np.isfinite(normal).all()
    np.testing.assert_allclose(normal, -normal[::-1], rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_noise_depends_on_key_and_step_alone(dtype):
    together = jax.vmap(lambda t: noise_at(t, dtype))(jnp.arange(4))
    for t in range(4):
        for name, value in noise_at(t, dtype).items():
            np.testing.assert_array_equal(together[name][t], value)
    flat = np.asarray(together["c"])
    assert len(np.unique(flat)) > 0.99 * flat.size
    other = noise_at(0, dtype, seed=1)["c"]
    assert not np.isin(np.asarray(other), flat[0]).all()
    assert within_errors(((np.asarray(other) - 0.5) * (flat[0] - 0.5))[:, None], 0.0)


# --- diagnostics --------------------------------------------------------------------------------------------


def test_effective_share():
    weight = np.random.default_rng(0).exponential(size=9)
    expected = weight.sum() ** 2 / (9 * (weight**2).sum())
    for shift in (0.0, 500.0, -500.0):
        assert float(effective_share(jnp.log(weight) + shift)) == pytest.approx(expected, rel=1e-12)
    assert effective_share(jnp.zeros(9)) == 1
    assert float(effective_share(jnp.full(8, -jnp.inf).at[3].set(2.0))) == pytest.approx(1 / 8)
    assert effective_share(jnp.full(8, -jnp.inf)) == 0


TAILS = {
    "light": lambda rng, n: 0.3 * rng.standard_normal(n),
    "medium": lambda rng, n: np.log(rng.pareto(3.0, n) + 1),
    "heavy": lambda rng, n: np.log(rng.pareto(1.0, n) + 1),
    "very heavy": lambda rng, n: 4 * rng.standard_normal(n) - 700,
    "bounded": lambda rng, n: np.log(rng.random(n)),
}


@pytest.mark.parametrize("n", [100, 225, 1600])
def test_pareto_k_is_that_of_arviz(n):
    """At sizes where `N/5` and `3√N` are whole: elsewhere arviz rounds the tail down and we round it up."""
    rng = np.random.default_rng(n)
    samples = np.stack([draw(rng, n) for draw in TAILS.values() for _ in range(4)])
    theirs = [array_stats.psislw(-sample)[1] for sample in samples]
    ours = jax.jit(jax.vmap(pareto_k))(jnp.asarray(samples))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert np.ptp(theirs) > 0.5


def test_pareto_k_tells_tails_apart():
    rng = np.random.default_rng(0)
    light, heavy = (np.stack([TAILS[name](rng, 1600) for _ in range(40)]) for name in ("medium", "heavy"))
    light, heavy = (np.asarray(jax.jit(jax.vmap(pareto_k))(jnp.asarray(x))) for x in (light, heavy))
    error = np.hypot(light.std(ddof=1), heavy.std(ddof=1)) / np.sqrt(40)
    assert np.median(light) < 0.7 < np.median(heavy)
    assert heavy.mean() - light.mean() == pytest.approx(1 - 1 / 3, abs=6 * error)
    assert pareto_k(jnp.zeros(20)) == jnp.inf  # four tail weights are too few to say anything
