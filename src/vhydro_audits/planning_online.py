"""Planning in ManiSkill, closed loop: the planner's episodes, what it believed, and what comparisons play."""

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
from vhydro_audits.collect.scripted import BODIES, NoisyScripted, end_place, goal_place, grip_place, holds, place, play
from vhydro_audits.collect.simulator import Simulator
from vhydro_audits.planning_tasks import task_of

LIMITS = {"PushCube": 50, "PickCube": 50, "StackCube": 50, "PegInsertionSide": 100}  # steps of an episode
PLANNER = cem(16, 8, 192, 8, rounds=3, first_rounds=5)  # chosen on seeds 0 to 9 of PushCube
FINE = replace(PLANNER, spread=0.2)  # near what is to be grasped, and with it near the goal …
NEARBY = 0.08  # … m
FINEST = replace(PLANNER, spread=0.06)  # and nearer still, where a task asks for millimetres
CLOSE = {"StackCube": 0.025, "PegInsertionSide": 0.04}  # m
MOMENTS = (0, 5)  # steps at which the risk of the episode is told …
FAR, PATHS = cem(48, 12, 96, 8, first_rounds=5), 64  # … by a longer plan too, and by so many paths of it
SHOWN, BAND = 6, (0.05, 0.5, 0.95)  # steps between the plans that a film shows; quantiles of their paths
ROBOT = -0.615  # m: where its base is
NEAR = {"PushCube": 0.1, "PickCube": 0.025, "StackCube": 0.025, "PegInsertionSide": 0.05}  # m: at the goal


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
    film: dict[str, Any] | None = None  # see `Planned.film`


class Planned:
    """The receding-horizon loop on what the simulator shows, as a policy of values.

    Its `film` holds how far the body is from its end and the hand from the body at every step, in metres, and what some
    plans expected of both.
    """

    def __init__(self, name: str, dynamics: Any, view: ContactView, seed: int):
        self._name, self._view = name, view
        self._dynamics = OpenOrShut(dynamics)
        self._key, self._rows = jax.random.key(seed), []
        self._plan: Plan | None = None
        self._count, self.told = 0, {}
        self.film: dict[str, Any] = {"away": [], "apart": [], "plans": []}

    def __call__(self, values) -> np.ndarray:
        task = task_of(self._name, values)
        self._rows = [*self._rows[-2:], values]
        last = None if self._plan is None else self._told(self._plan)
        belief = self._dynamics.inner.seen(self._view, self._rows, last, self._mode())
        plan_key, far_key, film_key = jax.random.split(jax.random.fold_in(self._key, self._count), 3)
        planner, asked = self._planner(values), {"key": plan_key}
        plans = [planner(self._dynamics, belief, task, warm=w, **asked) for w in self._begun(planner)]
        self._plan = plan = min(plans, key=lambda plan: plan.cost)
        if self._count in MOMENTS:
            self.told[self._count] = [plan.cost, *self.foreseen(belief, task, values, far_key)]
        self._filmed(belief, task, plan, values, film_key)
        self._count += 1
        return self._told(plan)

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
        left = away if holds(self._name, values) else apart
        if left < CLOSE.get(self._name, 0.0):
            return FINEST
        return FINE if left < NEARBY else PLANNER

    def foreseen(self, belief, task: Task, values, key) -> list[float]:
        """What is expected now: how far body and end and hand and body are apart; the share of a long plan's
        paths that never come near the end, and how near they come; how high and how far from the robot the end is.
        """
        plan_key, roll_key = jax.random.split(key)
        plan = FAR(self._dynamics, belief, task, key=plan_key)
        nearest = self._apart(self._rolled(belief, task, plan, roll_key), values)[0].min(0)
        away, apart = self._apart(self._dynamics.inner.seen(self._view, [values]).z[None], values)
        end = end_place(self._name, values)
        out = (away, apart, (nearest > NEAR[self._name]).mean(), nearest.mean(), end[2])
        return [float(np.mean(x)) for x in (*out, np.hypot(end[0] - ROBOT, end[1]))]

    def _filmed(self, belief, task: Task, plan: Plan, values, key) -> None:
        """Adds this step to the film."""
        now = self._apart(self._dynamics.inner.seen(self._view, [values]).z[None], values)
        for name, distance in zip(("away", "apart"), now, strict=True):
            self.film[name].append(round(float(distance[0, 0]), 4))
        if self._count % SHOWN == 0:
            ahead = self._apart(self._rolled(belief, task, plan, key), values)
            bands = {
                n: np.quantile(x, BAND, axis=1).round(3).tolist() for n, x in zip(("away", "apart"), ahead, strict=True)
            }
            self.film["plans"].append({"step": self._count, **bands})

    def _rolled(self, belief, task: Task, plan: Plan, key) -> np.ndarray:
        """The states of paths of a plan, (steps, latent, paths)."""
        start, actions = self._dynamics.population(belief), jnp.asarray(plan.actions, self._dynamics.dtype)
        return np.asarray(rollout(self._dynamics, task, start, actions, key, PATHS, keep=True).states)

    def _apart(self, states, values) -> tuple[np.ndarray, np.ndarray]:
        """How far the body is from its end, and the hand from where it would grasp it or push it: (steps, paths)."""
        states, body = np.asarray(states), BODIES[self._name][0]
        end, grip = (x[None, :, None] for x in (
            end_place(self._name, values), grip_place(self._name, values) - place(values, body)))  # fmt: skip
        flat = 2 if self._name == "PushCube" else 3
        thing = states[:, 7:10]
        return (np.linalg.norm((thing - end)[:, :flat], axis=1), np.linalg.norm(states[:, :3] - thing - grip, axis=1))

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
    return Run(
        out.success,
        float(sum(out.rewards)),
        out.lost,
        getattr(policy, "told", {}),
        moved,
        getattr(policy, "film", None),
    )
