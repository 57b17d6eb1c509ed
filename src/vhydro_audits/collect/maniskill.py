"""Demonstrations of thirteen tasks in ManiSkill, on real physics with contact forces, in its own HDF5 layout.

What the robot does, and what touches what:

- PickCube, StackCube: a cube is grasped and carried, or set on another one.
- PushCube, PullCube: the hand pushes a cube away from the robot, or drags it towards it.
- PokeCube, PullCubeTool, PegInsertionSide: a peg or a tool in the hand pokes a cube, hooks one, or goes into a hole.
- StackPyramid: the closed fingers press on a cube from above and drag it beside a second; a third is set on both. Where
  two cubes lie close enough at the start, nothing is dragged.
- PlaceSphere: a sphere is grasped, carried and let fall into a bin, in which it rolls.
- KnockBall: the closed hand knocks a ball, which rolls on by itself and comes to rest.
- PushPair: the closed hand pushes a cube into another one, and both on.
- RegraspCube: a cube is grasped, set down, grasped anew across its other faces, and set down elsewhere.
- ToppleTower: the closed hand pushes the upper two cubes off a tower of three; they slide, tip and fall.

The last four are ours: robot and table of ManiSkill with a start, a success and a motion plan of our own.

ManiSkill's motion planner needs numpy 1, this package numpy 2: the simulator runs as a worker in an environment of
its own, which `make maniskill` creates.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

import numpy as np
import tyro

from vhydro.progress import quiet, tell
from vhydro.usage import UsageError
from vhydro_audits.collect.worker import Event, interpreter, refuse_existing, run_worker

Task = Literal[
    "PickCube", "PokeCube", "PullCube", "PushCube", "StackCube", "PullCubeTool", "PegInsertionSide", "StackPyramid",
    "PlaceSphere", "KnockBall", "PushPair", "RegraspCube", "ToppleTower",
]  # fmt: skip
TASK_HELP = f"what the robot does: {', '.join(get_args(Task))}"
WORKER = Path(__file__).parent / "maniskill_worker"
VARIABLE, FOLDER = "VHYDRO_MANISKILL_PYTHON", ".venv-maniskill"
REMEDY = (
    f"Run `make maniskill` in the source folder, which creates {FOLDER} (2 GB). Or run, in a Python 3.11 environment "
    "of its own, `pip install torch==2.13.0` and then `pip install mani_skill==3.0.1 sapien==3.0.3 mplib==0.1.1 "
    f"numpy==1.26.4 'opencv-python<4.12'`, and name that Python with --python or {VARIABLE}."
)
SEEDS = 2**31  # ManiSkill's seeds are below


@dataclass(frozen=True)
class ManiSkillConfig:
    """Collect episodes of a ManiSkill task, contact forces included, as standard ManiSkill HDF5."""

    task: Annotated[tyro.conf.Positional[Task], tyro.conf.arg(metavar="TASK", help=TASK_HELP)]
    out: Path  # folder for TASK-v1.h5 and TASK-v1.json
    episodes: int = 10  # how many to keep
    seed: int = 0  # of the first attempt; each further attempt takes the next
    policy: Literal["planned", "noisy", "random"] = "planned"  # planned keeps successes only, the others failures too
    noise: float = 0.02  # rad; standard deviation that the noisy policy adds to the joint targets
    python: Path | None = None  # interpreter that has ManiSkill; sought if not given
    overwrite: bool = False  # replace files of an earlier run

    def __post_init__(self):
        if self.episodes < 1:
            raise UsageError(f"--episodes {self.episodes}; expected at least 1. Give --episodes 10.")
        if not 0 <= self.seed < SEEDS:
            raise UsageError(f"--seed {self.seed}; expected a number from 0 to {SEEDS - 1}, such as --seed 0.")
        if not 0 < self.noise < 1:
            raise UsageError(f"--noise {self.noise:g}; expected radians strictly between 0 and 1, such as 0.02.")
        if ".h5" in str(self.out.absolute()):
            raise UsageError(
                f"--out {self.out}; ManiSkill's tools find the .json by replacing every '.h5' of a path. "
                "Choose a folder without it."
            )

    @property
    def file(self) -> Path:
        return self.out / f"{self.task}-v1.h5"


class Collected(NamedTuple):
    """A file of episodes, how long they are, which succeeded, and how many attempts and seconds they took."""

    file: Path
    lengths: tuple[int, ...]
    successes: tuple[bool, ...]
    attempts: int
    seconds: float


def collect_maniskill(config: ManiSkillConfig) -> Collected:
    """The episodes asked for, in `config.file`; shows progress and reports what came out."""
    refuse_existing(config.out, (config.file, config.file.with_suffix(".json")), overwrite=config.overwrite)
    python = interpreter(config.python, VARIABLE, FOLDER, "mani_skill", REMEDY)
    stage = f"episodes of {config.task} ({config.policy})"
    tell(stage, 0, config.episodes)

    def show(event: Event) -> None:
        if event["event"] == "attempt":
            tell(stage, event["done"], config.episodes)

    record = run_worker(python, WORKER, _arguments(config), show)
    lengths, successes = tuple(record["lengths"]), tuple(record["successes"])
    collected = Collected(Path(record["file"]), lengths, successes, record["attempts"], record["seconds"])
    quiet()
    print(summary(config.policy, collected))
    return collected


def summary(policy: str, collected: Collected) -> str:
    """What came out, in one or two lines."""
    kept, attempts = len(collected.lengths), collected.attempts
    succeeded = sum(collected.successes)
    if policy == "planned":
        rate = f"{kept} of {attempts} attempts succeeded ({kept / attempts:.0%}) and were kept"
    else:
        rate = f"{succeeded} of {kept} episodes succeeded ({succeeded / kept:.0%})"
        rate += f"; seeds without a demonstration to start from: {attempts - kept}" if attempts > kept else ""
    shortest, longest = min(collected.lengths), max(collected.lengths)
    lengths = f"{np.mean(collected.lengths):.0f} steps on average, {shortest} to {longest}"
    megabytes = collected.file.stat().st_size / 1e6
    return f"{rate}; {lengths}.\n{collected.file}: {megabytes:.1f} MB in {collected.seconds:.0f} s."


def _arguments(config: ManiSkillConfig) -> list[str]:
    """What the worker is told."""
    given = {name: str(getattr(config, name)) for name in ("episodes", "seed", "policy", "noise")}
    pairs = [f"--{name}={value}" for name, value in given.items()]
    flags = ["--overwrite"] if config.overwrite else []
    return [config.task, *pairs, f"--out={config.out.absolute()}", *flags]
