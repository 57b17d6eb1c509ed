"""Switching regressions: Baum–Welch against what it must never do, and chains and laws that are known."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from vhydro.learning.switching import (
    HALVED,
    NEWTON,
    WIDTH,
    Regression,
    Switching,
    SwitchingConfig,
    baum_welch,
    driven_chain,
    e_step,
    log_transitions,
    mean_log_likelihood,
    mode_shares,
    start_from_coefficients,
    start_from_labels,
    structure,
)

LAWS = np.array([[[1.0, 0.0], [0.0, 0.5]], [[-1.0, 0.3], [0.8, 0.5]]])  # modes, channels, features
NOISE = 0.3
LOGS, ROWS = 8, 60


def regression(seed: int = 0, *, input_driven: bool = False) -> tuple[Regression, np.ndarray]:
    """Rows of two laws that take turns, some channels hidden, and the modes that made them.

    Where an input drives the chain, mode 1 begins where the input is high and ends where it is low.
    """
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(LOGS, ROWS, 1))
    mode = np.zeros((LOGS, ROWS), int)
    for t in range(1, ROWS):
        leave = 1 / (1 + np.exp(4 - 4 * inputs[:, t, 0] * np.where(mode[:, t - 1] == 0, 1, -1)))
        changes = random.random(LOGS) < (leave if input_driven else 0.08)
        mode[:, t] = np.where(changes, 1 - mode[:, t - 1], mode[:, t - 1])
    design = random.normal(size=(LOGS, ROWS, 2, 2))
    response = (design * LAWS[mode]).sum(-1) + NOISE * random.normal(size=(LOGS, ROWS, 2))
    seen = random.random(response.shape) < 0.9
    valid = np.arange(ROWS) < np.array([ROWS] * (LOGS - 2) + [ROWS - 10] * 2)[:, None]
    seen &= valid[..., None]
    data = Regression(
        jnp.asarray(np.where(seen, response, 0.0)), jnp.asarray(np.where(seen[..., None], design, 0.0)),
        jnp.asarray(seen), jnp.asarray(valid), jnp.asarray(inputs[..., : 1 if input_driven else 0]),
    )  # fmt: skip
    return data, np.where(valid, mode, -1)


PLACES = np.array([[0, 1], [2, 3]])  # every coefficient for itself
CONFIG = SwitchingConfig(floor=1e-3)


def begun(data: Regression, config: SwitchingConfig, starts: int = 4) -> Switching:
    laws = np.random.default_rng(1).normal(size=(starts, 2, 2, 2))
    return start_from_coefficients(data, laws, config)


def log_prior(now: Switching, assumed, config: SwitchingConfig) -> float:
    """What a round climbs beside the likelihood, for a structure with a fixed precision."""
    prior = -0.5 * (np.asarray(assumed.precision) * np.asarray(now.coefficients).reshape(2, -1) ** 2).sum()
    if config.own_noise:  # an imagined row at the floor
        noise = np.asarray(now.noise)
        prior = prior - (np.log(noise) + 0.5 * (config.floor / noise) ** 2).sum()
    return prior + config.pseudo_moves * (float(now.logits.sum()) + float(now.log_start.sum()))


@pytest.mark.parametrize("own_noise", [False, True])
def test_baum_welch_never_lowers_the_posterior(own_noise):
    """Coefficients and noise are updated in turn: a generalised M step, which is enough never to go down."""
    data, _ = regression()
    config = SwitchingConfig(rounds=1, floor=0.01, own_noise=own_noise)
    assumed = structure(PLACES, 2, precision=1.0, dtype=np.float64)
    now, values = begun(data, config), []
    for _ in range(25):
        total = np.asarray(mean_log_likelihood(data, now, config)) * float(data.valid.sum())
        one = [jax.tree.map(lambda x, i=i: x[i], now) for i in range(4)]
        values.append(total + [log_prior(s, assumed, config) for s in one])
        now = baum_welch(data, assumed, now, config)
    for before, after in pairwise(values):
        assert (after >= before - 1e-7).all()
    assert (values[-1] > values[0] + 10).all()


def test_it_finds_the_laws_the_noise_and_the_modes():
    data, mode = regression()
    assumed = structure(PLACES, 2, precision=0.0, dtype=np.float64)
    found = baum_welch(data, assumed, begun(data, CONFIG), CONFIG)
    best = jax.tree.map(lambda x: np.asarray(x[int(np.argmax(mean_log_likelihood(data, found, CONFIG)))]), found)
    order = np.argsort(best.coefficients[:, 0, 0])[::-1]
    error = NOISE / np.sqrt(np.asarray(data.seen).sum() / 4)  # of least squares that knows the modes
    np.testing.assert_allclose(best.coefficients[order], LAWS, atol=5 * error)
    np.testing.assert_allclose(best.noise, NOISE, rtol=5 / np.sqrt(np.asarray(data.seen).sum()))
    posterior = np.asarray(e_step(data, jax.tree.map(jnp.asarray, best), CONFIG).mode)[..., order]
    assert (posterior.argmax(-1) == mode)[mode >= 0].mean() > 0.97
    share = np.asarray(mode_shares(data, jax.tree.map(lambda x: x[None], best), CONFIG))[0, order]
    np.testing.assert_allclose(share, [(mode == m).sum() / (mode >= 0).sum() for m in (0, 1)], atol=0.02)
    assert share.sum() == pytest.approx(1)


def test_what_is_given_stays_and_what_is_tied_is_one():
    data, _ = regression()
    given = np.array([[1.0, 0.0, np.nan], [np.nan, np.nan, np.nan]])
    tied = np.array([[0, 1], [2, 0]])  # one number in two places
    assumed = structure(tied, 2, given=given, precision=0.0, dtype=np.float64)
    found = baum_welch(data, assumed, begun(data, CONFIG), CONFIG)
    coefficients = np.asarray(found.coefficients)
    np.testing.assert_array_equal(coefficients[:, 0, 0], np.tile([1.0, 0.0], (4, 1)))
    np.testing.assert_array_equal(coefficients[..., 1, 1], coefficients[..., 0, 0])
    assert (coefficients[:, 1, 0, 0] != coefficients[:, 0, 0, 0]).all()


def test_one_m_step_is_weighted_least_squares():
    """Given the modes, tied coefficients are those of one regression over all places, by numpy's own solver."""
    data, mode = regression()
    tied, config = np.array([[0, 1], [1, 2]]), SwitchingConfig(floor=1e-9)
    assumed = structure(tied, 2, precision=0.0, groups=("a", "a"), dtype=np.float64)  # one noise: plain least squares
    got = start_from_labels(data, assumed, jnp.asarray(np.maximum(mode, 0))[None], config)
    for m in (0, 1):
        rows = (mode == m)[..., None] & np.asarray(data.seen)
        x = np.zeros((*data.design.shape[:3], 3))
        for c in range(2):
            for k in range(2):
                x[:, :, c, tied[c, k]] += np.asarray(data.design)[:, :, c, k]
        expected = np.linalg.lstsq(x[rows], np.asarray(data.response)[rows], rcond=None)[0]
        np.testing.assert_allclose(got.coefficients[0, m], expected[tied], rtol=1e-6)
    np.testing.assert_array_equal(got.noise[0, :, 0], got.noise[0, :, 1])


def test_starts_do_not_depend_on_each_other():
    data, _ = regression()
    assumed = structure(PLACES, 2, dtype=np.float64)
    every = begun(data, CONFIG)
    alone = jax.tree.map(lambda x: x[2:3], every)
    for a, b in zip(baum_welch(data, assumed, every, CONFIG), baum_welch(data, assumed, alone, CONFIG), strict=True):
        np.testing.assert_allclose(a[2], b[0], rtol=1e-8, atol=1e-10)


# --- chains that an input drives --------------------------------------------------------------------------------------


def driven_start(data: Regression, laws=LAWS) -> Switching:
    start = start_from_coefficients(data, np.asarray(laws)[None], CONFIG)
    return jax.tree.map(lambda x: x[0], start)._replace(noise=jnp.full((2, 2), NOISE))


def chain_of(data, chain, now):
    return driven_chain(data.inputs[:, 1:], chain.pairs, now.logits, now.drive, CONFIG.pseudo_moves)


def test_newton_is_that_of_the_exact_hessian():
    """Three steps from where the chain is, each by the Hessian that jax finds of the same loss, halved as needed."""
    data, _ = regression(input_driven=True)
    now = driven_start(data)
    chain = e_step(data, now, CONFIG)
    got = now._replace(**dict(zip(("logits", "drive"), chain_of(data, chain, now), strict=True)))
    pairs, inputs = np.asarray(chain.pairs).reshape(-1, 2, 2), np.asarray(data.inputs)[:, 1:].reshape(-1, 1)

    def loss(logits, drive):
        moves = jax.nn.log_softmax(logits + (inputs @ drive)[:, None], axis=-1)
        likely = (pairs * moves).sum() + CONFIG.pseudo_moves * jax.nn.log_softmax(logits, axis=-1).sum()
        return -likely + 0.5 * (1e-2 * (logits**2).sum() + (drive**2).sum() / WIDTH**2)

    at, back = ravel_pytree((now.logits, now.drive))
    before, sizes = loss(*back(at)), []
    for _ in range(NEWTON):
        step = jnp.linalg.solve(jax.hessian(lambda v: loss(*back(v)))(at), jax.grad(lambda v: loss(*back(v)))(at))
        size = next(h for h in HALVED if loss(*back(at - h * step)) < loss(*back(at)))
        sizes.append(size)
        at = at - size * step
    assert sizes[0] < 1  # far from the answer a whole step would miss it
    expected = back(at)
    np.testing.assert_allclose(got.logits, expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got.drive, expected[1], rtol=1e-5, atol=1e-6)
    assert loss(got.logits, got.drive) < before - 1


def test_a_chain_that_an_input_drives_is_found():
    data, mode = regression(input_driven=True)
    found = driven_start(data)
    for _ in range(10):
        logits, drive = chain_of(data, e_step(data, found, CONFIG), found)
        found = found._replace(logits=logits, drive=drive)
    # Where the input speaks for a mode it is entered and kept. With drives d on both modes, what counts is the
    # difference; the truth has logit ±4·input on leaving, the same as +4·input on mode 1, and a threshold of 4.
    pull = float(found.drive[0, 1] - found.drive[0, 0])
    table = np.asarray(log_transitions(found, data.inputs))
    pairs = np.stack([mode[:, :-1], mode[:, 1:]])
    known = (pairs >= 0).all(0)
    steps = np.nonzero(known)
    value = table[steps[0], steps[1], pairs[0][known], pairs[1][known]].sum()
    static = np.array([[(known & (pairs[0] == a) & (pairs[1] == b)).sum() for b in (0, 1)] for a in (0, 1)])
    plain = (static * np.log(static / static.sum(1, keepdims=True))).sum()
    assert value > plain + 20  # nats: when a mode begins is told by the input
    # Newton's curvature gives the standard error of the pull, from the same transitions.
    leave = np.exp(table[steps[0], steps[1], pairs[0][known], 1 - pairs[0][known]])
    error = 1 / np.sqrt((leave * (1 - leave) * np.asarray(data.inputs)[:, 1:, 0][known] ** 2).sum())
    assert pull == pytest.approx(4.0, abs=4 * error)
    went = np.asarray(e_step(data, found, CONFIG).mode).argmax(-1)
    assert (went == mode)[mode >= 0].mean() > 0.97


def test_without_inputs_there_is_one_matrix():
    data, _ = regression()
    now = jax.tree.map(lambda x: x[0], begun(data, CONFIG))
    table = log_transitions(now, data.inputs)
    assert table.shape == (2, 2)
    np.testing.assert_allclose(jnp.exp(table).sum(1), 1)
