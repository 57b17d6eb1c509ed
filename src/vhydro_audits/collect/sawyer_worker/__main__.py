"""Collects episodes of one family with robosuite; run by `vhydro collect sawyer` in an environment that has it.

Writes one JSON object per line: `attempt`, `episode`, then `done` or `error`.
"""

import os

# Physics of this size is faster on one thread, and then always adds up in the same order.
os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import signal
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

Tell = Callable[..., None]


def main() -> None:
    # A request to stop must still remove the unfinished file.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options = _options()
    output = sys.stdout

    def tell(event: str, **facts) -> None:
        print(json.dumps({"event": event, **facts}), file=output, flush=True)

    # Libraries print what they like, and MuJoCo logs into the working directory: the protocol has this output to
    # itself, the log a folder that goes away.
    with redirect_stdout(sys.stderr), TemporaryDirectory() as scratch, chdir(scratch):
        try:
            collect(options, tell)
        except NotEnough as problem:
            tell("error", message=str(problem))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("family")
    parser.add_argument("file", type=Path)
    parser.add_argument("--episodes", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--policy", choices=("scripted", "noisy"), required=True)
    return parser.parse_args()


def collect(options: argparse.Namespace, tell: Tell) -> None:
    """Attempts until there are enough episodes to keep: successes of a scripted hand, anything of a noisy one."""
    from recording import episode_file
    from scenes import FAMILIES

    scene = FAMILIES[options.family]()
    tally = Tally()
    with episode_file(options.file, _attributes(scene, options)) as file:
        while len(tally.lengths) < options.episodes:
            if tally.attempts == 3 * options.episodes + 7:
                found = f"only {len(tally.lengths)} of {options.episodes} episodes in {tally.attempts} attempts"
                raise NotEnough(f"{options.family} gave {found}; nothing was written. Try another seed.")
            tell("attempt", attempt=tally.attempts)
            _attempt(scene, options, file, tally)
            tell("episode", done=len(tally.lengths), attempts=tally.attempts, successes=tally.successes)
    tell("done", file=str(options.file), **asdict(tally))


@dataclass
class Tally:
    """How many attempts there were, how many did the task, and the lengths of those that were kept."""

    attempts: int = 0
    successes: int = 0
    lengths: list[int] = field(default_factory=list)


class NotEnough(Exception):
    """Too few episodes could be kept."""


def _attempt(scene, options: argparse.Namespace, file, tally: Tally) -> None:
    """One attempt, added to the file if it is to be kept. Nothing the solver complained of ever is."""
    seed = attempt_seed(options.seed, tally.attempts)
    recording = rollout(scene, options.family, options.policy, seed)
    success = bool(scene.achieved()) and scene.stable()
    tally.attempts, tally.successes = tally.attempts + 1, tally.successes + success
    if success or (options.policy == "noisy" and scene.stable()):
        file.add(recording, {"success": success, "seed": seed, "dt": scene.control_timestep, **scene.facts()})
        tally.lengths.append(len(recording))


def attempt_seed(seed: int, attempt: int) -> int:
    """The seed of one attempt; other runs' attempts have others, however close their seeds."""
    return int(np.random.SeedSequence(seed, spawn_key=(attempt,)).generate_state(1)[0])


def rollout(scene, family: str, policy: str, seed: int):
    """One episode from beginning to end, as a `Recording`."""
    from policies import HANDS, SCRIPTS, Hand, disturbances
    from recording import Recording

    place, intent, disturb = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(3))
    hand, recording, noise = Hand(**HANDS[scene.arm]), Recording(), disturbances(disturb, policy)
    observation = scene.begin(place)
    hand.see(observation, scene.contact)
    for command in SCRIPTS[family](hand, scene, intent):
        action = hand.action(command)
        action[:6] = np.clip(action[:6] + next(noise), -1, 1)
        # Rounded before it is applied: the file says what was done.
        action = action.astype(np.float32)
        state = scene.sim.get_state().flatten()
        after, reward = scene.advance(action)
        recording.add(observation, state, action, command.phase, reward=reward, after=after, contact=scene.contact)
        observation = after
        hand.see(observation, scene.contact)
    return recording


def _attributes(scene, options: argparse.Namespace) -> dict:
    import mujoco
    import robosuite
    from policies import Phase
    from recording import environment_record
    from tabletop import CONTROL_RATE

    record = environment_record(
        family=options.family, robots=scene.arm, control_freq=CONTROL_RATE, controller="BASIC/OSC_POSE",
        robosuite=robosuite.__version__, mujoco=mujoco.__version__, seed=options.seed, policy=options.policy,
    )  # fmt: skip
    phases = [phase.name for phase in Phase]
    return {"env_args": record, "dt": scene.control_timestep, "physics_dt": scene.model_timestep, "phases": phases}


if __name__ == "__main__":
    main()
