"""The evidence estimate is unbiased, whatever the guide: for every resampler, draw, gate and variant.

Two identities hold at any number of particles: `E[Ẑ] = Z` and `E[Ẑ · φ̂] = Z · E[φ | y]`, φ̂ the filter's belief at
the last row. Both are checked against the Kalman filter (one mode) or the sum over all mode paths (two).
"""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import linear
from vhydro.certificate import Gate
from vhydro.episodes import Batch, episode, pad
from vhydro.filter import FilterSettings, bootstrap, filtered
from vhydro.model import HybridModel, hybrid_model, linear_emission, linear_flow, mode_kernel
from vhydro.particles import RESAMPLERS
from vhydro.proposal import Proposal, amortized_proposal, conditioned_proposal, mode_proposal

STEPS = 5
REPLICATES = 2500
PARTICLES = 32
BLOCK = 250
SHARES = (0.05, 0.5, 1.0)
SCHEMES = ("systematic", "stratified", "multinomial", "residual")


class Problem(NamedTuple):
    """A model, one partly hidden log of it, and what is exactly true."""

    model: HybridModel
    observations: np.ndarray
    batch: Batch
    log_evidence: float
    mode: np.ndarray  # given the whole log, at its last row
    mean: np.ndarray


def one_mode_exact(model, system, actions, observations):
    """The Kalman filter with the inputs' push in its offsets."""
    pushed = system.f[0] + actions @ np.asarray(model.flow.port[0]).T
    exact = linear.kalman_filtered(
        system.F[0], pushed, *(system.Q[0], *system[7:]), system.start_mean[0], system.start_cov[0], observations
    )
    return exact.log_evidence, np.ones(1), exact.mean[-1]


def two_mode_exact(system, observations):
    exact = linear.switching_posterior(*system, observations)
    return exact.log_evidence, exact.filtered_mode[-1], exact.filtered_mean[-1]


@pytest.fixture(scope="module")
def problem(switching_model, system_of):
    """The problem with this many modes and this kind of emission; one mode has inputs."""

    @functools.cache
    def build(modes, dense):
        rng = np.random.default_rng(3)
        inputs = 2 - modes
        model = switching_model(modes, dense=dense, inputs=inputs, shift=[1.0, -1.0], scale=[2.0, 0.5])
        system, actions = system_of(model), rng.standard_normal((STEPS, inputs))
        Y = linear.hide(linear.simulate(system, STEPS, rng)[2], 0.3, rng)
        Y[3] = np.nan
        batch = jax.tree.map(lambda x: x[0], pad([episode(Y, actions, dt=0.1)]))
        exact = two_mode_exact(system, Y) if modes == 2 else one_mode_exact(model, system, actions, Y)
        return Problem(model, Y, batch, *exact)

    return build


@pytest.fixture(scope="module")
def guide(roughened):
    """A guide of this kind; only `conditioned` is right."""

    def build(kind, model) -> Proposal | None:
        a, b = jax.random.split(jax.random.key(3))
        if kind == "amortized":
            return roughened(amortized_proposal(model, hidden=(8,), key=a), 0.3, key=b)
        if kind == "residual":
            return roughened(conditioned_proposal(model, residual=(8,), key=a), 0.3, key=b)
        return conditioned_proposal(model) if kind == "conditioned" else None

    return build


def replicates(problem: Problem, run, *varied):
    """`Ẑ/Z`, and `Ẑ/Z` times the believed mode and mean of the last row: one line for each entry of `varied`."""

    def one(entry):
        out = run(problem.model, problem.batch, *entry)
        ratio = jnp.exp(out.log_evidence - problem.log_evidence)
        return jnp.concatenate([ratio[None], ratio * out.mode[-1], ratio * out.mean[-1]])

    # In blocks: XLA on a CPU can wait forever in two large batches of triangular solves at a time.
    return np.asarray(jax.jit(lambda entries: jax.lax.map(one, entries, batch_size=BLOCK))(varied))


def assert_unbiased(samples, problem: Problem, case):
    expected = np.concatenate([[1.0], problem.mode, problem.mean])
    mean, error = samples.mean(0), samples.std(0, ddof=1) / np.sqrt(len(samples))
    assert error[0] < 0.02, f"{case}: too noisy to show anything"
    np.testing.assert_array_less(np.abs(mean - expected), 4 * error + 1e-12, err_msg=str(case))


@pytest.fixture
def traced(monkeypatch):
    """Settings whose λ and resampler are traced numbers, so that one compiled program serves all their values."""
    schemes = [RESAMPLERS[name].ancestors for name in SCHEMES]
    current = {}

    def ancestors(weight, uniform, count):
        given = [uniform[0], uniform[:count], uniform, uniform]
        each = [lambda f=f, u=u: f(weight, u, count) for f, u in zip(schemes, given, strict=True)]
        return jax.lax.switch(current["scheme"], each)

    monkeypatch.setitem(RESAMPLERS, "multinomial", RESAMPLERS["multinomial"]._replace(ancestors=ancestors))

    def build(scheme, share, **options):
        current["scheme"] = scheme
        gate = Gate(fixed=0.5)
        object.__setattr__(gate, "fixed", share)  # `Gate` rightly refuses a number it cannot compare
        return FilterSettings(particles=PARTICLES, engine="mixture", gate=gate, resampler="multinomial", **options)

    return build


# Modes, mixture draw and ESS threshold (1 resamples always, 0 never), each with every resampler and every λ.
DESIGN = {
    (1, "stratified", 0.5): ("amortized", False),
    (1, "stratified", 1.0): ("conditioned", False),
    (1, "bernoulli", 0.5): ("residual", True),
    (1, "bernoulli", 1.0): ("amortized", True),
    (1, "bernoulli", 0.0): ("residual", False),
    (2, "stratified", 0.5): ("residual", False),
    (2, "stratified", 1.0): ("amortized", True),
    (2, "bernoulli", 0.5): ("amortized", False),
    (2, "bernoulli", 1.0): ("residual", False),
    (2, "stratified", 0.0): ("conditioned", True),
}


@pytest.mark.computes
@pytest.mark.parametrize(("modes", "draws", "threshold"), DESIGN)
def test_unbiased_for_every_resampler_draw_and_share(problem, guide, traced, modes, draws, threshold):
    kind, dense = DESIGN[modes, draws, threshold]
    this = problem(modes, dense)
    proposal = guide(kind, this.model)
    cells = list(itertools.product(range(len(SCHEMES) if threshold else 1), SHARES))

    def run(model, batch, key, scheme, share):
        return filtered(model, proposal, traced(scheme, share, draws=draws, ess_threshold=threshold), batch, key)

    scheme, share = (jnp.repeat(jnp.array(each), REPLICATES) for each in zip(*cells, strict=True))
    samples = replicates(this, run, jax.random.split(jax.random.key(11), len(share)), scheme, share)
    for cell, each in zip(cells, np.split(samples, len(cells)), strict=True):
        assert_unbiased(each, this, cell)


VARIANTS = {
    "adaptive": ("amortized", True, {}),
    "adaptive-exact-guide": ("conditioned", False, {"draws": "bernoulli"}),
    "guide-free": ("residual", False, {"gate": Gate(certificate="guide-free", tolerance=0.5)}),
    "frozen": ("amortized", False, {"gate": Gate(certificate="frozen", frozen_rho=2.0)}),
    "pilot": ("amortized", False, {"gate": Gate(certificate="pilot", tolerance=1.0, pilots=8)}),
    "look-ahead": ("amortized", False, {"lookahead": True}),
    "look-ahead-always": ("residual", True, {"lookahead": True, "ess_threshold": 1.0, "resampler": "multinomial"}),
    "exact-modes": ("amortized", False, {"exact_modes": True, "draws": "bernoulli"}),
    "exact-modes-exact-guide": ("conditioned", True, {"exact_modes": True, "resampler": "residual"}),
    "exact-modes-look-ahead": ("residual", False, {"exact_modes": True, "lookahead": True, "resampler": "stratified"}),
    "gaussian": ("conditioned", True, {"engine": "gaussian"}),
    "drawn": ("conditioned", True, {"engine": "drawn"}),
    "drawn-axes": ("conditioned", False, {"engine": "drawn", "resampler": "stratified"}),
    "gaussian-learned-guide": ("amortized", False, {"engine": "gaussian"}),
    "soft": ("amortized", False, {"soft": 0.7, "ess_threshold": 0.9}),
    "soft-look-ahead": ("conditioned", False, {"soft": 0.7, "lookahead": True, "ess_threshold": 0.9}),
    "soft-exact-modes": ("amortized", False, {"soft": 0.7, "exact_modes": True, "gate": Gate(fixed=0.2)}),
    "bootstrap": (None, True, {}),
    "bootstrap-look-ahead": (None, False, {"lookahead": True, "ess_threshold": 1.0}),
    "bootstrap-exact-modes": (None, False, {"exact_modes": True}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_unbiased_for_every_variant(problem, guide, name):
    kind, dense, options = VARIANTS[name]
    this = problem(2, dense)
    settings = (FilterSettings if kind else bootstrap)(**{"particles": PARTICLES, "engine": "mixture", **options})
    proposal = guide(kind, this.model)
    samples = replicates(
        this,
        lambda model, batch, key: filtered(model, proposal, settings, batch, key),
        jax.random.split(jax.random.key(12), REPLICATES),
    )
    assert_unbiased(samples, this, name)


FEW = {
    "gaussian": ("conditioned", {"engine": "gaussian"}),
    "drawn": ("conditioned", {"engine": "drawn"}),
    "no support": ("modes", {"gate": Gate(fixed=0.0)}),
    "adaptive": ("modes", {"gate": Gate(tolerance=0.6)}),
    "learned": ("amortized", {"engine": "mixture"}),
}


@pytest.mark.parametrize("name", FEW)
def test_few_particles_are_unbiased_where_the_kernel_forbids(switching_model, system_of, roughened, name):
    """Mode 1 is never left, mode 0 only for it: guides that propose what a particle cannot do would lose everything."""
    (kind, options), dtype = FEW[name], jnp.float64 if name == "adaptive" else jnp.float32
    model = switching_model(2, dense=False, dtype=dtype, feasible=[[True, True], [False, True]])
    system = system_of(model)
    Y = linear.simulate(system, STEPS, np.random.default_rng(4))[2]
    truth = linear.switching_posterior(*system, Y).log_evidence
    batch = jax.tree.map(lambda x: x[0], pad([episode(Y, dt=0.1)], dtype=model.dtype))
    key = jax.random.key(3)
    proposal = {
        "conditioned": lambda: conditioned_proposal(model),
        "modes": lambda: mode_proposal(model, hidden=(4,), key=key),
        "amortized": lambda: roughened(amortized_proposal(model, hidden=(8,), key=key), 0.3, key=key),
    }[kind]()
    for particles in (2, 4, 8):
        settings = FilterSettings(particles=particles, **options)
        one = lambda k, s=settings: filtered(model, proposal, s, batch, k).log_evidence  # noqa: E731
        keys = jax.random.split(jax.random.key(particles), 8000)
        ratio = np.exp(np.asarray(jax.jit(lambda k, f=one: jax.lax.map(f, k, batch_size=500))(keys), float) - truth)
        error = ratio.std() / np.sqrt(len(ratio))
        assert abs(ratio.mean() - 1) < 4 * error + 1e-4, (particles, ratio.mean(), error)


def test_one_gaussian_mode_is_the_kalman_filter(problem):
    """Nothing is left to draw, so that the evidence is exact in every run."""
    this = problem(1, True)
    settings = FilterSettings(particles=4)
    out = filtered(this.model, conditioned_proposal(this.model), settings, this.batch, jax.random.key(0))
    assert float(out.log_evidence) == pytest.approx(this.log_evidence, rel=1e-9)
    np.testing.assert_allclose(out.mean[-1], this.mean, rtol=1e-9)


def test_one_mode_summed_exactly_is_unbiased(problem, guide):
    this = problem(1, False)
    proposal = guide("amortized", this.model)
    settings = FilterSettings(particles=PARTICLES, exact_modes=True, lookahead=True)
    samples = replicates(
        this,
        lambda model, batch, key: filtered(model, proposal, settings, batch, key),
        jax.random.split(jax.random.key(14), REPLICATES),
    )
    assert_unbiased(samples, this, "one mode")


@pytest.mark.parametrize(
    "options",
    [{"engine": "mixture"}, {"exact_modes": True}, {"engine": "gaussian"}],
    ids=["sampled", "exact", "gaussian"],
)
def test_many_particles_believe_the_exact_posterior(problem, system_of, options):
    """At every row, within 4 standard errors over runs; the bias, of order 1/N, is far below them."""
    this, runs = problem(2, False), 16
    exact = linear.switching_posterior(*system_of(this.model), this.observations)
    settings = FilterSettings(**{"particles": 1024, **options})

    @jax.jit
    def beliefs(keys):
        one = lambda k: filtered(this.model, conditioned_proposal(this.model), settings, this.batch, k).moments  # noqa: E731
        return jax.vmap(one)(keys)

    believed = beliefs(jax.random.split(jax.random.key(13), runs))
    for got, expected in ((believed.mode, exact.filtered_mode), (believed.mean, exact.filtered_mean)):
        got = np.asarray(got)
        error = got.std(0, ddof=1) / np.sqrt(runs)
        assert error.max() < 0.02
        np.testing.assert_array_less(np.abs(got.mean(0) - expected), 4 * error + 1e-12)


def slow_turns():
    """A system that hardly forgets: two slow turns, little noise, one sticky switch; and a log of its own."""
    angles, offset, rng = (0.05, 0.6), np.array([[0.1, 0.0], [0.0, 0.2]]), np.random.default_rng(5)
    turns = np.array([[[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]] for a in angles]) * 0.97
    mode, z, log = 0, rng.normal(size=2), []
    for _ in range(300):
        mode = mode if rng.random() < 0.95 else 1 - mode
        z = turns[mode] @ z + offset[mode] + 0.1 * rng.normal(size=2)
        log.append([z.sum() + 0.3 * rng.normal()])
    emission = linear_emission([[1.0, 1.0]], noise=0.3, dtype=jnp.float64)
    flow = linear_flow(turns, offset, dtype=jnp.float64)
    model = hybrid_model(mode_kernel(2, stay=0.95, dtype=jnp.float64), flow, emission, noise=0.1)
    return model, jax.tree.map(lambda x: x[0], pad([episode(np.array(log), dt=1.0)]))


def test_over_a_long_log_summing_over_modes_never_hurts():
    """Unbiased over five rows can still be hopeless over hundreds: branches must not crowd each other out."""
    model, batch = slow_turns()
    keys = jax.random.split(jax.random.key(1), 24)
    guide = conditioned_proposal(model)

    def log_evidences(**options):
        settings = FilterSettings(particles=64, **options)
        run = jax.jit(jax.vmap(lambda k: filtered(model, guide, settings, batch, k).log_evidence))
        return np.asarray(run(keys))

    drawn = log_evidences(lookahead=True)
    for options in ({"exact_modes": True, "lookahead": True}, {"engine": "gaussian"}):
        summed = log_evidences(**options)
        error = np.hypot(drawn.std(ddof=1), summed.std(ddof=1)) / np.sqrt(len(keys))
        assert summed.mean() > drawn.mean() - 4 * error
