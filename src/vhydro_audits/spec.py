"""What each audit measures, said once for runner, summary and page: families, tasks, methods, levels and metrics."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

ABSENT = "–"
SPACE = "\u00a0"  # keeps a number and its unit on one line
SIGNIFICANT = 3


class Metric(NamedTuple):
    """A number of every cell, its good end (1: large, −1: small, 0: neither) and how it is written."""

    key: str
    title: str
    good: int = 1
    places: int | None = 3  # decimals; None: three significant digits
    meaning: str = ""
    target: float | None = None  # the value to be near, where neither end is the good one
    scale: Literal["share", "log", "bent", "zero"] = "share"  # of its axis; bent: straight near 0, else logarithmic

    @property
    def ranked(self) -> bool:
        """Whether one value can be better than another."""
        return bool(self.good) or self.target is not None

    def merit(self, value: float | int) -> float:
        """The value on a scale where larger is better."""
        return self.good * value if self.target is None else -abs(value - self.target)

    def text(self, value: float | int | None) -> str:
        """The value as it is written; a dash where there is none."""
        if value is None or self.places is None:
            return written(value)
        return f"{value:.{self.places}f}".replace("-", "−")


class Method(NamedTuple):
    """A method, whose it is, and how it is drawn everywhere."""

    key: str
    kind: Literal["ours", "variant", "paper", "ablation", "peer", "ceiling"]  # the paper's are as we run them
    colour: str
    meaning: str = ""
    title: str = ""
    symbol: str = "circle"
    dash: str = "solid"
    width: float = 1.6

    @property
    def name(self) -> str:
        return self.title or self.key


@dataclass(frozen=True)
class Spec:
    """One audit."""

    name: str
    families: Mapping[str, tuple[str, ...]]  # the tasks of each
    methods: tuple[Method, ...]
    metrics: tuple[Metric, ...]  # that are compared …
    further: tuple[Metric, ...]  # … and that say more
    place: tuple[str, ...]  # what a row of the summary is told apart by, beside its task
    levels: Mapping[str, tuple[float, ...]]
    known: Mapping[str, tuple[str, ...]]  # what the other parts of a place may be
    also: tuple[str, ...] = ()  # that a place has and a row says too
    extra: tuple[str, ...] = ()  # numbers of a cell that only one table reads
    spread: Literal["sem", "sd"] = "sem"
    seeds: int = 20  # of the audit in full
    paper_where: Mapping[str, Any] = field(default_factory=dict)  # rows that may stand beside the paper's
    paper_tasks: Mapping[str, str] = field(default_factory=dict)  # the paper's names of our tasks …
    paper_families: Mapping[str, str] = field(default_factory=dict)  # … and of our families
    paper_methods: Mapping[str, str] = field(default_factory=dict)  # … and of our methods, where its is another
    pictured: tuple[dict[str, Any], ...] = ()  # places whose cells are kept and drawn one by one

    @property
    def ours(self) -> str:
        return next(m.key for m in self.methods if m.kind == "ours")

    @property
    def rivals(self) -> list[str]:
        """Every method that is not ours in some variant."""
        return [m.key for m in self.methods if m.kind not in ("ours", "variant", "ceiling")]

    @property
    def numbers(self) -> tuple[str, ...]:
        """The keys of all metrics."""
        return (*(m.key for m in (*self.metrics, *self.further)), *self.extra)

    def choices(self, name: str) -> tuple:
        """What a part of a place may be, in the order in which it is shown."""
        fixed = {"method": tuple(m.key for m in self.methods), "family": tuple(self.families)}
        return {**fixed, **self.known, **self.levels}[name]

    def metric(self, key: str) -> Metric:
        return next(m for m in (*self.metrics, *self.further) if m.key == key)


def written(value: float | int | None, digits: int = SIGNIFICANT) -> str:
    """A number to so many significant digits; a dash where there is none."""
    if value is None:
        return ABSENT
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e4:
        places = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
        return f"{value:.{places}f}".replace("-", "−")
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}·{power_of_ten(int(power))}".replace("-", "−")


def power_of_ten(exponent: int) -> str:
    """`10⁻³`, and 1 for the power 0."""
    return f"10{str(exponent).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}" if exponent else "1"


def percent(share: float | int) -> str:
    """`90 %`, on one line."""
    return f"{100 * share:g}{SPACE}%"


# --- laws -----------------------------------------------------------------------------------------------------------

_SINDY = "PySINDy on the same positions, modes and candidate forces; smoothing and threshold are chosen on held-out "
_SINDY += "episodes, by a rule that was settled in its favour on seeds 0 and 1"
LAWS = Spec(
    name="laws",
    families={
        "four": ("puck", "block", "pendulum", "pushing"),
        "new": ("double-pendulum", "carts", "cart-pole", "spring-pendulum", "bowl", "sled", "ball", "arm", "train"),
    },
    methods=(
        Method("full", "ours", "#2563eb", "ours: weak form, then multiple shooting on positions", width=3.0),
        Method("weak", "variant", "#7fb2ff", "the weak form alone, where ours starts", "weak form"),
        Method("lasso", "paper", "#0d9488", "the paper’s estimator: a Lasso on derivatives"),
        Method("no-mode", "ablation", "#d9480f", "one law for all modes"),
        Method("no-sparsity", "ablation", "#f2a33a", "every candidate term kept, otherwise as full"),
        Method("no-ph", "ablation", "#9d174d", "accelerations without an energy; it has no terms to compare", "no-pH"),
        Method("sindy-stlsq", "peer", "#6b7280", _SINDY, "SINDy STLSQ"),
        Method("sindy-ensemble", "peer", "#6b7280", _SINDY, "SINDy ensemble", "square"),
        Method("sindy-weak", "peer", "#6b7280", _SINDY, "SINDy weak", "diamond"),
        Method("sindy-stlsq-no-modes", "peer", "#a3abb8", _SINDY, "SINDy STLSQ, no modes", dash="dot"),
        Method("sindy-ensemble-no-modes", "peer", "#a3abb8", _SINDY, "SINDy ensemble, no modes", "square", "dot"),
        Method("sindy-weak-no-modes", "peer", "#a3abb8", _SINDY, "SINDy weak, no modes", "diamond", "dot"),
    ),
    metrics=(
        Metric("support_f1", "support F1", 1, 3,
               "how well the chosen terms are the true ones, over all modes: the harmonic mean of precision and "
               "recall. A term counts where its force is at least 1 % of its mode’s"),
        Metric("coefficient_error", "coefficient error", -1, None,
               "distance between estimated and true coefficients of all candidate terms, relative to the true ones",
               scale="log"),
        Metric("vector_field_nrmse", "vector-field NRMSE", -1, None,
               "root mean square error of the law’s accelerations on new states, relative to their spread",
               scale="log"),
        Metric("physical_constant_error", "constants error", -1, None,
               "mean relative error of mass, stiffness, friction, damping and the places of surfaces; a constant that "
               "was not found counts as wholly wrong", scale="log"),
    ),
    further=(
        Metric("support_precision", "support precision", 1, 3, "share of the chosen terms that are true ones"),
        Metric("confident_wrong", "confident and wrong", -1, 3, "share of logs whose law carries no mark though a term "
               "is wrong or its accelerations are off by more than a tenth of their spread", scale="zero"),
    ),
    place=("source", "noise", "missing", "flips", "method"),
    levels={"noise": (0.001, 0.01, 0.05), "missing": (0.0, 0.2), "flips": (0.0, 0.02)},
    known={"source": ("given", "filtered")},
    also=("family", "condition"),
    spread="sd",
    paper_families={"four": "known-equations"},
    pictured=(
        {"source": "given", "noise": 0.001, "missing": 0.0, "flips": 0.0},
        {"source": "given", "noise": 0.05, "missing": 0.2, "flips": 0.02},
        {"source": "filtered", "noise": 0.01, "missing": 0.0, "flips": 0.0},
    ),
)  # fmt: skip

# --- modes ----------------------------------------------------------------------------------------------------------

_SAWYER = ("tower", "laundry", "search", "bridge")
_PAPER_SAWYER = {"tower": "SawyerTowerCreation", "laundry": "SawyerLaundryLayout", "search": "SawyerObjectSearch"}
_PAPER_SAWYER |= {"bridge": "BridgeDataOcclusion"}
_NEW = ("StackPyramid", "PlaceSphere", "PushPair", "RegraspCube", "ToppleTower", "KnockBall")
_MANISKILL = ("PushCube", "PokeCube", "PullCubeTool", "PegInsertionSide")
MODES = Spec(
    name="modes",
    families={"maniskill": _MANISKILL, "unseen": ("PickCube", "StackCube", "PullCube"), "new": _NEW, "sawyer": _SAWYER},
    methods=(
        Method("auto", "ours", "#2563eb", "ours, as a user has it: it chooses the number of modes"),
        Method("full", "variant", "#7fb2ff", "ours, told the number of modes"),
        Method("particles", "variant", "#0d9488", "ours by 64 particles, a learned guide and the paper’s adaptive λ"),
        Method("no-support", "ablation", "#d9480f", "the same guide with λ = 0"),
        Method("no-mode", "ablation", "#9d174d", "one mode; heights still tell what stands on something"),
        Method("hmm", "peer", "#6b7280", "hidden Markov model on the paper’s kinematic features"),
        Method("ar-hmm", "peer", "#f2a33a", "autoregressive hidden Markov model on our channels"),
        Method("slds", "peer", "#8b5cf6", "switching linear dynamical system on our channels"),
        Method("hdp-hmm", "peer", "#0e7490", "sticky HDP-AR-HMM on our channels, which chooses its number of modes"),
        Method("changes", "peer", "#84a23b", "change points on our channels, told how many each test log has"),
        Method("simulator", "ceiling", "#1c1f23", "the simulator’s own contacts, held against the proxy labels"),
    ),
    metrics=(
        Metric("mode_f1", "mode F1", 1, 3, "mean over labels of the F1 with the mode matched to it, one to one"),
        Metric("ari", "ARI", 1, 3, "adjusted Rand index over rows: 1 for equal partitions, about 0 for unrelated ones"),
        Metric("change_point_f1", "change points ±2", 1, 3, "F1 of found against true changes, at most 2 rows apart"),
        Metric("purity", "purity", 1, 3, "share of rows with the most frequent label of their found segment; many "
               "short segments are pure whatever they are"),
    ),
    further=(
        Metric("change_point_f1_5", "change points ±5", 1, 3, "the same, at most 5 rows apart"),
        Metric("over", "over", 0, 2, "extra found segments for each true one"),
        Metric("under", "under", 0, 2, "extra true segments for each found one"),
        Metric("modes", "modes", 0, 1, "how many different modes the test logs use"),
    ),
    place=("family", "condition", "labels", "method", "reading"),
    levels={},
    known={
        "labels": ("configuration", "proxy", "regime"),
        "condition": (
            "clean", "half hidden", "noise 1 mm", "noise 2 mm", "noise 5 mm", "10 Hz", "5 logs", "noisy policy",
        ),
        "reading": ("fixed", "validation"),
    },
    extra=("raw_mode_f1", "raw_ari", "raw_change_point_f1", "raw_purity"),
    paper_where={"labels": "proxy", "condition": "clean", "reading": "fixed"},
    paper_families={"sawyer": "sawyer-bridge"},
    paper_methods={"auto": "full", "full": ""},
    paper_tasks={**{task: f"{task}-v1" for task in _MANISKILL}, **_PAPER_SAWYER},
)  # fmt: skip

# --- support --------------------------------------------------------------------------------------------------------

_CONTACT = ("PickCube", "PokeCube", "PullCube", "PushCube")
_HIDDEN = "the same over hidden readings alone"
SUPPORT = Spec(
    name="support",
    families={"contact": _CONTACT, "sawyer-bridge": _SAWYER},
    methods=(
        Method("two-sided+conformal", "ours", "#2563eb", "two-sided with its intervals calibrated on "
               "validation logs, and its NLL is that of the density they imply, or of the filter’s own where that was "
               "likelier on further validation logs", width=2.6),
        Method("two-sided", "variant", "#7fb2ff", "ours: the two-sided certificate, and the exact conditional as guide",
               symbol="diamond", width=5.0),
        Method("adaptive", "paper", "#0d9488", "the paper’s rule: the least λ that its certificate allows, with a "
               "learned guide"),
        Method("conservative", "paper", "#f2a33a", "a large fixed λ, with the learned guide"),
        Method("no-support", "ablation", "#d9480f", "λ = 0: the learned guide alone"),
        Method("smooth", "ablation", "#9d174d", "one mode and λ = 0, with the learned guide"),
    ),
    metrics=(
        Metric("nll", "NLL", -1, 2, "negative log-likelihood of the true reading under the belief, per standardised "
               "channel", scale="bent"),
        Metric("cov90", "Cov90", 0, 3, "share of true readings inside the central 90 % interval; 0.9 is right", 0.9),
        Metric("ece", "ECE", -1, 3, "mean distance between nominal and empirical coverage over 5 %, 10 %, … 95 %",
               scale="zero"),
        Metric("ess", "ESS/N", 1, 3, "effective share of the particles in a step’s own weights, (Σw)² / (N Σw²)",
               scale="zero"),
        Metric("relative_weight_variance", "relative weight variance", -1, None, "N Σw² / (Σw)² − 1 of a step",
               scale="log"),
        Metric("empirical_relative_variance", "empirical relative variance", -1, None, "the same divided by N",
               scale="log"),
    ),
    further=(
        Metric("nll_hidden", "NLL, hidden readings", -1, 2, _HIDDEN, scale="bent"),
        Metric("cov90_hidden", "Cov90, hidden readings", 0, 3, _HIDDEN, 0.9),
        Metric("ece_hidden", "ECE, hidden readings", -1, 3, _HIDDEN, scale="zero"),
        Metric("lost", "hidden readings lost", -1, None, "share of hidden readings further than 3 sensor noises from "
               "every particle and further than 5 standard deviations from the belief’s mean", scale="zero"),
        Metric("mixing", "λ spent", 0, 3, "mean share of the model’s own prediction in the proposal"),
        Metric("certified", "certified steps", 0, 3, "share of steps whose bound was within the tolerance"),
        Metric("pareto_bad", "steps with k̂ above 0.7", 0, 3, "k̂ is the Pareto shape of the largest weights; above 0.7 "
               "their mean cannot be trusted", scale="zero"),
        Metric("realised_variance", "realised variance", -1, None, "relative variance of a step’s normaliser over 32 "
               "repeated draws from the same ancestors", scale="log"),
        Metric("pareto_k", "k̂", 0), Metric("redrawn", "redrawn steps", 0), Metric("bounded", "bounded steps", 0),
        Metric("bound", "bound", 0, None), Metric("bound_realised", "realised where bounded", 0, None),
        Metric("bound_realised_se", "its standard error", 0, None),
    ),
    place=("family", "regime", "occlusion", "method"),
    levels={"occlusion": (0.0, 0.25, 0.5, 0.75, 0.9)},
    known={"regime": ("matched", "shift", "lit", "plain")},
    paper_tasks={**{task: f"{task}-v1" for task in _CONTACT}, **_PAPER_SAWYER},
)  # fmt: skip
SPECS = {spec.name: spec for spec in (LAWS, MODES, SUPPORT)}
