"""A receding-horizon loop: filter, plan, prove, act; a certified plan stays the fallback until another is certified."""

from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from vhydro.planning.planners import Plan, Planner, dynamics_of, mppi
from vhydro.planning.proof import Proof, certify
from vhydro.planning.shift import Shift
from vhydro.planning.task import Task


class Decision(NamedTuple):
    """What to do now, which plan says so, and what is proven of that plan."""

    action: np.ndarray  # in the order of the plan's inputs, in the log's units
    plan: Plan
    step: int  # of the plan that the action is
    proof: Proof | None  # of this plan; None where none was asked for
    follows: Literal["plan", "certified", "fallback", "uncertified"]
    refused: str = ""  # why the plan of this moment was not certified


class _Held(NamedTuple):
    """A certified plan, and how many of its steps are over."""

    plan: Plan
    proof: Proof
    over: int


class Controller:
    """Plans anew after every observation. `start(observation)` once, then `step(observation)` for every sample.

    Observations are as for `Fitted.stream`: hidden channels are NaN or left out. With `delta`, every new plan has to be
    certified; where one is not, the last certified plan goes on, open loop, as its proof speaks of it. Where none is
    left, the new plan is followed and said to be uncertified. `beta` is shared by the first `replans` proofs.
    """

    def __init__(
        self,
        fitted: Any,
        task: Task,
        planner: Planner | None = None,
        *,
        delta: float | None = None,
        beta: float = 0.05,
        shift: Shift | None = None,
        certified_on: Any = None,
        replans: int = 50,
        particles: int = 2048,
        seed: int = 0,
        **options: Any,
    ):
        self._fitted, self._stream = fitted, fitted.stream(seed=seed, **options)
        self._dynamics = dynamics_of(fitted)
        self._judge = self._dynamics if certified_on is None else dynamics_of(certified_on)
        self._task, self._planner = task, planner or mppi()
        self._delta, self._beta, self._shift = delta, beta, shift
        self._replans, self._particles = replans, particles
        self._key = jax.random.key(seed)
        self._count, self._plan, self._held, self._last = 0, None, None, None
        task.limits(self._dynamics.inputs)

    @property
    def belief(self) -> Any:
        """What is believed now: the particles a plan starts from."""
        return self._fitted.present(self._stream)

    def start(self, observation: Any) -> Decision:
        """The first decision; forgets everything before it."""
        self._count, self._plan, self._held = 0, None, None
        self._stream.start(observation)
        return self._decided()

    def step(self, observation: Any) -> Decision:
        """The decision after the last action and the observation that followed it."""
        if self._last is None:
            raise ValueError("the loop has not started; call `start(first_observation)` before `step`.")
        self._stream.step(dict(zip(self._dynamics.inputs, self._last.action, strict=True)), observation)
        return self._decided()

    def _decided(self) -> Decision:
        plan_key, proof_key = jax.random.split(jax.random.fold_in(self._key, self._count))
        belief = self.belief
        plan = self._planner(self._dynamics, belief, self._task, key=plan_key, warm=self._plan)
        decision = Decision(plan.actions[0], plan, 0, None, "plan")
        if self._delta is not None:
            decision = self._certified(plan, belief, proof_key)
        self._count, self._plan, self._last = self._count + 1, plan, decision
        return decision

    def _certified(self, plan: Plan, belief: Any, key) -> Decision:
        assert self._delta is not None
        refused = f"the confidence is spent: {self._replans} plans were to be proven"
        proof = None
        if self._count < self._replans:
            asked = {"delta": self._delta, "beta": self._beta, "shift": self._shift, "replans": self._replans}
            proof = certify(self._judge, belief, plan, self._task, key=key, particles=self._particles, **asked)
            refused = proof.why
            if proof.certified:
                self._held = _Held(plan, proof, 1)
                return Decision(plan.actions[0], plan, 0, proof, "certified")
        if self._held is not None and self._held.over < len(self._held.plan.actions):
            held = self._held
            self._held = held._replace(over=held.over + 1)
            return Decision(held.plan.actions[held.over], held.plan, held.over, held.proof, "fallback", refused)
        return Decision(plan.actions[0], plan, 0, proof, "uncertified", refused)
