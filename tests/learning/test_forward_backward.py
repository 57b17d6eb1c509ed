"""The forward–backward recursion against the sum over all mode paths."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vhydro.learning.forward_backward import forward_backward, sticky

ROWS, MODES = 6, 3


def enumerated(log_density, log_move, log_start):
    """The posterior of modes and of pairs of modes, and the log likelihood, path by path."""
    paths = np.array(list(product(range(MODES), repeat=len(log_density))))
    steps = np.arange(len(log_density) - 1)
    value = log_start[paths[:, 0]] + log_density[np.arange(len(log_density)), paths].sum(1)
    value = value + log_move[steps, paths[:, :-1], paths[:, 1:]].sum(1)
    total = np.logaddexp.reduce(value)
    chance = np.exp(value - total)
    mode = np.stack([chance @ (paths == m) for m in range(MODES)], 1)
    pairs = np.array(
        [[[chance @ ((paths[:, t] == a) & (paths[:, t + 1] == b)) for b in range(MODES)] for a in range(MODES)]
         for t in steps]
    )  # fmt: skip
    return mode, pairs, total


def chain(seed: int, *, driven: bool):
    random = np.random.default_rng(seed)
    moves = random.normal(size=(ROWS - 1 if driven else 1, MODES, MODES))
    log_move = np.broadcast_to(np.asarray(jax.nn.log_softmax(moves, axis=-1)), (ROWS - 1, MODES, MODES))
    log_start = np.asarray(jax.nn.log_softmax(random.normal(size=MODES)))
    return 3 * random.normal(size=(ROWS, MODES)), log_move, log_start


@pytest.mark.parametrize("driven", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_sum_over_all_paths(seed, driven):
    log_density, log_move, log_start = chain(seed, driven=driven)
    given = log_move if driven else log_move[0]
    got = forward_backward(jnp.asarray(log_density), jnp.ones(ROWS, bool), jnp.asarray(given), jnp.asarray(log_start))
    for one, expected in zip(got, enumerated(log_density, log_move, log_start), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-10, atol=1e-12)


def test_padding_counts_for_nothing():
    log_density, log_move, log_start = chain(0, driven=False)
    padded = np.concatenate([log_density, np.zeros((4, MODES))])
    valid = np.arange(ROWS + 4) < ROWS
    alone, more = (
        forward_backward(jnp.asarray(d), jnp.asarray(v), jnp.asarray(log_move[0]), jnp.asarray(log_start))
        for d, v in ((log_density, valid[:ROWS]), (padded, valid))
    )
    np.testing.assert_allclose(more.mode[:ROWS], alone.mode, rtol=1e-10)
    np.testing.assert_allclose(more.pairs[: ROWS - 1], alone.pairs, rtol=1e-10)
    assert not np.asarray(more.pairs[ROWS - 1 :]).any()
    assert float(more.log_likelihood) == pytest.approx(float(alone.log_likelihood))


def test_long_logs_leave_digits_for_every_row():
    random = np.random.default_rng(0)
    likely = jnp.asarray(random.normal(-20, 5, (20_000, 3)), jnp.float32)
    third = jnp.full((3, 3), -np.log(3), jnp.float32)
    out = forward_backward(likely, jnp.ones(20_000, bool), third, third[0])
    np.testing.assert_allclose(out.mode.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(out.mode, jax.nn.softmax(likely, axis=1), atol=1e-4)
    assert float(out.pairs.sum()) == pytest.approx(19_999, rel=1e-4)


def test_what_is_impossible_stays_so():
    log_density = chain(1, driven=False)[0]
    never = np.where(np.eye(MODES, dtype=bool), 0.0, -np.inf)  # a mode never ends
    out = forward_backward(jnp.asarray(log_density), jnp.ones(ROWS, bool), jnp.asarray(never), jnp.zeros(MODES))
    np.testing.assert_allclose(out.mode, np.tile(jax.nn.softmax(log_density.sum(0)), (ROWS, 1)), rtol=1e-9)


def test_sticky_chains():
    np.testing.assert_allclose(sticky(3, 0.9), [[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9]])
    np.testing.assert_allclose(sticky(1, 0.9), [[1.0]])
