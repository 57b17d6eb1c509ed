"""Proofs: a bound on the chance that one plan fails, from fresh particles, or the reason why there is none."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from vhydro.planning.dynamics import Dynamics
from vhydro.planning.planners import Plan, dynamics_of
from vhydro.planning.rollout import Outcome, refuse_actions, refuse_faults, rollout
from vhydro.planning.shift import Conformal, Refusal, Shift, pinsker, upper_mean, upper_share, variation
from vhydro.planning.task import Task

STATEMENTS = 3  # that share the confidence: failures, ε and cost
OPEN_LOOP = "the plan run open loop from a start that is distributed as the belief"
SAME_PLANNER = "an episode of the recorded planner, all of it: how often it promises at most this risk and fails"


@dataclass(frozen=True)
class Proof:
    """`P(failure) ≤ bound` at confidence 1 − beta, if `certified`; otherwise `why` says what is in the way."""

    certified: bool
    bound: float  # risk + margin + shift
    risk: float  # share of fresh particles that fail
    margin: float  # what their number leaves open
    shift: float  # ε: what the model's distance from the truth may add
    delta: float
    beta: float  # of this proof, after the split over replans
    how: str  # "path law", "parameters", "conformal", or "none"
    speaks_of: str
    assumes: tuple[str, ...] = ()
    why: str = ""
    pinsker: float | None = None  # ε by Pinsker's inequality, estimated
    cost_bound: float | None = None  # on the expected cost, under the truth
    particles: int = 0

    def __str__(self) -> str:
        parts = f"{self.risk:.3f} + {self.margin:.3f} + {self.shift:.3f}, by {self.how}"
        lines = [f"{'certified' if self.certified else 'NOT certified'}: chance of failure at most {self.bound:.3f}"]
        lines += [f"  at confidence {1 - self.beta:.4g} ({parts})", *([f"  because {self.why}"] if self.why else [])]
        return "\n".join([*lines, f"  of {self.speaks_of}", *(f"  if {a}" for a in self.assumes)])


def certify(
    model: Any,
    belief: Any,
    plan: Plan,
    task: Task,
    *,
    delta: float,
    beta: float,
    key: PRNGKeyArray,
    shift: Shift | None = None,
    particles: int = 2048,
    replans: int = 1,
) -> Proof:
    """Whether a plan fails with a chance of at most `delta`, at confidence 1 − beta over all `replans` of an episode.

    The one plan is rolled out again with fresh particles: the share that fails, a Clopper–Pearson margin, and ε by
    `shift`. Paper: Thm 4, Eq. (chance bound), for one plan. Differs: β is split, ε has a confidence of its own.
    """
    for name, value in (("delta", delta), ("beta", beta)):
        if not 0 < value < 1:
            raise ValueError(f"{name} is {value}; expected a chance between 0 and 1.")
    if particles < 2 or replans < 1:
        raise ValueError(f"particles is {particles} and replans is {replans}; expected at least 2 and 1.")
    dynamics = dynamics_of(model)
    _refuse_other(plan, dynamics)
    refuse_actions(np.asarray(plan.actions), task, dynamics.inputs)
    start, share = dynamics.population(belief), beta / replans
    made = (dynamics, start, plan, task, delta, share, key)
    if isinstance(shift, Conformal):
        return _by_record(shift, plan, delta, share)
    return _by_particles(shift, particles, *made)


def _refuse_other(plan: Plan, dynamics: Dynamics) -> None:
    if plan.inputs and plan.inputs != dynamics.inputs:
        raise ValueError(
            f"the plan is of the inputs {', '.join(plan.inputs)} and the model of {', '.join(dynamics.inputs)}; "
            "expected a plan for this model."
        )
    if plan.dt and abs(plan.dt - dynamics.seconds) > 1e-6 * dynamics.seconds:
        raise ValueError(f"the plan has steps of {plan.dt:g} s and the model of {dynamics.seconds:g} s; plan again.")


def _by_record(shift: Conformal, plan: Plan, delta: float, beta: float) -> Proof:
    fields: dict[str, Any] = {"delta": delta, "beta": beta, "speaks_of": SAME_PLANNER}
    try:
        share, bound = shift.bound(plan.risk, plan.planner, beta)
    except Refusal as reason:
        return Proof(False, 1.0, 1.0, 0.0, 0.0, how="none", why=str(reason), **fields)
    count = len(shift.record.failed)
    why = "" if bound <= delta else f"{count} recorded episodes bound it by {bound:.3f}, above delta = {delta:g}"
    margin = bound - share
    return Proof(bound <= delta, bound, share, margin, 0.0, how=shift.how, assumes=shift.assumes, why=why, **fields)


def _by_particles(shift, count: int, dynamics, start, plan: Plan, task: Task, delta, beta, key) -> Proof:
    onward, spread = jax.random.split(key)
    refused, truths = "", None
    try:
        if shift is None:
            raise Refusal("nothing says how far the model is from the truth; give `shift`: known, fitted or conformal")
        truths = shift.truths(dynamics, spread, count)
    except Refusal as reason:
        refused = str(reason)
    out = rollout(dynamics, task, start, np.asarray(plan.actions), onward, count, truths=truths)
    refuse_faults(jax.tree.map(np.asarray, out.faults), task)
    share = beta / STATEMENTS
    failures = int(np.asarray(out.failed).sum())
    risk = failures / count
    margin = upper_share(failures, count, share) - risk
    cost = np.asarray(out.cost, np.float64) / task.bound
    epsilon, beside = 1.0, None
    if out.gap is not None:
        epsilon, beside = upper_mean(variation(out.gap), share), pinsker(out.gap)
        forbidden = float(np.asarray(out.gap.forbidden).max())
        if forbidden > 0:
            refused = f"the model rules out changes of mode that the truth makes, of a chance of up to {forbidden:.2g}"
    bound = min(1.0, risk + margin + epsilon)
    certified = not refused and bound <= delta
    why = refused or ("" if certified else _why(out, risk, margin, epsilon, delta, task))
    return Proof(
        certified, bound, risk, margin, epsilon, delta, beta,
        how="none" if shift is None or refused else shift.how,
        speaks_of=OPEN_LOOP, assumes=() if shift is None else shift.assumes, why=why, pinsker=beside,
        cost_bound=task.bound * min(1.0, upper_mean(cost, share) + epsilon), particles=count,
    )  # fmt: skip


def _why(out: Outcome, risk: float, margin: float, epsilon: float, delta: float, task: Task) -> str:
    largest = max((("failures of the model's own", risk), ("the margin", margin), ("ε", epsilon)), key=lambda x: x[1])
    lost = float(np.asarray(out.lost).mean())
    left = f"; {lost:.1%} of the paths left the numbers" if lost else ""
    region = f"; leaving the region of {', '.join(n for n, _ in task.region)} counts as failure" if task.region else ""
    whole = f"{risk + margin + epsilon:.3f} is above delta = {delta:g}"
    return f"{whole}, mostly by {largest[0]} ({largest[1]:.3f}){left}{region}"
