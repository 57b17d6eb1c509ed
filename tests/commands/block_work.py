"""Work for the tests of blocks and places, importable by the processes it is sent to."""

import os
import signal
from pathlib import Path


def doubled(key: dict, config: dict) -> list[dict]:
    return [{"twice": 2 * key["number"] * config["scale"]}]


def doubled_after_a_death(key: dict, config: dict) -> list[dict]:
    """The same; the first process to come to number 2 is killed there."""
    if key["number"] == 2 and not Path(config["side"]).exists():
        Path(config["side"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return doubled(key, config)


def refused(key: dict, config: dict) -> list[dict]:
    if key["number"] == 1:
        raise ArithmeticError("the pivot is zero.")
    return doubled(key, config)


def noted_rows(fitted, logs, names, options):
    """One row of a log, with a line in a side file for each; told to, the process is killed at one of them once."""
    side = Path(options["side"])
    for name in names:
        before = side.read_text() if side.exists() else ""
        side.write_text(f"{before}{name}\n")
        if name == options.get("deadly") and name not in before:
            os.kill(os.getpid(), signal.SIGKILL)
    return {"means": {"episode": names, "mean": [float(log.observations.mean()) for log in logs]}}


def noted_tables(fitted):
    return {"means": {"episode": "string", "mean": "float64"}}
