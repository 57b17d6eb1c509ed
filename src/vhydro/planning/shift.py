"""How far a model may be from the truth over a plan: ε, the total variation between their path laws, three ways.

`known(truth)` compares with a law that is known, `fitted(…)` with laws drawn from the spread of fitted parameters,
`conformal(record)` asks earlier episodes of the same planner instead of any law.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.stats import beta as beta_law

from vhydro.laws.law import Law
from vhydro.planning.dynamics import Dynamics, Gap
from vhydro.planning.law_dynamics import LawDynamics
from vhydro.planning.planners import Planner
from vhydro.small import precise


class Refusal(Exception):
    """Why nothing can be proven."""


class Truths(NamedTuple):
    """What a model is compared with: one law, or one for every particle."""

    dynamics: Any
    batched: bool


@dataclass(frozen=True)
class Known:
    """The truth is this law; see `known`."""

    truth: Any
    how = "path law"
    assumes = ("the truth is the law that was given, by the same discretisation and with the same process noise",)

    def truths(self, model: Dynamics, key: PRNGKeyArray, count: int) -> Truths:  # noqa: ARG002
        truth = self.truth
        if isinstance(truth, Law) and isinstance(model, LawDynamics):
            truth = model.of(truth)
        model.refuse_unlike(truth)
        return Truths(truth, False)


@dataclass(frozen=True)
class Fitted:
    """The truth is a law of the model's form, as uncertain as its fit says; see `fitted`."""

    source: Law | Callable[[PRNGKeyArray], Dynamics]
    how = "parameters"
    assumes = (
        "the truth has the form of the fitted law and the process noise that was given",
        "its parameters are distributed as the fit's errors say: the chance is also over them",
    )

    def truths(self, model: Dynamics, key: PRNGKeyArray, count: int) -> Truths:
        if not isinstance(self.source, Law):
            model.refuse_unlike(self.source(key))
            return Truths(jax.vmap(self.source)(jax.random.split(key, count)), True)
        if not isinstance(model, LawDynamics):
            raise Refusal("the plan is on a model without the law's parameters; certify it on `law_dynamics(law, …)`")
        return Truths(eqx.tree_at(lambda d: d.theta, model, _parameters(self.source, model, key, count)), True)


@precise
def _parameters(law: Law, model: LawDynamics, key: PRNGKeyArray, count: int) -> Float[Array, "entries particles"]:
    if law.problems:
        mode, reason = law.problems[0]
        raise Refusal(f"the law of mode {law.modes[mode]!r} is not identified ({reason}), so its errors say nothing")
    use = np.flatnonzero(law.support & law.form.free)
    spread = law.covariance[np.ix_(use, use)]
    if not np.isfinite(spread).all():
        raise Refusal(f"the estimator {law.estimator!r} gives no standard errors; find the law by shooting")
    if not np.allclose(law.theta, np.asarray(model.theta), rtol=1e-5, atol=1e-8):
        raise Refusal("the law is not the one that the plan was made on")
    values, vectors = np.linalg.eigh(spread)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    off = jnp.asarray(root, model.dtype) @ jax.random.normal(key, (len(use), count), model.dtype)
    return jnp.broadcast_to(model.theta[:, None], (len(law.theta), count)).at[use].add(off)


class Record(NamedTuple):
    """Earlier episodes of a planner on a task, each with the risk it told when it decided and what became of it."""

    risk: np.ndarray  # (episodes,): `Plan.risk` or any other score, at one moment of every episode
    failed: np.ndarray  # (episodes,)
    planner: Planner


@dataclass(frozen=True)
class Conformal:
    """What earlier episodes say; see `conformal`."""

    record: Record
    how = "conformal"
    assumes = ("the next episode and the recorded ones are exchangeable: same planner, task, model and starts",)

    def bound(self, risk: float, planner: Planner | None, beta: float) -> tuple[float, float]:
        """The share of recorded episodes that promised as little risk and failed, and a bound on their chance."""
        scores, failed = np.asarray(self.record.risk, float), np.asarray(self.record.failed, bool)
        if scores.ndim != 1 or scores.shape != failed.shape or not len(scores) or not np.isfinite(scores).all():
            shapes = f"risks of shape {scores.shape} and outcomes of shape {failed.shape}"
            raise Refusal(f"the record has {shapes}; expected one finite risk and one outcome for every episode")
        if planner is None or planner != self.record.planner:
            raise Refusal("the record is of another planner; run held-out episodes with this one")
        count = int((failed & (scores <= risk)).sum())
        return count / len(scores), upper_share(count, len(scores), beta)


Shift = Known | Fitted | Conformal


def known(truth: Any) -> Known:
    """ε against a law that is known: a `Law`, or `hybrid_dynamics(…)` of the true model.

    `TV = E_model[(1 − dP/dQ)₊]`, a mean in [0, 1] by Monte Carlo, bounded by empirical Bernstein. Paper: Thm 4, with
    the exact TV in place of Pinsker's `√(KL/2)`.
    """
    return Known(truth)


def fitted(source: Law | Callable[[PRNGKeyArray], Any]) -> Fitted:
    """ε from the spread of fitted parameters: of a law with its covariance, or `draw(key)` of models like the plan's.

    Every particle is held against a law of its own, so that the mean is over the spread too. With n transitions, p
    parameters and a horizon H, `KL ≈ p H / 2n` whatever the noise is.
    """
    return Fitted(source)


def conformal(record: Record) -> Conformal:
    """No ε: a bound on how often this planner says at most this risk and fails, from held-out episodes of its own.

    Risk-controlling prediction sets (Bates et al. 2021) with Clopper–Pearson bounds. The unit is the episode.
    """
    return Conformal(record)


def upper_share(count: int, total: int, beta: float) -> float:
    """The Clopper–Pearson upper bound on a chance, at confidence 1 − beta."""
    return 1.0 if count >= total else float(beta_law.ppf(1 - beta, count + 1, total - count))


def upper_mean(values: np.ndarray, beta: float) -> float:
    """An upper bound on the mean of independent values in [0, 1], at confidence 1 − beta (Maurer & Pontil 2009)."""
    n, log = len(values), np.log(2 / beta)
    if n < 2:
        return 1.0
    spread = np.sqrt(2 * values.var(ddof=1) * log / n)
    return float(min(1.0, values.mean() + spread + 7 * log / (3 * (n - 1))))


def variation(gap: Gap) -> np.ndarray:
    """What every path adds to the total variation: `(1 − dP/dQ)₊`, and 1 where there is no density.

    Modes in which one law is singular to the other are split off: such a path counts whole.
    """
    ratio = np.asarray(gap.log_ratio, np.float64)
    part = 1 - np.exp(np.minimum(np.nan_to_num(ratio, nan=-np.inf), 0.0))
    return np.where(np.asarray(gap.singular), 1.0, part)


def pinsker(gap: Gap) -> float:
    """`√(KL / 2)` up to the first difference of modes, plus the chance of one; an estimate, to stand beside ε."""
    divergence = float(np.mean(np.asarray(gap.divergence, np.float64)))
    whole = np.sqrt(max(divergence, 0.0) / 2) + float(np.mean(np.asarray(gap.apart)))
    return float(min(1.0, whole)) if np.isfinite(whole) else 1.0
