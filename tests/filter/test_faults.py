"""Readings and actions that nothing explains: hidden, counted, never certified, and soon forgotten."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vhydro.episodes import episode
from vhydro.filter import FilterSettings, Stream, filter, filter_episodes
from vhydro.flow import as_linear
from vhydro.intervals import with_outliers
from vhydro.library import polynomial
from vhydro.model import axis_emission, hybrid_model, mode_kernel, port_hamiltonian
from vhydro.smoother import smooth

ROWS, SENSOR = 60, 0.05
KEY = jax.random.key(0)


def mass(dtype=jnp.float32):
    """A mass, free or on a spring; its position is seen."""
    flow = port_hamiltonian(
        2, 2, 1, polynomial(2, 2), coefficients=[[0, 0, 0, 0, 0.5], [0, 0, 4.0, 0, 0.5]],
        dissipation=np.diag([0, 0.4]), port=np.array([[0], [1.0]]), dtype=dtype,
    )  # fmt: skip
    emission = axis_emission(2, [0], noise=SENSOR, dtype=dtype)
    return hybrid_model(mode_kernel(2, stay=0.94, dtype=dtype), flow, emission, noise=[0.02, 0.05], start_scale=0.7)


@functools.cache
def moves():
    linear = as_linear(mass(jnp.float64).flow, jnp.asarray(0.1))
    return tuple(np.asarray(x) for x in (linear.matrix, linear.offset, linear.port))


def log(seed=0):
    """A log of the model itself."""
    matrix, offset, port = moves()
    rng, seen, actions = np.random.default_rng(seed), [], np.zeros((ROWS - 1, 1))
    mode, z = 0, np.array([0.3, 0.0])
    for t in range(ROWS):
        if t:
            actions[t - 1] = rng.normal()
            mode = mode if rng.random() < 0.94 else 1 - mode
            z = matrix[mode] @ z + offset[mode] + port[mode] @ actions[t - 1]
            z = z + np.array([0.02, 0.05]) * rng.normal(size=2)
        seen.append(z[0] + SENSOR * rng.normal())
    return np.array(seen), actions


ENGINES = ("gaussian", "drawn", "mixture")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [10, 1e2, 1e3, 1e5, 1e10, 1e30])
def test_after_wild_readings_the_belief_is_soon_back(engine, size):
    """One, or ten in a row, of either sign: five rows later the belief is where it is without them."""
    settings = FilterSettings(particles=64, engine=engine)
    for seed, (sign, burst) in enumerate(((1, 1), (-1, 1), (1, 10), (-1, 10))):
        clean, actions = log(seed)
        spoiled = clean.copy()
        spoiled[20 : 20 + burst] += sign * size * SENSOR
        calm = filter(mass(), episode(clean, actions, dt=0.1), key=KEY, settings=settings)
        out = filter(mass(), episode(spoiled, actions, dt=0.1), key=KEY, settings=settings)
        for leaf in jax.tree.leaves((out.moments, out.record.log_normaliser)):
            assert np.isfinite(leaf).all()
        back = 20 + burst - 1 + 5
        spread = np.sqrt(calm.variance[back:, 0] + out.variance[back:, 0])
        away = np.abs(out.mean[back:, 0] - calm.mean[back:, 0])
        # A few dozen draws find a momentum again less exactly than Gaussians do.
        allowed = 5 * spread + (0 if engine == "gaussian" else 10 * SENSOR)
        assert (away < allowed).all(), (engine, size, sign, burst)
        assert not out.record.certified[20 : 20 + burst].any()
        assert out.record.outliers[20] == 1
        if size >= 1e3 and burst == 1:
            assert out.record.outliers.sum() == 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("size", "first"), [(1e3, 30), (1e10, 30), (1e30, 30), (1e2, 21), (1e3, 21), (1e10, 21)])
def test_wild_actions_are_refused(engine, size, first):
    """One, or ten in a row: none of them becomes what is expected."""
    seen, actions = log()
    spoiled = actions.copy()
    spoiled[first:31] = -size
    settings = FilterSettings(particles=64, engine=engine)
    calm = filter(mass(), episode(seen, actions, dt=0.1), key=KEY, settings=settings)
    out = filter(mass(), episode(seen, spoiled, dt=0.1), key=KEY, settings=settings)
    assert np.isfinite(out.mean).all()
    np.testing.assert_array_equal(np.flatnonzero(out.record.refused), np.arange(first + 1, 32))
    assert not out.record.certified[first + 1 : 36].any()
    spread = np.sqrt(calm.variance[36:, 0] + out.variance[36:, 0])
    allowed = 5 * spread + (0 if engine == "gaussian" else 10 * SENSOR)
    assert (np.abs(out.mean[36:, 0] - calm.mean[36:, 0]) < allowed).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_without_faults_the_gate_changes_nothing(engine):
    seen, actions = log()
    on, off = (
        filter(
            mass(jnp.float64),
            episode(seen, actions, dt=0.1),
            key=KEY,
            settings=FilterSettings(particles=64, engine=engine, outliers=threshold),
        )
        for threshold in (6.0, None)
    )
    assert on.log_evidence == pytest.approx(off.log_evidence, rel=1e-9)
    np.testing.assert_allclose(on.record.surprise, off.record.surprise, rtol=1e-9)
    assert on.record.outliers.sum() == 0


def test_an_impossible_reading_is_never_certified_even_if_it_is_believed():
    seen, actions = log()
    seen[20] += 100 * SENSOR
    out = filter(mass(), episode(seen, actions, dt=0.1), key=KEY, settings=FilterSettings(particles=64, outliers=None))
    assert out.record.outliers.sum() == 0
    assert out.record.surprise[20, 0] > 6
    assert not out.record.certified[20]


def test_surprise_is_about_as_rare_as_it_says():
    """Under the model a surprise of x comes at most once in 10^x readings."""
    logs = [episode(*log(seed), dt=0.1) for seed in range(20)]
    outs = filter_episodes(mass(), logs, key=KEY, settings=FilterSettings(particles=32))
    every = np.concatenate([out.record.surprise for out in outs])
    for level in (1.0, 2.0):
        share, chance = (every > level).mean(), 10.0**-level
        assert share < chance + 4 * np.sqrt(chance / len(every))


def test_a_stream_sees_the_same_faults():
    seen, actions = log()
    seen[20:23] += 1e3
    actions[40] = 1e20
    settings = FilterSettings(particles=32)
    out = filter(mass(jnp.float64), episode(seen, actions, dt=0.1), key=KEY, settings=settings)
    stream = Stream(mass(jnp.float64), dt=0.1, key=KEY, settings=settings)
    steps = [stream.start(seen[:1]), *(stream.step(a, seen[t + 1 : t + 2]) for t, a in enumerate(actions))]
    np.testing.assert_array_equal([s.record.outliers for s in steps], out.record.outliers)
    np.testing.assert_array_equal([s.record.refused for s in steps], out.record.refused)
    np.testing.assert_allclose([s.mean for s in steps], out.mean, rtol=1e-9)


def test_thresholds_come_from_validation_logs():
    """A model that is too sure of its sensor hides good readings, until it has seen how far off they are."""
    logs = [episode(*log(seed), dt=0.1) for seed in range(6)]
    sure = eqx.tree_at(lambda m: m.emission.log_noise, mass(), jnp.log(jnp.asarray([0.004])))
    sure = eqx.tree_at(lambda m: m.log_noise, sure, jnp.log(jnp.full((2, 2), 0.004)))
    on, off = (FilterSettings(particles=32, outliers=threshold) for threshold in (6.0, None))
    hidden = sum(int(out.record.outliers.sum()) for out in filter_episodes(sure, logs, key=KEY, settings=on))
    assert hidden > 0
    wary = with_outliers(sure, filter_episodes(sure, logs[:3], key=KEY, settings=off))
    left = sum(int(out.record.outliers.sum()) for out in filter_episodes(wary, logs[3:], key=KEY, settings=on))
    assert left < hidden / 4
    far = episode(1e6 + log(0)[0], log(0)[1], dt=0.1)  # more surprising than a float tells
    beyond = filter_episodes(sure, [far], key=KEY, settings=off)
    assert np.isinf(beyond[0].record.surprise).any()
    assert np.isfinite(with_outliers(sure, beyond).validate().outliers).all()
    with pytest.raises(ValueError, match="no filtered logs given"):
        with_outliers(sure, [])


@pytest.mark.parametrize("engine", ENGINES)
def test_smoothing_goes_past_wild_rows(engine):
    """What the filter took for faults the smoother does too."""
    seen, actions = log()
    wild, spoiled = seen.copy(), actions.copy()
    wild[12] = 1e4
    spoiled[30:40] = 1e30
    settings = FilterSettings(particles=64, engine=engine, history=True)

    def smoothed(seen, actions):
        made = episode(seen, actions, dt=0.1)
        return smooth(mass(), made, filter(mass(), made, key=KEY, settings=settings), key=KEY).smoothed

    calm, rough = smoothed(seen, actions), smoothed(wild, spoiled)
    spread = np.sqrt(calm.variance + rough.variance)
    assert np.isfinite(rough.mean).all()
    assert (np.abs(rough.mean - calm.mean) < 5 * spread + (0 if engine == "gaussian" else 0.2)).all()
