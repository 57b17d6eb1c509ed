"""Episodes of four table-top families on MuJoCo physics: a Sawyer stacks, searches and smooths, a VX300S tidies.

They stand in for RoboTurk's Sawyer and BridgeData recordings; results on them are not results on those.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vhydro.progress import quiet, tell
from vhydro.usage import at_least
from vhydro_audits.collect.worker import Event, interpreter, refuse_existing, run_worker

Family = Literal["tower", "laundry", "search", "bridge"]
FILES = {
    "tower": "SawyerTower.hdf5",
    "laundry": "SawyerLaundry.hdf5",
    "search": "SawyerSearch.hdf5",
    "bridge": "VX300SBridgeOcclusion.hdf5",
}
WORKER = Path(__file__).parent / "sawyer_worker"
VARIABLE, FOLDER = "VHYDRO_SAWYER_PYTHON", ".venv-sawyer"
REMEDY = (
    f"Run `make sawyer` in the source folder, which creates {FOLDER}. Or run, in any Python 3.11 or later, "
    "`pip install '.[sawyer]'` in that folder and then "
    "`pip install --no-deps robosuite==1.5.2 robosuite_models==1.0.0` "
    f"(with its own requirements robosuite asks for numpy < 2), and name that Python with --python or {VARIABLE}."
)


@dataclass(frozen=True)
class SawyerConfig:
    """Collect robot-arm episodes on MuJoCo physics, contact forces included, as robomimic-style HDF5."""

    # tower: stack three cubes; laundry: smooth a cloth (slow); search: clear a blocker, lift the target; bridge: fill
    # a bin
    family: Annotated[tyro.conf.Positional[Family], tyro.conf.arg(metavar="FAMILY")]
    out: Path  # folder for the file, which is named after the family
    episodes: int = 10  # how many to keep
    seed: int = 0  # of places, motions and noise: the same seed gives the same arrays
    policy: Literal["scripted", "noisy"] = "scripted"  # scripted keeps successes only, noisy failures too
    python: Path | None = None  # interpreter that has robosuite; sought if not given
    overwrite: bool = False  # replace a file of an earlier run

    def __post_init__(self):
        at_least("episodes", self.episodes, 1)
        at_least("seed", self.seed, 0)

    @property
    def file(self) -> Path:
        return self.out / FILES[self.family]


def collect_sawyer(config: SawyerConfig) -> Path:
    """The file of collected episodes, whole or not at all; shows progress and reports what came out."""
    refuse_existing(config.out, (config.file,), overwrite=config.overwrite)
    python = interpreter(config.python, VARIABLE, FOLDER, "robosuite", REMEDY)
    config.out.mkdir(parents=True, exist_ok=True)
    began, stage = time.perf_counter(), f"episodes of {config.family} ({config.policy})"
    tell(stage, 0, config.episodes)

    def show(event: Event) -> None:
        if event["event"] == "episode":
            tell(stage, event["done"], config.episodes)

    done = run_worker(python, WORKER, _arguments(config), show)
    quiet()
    print(summary(config, done, time.perf_counter() - began))
    return config.file


def summary(config: SawyerConfig, done: Event, seconds: float) -> str:
    """What came out, in two lines."""
    lengths, successes, attempts = done["lengths"], done["successes"], done["attempts"]
    kept = "and were kept" if config.policy == "scripted" else f"and {len(lengths)} were kept"
    rate = f"{successes} of {attempts} attempts succeeded ({successes / attempts:.0%}) {kept}"
    steps = f"{sum(lengths) / len(lengths):.0f} steps on average, {min(lengths)} to {max(lengths)}"
    megabytes = config.file.stat().st_size / 1e6
    return f"{rate}; {steps}.\n{config.file}: {megabytes:.1f} MB in {seconds:.0f} s."


def _arguments(config: SawyerConfig) -> list[str]:
    """What the worker is told."""
    given = [f"--{name}={getattr(config, name)}" for name in ("episodes", "seed", "policy")]
    return [config.family, str(config.file.absolute()), *given]
