"""Engines that choose themselves, corrections that keep the evidence unbiased, islands that speak of a whole log."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import t as student

from oracles import linear
from vhydro.certificate import Gate
from vhydro.episodes import episode, pad
from vhydro.filter import (
    FilterSettings,
    Stream,
    bootstrap,
    correction,
    filter,
    filter_episodes,
    filtered,
    log_evidence,
    run,
)
from vhydro.filter import stream as stream_module
from vhydro.filter.exported import read_stream
from vhydro.filter.path import WIDER
from vhydro.filter.run import padded_length
from vhydro.filter.settings import engine_of
from vhydro.flow import Reset, as_linear
from vhydro.library import Cosine, Monomial, polynomial
from vhydro.model import axis_emission, hybrid_model, linear_emission, linear_flow, mode_kernel, port_hamiltonian
from vhydro.network import network
from vhydro.proposal import ConditionedProposal, amortized_proposal

KEY = jax.random.key(0)
D = jnp.float64


def swing(drive=True, reset=True):
    """A pendulum with two modes: not linear, with a kernel that reads z and momenta that a switch cuts."""
    library = (Monomial((0, 2)), Cosine(0), Monomial((2, 0)))
    kernel = network(3, (), 2, key=jax.random.key(1), dtype=D) if drive else None
    return hybrid_model(
        mode_kernel(2, stay=0.8, drive=kernel, dtype=D),
        port_hamiltonian(
            2, 2, 1, library, coefficients=[[0.5, -3.0, 0.0], [0.5, -3.0, 4.0]], dissipation=np.diag([0, 0.2]),
            port=np.array([[0], [1.0]]), dtype=D,
        ),
        axis_emission(2, (0,), noise=0.2, dtype=D),
        noise=[0.05, 0.2],
        start_scale=0.6,
        reset=Reset(jnp.full((2, 2, 1), -0.5, D), (1,)) if reset else None,
    )  # fmt: skip


def swing_log(rows=11):
    rng = np.random.default_rng(2)
    seen = 0.8 * np.sin(0.5 * np.arange(rows)) + 0.2 * rng.normal(size=rows)
    seen[4] = np.nan
    return episode(seen, rng.normal(size=(rows - 1, 1)), dt=0.15)


def evidences(model, log, settings, runs, proposal=ConditionedProposal()):  # noqa: B008
    batch = jax.tree.map(lambda x: x[0], pad([log], dtype=model.dtype))
    one = lambda k: filtered(model, proposal, settings, batch, k).log_evidence  # noqa: E731
    return np.asarray(jax.jit(lambda k: jax.lax.map(one, k, batch_size=250))(jax.random.split(jax.random.key(3), runs)))


@pytest.fixture
def short_windows(monkeypatch):
    """Windows of four rows, so that a short log has several corrections."""
    for module in (correction, run, stream_module):
        monkeypatch.setattr(module, "WINDOW", 4)
    for module in (correction, run):
        monkeypatch.setattr(module, "OVERLAP", 2)


@cache
def of_the_bootstrap():
    """Log evidences of the swing by a large bootstrap filter, which draws every branch and has none to correct."""
    return evidences(swing(), swing_log(), bootstrap(particles=2000), 400, None)


@pytest.mark.parametrize("particles", [pytest.param(2, marks=pytest.mark.computes), 4, 8])
def test_corrected_branches_are_unbiased(short_windows, particles):
    """Not linear, resets, a kernel that reads z: against the mean of a large bootstrap filter."""
    truth = of_the_bootstrap()
    got = evidences(swing(), swing_log(), FilterSettings(particles=particles), 8000 if particles > 2 else 32000)
    top = truth.max()
    expected, mean = np.exp(truth - top), np.exp(got - top)
    error = np.hypot(expected.std() / np.sqrt(len(expected)), mean.std() / np.sqrt(len(mean)))
    assert error < 0.05 * expected.mean()
    assert abs(mean.mean() - expected.mean()) < 4 * error


def test_a_linear_model_needs_no_correction_and_the_correction_agrees(short_windows):
    """The same system with a cubic term of coefficient 0 goes the long way and arrives at the same number."""
    log = swing_log()

    def model(degree):
        library = polynomial(2, degree)
        powers = [t.powers for t in library]
        coefficients = np.zeros((2, len(library)))
        coefficients[:, powers.index((0, 2))], coefficients[1, powers.index((2, 0))] = 0.5, 3.0
        flow = port_hamiltonian(
            2, 2, 1, library, coefficients=coefficients, port=np.array([[0], [1.0]]), substeps=2, dtype=D
        )
        emission = axis_emission(2, (0,), noise=0.2, dtype=D)
        return hybrid_model(mode_kernel(2, stay=0.8, dtype=D), flow, emission, noise=[0.05, 0.2], start_scale=0.6)

    assert model(2).flow.affine
    assert not model(3).flow.affine
    exact = evidences(model(2), log, FilterSettings(particles=512), 1)[0]
    around = evidences(model(3), log, FilterSettings(particles=128), 20)
    assert abs(around.mean() - exact) < 4 * around.std() / np.sqrt(20) + 1e-3


def test_a_corrected_stream_gives_the_batch_numbers(short_windows):
    model, log = swing(), swing_log(13)
    settings = FilterSettings(particles=16)
    out = filter(model, log, key=KEY, settings=settings)
    stream = Stream(model, dt=0.15, key=KEY, settings=settings)
    steps = [stream.start(log.observations[0])]
    steps += [stream.step(a, y) for a, y in zip(log.actions, log.observations[1:], strict=True)]
    np.testing.assert_allclose([s.mean for s in steps], out.mean, rtol=1e-7)
    np.testing.assert_allclose([s.record.log_normaliser for s in steps], out.record.log_normaliser, atol=1e-7)


def test_an_exported_stream_takes_its_corrections_along(short_windows, tmp_path):
    log = swing_log(13)
    stream = Stream(swing(), dt=0.15, key=KEY, settings=FilterSettings(particles=16))
    stream.export(tmp_path / "s")
    loaded = read_stream(tmp_path / "s")
    assert loaded.program.close is not None
    for t, row in enumerate(log.observations):
        one, other = (s.step(log.actions[t - 1], row) if t else s.start(row) for s in (stream, loaded))
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"row {t}")


def test_the_flow_of_a_quadratic_energy_is_the_linear_one_it_says():
    flow = port_hamiltonian(
        2, 2, 1, polynomial(2, 2), coefficients=[[0.3, 0, 1.0, 0.1, 0.5], [0, 0, 4.0, 0, 0.7]],
        dissipation=np.diag([0, 0.3]), port=np.array([[0.2], [1.0]]), substeps=2, dtype=D,
    )  # fmt: skip
    dt, action = jnp.asarray(0.1), jnp.asarray([0.7])
    linear = as_linear(flow, dt)
    z = jax.random.normal(KEY, (2, 5), D)
    starts = jnp.broadcast_to(z, (2, 2, 5))
    np.testing.assert_allclose(linear.shared_step(z, action), flow.step(starts, action, dt), rtol=1e-12)
    modes = jnp.array([0, 1, 0, 1, 1])
    ends = flow.step(starts, action, dt)
    each = jnp.stack([ends[m, :, i] for i, m in enumerate(modes)], axis=1)
    np.testing.assert_allclose(flow.step_in(modes, z, action, dt), each, rtol=1e-12)
    np.testing.assert_allclose(flow.jacobian(starts, ends, action, dt)[..., 0], linear.matrix, atol=1e-3)


def test_the_engine_is_chosen_by_what_the_model_is():
    guide = ConditionedProposal()
    linear = hybrid_model(
        mode_kernel(2), linear_flow(np.ones((2, 1, 1))), linear_emission([[1.0]], noise=0.1), noise=0.1
    )
    many = 9
    wide = hybrid_model(
        mode_kernel(1),
        port_hamiltonian(1, many, 0, polynomial(many, 3)),
        axis_emission(many, (0,), noise=0.1),
        noise=0.1,
    )
    chosen = lambda model, proposal=guide, **o: engine_of(model, proposal, FilterSettings(**o)).engine  # noqa: E731
    assert chosen(linear) == "gaussian"
    assert chosen(swing()) == "gaussian"
    assert chosen(wide) == "drawn"
    assert chosen(linear, amortized_proposal(linear, hidden=(2,), key=KEY)) == "gaussian"
    assert chosen(linear, gate=Gate(fixed=0.5)) == "mixture"
    assert chosen(linear, lookahead=True) == "mixture"
    assert chosen(linear, engine="drawn") == "drawn"
    assert engine_of(linear, None, bootstrap(particles=4)).engine == "mixture"


# --- the whole path ---------------------------------------------------------------------------------------------------


def rare_switch():
    """Two modes that hardly ever switch, and a log that does."""
    model = hybrid_model(
        mode_kernel(2, stay=0.99, dtype=D),
        linear_flow(np.ones((2, 1, 1)), [[0.0], [0.5]], dtype=D),
        linear_emission([[1.0]], noise=0.3, dtype=D),
        noise=0.2,
    )
    rng = np.random.default_rng(0)
    return model, episode(np.maximum(np.arange(40) - 20, 0) * 0.5 + 0.3 * rng.normal(size=40), dt=0.1)


def test_islands_say_what_they_know():
    model, log = rare_switch()
    truth = float(log_evidence(model, [log], key=KEY, settings=FilterSettings(particles=2000))[0])
    below = inside = 0
    for seed in range(20):
        settings = FilterSettings(particles=4, islands=8)
        path = filter(model, log, key=jax.random.key(seed), settings=settings).statement
        below += path.lower <= truth
        inside += abs(path.log_evidence - truth) <= path.half_width
    assert below == 20  # fails with probability 5 % each, at the most
    assert inside >= 14
    assert "islands" in str(path)
    assert path.spread.shape == (40,)


@pytest.mark.parametrize(("corrected", "factor"), [(True, WIDER), (False, 1.0)])
def test_the_interval_is_wider_where_branches_are_corrected(corrected, factor):
    settings = FilterSettings(particles=4, islands=4, corrected=corrected)
    path = filter(swing(), swing_log(), key=KEY, settings=settings).statement
    alone = FilterSettings(particles=4, corrected=corrected)
    each = filter_episodes(swing(), [swing_log()] * 4, key=jax.random.split(KEY, 4), settings=alone)
    sd = np.std([one.log_evidence for one in each], ddof=1)
    assert path.half_width == pytest.approx(factor * (student.ppf(0.975, 3) * sd / 2 + sd**2 / 8))


def test_an_accuracy_is_reached_or_said_not_to_be():
    model, log = rare_switch()
    truth = float(log_evidence(model, [log], key=KEY, settings=FilterSettings(particles=2000))[0])
    settings = FilterSettings(particles="auto", accuracy=0.1)
    out = filter_episodes(model, [log, log], key=KEY, settings=settings)
    for one in out:
        assert one.statement.reached
        assert abs(one.log_evidence - truth) < 0.4
    hopeless = FilterSettings(particles="auto", accuracy=1e-9, engine="mixture", budget=64)
    path = filter(model, log, key=KEY, settings=hopeless).statement
    assert path.reached is False
    assert "NOT reached" in str(path)
    with pytest.raises(ValueError, match="budget is 8 particles; 8 islands of 8 need 64"):
        filter(model, log, key=KEY, settings=FilterSettings(particles="auto", budget=8))
    with pytest.raises(ValueError, match="a stream filters once"):
        Stream(model, dt=0.1, key=KEY, settings=settings)


# --- full covariances -------------------------------------------------------------------------------------------------

PROCESS = np.array([[0.3, 0.1], [0.1, 0.2]])
SENSOR = np.array([[0.2, -0.1], [-0.1, 0.3]])


def correlated(process, sensor):
    turn = [[[0.9, 0.3], [-0.3, 0.9]], [[0.5, 0.0], [0.1, 0.6]]]
    return hybrid_model(
        mode_kernel(2, stay=0.7, dtype=D),
        linear_flow(turn, [[0.3, 0.0], [-0.6, 0.2]], dtype=D),
        linear_emission([[1.0, 0.4], [-0.3, 0.9]], noise=sensor, dtype=D),
        noise=process,
    )


@pytest.mark.parametrize("engine", ["gaussian", "drawn", "mixture"])
def test_correlated_noise_is_filtered_exactly(engine):
    """Against the sum over all mode paths, with hidden channels that leave the others' correlation as it is."""
    model = correlated(np.stack([PROCESS, 0.5 * PROCESS]), SENSOR)
    Y = np.random.default_rng(0).normal(size=(5, 2))
    Y[2, 0], Y[3] = np.nan, np.nan
    start = model.start()
    exact = linear.switching_posterior(
        *(np.exp(start.log_mode), np.asarray(start.mean), np.stack([np.eye(2)] * 2)),
        *(
            np.exp(jax.nn.log_softmax(model.kernel.logits)),
            np.asarray(model.flow.matrix),
            np.asarray(model.flow.offset),
        ),
        *(np.stack([PROCESS, 0.5 * PROCESS]), np.asarray(model.emission.dense()), np.zeros(2), SENSOR, Y),
    )
    got = evidences(model, episode(Y, dt=0.1), FilterSettings(particles=16, engine=engine), 8000)
    ratio = np.exp(got - exact.log_evidence)
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(len(ratio)) + 1e-9


def test_a_covariance_that_is_none_is_refused():
    with pytest.raises(ValueError, match="covariance noise has least eigenvalue -1"):
        correlated(np.stack([np.diag([1.0, -1.0])] * 2), SENSOR)
    with pytest.raises(ValueError, match="asymmetry"):
        correlated(0.3, np.array([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(ValueError, match=r"shape \(2, 3, 3\)"):
        correlated(np.stack([np.eye(3)] * 2), SENSOR)


def test_branches_are_not_corrected_by_what_single_precision_cannot_tell():
    """The ratio of densities that corrects them is lost to rounding where noise is tiny beside the start's spread."""
    for noise, dtype, corrected in ((0.02, np.float32, True), (1e-5, np.float32, False), (1e-5, np.float64, True)):
        kernel = mode_kernel(2, drive=network(2, (), 2, key=jax.random.key(1), dtype=dtype), dtype=dtype)
        flow, sensor = (
            linear_flow(np.eye(2)[None].repeat(2, 0), dtype=dtype),
            axis_emission(2, (0,), noise=0.1, dtype=dtype),
        )
        model = hybrid_model(kernel, flow, sensor, noise=noise, start_scale=1.0, noise_floor=1e-7)
        found = engine_of(model, ConditionedProposal(), FilterSettings())
        assert (found.engine, found.corrected) == ("gaussian", corrected)


def test_logs_of_any_length_share_a_few_programs():
    lengths = {rows: padded_length(rows) for rows in range(1, 4097)}
    assert all(rows <= padded <= max(1.51 * rows, 64) for rows, padded in lengths.items())
    assert len({*lengths.values()}) == 13  # 64, then two for each of six octaves
