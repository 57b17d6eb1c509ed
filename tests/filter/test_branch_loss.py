"""A guide that never proposes the true mode: without the gate the branch is lost for good, and nothing hides it.

A block sticks (mode 0) and then slips (mode 1). The guide knows sticking only.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import linear
from vhydro.certificate import Gate, Terms, adaptive, conservative, mixing, no_support
from vhydro.episodes import episode, pad
from vhydro.filter import FilterSettings, filtered
from vhydro.model import Branches, axis_emission, hybrid_model, linear_flow, mode_kernel
from vhydro.proposal import ConditionedProposal

SLIPS_AT, ROWS = 5, 10
STICK, SLIP = 0, 1


class Blind(ConditionedProposal):
    """The conditional of the model without its slip mode."""

    def guide(self, model, carrier, after, mode, z, action, seen) -> Branches:
        full = super().guide(model, carrier, after, mode, z, action, seen)
        return eqx.tree_at(lambda b: b.log_mode, full, full.log_mode.at[STICK].set(0.0).at[SLIP].set(-jnp.inf))

    def exact(self, model) -> bool:
        return False


def block(dtype=jnp.float64):
    return hybrid_model(
        mode_kernel(2, stay=0.9, dtype=dtype),
        linear_flow(np.ones((2, 1, 1)), [[0.0], [1.0]], dtype=dtype),
        axis_emission(1, (0,), noise=0.2, dtype=dtype),
        noise=0.1,
        start_mode=[0.9, 0.1],
        start_scale=0.3,
    )


def positions():
    """Where the block is seen: at rest, then moving on by one each step."""
    slipped = np.maximum(np.arange(ROWS) - SLIPS_AT + 1, 0)
    return (slipped + 0.1 * np.sin(np.arange(ROWS)))[:, None]


def exact(model):
    noise, eye = np.asarray(model.noise)[..., None] ** 2, np.ones((1, 1))
    start = model.start()
    return linear.switching_posterior(
        *(np.exp(start.log_mode), np.asarray(start.mean), np.asarray(start.scale)[..., None] ** 2),
        *(np.exp(jax.nn.log_softmax(model.kernel.logits)), np.ones((2, 1, 1)), np.array([[0.0], [1.0]]), noise),
        *(eye, np.zeros(1), np.asarray(model.emission.noise)[:, None] ** 2, positions()),
    )


@pytest.fixture(scope="module")
def outcome():
    """Forty runs of the blind guide under each gate, all with the same keys."""
    model = block()
    batch = jax.tree.map(lambda x: x[0], pad([episode(positions(), dt=0.1)]))
    keys = jax.random.split(jax.random.key(0), 40)

    @functools.cache
    def under(gate):
        settings = FilterSettings(engine="mixture", outliers=None, particles=256, gate=gate)
        run = jax.jit(lambda ks: jax.vmap(lambda k: filtered(model, Blind(), settings, batch, k))(ks))
        return jax.tree.map(np.asarray, run(keys))

    return under


def test_the_log_is_about_slipping():
    truth = exact(block()).filtered_mode[:, SLIP]
    assert (truth[1:SLIPS_AT] < 0.05).all()
    assert (truth[SLIPS_AT:] > 0.95).all()


def test_without_support_the_branch_is_lost_for_good(outcome):
    lost, truth = outcome(no_support()), exact(block())
    assert (lost.mode[..., SLIP] == 0).all()
    # Once the block slips every particle is many standard deviations behind, in every run.
    assert (lost.log_evidence < truth.log_evidence - 100).all()
    assert np.abs(lost.mean[:, -1, 0] - truth.filtered_mean[-1, 0]).min() > 0.5


def test_the_certificate_warns_before_the_loss_shows(outcome):
    lost, truth = outcome(no_support()), exact(block())
    early = slice(0, SLIPS_AT)
    # Nothing in the belief or the weights tells: the block sticks, as the guide says.
    np.testing.assert_allclose(lost.mean[:, early, 0].mean(0), truth.filtered_mean[early, 0], atol=0.1)
    assert (lost.record.step_ess[:, early] > 0.8).all()
    assert np.isposinf(lost.record.bound[:, early]).all()
    assert not lost.record.certified.any()


@pytest.mark.parametrize("gate", [adaptive(), conservative(0.5)], ids=["adaptive", "conservative"])
def test_the_gate_keeps_the_branch(outcome, gate):
    kept, truth = outcome(gate), exact(block())
    assert (kept.mode[:, SLIPS_AT:, SLIP] > 0.9).all()
    runs = len(kept.log_evidence)
    for got, expected in (
        (np.exp(kept.log_evidence - truth.log_evidence), 1.0),
        (kept.mean[:, -1, 0], truth.filtered_mean[-1, 0]),
    ):
        assert abs(got.mean() - expected) < 4 * got.std(ddof=1) / np.sqrt(runs)


def test_adaptive_mixing_certifies_what_it_can_and_says_where_it_cannot(outcome):
    """Sticking is certified with little of the carrier; where no λ suffices the step is marked."""
    record, gate = outcome(adaptive()).record, adaptive()
    assert record.certified[:, 1:SLIPS_AT].all()
    assert (record.bound[record.certified] <= gate.tolerance**2).all()
    assert (record.bound[~record.certified] > gate.tolerance**2).all()
    assert np.isfinite(record.bound).all()
    assert (record.mixing >= gate.floor).all()


def test_two_sided_is_guide_free_where_the_guide_misses_a_mode(outcome):
    two_sided, guide_free = outcome(Gate()), outcome(Gate(certificate="guide-free"))
    named = two_sided.record._replace(certificate=guide_free.record.certificate)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12),
        two_sided._replace(record=named),
        guide_free,
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_an_infinite_bound_is_not_lost_in_rounding(dtype):
    """A particle of no weight adds nothing; 0 · ∞ must not make the bound a NaN."""
    terms = Terms(*(jnp.array(x, dtype) for x in ([0.0, -60.0, -400.0], [1.0] * 3, [jnp.inf] * 3)))
    mixed = mixing(no_support(), terms, jnp.zeros(3, dtype))
    assert np.isposinf(mixed.bound)
    assert not mixed.certified
