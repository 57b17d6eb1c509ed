"""The worker of `vhydro collect maniskill`: runs in ManiSkill's own environment and writes one file of episodes.

It imports nothing of the package. Its output is one JSON object per line; everything else that is printed, also by
libraries, goes to the error stream.
"""

import argparse
import json
import os
import signal
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import IO

import attempts
import environment
import recording

PACKAGES = ("mani_skill", "sapien", "mplib", "numpy")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an exit that still removes what was begun
    voice = _voice()
    try:
        say(voice, "done", **collect(_job(), voice))
    except (ValueError, OSError) as error:
        say(voice, "error", message=str(error))
        sys.exit(2)


def _voice() -> IO[str]:
    """The real output; the place it had is given to the error stream, because libraries print into it."""
    voice = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return voice


def say(voice: IO[str], event: str, **facts) -> None:
    print(json.dumps({"event": event, **facts}), file=voice, flush=True)


def _job() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    for name, kind in (("episodes", int), ("seed", int), ("out", Path), ("policy", str), ("noise", float)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--overwrite", action="store_true")
    return parser.parse_args()


def collect(job: argparse.Namespace, voice: IO[str]) -> dict:
    """What was collected: the file, the lengths and successes of its episodes, and how many attempts it took."""
    environment.refuse_new_numpy()
    began = time.monotonic()
    name = f"{job.task}-v1"
    with recording.staged(job.out, name, overwrite=job.overwrite) as stage:
        simulation = environment.Simulation(job.task, stage, job.policy)
        facts = _episodes(simulation, job, voice)
        simulation.close()
        versions = {package: version(package) for package in PACKAGES}
        made = {"policy": job.policy, "seed": job.seed, "attempts": facts["attempts"], "versions": versions}
        made |= {"noise": job.noise} if job.policy == "noisy" else {}
        recording.annotate(recording.beside(stage, ".json"), control_freq=simulation.control_freq, collection=made)
    return {"file": str(job.out / f"{name}.h5"), "seconds": time.monotonic() - began, **facts}


def _episodes(simulation: environment.Simulation, job: argparse.Namespace, voice: IO[str]) -> dict:
    """What the policy makes of one seed after another."""
    from policies import POLICIES  # takes seconds: not before the job is known to be sound

    policy = POLICIES[job.policy]
    return attempts.collected(
        lambda seed: policy(simulation, seed, job.noise), simulation.keep, partial(say, voice),
        episodes=job.episodes, seed=job.seed, successes_only=job.policy == "planned",
    )  # fmt: skip


if __name__ == "__main__":
    main()
