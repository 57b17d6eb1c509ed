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

# The pilot: the largest ratio it looks at, in how many halvings of a logarithm, and how its bets are placed.
LARGEST_RATIO, HALVINGS = 1e6, 12
AIMS, AIM_RANGE = 24, 100.0  # ratios tried as the one to refute, up to so many times the plain estimate
MOST_LOST = 0.7  # of the wealth, by a single draw


class Certificate(IntEnum):
    """Which bound stands behind a step."""

    NONE = 0
    GUIDE_FREE = 1
    TWO_SIDED = 2
    PILOT = 3
    FROZEN = 4
    SUMMED = 5  # nothing was drawn in the step


@dataclass(frozen=True)
class Gate:
    """How λ is chosen. `fixed` uses that λ as it is; otherwise the smallest λ that keeps the variance within τ².

    `tolerance` is τ, the relative standard deviation allowed to each step's normaliser. `floor` is the least λ
    ever used, `fallback` the λ of a step that cannot be certified. A pilot (for emissions without closed form)
    draws `pilots` samples per particle, the first of them to place its bets, and holds with probability `confidence`.
    `frozen_rho` is a population's ρ (see `frozen_mixing`), chosen on validation data and kept.
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
    parts = _parts(terms)
    bound = parts.log_least - jnp.log((1 - share) * parts.guide + share * parts.carrier)
    return jnp.where(share >= 1, terms.log_rho, bound)  # 1/ρ in units of 1/A may be too small for a number


class _Parts(NamedTuple):
    """The bound at any λ, without a logarithm and without underflow: exp(log_least) / ((1−λ) guide + λ carrier)."""

    log_least: Float[Array, "*shape"]  # the smaller of log A and log ρ
    guide: Float[Array, "*shape"]  # 1/A times that, and
    carrier: Float[Array, "*shape"]  # 1/ρ times that: the larger of the two is 1
    guide_short: Float[Array, "*shape"]  # 1 − 1/A
    carrier_short: Float[Array, "*shape"]  # 1 − 1/ρ

    def excess(self, share: float | Float[Array, "..."]) -> Float[Array, "..."]:
        """`(bound − 1) / exp(log_least)`, from `bound − 1 = bound (1 − 1/bound)`."""
        short = (1 - share) * self.guide_short + share * self.carrier_short
        return short / ((1 - share) * self.guide + share * self.carrier)


def _parts(terms: Terms) -> _Parts:
    log_guide, log_rho = terms.log_guide, terms.log_rho
    smaller = jnp.where(log_guide == log_rho, 1.0, jnp.exp(-jnp.abs(log_guide - log_rho)))
    guide, carrier = jnp.where(log_guide <= log_rho, 1.0, smaller), jnp.where(log_rho <= log_guide, 1.0, smaller)
    return _Parts(jnp.minimum(log_guide, log_rho), guide, carrier, -jnp.expm1(-log_guide), -jnp.expm1(-log_rho))


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
    log_omega = jnp.where(known, log_omega - jnp.where(known, log_total, 0.0), -jnp.log(float(log_omega.size)))

    def bound_of(share: float | Float[Array, "*shape"]) -> Float[Array, ""]:
        parts = _parts(_drawn(terms, share))
        bound = inflation * _weighted(_scale(parts, log_omega), parts.excess(share))
        return jnp.where(known & ~jnp.isnan(bound), bound, jnp.inf)

    if gate.fixed is not None:
        bound = bound_of(gate.fixed)
        return Mixing(jnp.full_like(log_omega, gate.fixed), bound, bound <= gate.tolerance**2)
    share = _allotted(gate, terms, log_omega, gate.tolerance**2 * (1 - MARGIN) / inflation)
    bound = bound_of(share)
    # A small λ that certifies nothing protects nothing: such a step is the fallback's as a whole.
    fallback = jnp.full_like(share, gate.fallback)
    share = jnp.where(bound <= gate.tolerance**2, share, fallback)
    bound = jnp.where(bound <= gate.tolerance**2, bound, bound_of(gate.fallback))
    return Mixing(share, bound, bound <= gate.tolerance**2)


def _drawn(terms: Terms, share: float | Float[Array, "*shape"]) -> Terms:
    """The terms, less a guide or a carrier that a fixed λ of 1 or 0 never draws from."""
    if isinstance(share, float | int) and share in (0, 1):
        unused = "log_rho" if share == 0 else "log_guide"
        return terms._replace(**{unused: jnp.full_like(terms.log_rho, jnp.inf)})
    return terms


def _scale(parts: _Parts, log_omega: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`ω² exp(log_least)`, put together as logs: ω² underflows where the bound overflows, their product does not.

    What does underflow is below `exp(−87)` next to a tolerance; what overflows is certified by nothing.
    """
    return jnp.where(log_omega > -jnp.inf, jnp.exp(2 * log_omega + parts.log_least), 0.0)


def _weighted(scale: Float[Array, "*shape"], excess: Float[Array, "*shape"]) -> Float[Array, ""]:
    return jnp.sum(jnp.where(scale == 0, 0.0, scale * excess))  # 0 · ∞ counts nothing


def _allotted(gate: Gate, terms: Terms, log_omega: Float[Array, "*shape"], allowance: float) -> Float[Array, "*shape"]:
    """The smallest shares whose excesses, weighted by ω², add up to the allowance.

    The same budget for all first. A particle that no λ brings within it gets its best λ, and what it takes beyond the
    budget is taken from the others.
    """
    square, parts = jnp.exp(2 * log_omega), _parts(terms)
    best = jnp.where(terms.log_rho < terms.log_guide, 1.0, gate.floor).astype(log_omega.dtype)
    within = allowance / square.sum() * (1 + MARGIN / 2)  # the margin: not those that rounding alone puts beyond
    excess = parts.excess(best)
    beyond = excess > within * jnp.exp(-parts.log_least)
    left = allowance - _weighted(jnp.where(beyond, _scale(parts, log_omega), 0.0), excess)
    others = jnp.where(beyond, 0.0, square).sum()
    tighter = 1 + jnp.maximum(left, 0.0) / jnp.where(others > 0, others, 1.0)
    return jnp.where(beyond, best, smallest_share(terms, tighter, gate))


def frozen_mixing(gate: Gate, log_weight: Float[Array, "*shape"], *, inflation: float = 1.0) -> Mixing:
    """One λ for all branches from a ρ that was fixed on validation data. Paper: "validation-frozen rule".

    Of a branch only its weight w is known here, not its evidence, so ρ is taken to be the population's:
    `Σ w² E_P[g²] / Σw² ≤ ρ (Σ w Z / Σw)²`, the mean of `g²` weighted by w² against the squared mean of g weighted by w.
    The relative variance is then at most `Σw²/(Σw)² ρ/λ − 1/n`, n branches having any weight, because
    `Σ (wZ)² ≥ (Σ wZ)²/n`. For equal weights that is the paper's `(ρ/λ − 1)/N`.
    """
    log_weight = jax.lax.stop_gradient(log_weight)
    assert gate.frozen_rho is not None  # a frozen gate has one
    weighted = log_weight > -jnp.inf
    log_unequal = log_sum(2 * log_weight.ravel()) - 2 * log_sum(log_weight.ravel())
    moment = jnp.where(weighted.any(), jnp.exp(log_unequal) * gate.frozen_rho, jnp.inf)
    return _one_share(gate, log_weight, moment, 1 / jnp.maximum(weighted.sum(), 1), inflation)


def _one_share(gate: Gate, log_weight: Float[Array, "*shape"], moment, least, inflation: float) -> Mixing:
    """The smallest λ, the same for all, that keeps `moment/λ − least` within the tolerance."""
    needed = moment / (gate.tolerance**2 * (1 - MARGIN) / inflation + least)
    share = jnp.where(needed <= 1, jnp.maximum(needed, gate.floor), gate.fallback)
    share = jnp.full_like(log_weight, share if gate.fixed is None else gate.fixed)
    bound = inflation * jnp.maximum(moment / share.ravel()[0] - least, 0.0)
    return Mixing(share, bound, bound <= gate.tolerance**2)


def pilot_mixing(
    gate: Gate,
    log_weight: Float[Array, "particles"],
    log_likelihood: Float[Array, "pilots particles"],
    log_peak: Float[Array, ""],
    *,
    inflation: float = 1.0,
) -> Mixing:
    """One λ for all particles from pilot draws of the carrier, with probability `gate.confidence`.

    The relative variance is at most `(ρ/λ − 1)/n` with `ρ = n Σ w² E_P[g²] / (Σ w E_P[g])²`; g is at most its peak
    `exp(log_peak)`. The pilot draws are used for nothing else.
    """
    log_weight = jax.lax.stop_gradient(log_weight)
    log_drawn = jax.lax.stop_gradient(log_likelihood) - log_peak + (log_weight - log_weight.max())
    drawn = jnp.where(jnp.isnan(log_drawn), 0.0, jnp.exp(jnp.minimum(log_drawn, 0.0)))
    n = log_weight.shape[0]
    rho = ratio_bound(drawn, 1 - gate.confidence)
    return _one_share(gate, log_weight, rho / n, 1 / n, inflation)


def ratio_bound(drawn: Float[Array, "rounds n"], risk: float) -> Float[Array, ""]:
    """An upper bound on `mean E[y²] / (mean E[y])²` that is too small with probability `risk` at the most.

    Every row holds independent draws y in [0, 1] of the same n laws, which may all differ. For r up to that ratio
    and any t, `H = 2ty − t² − y²/r` has a mean of at most `μ² − s/r ≤ 0`; a bettor who stakes b on H, on every draw of
    a row alike, expects `Π (1 + b E[H_i]) ≤ (1 + b mean E[H_i])ⁿ ≤ 1`. Stakes and t come from the rows before, so the
    wealth is a supermartingale and reaches `1/risk` with probability `risk` at the most (Ville): an r at which it does
    is refuted. H grows with r, hence so does the wealth, and the smallest r that is refuted is found by bisection.
    After Waudby-Smith & Ramdas (2024), for a ratio of moments and for draws that are not identical.
    """
    need = jnp.log(jnp.asarray(1 / risk, drawn.dtype)) * (1 + MARGIN)
    stake, t = _bets(drawn, need)
    y = drawn[1:]

    def refuted(r: Float[Array, ""]) -> Bool[Array, ""]:
        growth = jnp.log1p(stake[:, None] * (2 * t[:, None] * y - t[:, None] ** 2 - y**2 / r)).sum(1)
        allowed = stake * _worst(r, t) < 1  # nobody stakes more than there is; true for all larger r as well
        return jnp.cumsum(jnp.where(allowed, growth, -jnp.inf)).max() >= need

    def halve(_, ends):
        low, high = ends
        middle = (low + high) / 2
        hit = refuted(jnp.exp(middle))
        return jnp.where(hit, low, middle), jnp.where(hit, middle, high)

    top = jnp.log(jnp.asarray(LARGEST_RATIO, drawn.dtype))
    _, high = jax.lax.fori_loop(0, HALVINGS, halve, (jnp.zeros_like(top), top))
    return jnp.where(refuted(jnp.exp(top)), jnp.exp(high), jnp.inf)


class _Bets(NamedTuple):
    stake: Float[Array, "rounds"]
    centre: Float[Array, "rounds"]  # t, best at the mean of y


def _bets(drawn: Float[Array, "rounds n"], need: Float[Array, ""]) -> _Bets:
    """The bets on every row but the first: by the moments of the rows before it, those that refute the smallest r.

    Nothing here has to be true for the bound to hold.
    """
    rounds, n = drawn.shape
    seen = n * jnp.arange(1, rounds)[:, None]
    t, m2, m3, m4 = (jnp.cumsum((drawn**power).sum(1))[:-1, None] / seen for power in (1, 2, 3, 4))
    square = jnp.maximum(t**2, jnp.finfo(drawn.dtype).tiny)
    grid = jnp.linspace(0.0, 1.0, AIMS + 1, dtype=drawn.dtype)[1:] ** 2
    r = jnp.maximum(m2 / square, 1.0) * AIM_RANGE**grid
    mean = t**2 - m2 / r
    second = -3 * t**4 + 4 * t**2 * m2 + (2 * t**2 * m2 - 4 * t * m3) / r + m4 / r**2
    # Half a draw at the peak is added: one that was not seen is what can go wrong.
    second = (seen * jnp.maximum(second, mean**2) + 0.5 * (2 * t - t**2 - 1 / r) ** 2) / (seen + 0.5)
    stake = jnp.minimum(mean / second, MOST_LOST / _worst(r, t))
    growth = n * (rounds - 1) * (stake * mean - stake**2 * second / 2)  # of the log wealth, over all rows
    reached = growth >= need
    aim = jnp.where(reached.any(1), jnp.argmax(reached, 1), jnp.argmax(growth, 1))
    return _Bets(jnp.take_along_axis(stake, aim[:, None], 1)[:, 0], t[:, 0])


def _worst(r, t) -> Float[Array, "..."]:
    """How far below zero H can be: at y = 0 or at y = 1, because it is concave in y."""
    return jnp.maximum(jnp.maximum(t**2, 1 / r - 2 * t + t**2), jnp.finfo(t.dtype).tiny)
