"""Work for the grid's tests, importable by the processes it is sent to; without JAX, so that they start at once."""

import os
import signal
import time
from pathlib import Path

from vhydro_audits.grid import Group

SEEDS = 3


def groups(count: int) -> list[Group]:
    """Groups of three seeds for as many tasks."""
    keys = [{"task": f"task {i}"} for i in range(count)]
    return [Group(key, tuple({**key, "seed": seed} for seed in range(SEEDS))) for key in keys]


def thirds(key: dict, config: dict) -> list[dict]:
    """Numbers that only survive where floats are written in full, and one that is none."""
    number = int(key["task"].split()[1])
    nulls = {"nothing": float("nan"), "all": float("inf")}
    return [{**key, "seed": s, "third": (number + s) / 3 * config["scale"], **nulls} for s in range(SEEDS)]


def noted(key: dict, config: dict) -> list[dict]:
    """The same, slower, with a line in a side file for every group that was begun."""
    with Path(config["side"]).open("a") as side:
        side.write(f"{key['task']}\n")
    time.sleep(config["sleep"])
    return thirds(key, config)


def dies_once(key: dict, config: dict) -> list[dict]:
    """The same; the first worker to come to task 1 ends there."""
    if key["task"] == "task 1" and not Path(config["side"]).exists():
        Path(config["side"]).touch()
        os._exit(3)
    return thirds(key, config)


def is_killed_once(key: dict, config: dict) -> list[dict]:
    """The same; the first worker to come to task 1 is killed there."""
    if key["task"] == "task 1" and not Path(config["side"]).exists():
        Path(config["side"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return thirds(key, config)


def always_dies(key: dict, config: dict) -> list[dict]:
    """The same, but never for task 1."""
    if key["task"] == "task 1":
        os._exit(3)
    return thirds(key, config)


def refuses(key: dict, config: dict) -> list[dict]:
    """The same, but for an error in task 1 as long as there is no side file."""
    if key["task"] == "task 1" and not Path(config["side"]).exists():
        raise ArithmeticError("the pivot is zero.")
    return thirds(key, config)


def interrupted(key: dict, config: dict) -> list[dict]:
    """The same, but the user stops it in task 2."""
    if key["task"] == "task 2" and not Path(config["side"]).exists():
        raise KeyboardInterrupt
    return thirds(key, config)


def forgets_a_seed(key: dict, config: dict) -> list[dict]:
    """One record too few."""
    return thirds(key, config)[1:]


def threads(key: dict, config: dict) -> list[dict]:
    """How many threads this process's libraries were told to use."""
    return [{**key, "seed": s, "threads": os.environ["OMP_NUM_THREADS"]} for s in range(SEEDS)]
