"""Simulators run as workers in an environment of their own; this finds that environment and listens to the worker.

A worker writes one JSON object per line on its output: `{"event": "attempt" | "episode" | "done" | "error", …}`.
`done` is the last and its record is what the run returns; `error` carries a `message` for the user.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

EVENTS = ("attempt", "episode", "done", "error")
TAIL = 12  # lines of a crashed worker's words that are shown
PATIENCE = 5.0  # seconds a worker has to end after it was asked to

Event = Mapping[str, Any]


def refuse_existing(out: Path, files: Sequence[Path], *, overwrite: bool) -> None:
    """Raises, before a simulator starts, where its files cannot be put."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"out is {out}, which is a file; expected a folder. Choose another --out.")
    existing = next((p for p in files if p.exists()), None)
    if existing and not overwrite:
        raise ValueError(f"{existing} exists; nothing was done. Pass --overwrite to replace it, or another --out.")


def interpreter(explicit: Path | str | None, variable: str, folder: str, module: str, remedy: str) -> Path:
    """The Python that can import `module`.

    The one asked for, else the one an environment variable names, else the one in `folder`, sought in the working
    directory and its parents, else this one. `remedy` tells the user how to create that folder.
    """
    if explicit is not None:
        return _able(Path(explicit), "--python", module, remedy)
    if os.environ.get(variable):
        return _able(Path(os.environ[variable]), variable, module, remedy)
    here = Path.cwd()
    for parent in (here, *here.parents):
        if (python := _python_of(parent / folder)).is_file():
            return _able(python, folder, module, remedy)
    if importlib.util.find_spec(module) is not None:
        return Path(sys.executable)
    raise ValueError(
        f"no Python with '{module}' found: not in {sys.executable}, not in {folder} here or in a parent folder, and "
        f"{variable} is not set. {remedy}"
    )


def _python_of(folder: Path) -> Path:
    """Where a virtual environment keeps its interpreter."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _able(given: Path, origin: str, module: str, remedy: str) -> Path:
    """This interpreter (or that of this virtual environment), refused if it does not run or lacks the module."""
    python = _python_of(given) if given.is_dir() else given
    question = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        lacking = subprocess.run([python, "-c", question], capture_output=True, check=False).returncode != 0
    except OSError as error:
        raise ValueError(f"{origin} gives {given}, which does not run ({error.strerror}). {remedy}") from error
    if lacking:
        raise ValueError(f"{origin} gives {given}, which cannot import '{module}'. {remedy}")
    return python


def run_worker(
    python: Path, script: Path, arguments: Sequence[str], on_event: Callable[[Event], None]
) -> dict[str, Any]:
    """The `done` record of a worker that was run to its end; every record is passed to `on_event` as it comes.

    A worker that ends otherwise raises a ValueError with its own words; one that is interrupted is stopped first.
    """
    with tempfile.TemporaryFile() as log:
        command = [str(python), str(script), *arguments]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=_environment()
        ) as child:
            try:
                last = _last_event(child, log, on_event)
                child.wait()
            finally:
                _stop(child)
        if last.get("event") == "error":
            raise ValueError(str(last.get("message", "the simulator stopped without a reason.")))
        if child.returncode != 0 or last.get("event") != "done":
            raise ValueError(_obituary(child.returncode, log))
        return dict(last)


def _environment() -> dict[str, str]:
    """Ours, with output that arrives line by line and in UTF-8."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}


def _last_event(child: subprocess.Popen, log: IO[bytes], on_event: Callable[[Event], None]) -> Event:
    """The last record of a worker, after all were passed on; lines that are no records join its other words."""
    assert child.stdout is not None
    last: Event = {}
    for line in child.stdout:
        record = _event(line)
        if record is None:
            log.write(line)
            log.flush()
            continue
        last = record
        on_event(record)
        if record["event"] in ("done", "error"):
            break
    # What a library says after the end must not fill the pipe and block it.
    log.writelines(child.stdout)
    return last


def _event(line: bytes) -> Event | None:
    """The record in a line, or None: simulators print words of their own."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and record.get("event") in EVENTS else None


def _stop(child: subprocess.Popen) -> None:
    """Ends a worker that still runs: it is asked, so that it can remove what it began, and then made to."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _obituary(status: int, log: IO[bytes]) -> str:
    """How a worker ended, and its last words."""
    log.seek(0)
    words = log.read().decode("utf-8", "replace").strip().splitlines()[-TAIL:]
    how = f"ended with status {status}" if status >= 0 else f"was killed by {_signal_name(-status)}"
    if status == 0:
        how = "ended before it was done"
    said = "\n  ".join(["Its last words:", *words]) if words else "It said nothing."
    return f"the simulator {how}. {said}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
