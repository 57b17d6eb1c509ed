"""The evidence estimate is unbiased, whatever the guide: for every resampler, draw, gate and variant.

Two identities hold at any number of particles: `E[Ẑ] = Z` and `E[Ẑ · φ̂] = Z · E[φ | y]`, φ̂ the filter's belief at
the last row. Both are checked against the Kalman filter (one mode) or the sum over all mode paths (two).
"""

import dataclasses
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import linear

from vhydro.certificate import Gate
from vhydro.episodes import Batch, episode, pad
from vhydro.filter import FilterSettings, bootstrap, filter, filtered
from vhydro.model import HybridModel
from vhydro.proposal import Proposal, amortized_proposal, conditioned_proposal

REPLICATES = 4000
PARTICLES = 16
SHARES = (0.05, 0.5, 1.0)
GUIDES = ("amortized", "residual", "conditioned")


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

    def build(modes, dense):
        rng = np.random.default_rng(7)
        inputs = 2 - modes
        model = switching_model(modes, dense=dense, inputs=inputs, shift=[1.0, -1.0], scale=[2.0, 0.5])
        system, actions = system_of(model), rng.standard_normal((7, inputs))
        Y = linear.hide(linear.simulate(system, 7, rng)[2], 0.3, rng)
        Y[4] = np.nan
        batch = jax.tree.map(lambda x: x[0], pad([episode(Y, actions, dt=0.1)]))
        exact = two_mode_exact(system, Y) if modes == 2 else one_mode_exact(model, system, actions, Y)
        return Problem(model, Y, batch, *exact)

    built = {}
    return lambda modes, dense: built.setdefault((modes, dense), build(modes, dense))


@pytest.fixture(scope="module")
def guide(roughened):
    """A guide of this kind; only `conditioned` is right."""

    def build(kind, model) -> Proposal | None:
        a, b = jax.random.split(jax.random.key(3))
        if kind == "amortized":
            return roughened(amortized_proposal(model, hidden=(8,), key=a), 0.5, key=b)
        if kind == "residual":
            return roughened(conditioned_proposal(model, residual=(8,), key=a), 0.4, key=b)
        return conditioned_proposal(model) if kind == "conditioned" else None

    return build


def with_share(settings: FilterSettings, share) -> FilterSettings:
    """The settings with a traced λ, which `Gate` would refuse: one compiled program then serves every λ."""
    gate = dataclasses.replace(settings.gate, fixed=0.5)
    object.__setattr__(gate, "fixed", share)
    return dataclasses.replace(settings, gate=gate)


def replicates(problem: Problem, proposal, settings, keys, share=None):
    """`Ẑ/Z`, and `Ẑ/Z` times the believed mode and mean of the last row, one line for each key."""

    def one(key):
        chosen = settings if share is None else with_share(settings, share)
        out = filtered(problem.model, proposal, chosen, problem.batch, key)
        ratio = jnp.exp(out.log_evidence - problem.log_evidence)
        return jnp.concatenate([ratio[None], ratio * out.belief.mode[-1], ratio * out.belief.mean[-1]])

    return jax.vmap(one)(keys)


def assert_unbiased(samples, problem: Problem):
    expected = np.concatenate([[1.0], problem.mode, problem.mean])
    mean, error = samples.mean(0), samples.std(0, ddof=1) / np.sqrt(len(samples))
    assert error[0] < 0.02, "too noisy to show anything"
    np.testing.assert_array_less(np.abs(mean - expected), 4 * error + 1e-12)


# Every resampler with every draw and every λ; ESS rule, modes, emission and guide vary so that each pair of their
# values occurs. A threshold of 0 never resamples, so one resampler stands for all.
RESAMPLING = list(itertools.product(("systematic", "stratified", "multinomial", "residual"), ("stratified", "bernoulli")))
DESIGN = [
    (modes, (0.5, 1.0)[(i // 2 + i + modes) % 2], GUIDES[(i + modes) % 3], bool((i // 2 + modes) % 2), resampler, draws)
    for modes in (1, 2)
    for i, (resampler, draws) in enumerate(RESAMPLING)
] + [
    (1, 0.0, "residual", False, "systematic", "bernoulli"),
    (2, 0.0, "amortized", True, "systematic", "stratified"),
]


def test_the_design_covers_every_pair():
    """Every two choices that can be made together are made together somewhere."""
    for one, other in itertools.combinations(range(6), 2):
        seen = {(row[one], row[other]) for row in DESIGN if row[1] > 0}
        assert len(seen) == len({a for a, _ in seen}) * len({b for _, b in seen}), (one, other)


@pytest.mark.parametrize(("modes", "threshold", "kind", "dense", "resampler", "draws"), DESIGN)
def test_unbiased_for_every_resampler_draw_and_share(
    problem, guide, modes, threshold, kind, dense, resampler, draws
):
    this = problem(modes, dense)
    settings = FilterSettings(particles=PARTICLES, resampler=resampler, draws=draws, ess_threshold=threshold)
    proposal = guide(kind, this.model)
    keys = jax.random.split(jax.random.key(11), (len(SHARES), REPLICATES))
    run = jax.jit(jax.vmap(lambda share, k: replicates(this, proposal, settings, k, share)))
    for samples in np.asarray(run(jnp.array(SHARES), keys)):
        assert_unbiased(samples, this)


VARIANTS = {
    "adaptive": ("amortized", {}),
    "adaptive-exact-guide": ("conditioned", {"draws": "bernoulli"}),
    "guide-free": ("residual", {"gate": Gate(certificate="guide-free", tolerance=0.5)}),
    "frozen": ("amortized", {"gate": Gate(certificate="frozen", frozen_rho=2.0)}),
    "pilot": ("amortized", {"gate": Gate(certificate="pilot", tolerance=1.0, pilots=8)}),
    "look-ahead": ("amortized", {"lookahead": True}),
    "look-ahead-always": ("residual", {"lookahead": True, "ess_threshold": 1.0, "resampler": "multinomial"}),
    "exact-modes": ("amortized", {"exact_modes": True, "draws": "bernoulli"}),
    "exact-modes-exact-guide": ("conditioned", {"exact_modes": True, "resampler": "residual"}),
    "exact-modes-look-ahead": ("residual", {"exact_modes": True, "lookahead": True, "resampler": "stratified"}),
    "marginal": ("conditioned", {"marginal": True}),
    "marginal-look-ahead": ("conditioned", {"marginal": True, "lookahead": True, "gate": Gate(fixed=0.5)}),
    "marginal-exact-modes": ("conditioned", {"marginal": True, "exact_modes": True}),
    "marginal-exact-look-ahead": ("conditioned", {"marginal": True, "exact_modes": True, "lookahead": True}),
    "soft": ("amortized", {"soft": 0.7, "ess_threshold": 0.9}),
    "soft-look-ahead": ("residual", {"soft": 0.7, "lookahead": True, "ess_threshold": 0.9}),
    "soft-exact-modes": ("amortized", {"soft": 0.7, "exact_modes": True, "gate": Gate(fixed=0.2)}),
    "bootstrap": (None, {}),
    "bootstrap-look-ahead": (None, {"lookahead": True, "ess_threshold": 1.0}),
    "bootstrap-exact-modes": (None, {"exact_modes": True}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_unbiased_for_every_variant(problem, guide, name):
    kind, options = VARIANTS[name]
    this = problem(2, dense=len(name) % 2 == 0)
    settings = (FilterSettings if kind else bootstrap)(particles=PARTICLES, **options)
    run = jax.jit(lambda keys: replicates(this, guide(kind, this.model), settings, keys))
    assert_unbiased(np.asarray(run(jax.random.split(jax.random.key(12), REPLICATES))), this)


@pytest.mark.parametrize("options", [{}, {"exact_modes": True}, {"marginal": True}], ids=["sampled", "exact", "marginal"])
def test_many_particles_believe_the_exact_posterior(problem, system_of, options):
    """At every row, within 4 standard errors over runs; the bias, of order 1/N, is far below them."""
    this, runs = problem(2, dense=False), 16
    exact = linear.switching_posterior(*system_of(this.model), this.observations)
    settings = FilterSettings(particles=1024, **options)

    @jax.jit
    def beliefs(keys):
        one = lambda k: filtered(this.model, conditioned_proposal(this.model), settings, this.batch, k).belief  # noqa: E731
        return jax.vmap(one)(keys)

    believed = beliefs(jax.random.split(jax.random.key(13), runs))
    for got, expected in ((believed.mode, exact.filtered_mode), (believed.mean, exact.filtered_mean)):
        got = np.asarray(got)
        error = got.std(0, ddof=1) / np.sqrt(runs)
        assert error.max() < 0.02
        np.testing.assert_array_less(np.abs(got.mean(0) - expected), 4 * error + 1e-12)
