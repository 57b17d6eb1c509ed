"""What learning maximises: the log evidence of the filter, with gradients that say what they drop.

Modes and mixture components are discrete; no pathwise gradient passes through either. Four estimators that do not
pretend otherwise:

`gaussian`  Gaussian branches, every mode summed: nothing is drawn within a step, and a branch that survives a reduction
            keeps the gradient of its weight. Linearised where a mode is not linear, and then not corrected: the
            objective is the linearised evidence. It has no guide, so it learns none.
`merged`    one Gaussian for each mode, branches merged: the cheapest, where coordinates move by themselves as in
            contact models. Nothing is drawn; the objective is the merged evidence. It has no guide either.
`exact`     z is drawn; every particle branches into all modes and their weights are summed, so nothing discrete is
            drawn but the mixture component, whose probability λ is a constant; z is differentiated along its path.
`fixed`     samples are held fixed. The model then follows Fisher's identity, and the guide is pulled to the weighted
            particles by the inclusive KL, which covers mass instead of deleting it. On an accelerator in two parts
            that need no recursion, with the same gradient: see `filter.fixed`.

The gradient through resampling is dropped (as FIVO does) where modes are drawn, unless `settings.soft < 1`; where they
are summed the reduction keeps it, because dropping it there is wrong at any number of particles. `auto` takes
`merged` where the filter is told to merge, `gaussian` where it would take Gaussian branches and there is no guide to
learn, and `fixed` otherwise: of 16 seeds on the puck `gaussian` ended .06 nats per reading above the other two in the
median; those are level where no guide is learned, and where one is `exact` ended .38 below `fixed`
(`benchmarks/estimators.py`).
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from vhydro.episodes import Batch
from vhydro.filter import FilterSettings, filtered
from vhydro.filter.fixed import fixed_log_evidence, has_two_parts
from vhydro.filter.settings import engine_of
from vhydro.model import HybridModel
from vhydro.proposal import Proposal

Estimator = str  # "auto", "merged", "gaussian", "exact" or "fixed"
SUMMED = ("merged", "gaussian")  # engines that draw nothing within a step


def estimator_of(model: HybridModel, proposal: Proposal | None, settings: FilterSettings) -> Estimator:
    """The estimator that `auto` stands for."""
    learned = bool(jax.tree.leaves(eqx.filter(proposal, eqx.is_inexact_array)))
    engine = engine_of(model, proposal, settings).engine
    return engine if engine in SUMMED and not learned else "fixed"


def estimator_settings(settings: FilterSettings, estimator: Estimator) -> FilterSettings:
    """The filter settings that give this estimator's gradient."""
    if estimator not in (*SUMMED, "exact", "fixed"):
        raise ValueError(f"estimator is {estimator!r}; expected 'merged', 'gaussian', 'exact' or 'fixed'.")
    plain = replace(settings, outliers=None, islands=1, history=False, pareto=False)
    plain = replace(plain, program="scan")  # a kernel cannot be differentiated
    if estimator in SUMMED:
        return replace(plain, engine=estimator, corrected=False, gradient="pathwise", exact_modes=False)
    exact = estimator == "exact"
    return replace(plain, engine="mixture", exact_modes=exact, gradient="pathwise" if exact else "fixed")


def episode_log_evidences(
    model: HybridModel, proposal: Proposal | None, settings: FilterSettings, batch: Batch, key: PRNGKeyArray
) -> Float[Array, "episodes"]:
    """The log evidence of every episode of a batch; a step that was drawn again counts nothing."""
    keys = jax.random.split(key, batch.valid.shape[0])
    if has_two_parts(settings):
        return jax.vmap(lambda b, k: fixed_log_evidence((model, proposal), settings, b, k))(batch, keys)

    def one(b: Batch, k) -> Float[Array, ""]:
        out = filtered(model, proposal, settings, b, k)
        if settings.engine in SUMMED:
            return out.log_evidence
        return jnp.where(out.record.redrawn, 0.0, out.record.log_normaliser).sum()

    return jax.vmap(one)(batch, keys)


def mean_log_evidence(
    model: HybridModel, proposal: Proposal | None, settings: FilterSettings, batch: Batch, key: PRNGKeyArray
) -> Float[Array, ""]:
    """The log evidence of a batch divided by its number of observed values, so that batches compare.

    Paper: the sequential IW/FIVO objective, Sec. 2.
    """
    totals = episode_log_evidences(model, proposal, settings, batch, key)
    return totals.sum() / jnp.maximum((batch.observed & batch.valid[..., None]).sum(), 1)
