"""Planning in ManiSkill, closed loop: one cost for each task, the planner's episodes, and what comparisons play."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from vhydro.learning.commanded import regime_of
from vhydro.planning import Plan, Planner, Task, cem, rollout
from vhydro.planning.task import Readout
from vhydro.views import ContactView
from vhydro_audits.collect.scripted import BODIES, NoisyScripted, goal_place, grip_place, holds, place, play
from vhydro_audits.collect.simulator import Simulator

LIMITS = {"PushCube": 50, "PickCube": 50, "StackCube": 50, "PegInsertionSide": 100}  # steps of an episode
PLANNER = cem(16, 8, 192, 8, rounds=3, first_rounds=5)  # chosen on seeds 0 to 9 of PushCube
FINE = replace(PLANNER, spread=0.2)  # near what is to be grasped, and with it near the goal …
NEARBY = 0.08  # … m
WIDE, GRIP = 0.04, 0.5  # m: fingers that are open; cost of their being open where they should not be, or closed
AT_THE_END = 0.5  # weight of the last cost beside the mean of all: with 2 plans put off what they can do now
BOUND = 20.0
ACTIONS = {"tcp.dx": (-0.7, 0.7), "tcp.dy": (-0.7, 0.7), "tcp.dz": (-0.7, 0.7), "gripper.command": (-1.0, 1.0)}
MOMENTS = (0, 5)  # steps at which the risk of the episode is told …
FAR, PATHS = cem(48, 12, 96, 8, first_rounds=5), 64  # … by a longer plan too, and by so many paths of it
NEAR = {"PushCube": 0.1, "PickCube": 0.025, "StackCube": 0.025, "PegInsertionSide": 0.05}  # m: at the goal


class PushCost(eqx.Module):
    """How far the cube is from the goal, and the hand from behind it."""

    goal: jax.Array

    def __call__(self, z, _mode, _a=None):
        cube, hand = _point(z, "cube"), _point(z, "tcp")
        away = jnp.hypot(cube[0] - self.goal[0], cube[1] - self.goal[1])
        behind = _length([hand[0] - cube[0] + 0.05, hand[1] - cube[1], hand[2] - 0.03])
        front = jnp.maximum(hand[0] - cube[0] + 0.02, 0.0)
        return jnp.minimum(10 * jnp.maximum(away - 0.06, 0.0) + 2 * behind + 4 * front, BOUND)


class CarryCost(eqx.Module):
    """Subgoals in one cost: above where the body is grasped, down to it, grasp, carry, be still there or let go."""

    goal: jax.Array  # of the body's middle: its next place, which moves on where a peg goes into its hole
    grip: jax.Array  # from the body's middle to where it is grasped
    body: str = eqx.field(static=True)
    release: bool = eqx.field(static=True)

    def __call__(self, z, _mode, _a=None):
        thing, hand = _point(z, self.body), _point(z, "tcp")
        away = _length([thing[i] - self.goal[i] for i in range(3)])
        gap = [hand[i] - thing[i] - self.grip[i] for i in range(3)]
        apart, flat = _length(gap), jnp.hypot(*gap[:2])
        above = jnp.maximum(jnp.clip(3 * (flat - 0.02), 0.0, 0.06) - gap[2], 0.0)  # down a funnel
        speed = _length([z[f"tcp.{x} step"] for x in "xyz"])
        still = jnp.where(away < 0.03, 8 * speed, 0.0)
        # Around the body it is better to have closed than not to be there, and not to be there than to come closed.
        around = jnp.clip((0.03 - apart) / 0.015, 0.0, 1.0)
        if self.release:
            around = jnp.where(away < 0.02, 0.0, around)
        wide = jnp.clip(z["opening"] / WIDE, 0.0, 1.0)
        grip = around * wide + (1 - around) * (2 - wide)
        return jnp.minimum(10 * away + 5 * apart + 2 * above + still + GRIP * grip, BOUND)


def _point(z, body: str) -> list[Any]:
    return [z[f"{body}.{x}"] for x in "xyz"]


def _length(parts: list[Any]) -> Any:
    return jnp.sqrt(sum(p**2 for p in parts) + 1e-12)


def task_of(name: str, values) -> Task:
    """What is next to do in a task, by what is seen; the same for every method."""
    goal = jnp.asarray(goal_place(name, values))
    if name == "PushCube":
        cost = PushCost(goal)
    else:
        grip = jnp.asarray(grip_place(name, values) - place(values, BODIES[name][0]))
        cost = CarryCost(goal, grip, BODIES[name][0], name == "StackCube")
    return Task(cost, bound=BOUND, actions=ACTIONS, final=cost, final_weight=AT_THE_END)


class OpenOrShut(eqx.Module):
    """Dynamics whose gripper is told to open or to close: rollouts hold no command between."""

    inner: Any

    @property
    def readout(self) -> Readout:
        return self.inner.readout

    @property
    def actions(self) -> Readout:
        return self.inner.actions

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.inner.inputs

    @property
    def dtype(self) -> Any:
        return self.inner.dtype

    @property
    def seconds(self) -> float:
        return self.inner.seconds

    def population(self, belief: Any):
        """As the dynamics have it, like all that follows."""
        return self.inner.population(belief)

    def noise(self, key, steps: int, particles: int):
        return self.inner.noise(key, steps, particles)

    def settle(self, mode, z, action):
        return self.inner.settle(mode, z, shut(action))

    def step(self, mode, z, action, noise):
        return self.inner.step(mode, z, shut(action), noise)

    def compared(self, truth, batched: bool, mode, z, action, noise, gap):
        return self.inner.compared(truth, batched, mode, z, shut(action), noise, gap)

    def refuse_unlike(self, truth: Any) -> None:
        return self.inner.refuse_unlike(truth)


def shut(action: Any) -> Any:
    """The action with the gripper's command at the end of its range that is nearer."""
    return jnp.concatenate([action[:3], jnp.where(action[3:] < 0, -1.0, 1.0)])


class Run(NamedTuple):
    """An episode and what was told of it at fixed moments before its end was known."""

    success: bool
    total: float  # of the normalised dense reward, over all steps
    lost: bool
    told: dict[int, list[float]]  # see `Planned.foreseen`
    moved: float  # m: how far the body got


class Planned:
    """The receding-horizon loop on what the simulator shows, as a policy of values."""

    def __init__(self, name: str, dynamics: Any, view: ContactView, seed: int):
        self._name, self._view = name, view
        self._dynamics = OpenOrShut(dynamics)
        self._key, self._rows, self._task = jax.random.key(seed), [], None
        self._plan: Plan | None = None
        self._count, self.told = 0, {}

    def __call__(self, values) -> np.ndarray:
        self._task = task_of(self._name, values)
        self._rows = [*self._rows[-2:], values]
        last = None if self._plan is None else self._told(self._plan)
        belief = self._dynamics.inner.seen(self._view, self._rows, last, self._mode())
        plan_key, far_key = jax.random.split(jax.random.fold_in(self._key, self._count))
        planner, asked = self._planner(values), {"key": plan_key}
        plans = [planner(self._dynamics, belief, self._task, warm=w, **asked) for w in self._begun(planner)]
        self._plan = min(plans, key=lambda plan: plan.cost)
        if self._count in MOMENTS:
            self.told[self._count] = self.foreseen(belief, values, far_key)
        self._count += 1
        return self._told(self._plan)

    def _begun(self, planner: Planner) -> list[Plan | None]:
        """What to begin the search from: where millimetres count, with a gripper that opens and one that closes.

        Few samples would turn it for several steps together, and fewer do what goes with it.
        """
        if self._plan is None or planner is PLANNER:
            return [self._plan]
        return [
            replace(self._plan, actions=np.c_[self._plan.actions[:, :3], np.full(len(self._plan.actions), end)])
            for end in (-0.5, 0.5)
        ]

    def _told(self, plan: Plan) -> np.ndarray:
        return np.asarray(shut(plan.actions[0]))

    def _planner(self, values) -> Planner:
        """A coarse search on the way, a fine one where millimetres count."""
        if self._name == "PushCube":
            return PLANNER
        body = place(values, BODIES[self._name][0])
        apart = np.linalg.norm(grip_place(self._name, values) - place(values, "tcp"))
        away = np.linalg.norm(goal_place(self._name, values) - body)
        return FINE if (away if holds(self._name, values) else apart) < NEARBY else PLANNER

    def foreseen(self, belief, values, key) -> list[float]:
        """What is expected now: the cost, how far body and goal and hand and body are apart, and the share of a long
        plan's paths that never come near the goal.
        """
        assert self._task is not None
        assert self._plan is not None
        plan_key, roll_key = jax.random.split(key)
        goal, body = goal_place(self._name, values), BODIES[self._name][0]
        plan = FAR(self._dynamics, belief, self._task, key=plan_key)
        start = self._dynamics.population(belief)
        actions = jnp.asarray(plan.actions, self._dynamics.dtype)
        states = rollout(self._dynamics, self._task, start, actions, roll_key, PATHS, keep=True).states
        there = np.asarray(states)[:, 7:10] - goal[None, :, None]  # (steps, three, paths)
        flat = 2 if self._name == "PushCube" else 3
        missed = (np.linalg.norm(there[:, :flat], axis=1) > NEAR[self._name]).all(0).mean()
        thing = place(values, body)
        away, apart = np.linalg.norm((thing - goal)[:flat]), np.linalg.norm(thing - place(values, "tcp"))
        return [float(x) for x in (self._plan.cost, away, apart, missed)]

    def _mode(self) -> int:
        """What every body just did, by its displacement and the hand's."""
        before, now = self._rows[-2:] if len(self._rows) > 1 else self._rows * 2
        steps = {b: (place(now, b) - place(before, b))[None] for b in ("tcp", *self._view.bodies)}
        each = [int(regime_of(steps[body], steps["tcp"])[0]) for body in self._view.bodies]
        return sum(regime * 3**i for i, regime in enumerate(each))


def random_policy(seed: int) -> Callable:
    """Uniform commands."""
    draw = np.random.default_rng([seed, 9])
    return lambda _values: draw.uniform(-1, 1, 4)


def run_episode(simulator: Simulator, name: str, method: str, seed: int, dynamics: Any = None, view: Any = None) -> Run:
    """One episode: of a policy by its name, or planned on the dynamics that are given."""
    policies = {"random": lambda: random_policy(seed), "noisy": lambda: NoisyScripted(name, seed, random=0.0)}
    if method not in policies and (dynamics is None or view is None):
        raise ValueError(f"no dynamics or no view given for {method!r}; expected both to plan, or random or noisy.")
    policy = policies[method]() if method in policies else Planned(name, dynamics, view, seed)
    out = play(simulator, name, policy, seed, LIMITS[name])
    moved = 0.0
    if out.episode is not None:
        first = out.episode.columns(body=BODIES[name][0])[:3]
        path = out.episode.observations[:, first]
        moved = float(np.linalg.norm(path[-1] - path[0]))
    return Run(out.success, float(sum(out.rewards)), out.lost, getattr(policy, "told", {}), moved)
