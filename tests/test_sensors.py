"""Sensors that are not linear and Gaussian: densities, peaks, updates, files, and an evidence that stays unbiased."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from vhydro.certificate import Gate
from vhydro.emission import Emission, LinearEmission, Observation
from vhydro.episodes import episode, pad
from vhydro.filter import FilterSettings, Stream, bootstrap, filter, filter_episodes, filtered, log_evidence
from vhydro.gaussian import conditioned, conditioned_axes, conditioned_one_by_one
from vhydro.model import hybrid_model, linear_emission, linear_flow, mode_kernel
from vhydro.proposal import ConditionedProposal, amortized_proposal, conditioned_proposal, mode_proposal
from vhydro.sensors import range_bearing_emission, student_emission
from vhydro.storage import load, save

KEY = jax.random.key(0)
DOUBLE = {"dtype": jnp.float64}
BEACONS = np.array([[3.0, 0.5], [-2.0, 2.0]])
MATRIX = np.array([[1.0, 0.4], [-0.3, 0.9]])


def student(**options):
    return student_emission(MATRIX, **({"noise": [0.3, 0.2], "freedom": [2.5, 4.0]} | DOUBLE | options))


def beacons(latent=2, **options):
    given = {"beacons": BEACONS, "range_noise": [0.3, 0.2], "bearing_noise": [0.2, 0.3]}
    return range_bearing_emission(latent, **(given | DOUBLE | options))


class Sonar(Emission):
    """One's own: the distance from the origin, seen with Laplace noise."""

    width: jax.Array
    latent = 2
    channels = 1

    def log_likelihood(self, z, seen):
        error = jnp.abs(seen.value[0] - jnp.hypot(z[0], z[1]))
        return jnp.where(seen.observed[0], -error / self.width - jnp.log(2 * self.width), 0.0)

    def log_peak(self, seen):
        return jnp.where(seen.observed[0], -jnp.log(2 * self.width), 0.0)


def sonar():
    return Sonar(jnp.asarray(0.3))


SENSORS = {"student": student, "beacons": beacons}


def moving(emission, dtype=jnp.float64, **options):
    """Two modes that shrink the plane towards the origin, each axis by itself."""
    flow = linear_flow([np.diag([0.9, 0.8]), np.diag([0.5, 1.0])], [[0.2, 0.0], [0.0, -0.3]], dtype=dtype)
    start = {"start_mode": [0.6, 0.4], "start_mean": [[0.5, 0.0], [-0.5, 0.3]], "start_scale": 0.5}
    noise = np.array([[0.4, 0.3], [0.3, 0.5]])
    return hybrid_model(mode_kernel(2, stay=0.7, dtype=dtype), flow, emission, noise=noise, **(start | options))


def everything(value):
    value = jnp.asarray(value, jnp.float64)
    return Observation(value, jnp.ones(value.shape, bool))


# --- densities --------------------------------------------------------------------------------------------------------


def student_oracle(z, row, noise=(0.3, 0.2), freedom=(2.5, 4.0)):
    expected = np.tensordot(MATRIX, z, 1)
    terms = [stats.t.logpdf(row[c], freedom[c], expected[c], noise[c]) for c in range(2) if not np.isnan(row[c])]
    return sum(terms, np.zeros(z.shape[1:]))


def beacons_oracle(z, row, ranges=(0.3, 0.2), bearings=(0.2, 0.3)):
    out = np.zeros(z.shape[1:])
    for b, (x, y) in enumerate(BEACONS):
        if not np.isnan(row[b]):
            out = out + stats.norm.logpdf(row[b], np.hypot(x - z[0], y - z[1]), ranges[b])
        if not np.isnan(row[2 + b]):
            out = out + stats.vonmises.logpdf(row[2 + b] - np.arctan2(y - z[1], x - z[0]), bearings[b] ** -2)
    return out


ORACLES = {"student": (student_oracle, 2), "beacons": (beacons_oracle, 4)}


@pytest.mark.parametrize("name", SENSORS)
def test_the_density_is_scipys_and_skips_hidden_channels(name):
    oracle, channels = ORACLES[name]
    rng = np.random.default_rng(0)
    z = rng.standard_normal((2, 50))
    for hidden in (None, *range(channels), slice(None)):
        row = rng.standard_normal(channels) + 1.0
        if hidden is not None:
            row[hidden] = np.nan
        seen = Observation(jnp.asarray(np.nan_to_num(row)), jnp.asarray(~np.isnan(row)))
        got = SENSORS[name]().log_likelihood(jnp.asarray(z), seen)
        np.testing.assert_allclose(got, oracle(z, row), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("noise", [0.02, 0.3, 2.0])
def test_a_bearing_is_a_density_on_one_turn(noise):
    emission = beacons(bearing_noise=noise)
    angle = np.linspace(-np.pi, np.pi, 4001)[:-1]
    rows = np.zeros((len(angle), 4))
    rows[:, 2] = angle
    observed = jnp.array([False, False, True, False])
    log_g = jax.vmap(lambda row: emission.log_likelihood(jnp.array([0.1, 0.2]), Observation(row, observed)))(rows)
    assert np.exp(log_g).mean() * 2 * np.pi == pytest.approx(1.0, rel=1e-9)


NUMBERS = st.floats(-50, 50)


@pytest.mark.parametrize("name", SENSORS)
@given(data=st.data())
@settings(max_examples=50)
def test_no_likelihood_is_above_its_peak(name, data):
    emission = SENSORS[name]()
    z, width = jnp.asarray(data.draw(st.tuples(NUMBERS, NUMBERS))), emission.channels
    observed = data.draw(st.lists(st.booleans(), min_size=width, max_size=width))
    near = data.draw(st.booleans())
    row = emission.mean(z) if near else jnp.asarray(data.draw(st.lists(NUMBERS, min_size=width, max_size=width)))
    seen = Observation(jnp.where(jnp.asarray(observed), row, 0.0), jnp.asarray(observed))
    log_g, log_peak = float(emission.log_likelihood(z, seen)), float(emission.log_peak(seen))
    assert log_g <= log_peak + 1e-9
    if near:
        assert log_g == pytest.approx(log_peak, abs=1e-9)


def test_a_bearing_across_the_cut_is_near():
    """A beacon to the left, seen just above and just below ±π: one reading explains both sides."""
    emission = range_bearing_emission(2, beacons=[[-1.0, 0.0]], range_noise=0.1, bearing_noise=0.05, **DOUBLE)
    above, below = jnp.array([1.0, -0.01]), jnp.array([1.0, 0.01])
    assert float(emission.mean(above)[1] * emission.mean(below)[1]) < -9
    for turns in (-1, 0, 1):
        seen = everything([2.0, np.pi + 2 * np.pi * turns])
        for z in (above, below):
            assert float(emission.log_likelihood(z, seen)) > float(emission.log_peak(seen)) - 0.1
            assert np.abs(emission.surprise(z, jnp.full(2, 0.1), seen)).max() < 1
            after = emission.condition(z, jnp.full(2, 0.1), seen)
            np.testing.assert_allclose(after.mean, [1.0, 0.0], atol=0.02)


def test_a_heading_turns_the_bearings():
    emission = beacons(3, heading=2)
    seen = everything([1.0, 2.0, 0.3, 0.4])
    place, turn = jnp.array([0.2, -0.1]), 0.7
    plain = beacons().log_likelihood(place, seen._replace(value=seen.value + jnp.array([0.0, 0.0, turn, turn])))
    np.testing.assert_allclose(emission.log_likelihood(jnp.append(place, turn), seen), plain, rtol=1e-12)


@pytest.mark.parametrize("heading", [None, 2])
def test_slopes_are_the_derivatives(heading):
    emission = beacons(3, heading=heading)
    z = jnp.asarray(np.random.default_rng(1).standard_normal((3, 4)))
    exact = jax.vmap(jax.jacobian(emission.mean), in_axes=-1, out_axes=-1)(z)
    np.testing.assert_allclose(emission._slope(z), exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_at_a_beacon_and_far_off_nothing_is_nan(dtype):
    for emission in (beacons(dtype=dtype), student(dtype=dtype)):
        width = emission.channels
        for z in (BEACONS[0], [0.0, 0.0], [1e12, -1e12]):
            for value in (0.0, 1e4, 1e25):
                seen = Observation(jnp.full(width, value, dtype), jnp.ones(width, bool))
                place = jnp.asarray(z, dtype)
                log_g, slope = jax.value_and_grad(lambda p, e=emission, s=seen: e.log_likelihood(p, s))(place)
                after = emission.condition(place, jnp.full(2, 0.5, dtype), seen)
                assert not np.isnan(log_g)
                if value < 1e25:
                    assert np.isfinite(slope).all()
                    assert np.isfinite(after.mean).all()
                    assert np.isfinite(after.scale).all()
    assert np.isfinite(log_g)  # an outlier of any size is one that Student-t noise explains


# --- updates ----------------------------------------------------------------------------------------------------------


def test_one_by_one_is_the_joint_update():
    rng = np.random.default_rng(2)
    mean, residual = (jnp.asarray(rng.standard_normal((n, 5))) for n in (3, 4))
    matrix, noise = jnp.asarray(rng.standard_normal((4, 3))), jnp.asarray([0.3, 0.5, 0.2, 0.9])
    observed = jnp.array([True, False, True, True])
    full = jnp.asarray(np.tril(rng.standard_normal((3, 3))) + 2 * np.eye(3))[..., None]
    for scale in (jnp.asarray([0.4, 1.0, 2.0])[:, None], full):
        got = conditioned_one_by_one(mean, scale, matrix, noise, residual, observed)
        expected = conditioned(mean, scale, matrix, noise, residual, observed)
        np.testing.assert_allclose(got.log_evidence, expected.log_evidence, rtol=1e-10)
        np.testing.assert_allclose(got.mean, expected.mean, rtol=1e-10)
        np.testing.assert_allclose(got.scale, jnp.broadcast_to(expected.scale, got.scale.shape), atol=1e-12)
    each = jnp.broadcast_to(noise[:3, None], (3, 5)) * jnp.arange(1.0, 6.0)
    given = mean, jnp.asarray([0.4, 1.0, 2.0])[:, None]
    axes = conditioned_axes(*given, (0, 1, 2), jnp.ones(3), each, residual[:3], observed[:3])
    same = conditioned_one_by_one(*given, jnp.eye(3), each, residual[:3], observed[:3])
    np.testing.assert_allclose(axes.mean, same.mean, rtol=1e-10)
    np.testing.assert_allclose(axes.log_evidence, same.log_evidence, rtol=1e-10)


def quadrature(emission, mean, scale, seen, width=8.0, points=801):
    """Evidence, mean and standard deviation of a Gaussian plane after a reading, on a grid."""
    axes = [m + s * np.linspace(-width, width, points) for m, s in zip(mean, scale, strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"))
    log_prior = sum(stats.norm.logpdf(grid[i], mean[i], scale[i]) for i in range(2))
    weight = np.exp(log_prior + np.asarray(emission.log_likelihood(jnp.asarray(grid), seen)))
    cell = np.prod([a[1] - a[0] for a in axes])
    evidence, weight = weight.sum() * cell, weight / weight.sum()
    centre = (grid * weight).sum((1, 2))
    return np.log(evidence), centre, np.sqrt((((grid - centre[:, None, None]) ** 2) * weight).sum((1, 2)))


@pytest.mark.parametrize("axes", [None, (1, 0)])
@pytest.mark.parametrize("freedom", [1.0, 4.0])
def test_a_student_update_bounds_the_evidence_from_below_and_lets_outliers_go(axes, freedom):
    matrix = MATRIX if axes is None else np.eye(2)[list(axes)]
    emission = student_emission(matrix, noise=[0.3, 0.2], freedom=freedom, axes=axes, **DOUBLE)
    mean, scale = np.array([0.5, -0.2]), np.array([0.6, 0.4])
    for row in ([0.6, 0.0], [0.4, 40.0], [-30.0, 50.0]):
        seen = everything(row)
        log_z, centre, sd = quadrature(emission, mean, scale, seen)
        after = emission.condition(jnp.asarray(mean), jnp.asarray(scale), seen)
        assert log_z - 1 < float(after.log_evidence) <= log_z + 1e-6
        np.testing.assert_array_less(np.abs(after.mean - centre), 0.6 * sd)
    spread = after.scale if after.scale.ndim == 1 else np.sqrt((after.scale**2).sum(1))
    np.testing.assert_allclose(after.mean, mean, atol=0.1)
    np.testing.assert_allclose(spread, scale, rtol=0.1)


def test_many_degrees_of_freedom_are_gaussian_noise():
    gaussian = linear_emission(MATRIX, noise=[0.3, 0.2], **DOUBLE)
    nearly = student(freedom=1e7)
    seen, mean, scale = everything([0.4, -0.3]), jnp.zeros((2, 3)) + jnp.arange(3.0), jnp.full((2, 1), 0.5)
    a, b = (e.condition(mean, scale, seen) for e in (gaussian, nearly))
    np.testing.assert_allclose(a.log_evidence, b.log_evidence, rtol=1e-4)
    np.testing.assert_allclose(a.mean, b.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(jnp.broadcast_to(a.scale, b.scale.shape), b.scale, atol=1e-5)
    np.testing.assert_allclose(gaussian.log_likelihood(mean, seen), nearly.log_likelihood(mean, seen), rtol=1e-4)


def test_a_beacon_update_is_near_the_posterior():
    emission, mean, scale = beacons(), np.array([0.5, -0.2]), np.array([0.4, 0.4])
    seen = Observation(jnp.array([2.4, 0.0, 0.2, 2.2]), jnp.array([True, False, True, True]))
    log_z, centre, sd = quadrature(emission, mean, scale, seen)
    after = emission.condition(jnp.asarray(mean), jnp.asarray(scale), seen)
    assert float(after.log_evidence) == pytest.approx(log_z, abs=0.2)
    np.testing.assert_array_less(np.abs(after.mean - centre), 0.3 * sd)
    np.testing.assert_allclose(np.sqrt((after.scale**2).sum(1)), sd, rtol=0.2)


# --- evidence ---------------------------------------------------------------------------------------------------------

STEPS, REPLICATES, PARTICLES = 4, 8000, 16


def grid_evidence(model, oracle, rows, half=6.0, points=301):
    """The log evidence of a log by the forward recursion on a grid; the flow keeps the axes apart."""
    axis = np.linspace(-half, half, points)
    cell = axis[1] - axis[0]
    grid, start = np.stack(np.meshgrid(axis, axis, indexing="ij")), model.start()
    flow, noise = model.flow, np.asarray(model.noise)
    table = np.asarray(jax.nn.softmax(model.kernel.logits, axis=-1))

    def carried(mode, belief):
        for i in range(2):
            moved = float(flow.matrix[mode, i, i]) * axis + float(flow.offset[mode, i])
            kernel = stats.norm.pdf(axis[:, None], moved[None], noise[mode, i]) * cell
            belief = np.moveaxis(np.tensordot(kernel, belief, axes=(1, i)), 0, i)
        return belief

    law = [stats.norm(np.asarray(start.mean[m]), np.asarray(start.scale[m])) for m in range(2)]
    belief = [np.exp(float(start.log_mode[m])) * np.prod(law[m].pdf(np.moveaxis(grid, 0, -1)), -1) for m in range(2)]
    log_total = 0.0
    for t, row in enumerate(rows):
        if t:
            belief = [carried(m, sum(table[k, m] * belief[k] for k in range(2))) for m in range(2)]
        belief = [b * np.exp(oracle(grid, row)) for b in belief]
        whole = sum(b.sum() for b in belief) * cell**2
        belief, log_total = [b / whole for b in belief], log_total + np.log(whole)
    return log_total


ROWS = {
    "student": [[0.6, 0.1], [np.nan, -0.4], [6.0, 0.3], [0.2, np.nan]],  # one outlier
    "beacons": [[2.6, 3.1, 0.2, 2.4], [2.5, np.nan, 0.1, np.nan], [np.nan, 2.4, np.nan, 2.3], [2.9, 2.7, 0.4, 2.2]],
}


@functools.cache
def problem(name):
    model, rows = moving(SENSORS[name]()), np.array(ROWS[name])
    batch = jax.tree.map(lambda x: x[0], pad([episode(rows, dt=1.0)]))
    return model, batch, grid_evidence(model, ORACLES[name][0], rows)


def guide_of(kind, model):
    if kind == "amortized":
        proposal = amortized_proposal(model, hidden=(8,), key=KEY)
        rough = lambda w: 0.3 * jax.random.normal(jax.random.key(1), w.shape, w.dtype) / np.sqrt(w.shape[1])  # noqa: E731
        return eqx.tree_at(lambda p: p.network.weights[-1], proposal, replace_fn=rough)
    return conditioned_proposal(model)


@pytest.mark.computes
@pytest.mark.parametrize("exact_modes", [False, True])
@pytest.mark.parametrize("kind", ["conditioned", "amortized", "bootstrap"])
@pytest.mark.parametrize("name", SENSORS)
def test_the_evidence_is_unbiased(name, kind, exact_modes):
    """Against quadrature of the densities of scipy, within 4 standard errors."""
    model, batch, exact = problem(name)
    options = {"particles": PARTICLES, "exact_modes": exact_modes}
    gate = Gate(certificate="none", fixed=0.2) if exact_modes else Gate(certificate="pilot", tolerance=1.0)
    settings = bootstrap(**options) if kind == "bootstrap" else FilterSettings(gate=gate, **options)
    guide = None if kind == "bootstrap" else guide_of(kind, model)

    @jax.jit
    def ratios(keys):
        one = lambda key: jnp.exp(filtered(model, guide, settings, batch, key).log_evidence - exact)  # noqa: E731
        return jax.lax.map(one, keys, batch_size=250)

    samples = np.asarray(ratios(jax.random.split(jax.random.key(5), REPLICATES)))
    error = samples.std(ddof=1) / np.sqrt(REPLICATES)
    assert error < 0.02, "too noisy to show anything"
    assert abs(samples.mean() - 1) < 4 * error


# --- one's own --------------------------------------------------------------------------------------------------------


def sonar_log(rows=12):
    distance = 1.0 + 0.3 * np.random.default_rng(3).standard_normal((rows, 1))
    distance[3] = np.nan
    return episode(distance, dt=1.0)


PILOT = FilterSettings(particles=64, gate=Gate(certificate="pilot", tolerance=1.0, pilots=8))


def test_ones_own_sensor_filters_with_every_guide_and_as_the_carrier():
    model, keys = moving(sonar()), jax.random.split(KEY, 400)
    assert model.dtype == jnp.float64
    batch = jax.tree.map(lambda x: x[0], pad([sonar_log()]))
    guides = [
        ConditionedProposal(),
        conditioned_proposal(model, residual=(4,), key=KEY),
        amortized_proposal(model, hidden=(4,), key=KEY),
        mode_proposal(model, hidden=(4,), key=KEY),
    ]
    for guide in guides:
        out = filter(model, sonar_log(), key=KEY, proposal=guide, settings=PILOT)
        assert np.isfinite(out.log_evidence)
        assert out.record.certified.any()
    runs = []
    for guide, how in ((guides[0], PILOT), (None, bootstrap(particles=64))):
        one = jax.jit(jax.vmap(lambda k, g=guide, s=how: filtered(model, g, s, batch, k).log_evidence))
        runs.append(np.asarray(one(keys)))
    top = max(map(np.max, runs))
    carrier, plain = (np.exp(run - top) for run in runs)
    error = np.hypot(carrier.std(ddof=1), plain.std(ddof=1)) / np.sqrt(len(keys))
    assert abs(carrier.mean() - plain.mean()) < 4 * error


def test_a_stream_says_the_same_of_ones_own_sensor():
    model, seen = moving(sonar()), sonar_log()
    out = filter(model, seen, key=KEY, settings=PILOT)
    stream = Stream(model, dt=1.0, key=KEY, settings=PILOT)
    first = stream.start(seen.observations[0])
    assert first.record.log_normaliser == pytest.approx(out.record.log_normaliser[0], rel=1e-9)


def test_nothing_but_the_linear_emission_has_closed_forms():
    for emission in (student(), sonar()):
        model = moving(emission)
        assert not ConditionedProposal().exact(model)
        rows = episode(np.ones((3, emission.channels)), dt=1.0)
        for options, words in (
            ({}, f"needs a linear emission, this model has a {type(emission).__name__}. Use Gate"),
            ({"gate": PILOT.gate, "lookahead": True}, "look-ahead needs"),
            ({"engine": "gaussian"}, "needs a linear emission"),
        ):
            with pytest.raises(ValueError, match=words):
                filter(model, rows, key=KEY, settings=FilterSettings(particles=4, **options))
    with pytest.raises(TypeError, match="derive from Emission"):
        type("Mine", (LinearEmission,), {})


class Spoiled(Sonar):
    """A sonar with one mistake."""

    mistake: str = eqx.field(static=True)

    def log_likelihood(self, z, seen):
        log_g = super().log_likelihood(z, seen)
        if self.mistake == "nan":
            return jnp.where(z[0] > 0, jnp.nan, log_g)
        if self.mistake == "mask":
            return super().log_likelihood(z, seen._replace(observed=jnp.ones(1, bool))) + jnp.log(2 * self.width)
        if self.mistake == "shape":
            return log_g[None]
        return log_g.astype(jnp.float32) if self.mistake == "type" else log_g

    def log_peak(self, seen):
        if self.mistake == "peak":
            return jnp.zeros(())
        return super().log_peak(seen) if self.mistake != "infinite" else jnp.asarray(jnp.inf)


MISTAKES = {
    "nan": r"Spoiled.log_likelihood is nan for the reading \[.*\] \(NaN is hidden\) at z = \[.*\]; expected a number",
    "peak": r"log_likelihood is 0.5\d* for the reading \[.*\] .*above its log_peak 0.0; expected no more",
    "mask": r"log_likelihood is from -.* where nothing was observed; expected 0. Count",
    "shape": r"log_likelihood of one z is float64\[1\]; expected float64\[\]",
    "type": r"log_likelihood of one z is float32\[\]; expected float64\[\]",
    "infinite": r"log_peak is inf for the reading .*; expected a finite number",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_bad_likelihood_is_refused_before_anything_runs(mistake):
    model = moving(Spoiled(jnp.asarray(0.3), mistake))
    for run in (
        lambda: filter(model, sonar_log(), key=KEY, settings=PILOT),
        lambda: filter_episodes(model, [sonar_log()], key=KEY, settings=PILOT),
        lambda: log_evidence(model, [sonar_log()], key=KEY, settings=PILOT),
        lambda: Stream(model, dt=1.0, key=KEY, settings=PILOT).start([1.0]),
    ):
        with pytest.raises(ValueError, match=MISTAKES[mistake]):
            run()


def test_a_peak_is_found_that_plain_draws_of_the_start_law_would_miss():
    with pytest.raises(ValueError, match="above its log_peak 0.0"):
        filter(moving(Spoiled(jnp.asarray(1e-3), "peak")), sonar_log(), key=KEY, settings=PILOT)


@pytest.mark.parametrize("mistake", ["nan", "peak"])
def test_what_the_search_missed_costs_weight_or_the_certificate_and_is_never_a_nan(mistake):
    model = moving(Spoiled(jnp.asarray(0.3), mistake))
    batch = jax.tree.map(lambda x: x[0], pad([sonar_log()]))
    for how, guide in ((PILOT, ConditionedProposal()), (bootstrap(particles=64), None)):
        out = filtered(model, guide, how, batch, KEY)
        for leaf in jax.tree.leaves(out):
            assert not np.isnan(leaf).any()
        assert np.isfinite(out.log_evidence)
    if mistake == "nan":
        alive = np.exp(out.final.log_weight) > 0
        assert (out.final.z[0][alive] <= 0).all()
    else:
        seen = ~np.isnan(sonar_log().observations[:, 0])
        broken = filtered(model, ConditionedProposal(), PILOT, batch, KEY).record
        assert not broken.certified[seen].any()


# --- builders and files -----------------------------------------------------------------------------------------------

BAD = {
    "freedom": (lambda: student(freedom=0.0), "freedom is 0.0; expected one positive number, or 2"),
    "freedoms": (lambda: student(freedom=[1.0, 2.0, 3.0]), r"freedom is \[1. 2. 3.\]; expected"),
    "matrix": (lambda: student_emission(np.ones(3), noise=0.1), r"matrix has shape \(3,\)"),
    "places": (lambda: beacons(beacons=np.ones((2, 3))), r"beacons have shape \(2, 3\); expected \(beacons, 2\)"),
    "range": (lambda: beacons(range_noise=-1.0), "range_noise is -1.0; expected one positive"),
    "floor": (lambda: beacons(bearing_noise=1e-5), "bearing_noise is 1e-05; expected more than the floor"),
    "axes": (lambda: beacons(axes=(0, 2)), r"axes are \(0, 2\) and heading is None; expected two coordinates from 0"),
    "heading": (lambda: beacons(heading=1), "heading is 1; expected"),
    "units": (lambda: moving(beacons(), scale=2.0), "expected 0 and 1, for a RangeBearingEmission reads its channels"),
    "latent": (lambda: moving(beacons(3)), "the emission reads 3 coordinates, the flow moves 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_builder_refuses(name):
    build, words = BAD[name]
    with pytest.raises(ValueError, match=words):
        build()


@pytest.mark.parametrize("name", SENSORS)
def test_a_saved_sensor_comes_back(tmp_path, name):
    model = moving(SENSORS[name]())
    save(tmp_path / "m", model=model)
    back = load(tmp_path / "m").parts["model"]
    assert eqx.tree_equal(back, model)


def test_ones_own_sensor_is_not_saved_and_says_why(tmp_path):
    with pytest.raises(
        ValueError, match="model.emission is a Sonar, a sensor of one's own; expected LinearEmission, .*"
    ):
        save(tmp_path / "m", model=moving(sonar()))
    assert not (tmp_path / "m").exists()
