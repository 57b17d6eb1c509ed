"""One filter, three ways to run it: a batch of ragged logs, one log, one step at a time. Same key, same numbers."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vhydro.episodes import episode, pad
from vhydro.filter import FilterSettings, Stream, bootstrap, filter, filter_episodes, filtered
from vhydro.proposal import ConditionedProposal, amortized_proposal

CASES = {
    "default": (ConditionedProposal(), FilterSettings(particles=32, history=True)),
    "mixture": (ConditionedProposal(), FilterSettings(particles=32, pareto=True, history=True)),
    "exact-modes": (ConditionedProposal(), FilterSettings(particles=16, exact_modes=True, resampler="residual")),
    "look-ahead": ("amortized", FilterSettings(particles=32, lookahead=True, draws="bernoulli")),
    "gaussian": (ConditionedProposal(), FilterSettings(particles=16, engine="gaussian")),
    "bootstrap": (None, bootstrap(particles=64, resampler="multinomial")),
}


def logs(rows, inputs=1, channels=2):
    """Logs of these lengths, a third of their values hidden, the second row of each entirely."""
    rng = np.random.default_rng(5)
    out = []
    for n in rows:
        Y = np.where(rng.random((n, channels)) < 0.3, np.nan, rng.standard_normal((n, channels)))
        Y[1:2] = np.nan
        out.append(episode(Y, rng.standard_normal((n - 1, inputs)), dt=0.1))
    return out


def streamed(stream: Stream, log):
    """The records and beliefs of one log, stacked over its rows."""
    steps = [stream.start(log.observations[0])]
    steps += [stream.step(a, y) for a, y in zip(log.actions, log.observations[1:], strict=True)]
    return jax.tree.map(lambda *xs: np.stack(xs), *steps)


def assert_same(got, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), got, expected)


@pytest.mark.parametrize("name", CASES)
def test_batch_single_and_stream_agree(switching_model, name):
    proposal, settings = CASES[name]
    model = switching_model(2, dense=name == "default", inputs=1, shift=[0.3, -0.2], scale=[2.0, 0.5])
    if proposal == "amortized":
        proposal = amortized_proposal(model, hidden=(8,), key=jax.random.key(2))
    episodes, key = logs([9, 1, 4]), jax.random.key(1)
    batch = filter_episodes(model, episodes, key=key, proposal=proposal, settings=settings)
    for log, k, together in zip(episodes, jax.random.split(key, len(episodes)), batch, strict=True):
        alone = filter(model, log, key=k, proposal=proposal, settings=settings)
        assert together.mode.shape == (log.steps + 1, model.modes)
        assert_same(alone, together)
    # The last log's key again: a stream is compiled for its key.
    stream = Stream(model, dt=0.1, key=k, proposal=proposal, settings=settings)
    live = streamed(stream, log)
    assert_same(live.record, alone.record)
    assert_same(live.moments, alone.moments)
    assert_same(stream.particles, alone.final)
    assert live.record.log_normaliser.sum() == pytest.approx(alone.log_evidence, rel=1e-9)
    assert_same(streamed(stream, log), live)  # `start` forgets everything before it


def test_what_lies_in_the_padding_changes_nothing(switching_model):
    model, settings = switching_model(2, inputs=1), FilterSettings(particles=32, history=True)
    plain = jax.tree.map(lambda x: x[0], pad(logs([5]), length=8))
    spoiled = plain._replace(
        observations=plain.observations.at[5:].set(1e6),
        observed=plain.observed.at[5:].set(True),
        actions=plain.actions.at[5:].set(-1e6),
    )
    run = jax.jit(lambda b: filtered(model, ConditionedProposal(), settings, b, jax.random.key(0)))
    one, other = run(plain), run(spoiled)
    assert_same(one.final, other.final)
    assert_same(*(jax.tree.map(lambda x: x[:5], (out.record, out.moments, out.history)) for out in (one, other)))


def resident_bytes() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads the resident memory from /proc")
def test_a_long_stream_stays_finite_and_small(switching_model):
    model = switching_model(2, inputs=1, dtype=jnp.float32)
    stream = Stream(model, dt=0.1, key=jax.random.key(3), settings=FilterSettings(particles=16))
    rng, steps, warm = np.random.default_rng(4), 20_000, 5_000
    Y = np.where(rng.random((steps, 2)) < 0.9, np.nan, rng.standard_normal((steps, 2)))
    Y[rng.random(steps) < 0.1] = np.nan
    actions = rng.standard_normal((steps, 1))
    stream.start(Y[0])
    for t in range(1, steps):
        if t == warm:
            before = resident_bytes()
        out = stream.step(actions[t], Y[t])
        assert not any(np.isnan(x).any() for x in jax.tree.leaves(out)), f"NaN at step {t}"
        assert np.isfinite(out.record.log_normaliser)
    assert resident_bytes() - before < 4 * 2**20
