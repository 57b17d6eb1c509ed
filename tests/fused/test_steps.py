"""What operations do to cells, against JAX itself: the same function on whole arrays and written out entry by entry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vhydro.fused.cells import Cells, Value, as_cells, filled
from vhydro.fused.flat import UnsupportedError, flattened, pruned
from vhydro.fused.memory import Memory
from vhydro.fused.steps import entries, run

LANES = 16
RANDOM = np.random.default_rng(0)
F32 = np.float32


def cells_of(array, axis) -> Cells:
    """The array as cells: rows along the particles as vectors, all else as numbers."""
    array = jnp.asarray(array)
    if axis is None:
        return Cells(filled(array.shape, (array[i] for i in np.ndindex(array.shape))), None, np.dtype(array.dtype))
    shape = (*array.shape[:-1], array.shape[-1] // LANES)
    rows = array.reshape(-1, LANES)
    return Cells(filled(shape, iter(rows)), array.ndim - 1, np.dtype(array.dtype))


def array_of(cells: Cells, shape: tuple[int, ...]) -> np.ndarray:
    """The array that the cells are; `shape` is its own."""
    if cells.axis is None:
        return np.array([np.asarray(v) for v in cells.values.flat], cells.dtype).reshape(shape)
    rows = np.stack([np.asarray(e) for e in entries(cells, LANES)]).reshape(*cells.values.shape, LANES)
    return np.moveaxis(rows, -1, cells.axis + 1).reshape(shape)


def written_out(function, *arrays, numbers=()):
    """What the function returns, done entry by entry; the arrays at `numbers` are none of particles."""
    flat, _ = flattened(function, *map(jnp.asarray, arrays))
    flat = pruned(flat, flat.outputs)
    axes = [None if i in numbers or np.shape(a)[-1:] != (LANES,) else -1 for i, a in enumerate(arrays)]
    env: dict[int, Value] = {k: cells_of(a, x) for k, a, x in zip(flat.inputs, arrays, axes, strict=True)}
    env = run(flat, flat.ops, env, Memory(LANES))
    values = [env[a] if isinstance(a, int) else a for a in flat.outputs]
    shapes = [s.shape for s in jax.tree.leaves(jax.eval_shape(function, *arrays))]
    return [array_of(as_cells(v), s) for v, s in zip(values, shapes, strict=True)]


def draw(*shape) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(F32)


Z, W, MATRIX = draw(3, LANES), draw(LANES), draw(2, 3)
POSITIVE = (MATRIX[:, :2] @ MATRIX[:, :2].T + np.eye(2)).astype(F32)
LOWER = np.linalg.cholesky(POSITIVE).astype(F32)
MODE = RANDOM.integers(0, 2, LANES).astype(np.int32)

ALIKE = {
    "arithmetic": (lambda z, w: jnp.exp(-z) * w + jnp.where(z > w, z, 1.0) / 3, Z, W),
    "integers": (lambda m: (m * 3 + 1) // 2 - m % 2, MODE),
    "not finite": (lambda w: jnp.isfinite(jnp.log(w)), W),
    "one matrix for all": (lambda a, z: a @ z, MATRIX, Z),
    "a product over particles": (lambda z, w: z @ w, Z, W),
    "a batch of products": (lambda a, z: jnp.einsum("sde,en->sdn", a, z), draw(2, 2, 3), Z),
    "sums over particles": (lambda z: (z.sum(1), z.sum(0), z.max(), z.min(1), (z > 0).all(1), (z > 3).any()), Z),
    "a gradient": (jax.vmap(jax.grad(lambda x: jnp.sin(x) * x + x**3)), W),
    "shapes": (lambda z, w: jnp.concatenate([z[1:], jnp.stack([w, -w]), w[None]]).reshape(5, 1, LANES), Z, W),
    "modes beside particles": (
        lambda z: jnp.moveaxis(z.reshape(3, 1, LANES) * np.arange(2, dtype=F32)[:, None], 1, 0),
        Z,
    ),
    "tiles": (lambda w: jnp.tile(w, 3).reshape(3, LANES).sum(0), W),
    "padding": (lambda z: jnp.pad(z, ((1, 2), (0, 0)), constant_values=4.0), Z),
    "entries at known places": (lambda z: (z[jnp.array([2, 0])], z.at[1].set(5.0), z.at[0].add(z[2])), Z),
    "each particle its own": (lambda a, m: a[:, 0][m], MATRIX, MODE),
    "a part": (lambda z: jax.lax.dynamic_slice_in_dim(z, 1, 2, 0), Z),
    "a part put": (lambda z: jax.lax.dynamic_update_slice_in_dim(z, 2 * z[:1], 1, 0), Z),
    "a triangular system": (lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True), LOWER, MATRIX),
    "a Cholesky factor": (jnp.linalg.cholesky, POSITIVE),
    "a loop": (lambda z: jax.lax.scan(lambda c, x: (c + x, c * x), z[0], z), Z),
    "a loop backwards": (lambda z: jax.lax.scan(lambda c, x: (c - x, c), z[0], z, reverse=True), Z),
    "a choice": (lambda w, z: jax.lax.cond(w[0] > 9, lambda z: z + 1, lambda z: -z, z), draw(2), Z),
    "the particles' numbers": (lambda w: jnp.arange(LANES) * 2 + jnp.zeros_like(w, jnp.int32), W),
}


@pytest.mark.parametrize("case", ALIKE)
def test_an_operation_is_the_same_entry_by_entry(case):
    function, *arrays = ALIKE[case]
    want = jax.tree.leaves(function(*map(jnp.asarray, arrays)))
    for got, one in zip(written_out(function, *arrays), want, strict=True):
        assert got.dtype == one.dtype
        np.testing.assert_allclose(got, one, rtol=1e-5, atol=1e-6)


def test_r_of_a_qr_factorisation_is_the_same_up_to_signs():
    tall = draw(4, 2)
    (got,) = written_out(lambda a: jnp.linalg.qr(a, mode="r"), tall)
    np.testing.assert_allclose(got.T @ got, tall.T @ tall, rtol=1e-5, atol=1e-6)
    assert got[1, 0] == 0


REFUSED = {
    "several entries added at one place": (lambda z: z.at[jnp.array([1, 1])].add(z[:2]), Z),
    "the operation sort": (jnp.sort, W),
    "the operation cumsum": (jnp.cumsum, W),
    "entries 0 to 4 of the particles": (lambda w: w[:4], W),
    "every particle by itself": (lambda z: jnp.unstack(z, axis=1), Z),
    "particles along two axes": (lambda w: w[:, None] * w, W),
    "a loop of 100 rounds": (lambda w: jax.lax.fori_loop(0, 100, lambda _, x: x * 0.5, w), W),
    "the operation while": (lambda w: jax.lax.while_loop(lambda x: x[0] > 1, lambda x: x * 0.5, w), W),
    "a factorisation for every particle": (lambda a: jnp.linalg.cholesky(jnp.moveaxis(a, 2, 0)), draw(2, 2, LANES)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_a_kernel_cannot_do_is_refused_in_words(words):
    function, *arrays = (x if callable(x) else jnp.asarray(x) for x in REFUSED[words])
    with pytest.raises(UnsupportedError, match=words):
        written_out(function, *arrays)


def test_an_axis_that_is_as_long_as_the_particles_by_chance_is_refused_and_never_taken_for_them():
    """16 numbers made of twice 8 beside 16 particles: their sum would be 256 numbers."""

    def function(a, w):
        return jnp.concatenate([a, a]) + w

    with pytest.raises((UnsupportedError, ValueError)):
        written_out(function, draw(8), W)
