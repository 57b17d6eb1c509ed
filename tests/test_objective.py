"""Gradients of the objective: along the path against finite differences, with fixed samples against exact scores."""

import functools
import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool

from guides import Wrong
from oracles import linear
from vhydro import objective
from vhydro.certificate import Gate, no_support
from vhydro.emission import Observation
from vhydro.episodes import episode, pad
from vhydro.filter import FilterSettings, bootstrap, filtered
from vhydro.flow import Reset
from vhydro.gap import GapDrive, Geometry
from vhydro.gaussian import log_density
from vhydro.library import polynomial
from vhydro.model import (
    axis_emission,
    hybrid_model,
    linear_emission,
    linear_flow,
    mode_kernel,
    port_hamiltonian,
)
from vhydro.network import network
from vhydro.objective import estimator_of, estimator_settings, mean_log_evidence
from vhydro.proposal import AmortizedProposal, ConditionedProposal, amortized_proposal

KEY = jax.random.key(0)


def switching(dense=False, feasible=None):
    """A linear model of two coordinates, two modes and two channels."""
    emission = (
        linear_emission([[1.0, 0.4], [-0.3, 0.9]], noise=[0.6, 0.7], offset=[0.1, 0.0], dtype=jnp.float64)
        if dense
        else axis_emission(2, (1, 0), noise=[0.6, 0.7], dtype=jnp.float64)
    )
    return hybrid_model(
        mode_kernel(2, stay=0.7, feasible=feasible, dtype=jnp.float64),
        linear_flow(
            [[[0.9, 0.3], [-0.3, 0.9]], [[0.5, 0.0], [0.1, 0.6]]], [[0.3, 0.0], [-0.6, 0.2]], dtype=jnp.float64
        ),
        emission,
        noise=[[0.4, 0.3], [0.3, 0.5]],
        start_mode=[0.7, 0.3],
        start_mean=[[0.2, 0.0], [-0.4, 0.5]],
        start_scale=0.8,
    )


def bouncing():
    """A port-Hamiltonian model with inputs, a reset map and a mode kernel that reads the state."""
    a, b = jax.random.split(KEY)
    library = polynomial(2, 3)
    return hybrid_model(
        mode_kernel(2, stay=0.7, drive=network(3, (4,), 2, key=a, dtype=jnp.float64), dtype=jnp.float64),
        port_hamiltonian(
            2,
            2,
            1,
            library,
            coefficients=0.2 * jax.random.normal(b, (2, len(library))),
            dissipation=0.09 * np.eye(2),
            port=np.array([[0.0], [1.0]]),
            integrator="midpoint",
            dtype=jnp.float64,
        ),
        axis_emission(2, (0,), noise=0.4, dtype=jnp.float64),
        noise=0.3,
        reset=Reset(jnp.full((2, 2, 1), -0.5), (1,)),
    )


def logs(channels=2, inputs=0, rows=(5, 3)):
    """Ragged logs with hidden values, as one batch."""
    rng = np.random.default_rng(1)
    out = []
    for n in rows:
        Y = rng.standard_normal((n, channels))
        Y[rng.random(Y.shape) < 0.2] = np.nan
        out.append(episode(Y, rng.standard_normal((n - 1, inputs)), dt=0.3))
    return pad(out)


def rough(proposal, size=0.3):
    """The proposal with every weight moved, so that no gradient is zero by construction."""
    leaves, rebuild = ravel_pytree(eqx.filter(proposal, eqx.is_inexact_array))
    noise = size * jax.random.normal(jax.random.key(9), leaves.shape)
    return eqx.combine(rebuild(leaves + noise), proposal)


def flat(parts):
    """The trainable numbers of a tree as one vector, and the way back."""
    numbers, rest = eqx.partition(parts, eqx.is_inexact_array)
    vector, rebuild = ravel_pytree(numbers)
    return vector, lambda v: eqx.combine(rebuild(v), rest)


# --- against E[log Ẑ] -------------------------------------------------------------------------------------------------


def small_switching():
    """One coordinate, two modes: brute force is cheap."""
    return hybrid_model(
        mode_kernel(2, stay=0.7, dtype=jnp.float64),
        linear_flow([[[0.9]], [[0.3]]], [[0.2], [-0.6]], dtype=jnp.float64),
        linear_emission([[1.0]], noise=0.4, dtype=jnp.float64),
        noise=0.5,
        start_mode=[0.6, 0.4],
    )


def drifting():
    """Two coordinates that move by themselves, inputs, and a mode kernel that reads gaps: a contact model in small."""
    random = np.random.default_rng(3)
    parts = [jnp.asarray(random.normal(size=shape)) for shape in ((1, 3, 4), (1, 3, 4), (1, 3), (1, 4))]
    drive = GapDrive(Geometry(*parts, jnp.asarray(0.5)), jnp.asarray(0.5 * random.normal(size=(2, 3))))
    return hybrid_model(
        mode_kernel(2, stay=0.7, drive=drive, dtype=jnp.float64),
        linear_flow(
            [np.diag([0.9, 0.8]), np.diag([1.0, 0.3])],
            [[0.2, 0.0], [-0.6, 0.1]],
            [[[0.0, 0.1], [0.0, 0.0]], [[0.8, 0.0], [0.0, 0.5]]],
            dtype=jnp.float64,
        ),
        axis_emission(2, (1, 0), noise=[0.4, 0.5], dtype=jnp.float64),
        noise=[[0.5, 0.4], [0.3, 0.5]],
        start_mode=[0.6, 0.4],
    )


GATED = FilterSettings(particles=48, gate=Gate(fixed=0.3))
ESTIMATORS = {
    "gaussian": (small_switching, lambda m: ConditionedProposal(), logs(1), FilterSettings(particles=4), 2000),
    # No branch is cut in logs so short: nothing is left to chance.
    "gaussian linearised": (bouncing, lambda m: ConditionedProposal(), logs(1, 1), FilterSettings(particles=24), 2),
    # Nothing is ever drawn.
    "merged": (drifting, lambda m: None, logs(2, 2, rows=(9, 4)), FilterSettings(engine="merged"), 2),
    "exact": (small_switching, lambda m: ConditionedProposal(), logs(1), GATED, 1500),
    "exact learned guide": (
        small_switching,
        lambda m: rough(amortized_proposal(m, hidden=(3,), key=KEY)),
        logs(1),
        GATED,
        1000,
    ),
    "fixed": (small_switching, lambda m: ConditionedProposal(), logs(1), GATED, 1500),
}
UNLEARNED = ("shift", "scale", "action_scale", "calibration", "geometry")


@pytest.mark.computes
@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_gradient_is_that_of_the_expected_log_evidence(name):
    """Every parameter, against finite differences of a brute-force mean over keys, within 4 standard errors.

    With fixed samples the guide follows another objective on purpose; the conditioned one has no parameters.
    """
    build, guide, batch, settings, runs = ESTIMATORS[name]
    model = build()
    proposal, settings = guide(model), estimator_settings(settings, name.split()[0])
    whole = (model, proposal)
    learned = jax.tree_util.tree_map_with_path(
        lambda path, x: eqx.is_inexact_array(x) and not any(u in jax.tree_util.keystr(path) for u in UNLEARNED), whole
    )
    numbers, rest = eqx.partition(whole, learned)
    at, rebuild = ravel_pytree(numbers)
    keys, step = jax.random.split(jax.random.key(4), runs), 0.02 if runs > 2 else 1e-3

    def objective(v, key):
        return mean_log_evidence(*eqx.combine(rebuild(v), rest), settings, batch, key)

    gradients = np.asarray(jax.jit(lambda: jax.lax.map(lambda k: jax.grad(objective)(at, k), keys, batch_size=250))())
    values = jax.jit(lambda v: jax.lax.map(lambda k: objective(v, k), keys, batch_size=250))
    assert np.isfinite(gradients).all()
    for i in range(len(at)):
        differences = np.asarray(values(at.at[i].add(step)) - values(at.at[i].add(-step))) / (2 * step)
        error = np.hypot(gradients[:, i].std(), differences.std()) / np.sqrt(runs)
        expected, got = differences.mean(), gradients[:, i].mean()
        # A central difference is off by the third derivative, of the order of the first here, tenfold where nothing
        # is left to chance and the step is small.
        slack = step**2 * max(abs(expected), 0.1) * (1 if runs > 2 else 10)
        assert abs(got - expected) < 4 * error + slack, (name, i, got, expected, error)


# --- with fixed samples -----------------------------------------------------------------------------------------------


def system_of(model) -> linear.System:
    start, eye = model.start(), np.eye(model.latent)
    each = (
        *(jnp.exp(start.log_mode), start.mean, start.scale[..., None] ** 2 * eye),
        *(jax.nn.softmax(model.kernel.logits, axis=-1), model.flow.matrix, model.flow.offset),
        *(model.noise[..., None] ** 2 * eye, model.emission.dense(), model.emission.offset),
        jnp.diag(model.emission.noise**2),
    )
    return linear.System(*(np.asarray(x) for x in each))


def learnt(model):
    """The parameters whose score is compared."""
    return (
        *(model.kernel.logits, model.flow.matrix, model.flow.offset, model.log_noise),
        *(model.emission.matrix, model.emission.log_noise),
        *(model.start_log_mode, model.start_mean, model.start_log_scale),
    )


def exact_score(model, observations):
    """The gradient of the enumerated log evidence by central differences."""
    vector, rebuild = ravel_pytree(learnt(model))

    def log_evidence(v):
        moved = eqx.tree_at(learnt, model, rebuild(jnp.asarray(v)))
        return linear.switching_log_evidence(*system_of(moved), observations)

    steps = 1e-5 * np.eye(len(vector))
    return np.array([(log_evidence(vector + s) - log_evidence(vector - s)) / 2e-5 for s in steps])


@functools.cache
def watched():
    rng = np.random.default_rng(4)
    model = switching(dense=True)
    Y = linear.hide(linear.simulate(system_of(model), 4, rng)[2], 0.2, rng)
    return model, Y, exact_score(model, Y)


def repeated(gradient, runs):
    """One gradient for each of so many keys."""
    return np.asarray(jax.jit(lambda keys: jax.lax.map(gradient, keys))(jax.random.split(KEY, runs)))


def assert_mean_is(runs, expected):
    """Within 4 standard errors; the estimator's own bias is of order 1/N."""
    error = runs.std(0, ddof=1) / np.sqrt(len(runs))
    assert error.max() < 0.1 * np.abs(expected).max(), "too noisy to show anything"
    np.testing.assert_array_less(np.abs(runs.mean(0) - expected), 4 * error + 1e-9)


@pytest.mark.parametrize(("guided", "threshold"), [(True, 0.0), (True, 1.0), (False, 1.0)])
def test_the_fixed_estimator_follows_fishers_identity(guided, threshold):
    """Its gradient for the model is the exact score, whether it resamples never or always."""
    model, Y, score = watched()
    batch, proposal = pad([episode(Y, dt=0.1)]), ConditionedProposal() if guided else None
    make = FilterSettings if guided else bootstrap
    settings = estimator_settings(make(particles=4000, ess_threshold=threshold), "fixed")

    def gradient(key):
        of_mean = eqx.filter_grad(lambda m: mean_log_evidence(m, proposal, settings, batch, key))(model)
        return batch.observed.sum() * ravel_pytree(learnt(of_mean))[0]

    assert_mean_is(repeated(gradient, 32), score)


TWO_PARTS = {
    "conditioned guide": (lambda m: ConditionedProposal(), FilterSettings(particles=16)),
    "learned guide that looks ahead": (
        lambda m: rough(amortized_proposal(m, hidden=(3,), key=KEY)),
        FilterSettings(particles=16, lookahead=True, ess_threshold=1.0),
    ),
    "resampled now and then": (lambda m: None, bootstrap(particles=16, ess_threshold=0.5)),
    "resampled otherwise": (lambda m: None, bootstrap(particles=16, ess_threshold=1.0, resampler="multinomial")),
}


@pytest.mark.parametrize("name", TWO_PARTS)
def test_the_gradient_in_two_parts_is_the_gradient(name, monkeypatch):
    """With the same draws, for every parameter, in logs of different lengths with hidden readings."""
    model, Y, _ = watched()
    guide, settings = TWO_PARTS[name]
    settings, batch = estimator_settings(settings, "fixed"), pad([episode(Y, dt=0.1), episode(Y[:2], dt=0.1)])

    def found(two: bool):
        monkeypatch.setattr(objective, "has_two_parts", lambda _: two)
        of = eqx.filter_value_and_grad(lambda parts: mean_log_evidence(*parts, settings, batch, KEY))
        value, slope = eqx.filter_jit(of)((model, guide(model)))
        return value, ravel_pytree(slope)[0]

    (value, slope), (want, expected) = found(two=True), found(two=False)
    np.testing.assert_allclose(value, want, rtol=1e-12)
    np.testing.assert_allclose(slope, expected, rtol=1e-9, atol=1e-12)
    assert np.abs(expected).max() > 0.1


@pytest.mark.parametrize("options", [{"engine": "drawn"}, {"engine": "gaussian"}, {"exact_modes": True}])
def test_other_engines_know_no_ancestors(options):
    """With fixed samples they filter as ever."""
    model = small_switching()
    beliefs = [
        filtered(model, ConditionedProposal(), FilterSettings(particles=8, gradient=name, **options), one, KEY)
        for one in [jax.tree.map(lambda x: x[0], logs(1))]
        for name in ("fixed", "pathwise")
    ]
    assert beliefs[0].log_evidence == beliefs[1].log_evidence


def test_steps_that_are_drawn_again_count_nothing_in_two_parts_either(monkeypatch):
    """Mode 1 can be in the first row alone: every later step is lost, and drawn again from the carrier."""
    model = switching(feasible=[[True, False], [True, False]])
    settings = estimator_settings(FilterSettings(particles=8, gate=no_support()), "fixed")
    batch = logs()
    redrawn = filtered(model, Wrong(), settings, jax.tree.map(lambda x: x[0], batch), KEY).record.redrawn
    assert redrawn[1:].any()
    assert not redrawn[0]
    slopes = []
    for two in (True, False):
        monkeypatch.setattr(objective, "has_two_parts", lambda _, two=two: two)
        of = eqx.filter_grad(lambda parts: mean_log_evidence(*parts, settings, batch, KEY))
        slopes.append(ravel_pytree(eqx.filter_jit(of)((model, Wrong())))[0])
    np.testing.assert_allclose(*slopes, rtol=1e-9, atol=1e-12)
    assert np.abs(slopes[1]).max() > 0.1


def test_the_guide_is_pulled_to_the_target_by_the_inclusive_divergence():
    """For one row the target Π is known, and so is the gradient of `E_Π[log q]`."""
    model = switching()
    proposal = rough(amortized_proposal(model, hidden=(6,), key=KEY), 0.2)
    batch = pad([episode([[0.7, -0.4]], dt=0.1)])
    settings = estimator_settings(FilterSettings(particles=1000, gate=Gate(fixed=0.5)), "fixed")
    vector, rebuild = flat(proposal)

    def expected_log_guide(v):
        start, seen = model.start(), Observation(batch.observations[0, 0], batch.observed[0, 0])
        after = jax.vmap(model.emission.condition, in_axes=(0, 0, None))(start.mean, start.scale, seen)
        target = jax.nn.softmax(start.log_mode + after.log_evidence)
        guide = rebuild(v).guide(model, start, after, jnp.zeros((), jnp.int32), jnp.zeros(2), jnp.zeros(0), seen)
        spread = 0.5 * ((after.scale / guide.scale) ** 2).sum(-1)
        return target @ (guide.log_mode + jax.vmap(log_density)(after.mean - guide.mean, guide.scale) - spread)

    def gradient(key):
        return 2 * jax.grad(lambda v: mean_log_evidence(model, rebuild(v), settings, batch, key))(vector)

    runs = repeated(gradient, 64)
    assert_mean_is(runs, np.asarray(jax.grad(expected_log_guide)(vector)))
    assert expected_log_guide(vector + 1e-2 * runs.mean(0)) > expected_log_guide(vector)


class Detachable(AmortizedProposal):
    """The same guide; once detached nothing learns from it."""

    detached: Bool[Array, ""]

    def guide(self, *given):
        full = super().guide(*given)
        return jax.tree.map(lambda x: jnp.where(self.detached, jax.lax.stop_gradient(x), x), full)


def test_with_fixed_samples_the_guide_does_not_pull_on_the_model():
    model = switching(feasible=[[True, True], [False, True]])
    network = rough(amortized_proposal(model, hidden=(6,), key=KEY)).network
    settings, batch = estimator_settings(FilterSettings(particles=32), "fixed"), logs()

    @eqx.filter_jit
    def gradients(proposal):
        return eqx.filter_grad(lambda parts: mean_log_evidence(*parts, settings, batch, KEY))((model, proposal))

    (pulled, guide), (free, nothing) = (gradients(Detachable(network, jnp.array(held))) for held in (False, True))
    for one, other in zip(learnt(pulled), learnt(free), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((pulled, guide)))
    assert np.abs(ravel_pytree(guide)[0]).max() > 1e-3
    assert (ravel_pytree(nothing)[0] == 0).all()


def test_auto_is_the_estimator_of_the_engine():
    merged, plain = FilterSettings(engine="merged"), FilterSettings(particles=8)
    guide = amortized_proposal(drifting(), hidden=(3,), key=KEY)
    assert estimator_of(drifting(), None, merged) == "merged"
    assert estimator_of(small_switching(), ConditionedProposal(), plain) == "gaussian"
    assert estimator_of(drifting(), guide, merged) == "fixed"  # what is merged has no guide to learn
    assert estimator_of(small_switching(), None, plain) == "fixed"


def test_an_estimator_is_a_choice_of_settings():
    base = FilterSettings(particles=7, history=True, pareto=True)
    exact, fixed = estimator_settings(base, "exact"), estimator_settings(base, "fixed")
    assert (exact.exact_modes, exact.gradient) == (True, "pathwise")
    assert (fixed.exact_modes, fixed.gradient) == (False, "fixed")
    for settings in (exact, fixed):
        assert settings.particles == 7
        assert not settings.history
        assert not settings.pareto
    merged = estimator_settings(base, "merged")
    assert (merged.engine, merged.history, merged.outliers) == ("merged", False, None)
    with pytest.raises(ValueError, match="estimator is 'reinforce'; expected 'merged', 'gaussian', 'exact'"):
        inspect.unwrap(estimator_settings)(base, "reinforce")  # past the type checker that only tests have
