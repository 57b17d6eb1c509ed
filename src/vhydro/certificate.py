"""The support gate: how much of the carrier to mix into the guide, and what that certifies, before sampling.

`Q_λ = (1−λ) Q + λ P`. With `Z = E_P[g]`, `ρ = E_P[g²]/Z²` and `A = E_Q[(dΠ/dQ)²]`, the second moment
`1 + χ²(Π‖Q_λ)` of the normalised weights is at most

    guide-free   ρ / λ                      Paper: Thm 1, Eq. (3)
    two-sided    1 / ((1−λ)/A + λ/ρ)        never looser; equal when A = ∞, where Q misses part of Π

A population of particles with ancestor weights `w_i` has `ω_i ∝ w_i Z_i`, and the step's normaliser has relative
variance at most `Σ ω_i² (bound_i − 1)`. Every particle within `1 + τ²/Σω²` therefore certifies the whole step; where
some cannot be, the others leave them room. Differs: the paper's budget `1 + N τ²` is the case of equal ω.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from vhydro.gaussian import Conditioned, log_second_moment_ratio
from vhydro.model import Branches
from vhydro.small import log_sum

# The rule aims this far inside the budget, so that rounding cannot push a certified step over it.
MARGIN = 1e-3


class Certificate(IntEnum):
    """Which bound stands behind a step."""

    NONE = 0
    GUIDE_FREE = 1
    TWO_SIDED = 2
    PILOT = 3
    FROZEN = 4


@dataclass(frozen=True)
class Gate:
    """How λ is chosen. `fixed` uses that λ as it is; otherwise the smallest λ that keeps the variance within τ².

    `tolerance` is τ, the relative standard deviation allowed to each step's normaliser. `floor` is the least λ
    ever used, `fallback` the λ of a step that cannot be certified. A pilot (for emissions without closed form)
    draws `pilots` samples per particle and holds with probability `confidence`. `frozen_rho` is a ρ chosen on
    validation data and kept.
    """

    certificate: str = "two-sided"  # or "guide-free", "pilot", "frozen", "none"
    tolerance: float = 0.25
    floor: float = 0.01
    fallback: float = 0.5
    fixed: float | None = None
    pilots: int = 4
    confidence: float = 0.95
    frozen_rho: float | None = None

    def __post_init__(self):
        for name in ("floor", "fallback"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise ValueError(f"λ {name} is {value}; expected a share in (0, 1].")
        if self.fixed is not None and not 0 <= self.fixed <= 1:
            raise ValueError(f"fixed λ is {self.fixed}; expected (0, 1], or `no_support()` to study λ = 0.")
        if not self.tolerance > 0:
            raise ValueError(f"tolerance is {self.tolerance}; expected a positive relative standard deviation.")
        if self.pilots < 2 and self.certificate == "pilot":
            raise ValueError(f"pilots is {self.pilots}; a confidence bound needs at least 2 per particle.")
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence is {self.confidence}; expected strictly between 0 and 1.")
        if self.certificate == "frozen" and (self.frozen_rho is None or self.frozen_rho < 1):
            raise ValueError(f"frozen_rho is {self.frozen_rho}; a frozen certificate needs a number of at least 1.")
        if self.certificate not in ("two-sided", "guide-free", "pilot", "frozen", "none"):
            raise ValueError(
                f"certificate is {self.certificate!r}; expected two-sided, guide-free, pilot, frozen or none."
            )
        if self.certificate == "none" and self.fixed is None:
            raise ValueError("without a certificate λ cannot be chosen; pass fixed=… as well.")

    @property
    def closed_form(self) -> bool:
        return self.certificate in ("two-sided", "guide-free")


def adaptive(**options) -> Gate:
    """The rule: the smallest λ that certifies the tolerance."""
    return Gate(**options)


def conservative(mixing: float = 0.5, **options) -> Gate:
    """A large fixed λ."""
    if not 0 < mixing <= 1:
        raise ValueError(f"λ is {mixing}; expected a share in (0, 1].")
    return Gate(fixed=mixing, **options)


def no_support(**options) -> Gate:
    """λ = 0: the guide alone. For ablations; a branch that the guide misses is lost for good."""
    return Gate(fixed=0.0, **options)


class Terms(NamedTuple):
    """What is known of each particle (or of each of its modes) before sampling."""

    log_evidence: Float[Array, "*shape"]  # log Z
    log_rho: Float[Array, "*shape"]
    log_guide: Float[Array, "*shape"]  # log A, infinite where the guide misses part of the target


class Mixing(NamedTuple):
    """λ for every particle and what it certifies for the step."""

    share: Float[Array, "*shape"]
    bound: Float[Array, ""]  # on the relative variance of the step's normaliser, given the ancestors
    certified: Bool[Array, ""]


def _log_rho(log_square: Float[Array, "*shape"], log_evidence: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`log E[g²]/Z²`; infinite where the evidence is beyond all numbers, because nothing is known there."""
    known = log_evidence > -jnp.inf
    return jnp.where(known, jnp.maximum(log_square - 2 * jnp.where(known, log_evidence, 0.0), 0.0), jnp.inf)


def branch_terms(after: Conditioned, guide: Branches | None, *, exact: bool = False) -> Terms:
    """The terms of every mode on its own, for filters that sum over modes; arguments as in `particle_terms`."""
    log_rho = _log_rho(after.log_square, after.log_evidence)
    if exact or guide is None:
        return Terms(after.log_evidence, log_rho, jnp.full_like(log_rho, 0.0 if exact else jnp.inf))
    ratio = jax.vmap(log_second_moment_ratio)(after.mean, after.scale, guide.mean, guide.scale)
    return Terms(after.log_evidence, log_rho, jnp.maximum(ratio, 0.0))


def particle_terms(carrier: Branches, after: Conditioned, guide: Branches | None, *, exact: bool = False) -> Terms:
    """The terms of each particle, over all its modes jointly; without a guide only the carrier counts.

    `exact` says that the guide is the conditional itself, for which A = 1.
    """
    joint = carrier.log_mode + after.log_evidence
    log_z = log_sum(joint)
    log_rho = _log_rho(log_sum(carrier.log_mode + after.log_square), log_z)
    if exact or guide is None:
        return Terms(log_z, log_rho, jnp.full_like(log_z, 0.0 if exact else jnp.inf))
    ratio = jax.vmap(log_second_moment_ratio)(after.mean, after.scale, guide.mean, guide.scale)
    target = jnp.where(jnp.isfinite(joint), joint - log_z, -jnp.inf)
    return Terms(log_z, log_rho, mode_moment(target, guide.log_mode, ratio))


def mode_moment(
    log_target: Float[Array, "modes *particles"],
    log_guide: Float[Array, "modes *particles"],
    log_ratio: Float[Array, "modes *particles"] | float = 0.0,
) -> Float[Array, "*particles"]:
    """`log Σ_s γ_s² / κ_s · ratio_s`: a mode without target mass costs nothing, one the guide misses is infinite."""
    possible = log_target > -jnp.inf
    terms = 2 * jnp.where(possible, log_target, 0.0) - log_guide + log_ratio
    return jnp.maximum(log_sum(jnp.where(possible, terms, -jnp.inf)), 0.0)


def log_bound(terms: Terms, share: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The log of the two-sided bound on `1 + χ²(Π‖Q_λ)`; guide-free where `log_guide` is infinite."""
    certain = (1 - share) * jnp.exp(-terms.log_guide) + share * jnp.exp(-terms.log_rho)
    return -jnp.log(certain)


def smallest_share(terms: Terms, budget: Float[Array, "..."], gate: Gate) -> Float[Array, "*shape"]:
    """The smallest λ in [floor, 1] whose bound is within the budget, or the fallback where there is none.

    Paper: Thm 1, Eq. (5). Differs: solved for the two-sided bound, which is linear in λ after inversion.
    """
    guide, carrier, need = jnp.exp(-terms.log_guide), jnp.exp(-terms.log_rho), 1 / budget
    slope = carrier - guide
    share = (need - guide) / jnp.where(slope > 0, slope, 1.0)
    at_floor = guide + gate.floor * slope >= need
    possible = (slope > 0) & (share <= 1)
    return jnp.where(at_floor, gate.floor, jnp.where(possible, jnp.clip(share, gate.floor, 1.0), gate.fallback))


def mixing(gate: Gate, terms: Terms, log_weight: Float[Array, "*shape"], *, inflation: float = 1.0) -> Mixing:
    """λ of every particle of a population with these (normalised or not) log ancestor weights.

    `inflation` is how much more the step may vary than with independent draws.
    """
    # Looked at, never differentiated: λ is a choice made before sampling, not a path for gradients.
    terms, log_weight = jax.lax.stop_gradient((terms, log_weight))
    if gate.certificate == "guide-free":
        terms = terms._replace(log_guide=jnp.full_like(terms.log_guide, jnp.inf))
    log_omega = log_weight + terms.log_evidence
    log_omega = jnp.where(jnp.isnan(log_omega), -jnp.inf, log_omega)
    log_total = log_sum(log_omega.ravel())
    known = jnp.isfinite(log_total)  # otherwise nothing is likely, nothing is preferred and nothing is certified
    omega = jnp.where(known, jnp.exp(log_omega - jnp.where(known, log_total, 0.0)), 1 / log_omega.size)
    square = omega**2

    def bound_of(share: Float[Array, "*shape"]) -> Float[Array, ""]:
        bound = inflation * _weighted(square, _excess(terms, share))
        return jnp.where(known, bound, jnp.inf)

    if gate.fixed is not None:
        share = jnp.full_like(omega, gate.fixed)
        bound = bound_of(share)
        return Mixing(share, bound, bound <= gate.tolerance**2)
    share = _allotted(gate, terms, square, gate.tolerance**2 * (1 - MARGIN) / inflation)
    bound = bound_of(share)
    # A small λ that certifies nothing protects nothing: such a step is the fallback's as a whole.
    fallback = jnp.full_like(share, gate.fallback)
    share = jnp.where(bound <= gate.tolerance**2, share, fallback)
    bound = jnp.where(bound <= gate.tolerance**2, bound, bound_of(fallback))
    return Mixing(share, bound, bound <= gate.tolerance**2)


def _excess(terms: Terms, share: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    excess = jnp.maximum(jnp.expm1(log_bound(terms, share)), 0.0)
    return jnp.where(jnp.isnan(excess), jnp.inf, excess)


def _weighted(square: Float[Array, "*shape"], excess: Float[Array, "*shape"]) -> Float[Array, ""]:
    return jnp.sum(jnp.where(square > 0, square * excess, 0.0))  # 0 · ∞ counts nothing


def _allotted(gate: Gate, terms: Terms, square: Float[Array, "*shape"], allowance: float) -> Float[Array, "*shape"]:
    """The smallest shares whose excesses, weighted by ω², add up to the allowance.

    The same budget for all first. A particle that no λ brings within it gets its best λ, and what it takes beyond the
    budget is taken from the others.
    """
    budget = 1 + allowance / square.sum()
    best = jnp.where(terms.log_rho < terms.log_guide, 1.0, gate.floor).astype(square.dtype)
    excess = _excess(terms, best)
    beyond = excess > (budget - 1) * (1 + MARGIN / 2)  # not those that rounding alone puts there
    left = allowance - _weighted(jnp.where(beyond, square, 0.0), excess)
    others = jnp.where(beyond, 0.0, square).sum()
    tighter = 1 + jnp.maximum(left, 0.0) / jnp.where(others > 0, others, 1.0)
    return jnp.where(beyond, best, smallest_share(terms, tighter, gate))


def frozen_mixing(gate: Gate, log_weight: Float[Array, "*shape"], *, inflation: float = 1.0) -> Mixing:
    """λ from a ρ that was fixed on validation data; as true as that ρ is. Paper: "validation-frozen rule"."""
    zero = jnp.zeros_like(log_weight)
    terms = Terms(zero, zero + jnp.log(jnp.asarray(gate.frozen_rho, zero.dtype)), zero + jnp.inf)
    return mixing(gate, terms, zero, inflation=inflation)


def pilot_mixing(
    gate: Gate,
    log_weight: Float[Array, "particles"],
    log_likelihood: Float[Array, "pilots particles"],
    log_peak: Float[Array, ""],
    *,
    inflation: float = 1.0,
) -> Mixing:
    """One λ for all particles from pilot draws of the carrier, with probability `gate.confidence`.

    Empirical Bernstein bounds (Maurer & Pontil 2009, Thm 11; independent, not identical draws in [0, 1]) below on
    `E_P[g]` and above on `E_P[g²]`; g is at most its peak `exp(log_peak)`. The pilot draws are used for nothing else.
    """
    count, n = log_likelihood.size, log_weight.shape[0]
    weight = n * jnp.exp(log_weight - log_sum(log_weight))
    first = weight / weight.max() * jnp.exp(log_likelihood - log_peak)
    second = (weight / weight.max()) ** 2 * jnp.exp(2 * (log_likelihood - log_peak))
    log_term = jnp.log(jnp.asarray(4 / (1 - gate.confidence), log_weight.dtype))

    def margin(x):
        return jnp.sqrt(2 * x.var(ddof=1) * log_term / count) + 7 * log_term / (3 * (count - 1))

    low = jnp.maximum(first.mean() - margin(first), 0.0)
    high = second.mean() + margin(second)
    # relative variance ≤ N·E[w²g²] / (λ (E wg)²) / N − 1/N; the weight's scale cancels in the ratio
    rho = high / low**2
    free = rho / (1 + n * gate.tolerance**2 / inflation)
    share = jnp.where(free <= 1, jnp.maximum(free, gate.floor), gate.fallback) if gate.fixed is None else gate.fixed
    bound = inflation * (rho / share - 1) / n
    return Mixing(jnp.full_like(log_weight, 1.0) * share, bound, bound <= gate.tolerance**2 * (1 + 1e-4))
