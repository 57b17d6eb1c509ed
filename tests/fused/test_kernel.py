"""A loop in one kernel against `jax.lax.scan`, interpreted on this machine: steps that are no filter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vhydro.fused import records
from vhydro.fused.flat import UnsupportedError
from vhydro.fused.kernel import Kernel, scan_in_one_kernel, tried
from vhydro.particles import columns_at, effective_share, pairs_at, systematic

LANES, ROWS = 16, 7
INTERPRETED = Kernel(warps=1, interpret=True)


def step(parameters, carry, row, noise):
    """Particles that are moved, weighed, resampled when they are unequal, and counted."""
    z, kind, number = carry
    z = parameters["matrix"] @ z + row["shift"] + noise["z"]
    log_weight = -0.5 * (z**2).sum(0) * row["sharp"]
    share = effective_share(log_weight)

    def drawn(_):
        index = systematic(jnp.exp(log_weight - log_weight.max()), noise["u"], LANES)
        return columns_at((z, kind), index)

    z, kind = jax.lax.cond(share < 0.5, drawn, lambda _: (z, kind), None)
    kind = jnp.where(noise["u"] + z[0] > 0.5, 1 - kind, kind)
    after = (z, kind, number + kind.sum(dtype=jnp.int32))
    return after, {"share": share, "which": kind == 1, "mean": z.mean(1), "always": jnp.full(2, 3.0, jnp.float32)}


def inputs(seed: int):
    random = np.random.default_rng(seed)

    def draw(*shape):
        return jnp.asarray(random.normal(size=shape), jnp.float32)

    parameters = {"matrix": 0.8 * jnp.eye(2, dtype=jnp.float32)}
    carry = draw(2, LANES), jnp.asarray(random.integers(0, 2, LANES), jnp.int32), jnp.int32(0)
    rows = {"shift": draw(ROWS, 2, 1), "sharp": jnp.asarray(random.uniform(0.1, 4, ROWS), jnp.float32)}
    noise = {"z": draw(ROWS, 2, LANES), "u": jnp.asarray(random.random(ROWS), jnp.float32)}
    return parameters, carry, rows, noise


def alike(got, want):
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=2e-6, atol=2e-6)


def test_a_kernel_is_the_scan_for_every_log():
    every = jax.tree.map(lambda *x: jnp.stack(x), *(inputs(seed) for seed in range(3)))

    def scanned(p, carry, rows, noise):
        return jax.lax.scan(lambda c, x: step(p, c, *x), carry, (rows, noise))

    def fused(p, carry, rows, noise):
        return scan_in_one_kernel(step, p, carry, rows, noise, LANES, kernel=INTERPRETED)

    want, got = jax.jit(jax.vmap(scanned))(*every), jax.jit(jax.vmap(fused))(*every)
    alike(got, want)
    share = np.asarray(want[1]["share"])
    assert (share < 0.5).any(), "resampled"
    assert (share >= 0.5).any(), "and not"


def test_pairs_are_chosen_among_all_modes_and_particles():
    """Systematic ancestors among `modes · particles`, and the columns of the pairs they are."""
    random = np.random.default_rng(4)

    def step(_, carry, row, noise):
        weight = jnp.exp(row["weight"][:, None] * carry).reshape(-1)
        index = systematic(weight, noise["u"], LANES)
        z = pairs_at(jnp.stack([carry[None], 2 * carry[None]])[:, 0][:, None], index)[0]
        return 0.5 * z + noise["z"], index // LANES

    rows = {"weight": jnp.asarray(random.normal(size=(ROWS, 2)), jnp.float32)}
    noise = {
        "u": jnp.asarray(random.random(ROWS), jnp.float32),
        "z": jnp.asarray(random.normal(size=(ROWS, LANES)), jnp.float32),
    }
    carry = jnp.asarray(random.normal(size=LANES), jnp.float32)
    want = jax.lax.scan(lambda c, x: step(None, c, *x), carry, (rows, noise))
    alike(scan_in_one_kernel(step, None, carry, rows, noise, LANES, kernel=INTERPRETED), want)


def test_no_particle_without_weight_has_a_child():
    """Whatever the offset: weights of 0 first, last and between, in one kernel as in the scan."""
    weight = jnp.asarray([0, 0, 3, 0, 1e-6, 0, 5, 0, 0, 1, 0, 0, 0, 2, 0, 0], jnp.float32)
    offsets = jnp.asarray([2.0**-24, 0.25, 0.5, 1 - 2.0**-24], jnp.float32)

    def step(_, carry, __, noise):
        return carry, systematic(carry, noise, LANES)

    _, got = scan_in_one_kernel(step, None, weight, jnp.zeros((4, 1), jnp.float32), offsets, LANES, kernel=INTERPRETED)
    assert (np.asarray(weight)[np.asarray(got)] > 0).all()
    for row, offset in zip(got, offsets, strict=True):
        np.testing.assert_array_equal(row, systematic(weight, offset, LANES))


def test_the_operations_of_a_row_are_counted_without_computing_anything():
    parameters, carry, rows, noise = inputs(0)
    row, drawn = jax.tree.map(lambda x: x[0], (rows, noise))
    few = tried(step, parameters, carry, row, drawn, LANES)

    def twice(p, carry, row, noise):
        carry, _ = step(p, carry, row, noise)
        return step(p, carry, row, noise)

    many = tried(twice, parameters, carry, row, drawn, LANES)
    assert few.operations < many.operations < 3 * few.operations
    assert many.memory == few.memory == 4 * LANES  # one column at a time


@pytest.mark.parametrize(("dtype", "words"), [(jnp.float64, "numbers of type float64"), (jnp.float32, "shape .3, 16.")])
def test_parameters_that_a_kernel_cannot_hold_are_refused(dtype, words):
    """Double precision, or an axis as long as the particles."""
    parameter = jnp.zeros((3, LANES) if dtype == jnp.float32 else 3, dtype)
    with pytest.raises(UnsupportedError, match=words):
        tried(lambda p, c, *_: (c + p.sum(), c), parameter, jnp.zeros(LANES, jnp.float32), {}, {}, LANES)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8])
def test_records_hold_floats_integers_and_truths(count):
    random = np.random.default_rng(count)
    kinds = [np.float32, np.int32, bool]
    columns = [(random.normal(size=(1, 4)) * 1e6).astype(kinds[i % 3]) for i in range(count)]
    held = records.laid_out([jnp.asarray(c) for c in columns]) if count else jnp.zeros(1)
    back = records.columns_of(held, count, 4)
    assert back.shape == (count, 4)
    assert held.shape == ((4 * records.width_of(count),) if count else (1,))
    for got, want in zip(back, columns, strict=True):
        np.testing.assert_array_equal(records.from_float(got, want.dtype), want[0])
