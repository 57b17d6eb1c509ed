"""How a filter runs: particle count, gate, draws, resampling, and what it keeps."""

from dataclasses import dataclass, field

from vhydro.certificate import Gate
from vhydro.emission import LinearEmission
from vhydro.flow import LinearFlow
from vhydro.model import HybridModel, refuse_not_finite
from vhydro.particles import RESAMPLERS, Draw, strata
from vhydro.proposal import ConditionedProposal, Proposal


@dataclass(frozen=True)
class FilterSettings:
    """The filter's choices; hashable, so that each distinct one is compiled once.

    `ess_threshold`: resample when ESS/N falls below it; 1 always, 0 never.
    `lookahead`: resample by the closed-form predictive likelihood of the next observation (auxiliary filter).
    `exact_modes`: every particle branches into all modes; their weights are summed, not sampled.
    `marginal`: linear flows only; each particle carries a Gaussian over z in place of a draw (Rao-Blackwell).
    `gradient`: differentiate along the path of z, or hold the samples fixed (see `objective`).
    `soft`: share of the weights in the resampling distribution, the rest uniform; below 1 gradients pass through.
    """

    particles: int = 256
    gate: Gate = field(default_factory=Gate)
    draws: str = "stratified"  # or "bernoulli"
    resampler: str = "systematic"  # or "stratified", "multinomial", "residual"
    ess_threshold: float = 0.5
    lookahead: bool = False
    exact_modes: bool = False
    marginal: bool = False
    soft: float = 1.0
    gradient: str = "pathwise"  # or "fixed"
    pareto: bool = False
    history: bool = False

    def __post_init__(self):
        if self.particles < 1:
            raise ValueError(f"particles is {self.particles}; expected at least 1.")
        if self.resampler not in RESAMPLERS:
            raise ValueError(f"resampler is {self.resampler!r}; expected one of {sorted(RESAMPLERS)}.")
        if self.draws not in ("stratified", "bernoulli"):
            raise ValueError(f"draws is {self.draws!r}; expected 'stratified' or 'bernoulli'.")
        if self.gradient not in ("pathwise", "fixed"):
            raise ValueError(f"gradient is {self.gradient!r}; expected 'pathwise' or 'fixed'.")
        if not 0 <= self.ess_threshold <= 1:
            raise ValueError(f"ess_threshold is {self.ess_threshold}; expected a share in [0, 1].")
        if not 0 < self.soft <= 1:
            raise ValueError(f"soft is {self.soft}; expected a share in (0, 1].")


def bootstrap(**options) -> FilterSettings:
    """Settings of the plain bootstrap filter, to be used with `proposal=None`; nothing is certified."""
    return FilterSettings(gate=Gate(certificate="none", fixed=1.0), **options)


def population(model: HybridModel, settings: FilterSettings) -> int:
    """How many weighted particles the state holds after a step."""
    return settings.particles * (model.modes if settings.exact_modes else 1)


def refuse_mismatch(model: HybridModel, proposal: Proposal | None, settings: FilterSettings) -> None:
    """Raises where these three cannot work together."""
    if proposal is not None:
        refuse_not_finite(proposal)
    linear = isinstance(model.emission, LinearEmission)
    if not linear and settings.gate.closed_form:
        raise ValueError(
            f"the {settings.gate.certificate} certificate needs a linear emission, this model has a network. "
            "Use Gate(certificate='pilot'), or 'frozen' with a ρ from validation."
        )
    if not linear and settings.lookahead:
        raise ValueError("look-ahead needs the closed-form predictive likelihood of a linear emission; turn it off.")
    if settings.marginal and not (linear and isinstance(model.flow, LinearFlow) and model.reset is None):
        raise ValueError("marginal=True needs a LinearFlow, a linear emission and no reset map; turn it off.")
    if settings.marginal and not (isinstance(proposal, ConditionedProposal) and proposal.residual is None):
        raise ValueError("marginal=True keeps exact Gaussians: use ConditionedProposal() without a residual.")
    if settings.marginal and not settings.gate.closed_form:
        raise ValueError(
            f"marginal=True has a closed-form certificate; this gate asks for {settings.gate.certificate}."
        )
    if settings.exact_modes and settings.gate.certificate == "pilot":
        raise ValueError("the pilot certificate covers sampled modes only; use exact_modes=False with it.")
    if settings.marginal and model.kernel.drive is not None:
        raise ValueError("marginal=True needs a mode kernel that does not read z; this one has a drive.")
    if proposal is None and settings.gate.fixed != 1.0:
        raise ValueError("without a proposal every draw is the carrier's; use `bootstrap()` or conservative(1.0).")


def noise_layout(model: HybridModel, proposal: Proposal | None, settings: FilterSettings) -> tuple[Draw, ...]:
    """The randomness one step needs."""
    n, m, d = settings.particles, model.modes, model.latent
    branches = (m,) if settings.exact_modes else ()
    layout = [Draw("resample", RESAMPLERS[settings.resampler].uniforms(n), "uniform")]
    if not settings.marginal:
        layout.append(Draw("z", (*branches, d, n), "normal"))
    if not settings.exact_modes:
        layout.append(Draw("mode", (n,), "uniform"))
    if proposal is not None and not (settings.marginal and settings.exact_modes):
        choices = population(model, settings)
        extra = 2 * strata(choices)[0] if settings.draws == "stratified" else 0
        layout.append(Draw("component", (choices + extra,), "uniform"))
        layout.append(Draw("redraw", (n,), "uniform"))
    if settings.gate.certificate == "pilot":
        k = settings.gate.pilots
        layout += [Draw("pilot_mode", (k, n), "uniform"), Draw("pilot_z", (k, d, n), "normal")]
    return tuple(layout)
