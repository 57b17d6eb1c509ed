"""The demo, a story in two runs: a robot's logs in the dark, and the law of a puck from positions alone.

It does what a user would do, with the verbs a user would use: reads shipped logs of a robot that pokes a cube with a
peg, fits them without labels, filters them with half of what a camera sees hidden, cuts them into contacts, and writes
the page of that run. Then it simulates a puck between two walls, keeps only noisy positions and the force, and recovers
its equations.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import jax

from vhydro.commands.filter import FilterCommand, kept_beliefs
from vhydro.commands.fit import FitCommand, kept_fit
from vhydro.commands.laws import LawsCommand, kept_law
from vhydro.commands.segment import SegmentCommand, kept_segments
from vhydro.data import sample
from vhydro.data.dataset import Dataset
from vhydro.data.npz_native import write_npz
from vhydro.episodes import Channel
from vhydro.progress import quiet
from vhydro.report.run_files import Run, read_run
from vhydro.report.run_findings import found_beliefs, found_law, found_modes
from vhydro.report.run_page import write_run_page
from vhydro.systems import Puck, simulate, to_episodes
from vhydro.usage import at_least, share

TASK, MODES = "PokeCube", 3
PUCK, PUCKS, STEPS, DT, SENSOR_NOISE = Puck(), 6, 400, 0.005, 0.001  # s, m
SECOND = "puck"  # the folder of the second run, in that of the first


@dataclass(frozen=True)
class DemoConfig:
    """Shipped robot logs from file to page: fit, filter with half hidden, segments; then a puck's law."""

    out: Path = Path("demo")
    """Folder of the run; that of the puck is inside."""
    hide: float = 0.5
    """Share of what a camera sees that is hidden from the filter."""
    seed: int = 0
    """Of what is hidden, of the puck's logs and of the fits."""

    def __post_init__(self):
        share("hide", self.hide)
        at_least("seed", self.seed, 0)


def run_demo(config: DemoConfig = DemoConfig()) -> tuple[Run, Run]:
    """Both runs, after their pages were written and what was found was printed."""
    begun = time.perf_counter()
    robot = _robot(config)
    puck = _puck(config)
    write_run_page(config.out)  # which now links to the second
    quiet()
    print()
    for sentence in found(robot, puck):
        print(sentence)
    print(f"\n{time.perf_counter() - begun:.0f} s. Open {config.out / 'index.html'}")
    return robot, puck


def found(robot: Run, puck: Run) -> list[str]:
    """Three sentences: the modes, the dark, and the law beside the one that was simulated."""
    truth = f"(simulated: {PUCK.mass:g} kg, {PUCK.stiffness:g} N/m, {PUCK.friction:g} N s/m)."
    return [found_modes(robot), found_beliefs(robot), f"{found_law(puck).rstrip('.')} {truth}"]


def _robot(config: DemoConfig) -> Run:
    """A robot pokes a cube with a peg: fit, filter in the dark, segments."""
    logs, out, seed = sample(TASK).path, config.out, config.seed
    _say(f"fitting {len(sample(TASK))} shipped logs of a robot that pokes a cube with a peg, without labels")
    fitted, read = kept_fit(FitCommand(logs, out=out, modes=MODES, refine=False, seed=seed))
    _say(f"filtering them with {config.hide:.0%} of what a camera sees hidden")
    kept_beliefs(FilterCommand(out, logs, out=out, hide=config.hide, seed=seed))
    _say("cutting them into contacts")
    kept_segments(SegmentCommand(out, logs, out=out, seed=seed), fitted, read)
    return read_run(out)


def _puck(config: DemoConfig) -> Run:
    """A puck between two walls: its logs, and its law from positions and forces alone."""
    out = config.out / SECOND
    _say(f"simulating a puck between two walls, its position read with {1000 * SENSOR_NOISE:g} mm of noise")
    logs = _puck_logs(out, config.seed)
    _say("finding its modes and its law, without labels")
    kept_fit(FitCommand(logs, out=out, modes=MODES, refine=False, seed=config.seed))
    _say("filtering its logs, and predicting one that the law was not fitted to")
    kept_beliefs(FilterCommand(out, logs, out=out, seed=config.seed))
    kept_law(LawsCommand(out, logs, out=out, seed=config.seed))
    return read_run(out)


def _puck_logs(folder: Path, seed: int) -> Path:
    """The file of the puck's logs: positions, and the force that pushed it."""
    simulated, sensed = jax.random.split(jax.random.key(seed))
    truth = simulate(PUCK, PUCKS, STEPS, DT, key=simulated)
    force = (Channel("force", "action", "N"),)
    logs = [replace(log, inputs=force, labels={}) for log in to_episodes(truth, SENSOR_NOISE, key=sensed)]
    folder.mkdir(parents=True, exist_ok=True)
    path, names = folder / "logs.npz", tuple(f"puck {i}" for i in range(PUCKS))
    return write_npz(Dataset("simulated", path, names, logs.__getitem__), path, overwrite=True)


def _say(words: str) -> None:
    """A line about what is done now; the verbs tell of their progress, and what they find is on the page."""
    quiet()
    print(f"{words} …", flush=True)
