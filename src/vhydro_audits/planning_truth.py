"""The tasks of the planning audit on systems whose equations are known, and what really happens there.

A plan is made and certified on a law that was recovered from noisy positions. It is then executed in the event-exact
simulator of the true system, kicked every 2 ms: another integrator than the one that proofs are made with.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from vhydro import systems
from vhydro.filter import Particles
from vhydro.laws.as_model import masses
from vhydro.laws.law import Law
from vhydro.planning import LawDynamics, Task, law_dynamics
from vhydro_audits.laws_truth import SYSTEMS, true_law

DT, HORIZON, SUBSTEPS = 0.05, 16, 25
START_NOISE = 0.005  # m or rad, and twice as much in velocity: how sure a belief is at the start


class Goal(eqx.Module):
    """Functions of a task with the numbers that change from problem to problem."""

    at: jax.Array
    kind: str = eqx.field(static=True)

    def off(self, z) -> jax.Array:
        """How far from where it should be, in m or rad."""
        if self.kind == "pushing":
            return jnp.abs(z["gap"] - self.at)
        return jnp.abs(z[{"pendulum": "angle", "to a stop": "y"}.get(self.kind, "q")] - self.at)


class Cost(Goal):
    def __call__(self, z, _mode, _a):
        return jnp.minimum(self.off(z), 1.0)


class Final(Goal):
    def __call__(self, z, _mode):
        speed = jnp.hypot(z["gap velocity"], z["y velocity"]) if self.kind == "to a stop" else 0.0
        return jnp.minimum(self.off(z) + 0.3 * speed, 1.0)


class Fails(Goal):
    """Deeper into a wall or a stop, or pressed harder, than things can take."""

    def __call__(self, z, _mode, _a):
        match self.kind:
            case "puck":
                return jnp.abs(z["q"]) > 1.02
            case "block":
                return jnp.abs(z["q"]) > 0.5
            case "pendulum":
                return jnp.abs(z["angle"]) > 1.02
            case "off a wall":
                return jnp.abs(z["q"]) > 1.2
            case _:
                return z["gap"] < -0.02


class Missed(Goal):
    """Not where it should be at the end, or not at rest where it should be."""

    def __call__(self, z, _mode):
        away = self.off(z) > TOLERANCE[self.kind]
        if self.kind == "to a stop":
            away = away | (jnp.hypot(z["gap velocity"], z["y velocity"]) > 0.15)
        return away


TOLERANCE = {"puck": 0.2, "block": 0.06, "pendulum": 0.3, "pushing": 0.03, "off a wall": 0.2, "to a stop": 0.03}


@dataclass(frozen=True)
class Setting:
    """A task on a system: bounds of its actions, process noise, where it starts and where it should end."""

    system: str
    noise: float  # kg m/s (kg m²/s) of every momentum, gathered in a second
    actions: dict[str, tuple[float, float]]
    start: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]  # positions and velocities
    goal: Callable[[np.random.Generator, np.ndarray], float]
    region: dict[str, tuple[float, float]]
    meaning: str

    @property
    def truth(self) -> Any:
        return replace(SYSTEMS[self.system], noise=self.noise)

    @property
    def static_friction(self) -> float | None:
        s = SYSTEMS[self.system]
        return s.static_friction * s.mass * s.gravity if self.system == "block" else None


def _uniform(*ranges: tuple[float, float]):
    def draw(random: np.random.Generator) -> np.ndarray:
        return np.array([random.uniform(*r) for r in ranges])

    return draw


def _start(positions, velocities):
    return lambda random: (_uniform(*positions)(random), _uniform(*velocities)(random))


def _anywhere(low: float, high: float):
    return lambda random, q: float(random.uniform(low, high))  # noqa: ARG005


_TIP = {"vx": (-0.3, 0.6), "vy": (-0.3, 0.3)}
_WALLS = {"q": (-1.4, 1.4), "q velocity": (-12.0, 12.0)}
_TABLE = {"gap": (-0.1, 1.5), "y": (-1.5, 1.5), "gap velocity": (-4.0, 4.0), "y velocity": (-4.0, 4.0)}
SETTINGS = {
    "puck": Setting("puck", 0.1, {"force": (-3.0, 3.0)}, _start([(-0.5, 0.5)], [(-1.0, 1.0)]), _anywhere(-0.7, 0.7),
                    _WALLS, "reach a place without going deeper than 2 cm into a wall"),
    "block": Setting("block", 0.1, {"force": (-8.0, 8.0)}, _start([(-0.2, 0.2)], [(-0.3, 0.3)]), _anywhere(-0.2, 0.2),
                     {"q": (-1.0, 1.0), "q velocity": (-8.0, 8.0)}, "slide to a place and be within 6 cm of it"),
    "pendulum": Setting("pendulum", 0.05, {"torque": (-1.0, 1.0)}, _start([(-0.4, 0.4)], [(-1.0, 1.0)]),
                        _anywhere(-0.35, 0.35), {"angle": (-1.6, 1.6), "angle velocity": (-20.0, 20.0)},
                        "swing to an angle without going deeper than 0.02 rad into a stop"),
    "pushing": Setting("pushing", 0.03, _TIP, _start([(0.02, 0.1), (-0.2, 0.2)], [(-0.1, 0.1), (-0.1, 0.1)]),
                       _anywhere(0.03, 0.06), _TABLE, "follow the slider at a distance"),
    "off a wall": Setting("puck", 0.1, {"force": (-0.5, 0.5)}, _start([(0.5, 0.7)], [(1.4, 1.8)]),
                          _anywhere(0.3, 0.5), _WALLS, "hit a target that only a bounce off the wall leads to"),
    "to a stop": Setting("pushing", 0.03, _TIP, _start([(0.01, 0.03), (-0.1, 0.1)], [(-0.05, 0.05), (-0.05, 0.05)]),
                         lambda random, q: float(q[1] + random.choice([-1, 1]) * random.uniform(0.05, 0.07)), _TABLE,
                         "touch the slider, drag it sideways by its face and leave it at rest"),
}  # fmt: skip


class Problem(NamedTuple):
    """A start, as a belief of positions and velocities with its spread, and a task."""

    mean: np.ndarray  # (positions and velocities,)
    spread: np.ndarray
    task: Task
    goal: float


def problem(name: str, seed: int, index: int) -> Problem:
    """One of the problems of a seed."""
    setting = SETTINGS[name]
    random = np.random.default_rng([seed, index, sorted(SETTINGS).index(name)])
    q, v = setting.start(random)
    goal = setting.goal(random, q)
    at = jnp.asarray(goal, jnp.float32)
    task = Task(
        Cost(at, name), Fails(at, name), 1.0, setting.actions, missed=Missed(at, name), final=Final(at, name),
        final_weight=3.0, region=setting.region,
    )  # fmt: skip
    spread = np.concatenate([np.full(len(q), START_NOISE), np.full(len(q), 2 * START_NOISE)])
    return Problem(np.concatenate([q, v]), spread, task, goal)


def dynamics(name: str, law: Law) -> LawDynamics:
    """A law as the path model of a task's system, with the process noise that the system has."""
    setting = SETTINGS[name]
    noise = setting.noise / masses(true_law(setting.system))
    return law_dynamics(law, DT, noise=noise, static_friction=setting.static_friction, substeps=SUBSTEPS)


def true_dynamics(name: str, law: Law) -> LawDynamics:
    """The true law as such a model; which way its modes slide is read off the recovered one."""
    return dynamics(name, replace(true_law(SETTINGS[name].system), circumstances=law.circumstances))


def belief(p: Problem, law: Law) -> Particles:
    """The start as a belief of a law's model, in its momenta."""
    scale = np.concatenate([np.ones(law.positions), masses(law)])
    z, covariance = jnp.asarray((p.mean * scale)[:, None]), jnp.asarray(np.diag((p.spread * scale) ** 2)[..., None])
    return Particles(jnp.zeros(1, jnp.int32), z, jnp.zeros(1), jnp.ones(()), covariance)


class Executed(NamedTuple):
    """What became of a plan in the true system."""

    failed: np.ndarray  # (executions,)
    states: np.ndarray  # (positions and velocities, steps + 1, executions)


def executed(name: str, p: Problem, actions: np.ndarray, count: int, seed: int) -> Executed:
    """A plan run open loop in the true system, from starts that are drawn from the belief."""
    setting = SETTINGS[name]
    law = systems.law(setting.truth)
    n, mass = law.positions, masses(true_law(setting.system))
    random = np.random.default_rng([seed, 77])
    starts = p.mean + p.spread * random.standard_normal((count, 2 * n))
    starts = np.concatenate([starts[:, :n], starts[:, n:] * mass], 1)
    held = np.repeat(np.broadcast_to(actions, (count, *actions.shape)), SUBSTEPS, axis=1)
    run = systems.simulate(
        setting.truth, count, HORIZON * SUBSTEPS, DT / SUBSTEPS, key=jax.random.key(seed), starts=starts, actions=held,
        substeps=1,
    )  # fmt: skip
    states = np.moveaxis(run.states[:, ::SUBSTEPS], -1, 0)  # (coordinates, executions, samples)
    states = np.concatenate([states[:n], states[n:] / mass[:, None, None]]).swapaxes(1, 2)
    modes = jnp.asarray(run.modes[:, SUBSTEPS::SUBSTEPS].T)
    names = [*law.coordinates[:n], *(f"{q} velocity" for q in law.coordinates[:n])]
    z = dict(zip(names, jnp.asarray(states[:, 1:]), strict=True))
    a = dict(zip(law.inputs, jnp.asarray(actions.T)[..., None], strict=True))
    _, failed = p.task.step(z, modes, a)
    _, missed = p.task.end({k: x[-1] for k, x in z.items()}, modes[-1])
    return Executed(np.asarray(failed.any(0) | missed), states)
