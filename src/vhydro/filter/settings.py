"""How a filter runs: particle count, gate, draws, resampling, and what it keeps."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from vhydro.certificate import Gate
from vhydro.emission import LinearEmission
from vhydro.filter.merged import is_separate
from vhydro.flow import as_linear
from vhydro.model import HybridModel, refuse_not_finite
from vhydro.particles import RESAMPLERS, Draw, strata
from vhydro.proposal import Proposal

PROGRAMS = ("auto", "scan", "kernel", "interpreted")
ENGINES = ("auto", "gaussian", "drawn", "mixture", "merged")


@dataclass(frozen=True)
class FilterSettings:
    """The filter's choices; hashable, so that each distinct one is compiled once.

    `engine`: how a step is done. "gaussian" keeps a Gaussian over z for every mode path and sums over the next modes;
    "drawn" sums over the next modes too and draws z; "mixture" draws mode and z from `Q_λ`, with a certificate from
    the gate. "auto" takes the first that can, unless something was set that only the mixture has (see `engine_of`).
    "merged" keeps one Gaussian for each mode: quick, without chance, and without any certificate (see `merged`).
    `particles`: how many, or "auto" for as many as `accuracy` needs (see `path`).
    `corrected`: whether linearised Gaussian branches are made unbiased (see `correction`); learning leaves them so.
    `outliers`: the surprise beyond which a reading is hidden as a sensor fault (see `faults`); None hides none.
    `resampler`: of the engines that draw z; Gaussian branches are reduced so that none is kept twice.
    `ess_threshold`: resample when ESS/N falls below it; 1 always, 0 never.
    `lookahead`: resample by the closed-form predictive likelihood of the next observation (auxiliary filter).
    `exact_modes`: every particle branches into all modes; their weights are summed, not sampled.
    `gradient`: differentiate along the path of z, or hold the samples fixed (see `objective`).
    `program`: "auto" filters each log by one kernel of a GPU where there is one and it can be (see `program`), by the
    scan otherwise or where "scan" is asked for; they differ in rounding, and `Belief.program` says what ran.
    `soft`: share of the weights in the resampling distribution, the rest uniform; below 1 gradients pass through.
    """

    particles: int | str = 256
    engine: str = "auto"  # or "gaussian", "drawn", "mixture", "merged"
    gate: Gate = field(default_factory=Gate)
    draws: str = "stratified"  # or "bernoulli"
    resampler: str = "systematic"  # or "stratified", "multinomial", "residual"
    ess_threshold: float = 0.5
    lookahead: bool = False
    exact_modes: bool = False
    soft: float = 1.0
    gradient: str = "pathwise"  # or "fixed"
    pareto: bool = False
    history: bool = False
    corrected: bool = True
    outliers: float | None = 6.0
    islands: int = 1  # independent runs whose average is reported, with a statement on the whole path
    accuracy: float = 0.1  # nats of the log evidence, for particles="auto"
    budget: int = 4096  # the most particles, all islands together, for particles="auto"
    program: str = "auto"  # or "scan", "kernel", "interpreted" (a kernel on any machine, slowly, to test it)

    def __post_init__(self):
        if self.particles != "auto" and (isinstance(self.particles, str) or self.particles < 1):
            raise ValueError(f"particles is {self.particles!r}; expected at least 1, or 'auto'.")
        if self.engine not in ENGINES:
            raise ValueError(f"engine is {self.engine!r}; expected one of {', '.join(ENGINES)}.")
        if self.program not in PROGRAMS:
            raise ValueError(f"program is {self.program!r}; expected one of {', '.join(PROGRAMS)}.")
        if self.islands < 1:
            raise ValueError(f"islands is {self.islands}; expected at least 1, or 4 and more for a path statement.")
        if not self.accuracy > 0:
            raise ValueError(f"accuracy is {self.accuracy}; expected a positive number of nats.")
        if self.outliers is not None and not self.outliers > 0:
            raise ValueError(f"outliers is {self.outliers}; expected a positive surprise, or None to hide nothing.")
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

    @property
    def count(self) -> int:
        """The number of particles, once it is one."""
        assert not isinstance(self.particles, str)
        return self.particles


def as_record(settings: FilterSettings) -> dict[str, Any]:
    """The settings as a file keeps them: what runs them is a matter of the machine that reads it."""
    return {name: value for name, value in asdict(settings).items() if name != "program"}


def bootstrap(**options) -> FilterSettings:
    """Settings of the plain bootstrap filter, to be used with `proposal=None`; nothing is certified."""
    gate = Gate(certificate="none", fixed=1.0)
    return FilterSettings(**{"gate": gate, "engine": "mixture", "outliers": None, **options})


LEAST_CORRECTED = 1e-3  # of the start's scale: process noise below which single precision cannot correct branches
LARGEST_LATENT = 8  # coordinates, beyond which a linearised branch costs more than it is worth
ONLY_MIXTURE = ("gate", "lookahead", "exact_modes", "draws", "soft", "pareto")


def engine_of(model: HybridModel, proposal: Proposal | None, settings: FilterSettings) -> FilterSettings:
    """The settings with their engine decided by what the model is.

    Gaussian branches need a linear emission and, where modes are not linear or their kernel reads z, few coordinates;
    with many, z is drawn. A guide has no part in either, for no mode is drawn before it is weighed. Whoever sets a
    gate, look-ahead, a way of drawing, or filters without a guide means the mixture. Branches are always reduced
    systematically, and not corrected where single precision cannot.
    """
    engine, plain = settings.engine, FilterSettings()
    if engine == "auto":
        asked = any(getattr(settings, name) != getattr(plain, name) for name in ONLY_MIXTURE)
        exact = model.flow.affine and model.kernel.drive is None
        small = exact or model.latent <= LARGEST_LATENT
        able = isinstance(model.emission, LinearEmission) and not asked and proposal is not None
        engine = ("gaussian" if small else "drawn") if able else "mixture"
    if engine != "gaussian":
        return replace(settings, engine=engine)
    corrected = settings.corrected and _can_be_corrected(model)
    return replace(settings, engine=engine, resampler="systematic", corrected=corrected)


def _can_be_corrected(model: HybridModel) -> bool:
    """Whether the noise is large enough for the correction of linearised branches, a ratio of densities.

    Smaller noise is lost to rounding in the branches' covariances, and the ratio to hundreds of nats.
    """
    if model.dtype == np.float64 or isinstance(model.log_noise, Tracer):
        return True
    with jax.ensure_compile_time_eval():  # a known model inside someone's jit is still known
        return bool((model.noise > LEAST_CORRECTED * model.start_scale).all())


def prepared(model: HybridModel, settings: FilterSettings, dt: Float[Array, ""]) -> HybridModel:
    """The model as its engine wants it: a flow that is linear for this dt as the matrices it is."""
    if settings.engine != "gaussian" or not model.flow.affine:
        return model
    return eqx.tree_at(lambda m: m.flow, model, as_linear(model.flow, dt))


def population(model: HybridModel, settings: FilterSettings) -> int:
    """How many weighted particles the state holds after a step."""
    return settings.count * (model.modes if settings.exact_modes or settings.engine == "gaussian" else 1)


def refuse_mismatch(model: HybridModel, proposal: Proposal | None, settings: FilterSettings) -> None:
    """Raises where these three cannot work together."""
    if proposal is not None:
        refuse_not_finite(proposal)
    linear = isinstance(model.emission, LinearEmission)
    if settings.engine == "merged":
        if not is_separate(model):
            raise ValueError(
                "engine='merged' needs a model whose coordinates move by themselves, each read by at most one channel, "
                "as contact models are; this one is not of that kind. Use engine='auto'."
            )
        return
    if settings.engine in ("gaussian", "drawn"):
        if not linear:
            raise ValueError(
                f"engine={settings.engine!r} needs a linear emission, this model has a "
                f"{type(model.emission).__name__}. Use engine='mixture', or 'auto'."
            )
        return
    if not linear and settings.gate.closed_form:
        raise ValueError(
            f"the {settings.gate.certificate} certificate needs a linear emission, this model has a "
            f"{type(model.emission).__name__}. Use Gate(certificate='pilot'), or 'frozen' with a ρ from validation."
        )
    if not linear and settings.lookahead:
        raise ValueError("look-ahead needs the closed-form predictive likelihood of a linear emission; turn it off.")
    if settings.exact_modes and settings.gate.certificate == "pilot":
        raise ValueError("the pilot certificate covers sampled modes only; use exact_modes=False with it.")
    if proposal is None and settings.gate.fixed != 1.0:
        raise ValueError("without a proposal every draw is the carrier's; use `bootstrap()` or conservative(1.0).")


def noise_layout(model: HybridModel, proposal: Proposal | None, settings: FilterSettings) -> tuple[Draw, ...]:
    """The randomness one step needs."""
    n, m, d = settings.count, model.modes, model.latent
    layout = [Draw("resample", RESAMPLERS[settings.resampler].uniforms(n), "uniform")]
    if settings.engine == "gaussian":
        return tuple(layout)
    if settings.engine == "drawn":
        return (*layout, Draw("z", (d, n), "antithetic"))
    branches = (m,) if settings.exact_modes else ()
    layout.append(Draw("z", (*branches, d, n), "normal"))
    if not settings.exact_modes:
        layout.append(Draw("mode", (n,), "uniform"))
    if proposal is not None:
        choices = population(model, settings)
        extra = 2 * strata(choices)[0] if settings.draws == "stratified" else 0
        layout.append(Draw("component", (choices + extra,), "uniform"))
        layout.append(Draw("redraw", (n,), "uniform"))
    if settings.gate.certificate == "pilot":
        k = settings.gate.pilots
        layout += [Draw("pilot_mode", (k, n), "uniform"), Draw("pilot_z", (k, d, n), "normal")]
    return tuple(layout)
