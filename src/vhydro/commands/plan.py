"""`vhydro plan MODEL LOGS TASK`: the best actions for a task from where a log ends, and what is proven of them."""

import runpy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
from tyro.conf import OmitArgPrefixes, Positional, arg

from vhydro.commands.mapping import Naming
from vhydro.data import read
from vhydro.data.options import ReadOptions
from vhydro.data.read import chosen_episodes
from vhydro.fitted import Fitted, digest, load
from vhydro.laws.law import Law
from vhydro.planning import Plan, Proof, Task, certify, fitted, mppi
from vhydro.report.files import staged, write_json
from vhydro.report.run_page import refuse_foreign_page, write_run_page
from vhydro.usage import UsageError, at_least, share


@dataclass(frozen=True)
class PlanCommand:
    """Plan for a task from where a log ends, and prove how likely the plan fails, or say why that cannot be proven."""

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """What `vhydro fit` wrote, of a view whose inputs are commands: a file, or the folder of a run."""
    logs: Annotated[Positional[Path], arg(metavar="LOGS")]
    """File or folder of episodes; the plan starts where one of them ends."""
    task: Annotated[Positional[Path], arg(metavar="TASK")]
    """A Python file that defines `task = vhydro.Task(…)`. It is run: name only files that you trust."""
    out: Path | None = None
    """Folder for actions.csv, plan.json and the page index.html."""
    episode: str = "0"
    """Where the plan starts: at the end of this episode, a name or a number from 0."""
    reading: OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)
    horizon: int = 16
    """Steps that are planned."""
    candidates: int = 256
    """Plans that are tried in every round."""
    particles: int = 64
    """Paths that every plan is judged by."""
    delta: float | None = None
    """Largest chance of failure to be proven."""
    beta: float = 0.05
    """Chance that the proof is wrong."""
    noise: tuple[float, ...] = ()
    """Process noise of every velocity, gathered in one second, with which a law is certified; measured, not fitted."""
    static_friction: float | None = None
    """N: what holds a thing that has come to rest, where the law has such a mode."""
    seed: int = 0
    """Of candidates and particles."""
    json: bool = False
    """Print one JSON document on stdout, and everything else on stderr."""
    naming: OmitArgPrefixes[Naming] = field(default_factory=Naming)

    def __post_init__(self):
        for name, least in (("horizon", 1), ("candidates", 1), ("particles", 1), ("seed", 0)):
            at_least(name, getattr(self, name), least)
        share("beta", self.beta)
        if self.delta is not None:
            share("delta", self.delta)
        elif self.noise or self.static_friction is not None:
            raise UsageError(
                "--noise or --static-friction without --delta; they are for a proof. Give --delta 0.1 too."
            )


def run_plan(config: PlanCommand) -> tuple[Plan, Proof | None]:
    """The plan and its proof, after they were printed and written."""
    if config.out is not None:
        refuse_foreign_page(config.out)
    model, task = load(config.model), task_in(config.task)
    logs = config.naming.applied(read(config.logs, **vars(config.reading)), model.view)
    episode, *others = chosen_episodes(logs, [config.episode])
    if others:
        raise UsageError(f"--episode {config.episode}; expected one, a name or a number from 0. Give --episode 0.")
    planner = mppi(config.horizon, min(4, config.horizon), config.candidates, config.particles)
    belief = model.present(logs[episode], seed=config.seed)
    plan = model.plan(belief, task, planner=planner, seed=config.seed)
    proof = None if config.delta is None else _proven(config, model, belief, plan, task)
    _print(plan, proof)
    if config.out is not None:
        with staged(config.out) as folder:
            header = ",".join(plan.inputs)
            np.savetxt(folder / "actions.csv", plan.actions, delimiter=",", header=header, comments="")
            told = None if proof is None else asdict(proof)
            of = {"log": logs.names[episode], "task": config.task.name, "inputs": list(plan.inputs)}
            of |= {"actions": np.asarray(plan.actions, float).tolist(), "model": digest(config.model)}
            of |= {"settings": {k: getattr(config, k) for k in ("horizon", "candidates", "particles", "seed")}}
            write_json(folder / "plan.json", {"cost": plan.cost, "risk": plan.risk, "dt": plan.dt, "proof": told, **of})
        print(f"{config.out}: actions.csv, plan.json")
        print(write_run_page(config.out))
    return plan, proof


def task_in(path: Path) -> Task:
    """The `task` that a Python file defines."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there; expected a Python file that defines `task = vhydro.Task(…)`. Write one."
        )
    try:
        found = runpy.run_path(str(path)).get("task")
    except Exception as error:
        raise ValueError(
            f"{path} could not be run ({type(error).__name__}: {error}); mend it and try again."
        ) from error
    if not isinstance(found, Task):
        raise ValueError(
            f"{path} defines task = {found!r}; expected `task = vhydro.Task(cost, failure, bound, actions)`. Mend it."
        )
    return found


def _proven(config: PlanCommand, model: Fitted, belief: Any, plan: Plan, task: Task) -> Proof:
    assert config.delta is not None
    asked = {"delta": config.delta, "beta": config.beta, "key": jax.random.key(config.seed + 1)}
    if not config.noise or model.law is None:
        return certify(model, belief, plan, task, **asked)  # it says what is missing
    judged = model.dynamics(noise=config.noise, static_friction=config.static_friction)
    assert isinstance(model.law, Law)  # `dynamics` has refused others
    return certify(judged, belief, plan, task, shift=fitted(model.law), **asked)


def _print(plan: Plan, proof: Proof | None) -> None:
    print(f"{'s':>8}" + "".join(f"{name:>16}" for name in plan.inputs))
    for step, row in enumerate(plan.actions):
        print(f"{step * plan.dt:8.3f}" + "".join(f"{value:16.4g}" for value in row))
    print(f"expected cost {plan.cost:.4g}, {plan.risk:.1%} of the model's own paths fail")
    if proof is not None:
        print(proof)
