"""A simulator in a process of its own, driven step by step over a loopback socket; it may crash or hang.

The worker connects to the port that it is given and answers every JSON line with one (see `maniskill_worker/serve.py`).
An answer that does not come in time, or never, raises `SimulatorLostError`; the next `reset` starts a new worker.
"""

import json
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from vhydro_audits.collect.maniskill import FOLDER, REMEDY, VARIABLE, WORKER
from vhydro_audits.collect.worker import interpreter

STARTING = 120.0  # seconds a worker has to connect
ANSWERING = 60.0  # seconds it has for a reset or a step


class SimulatorLostError(RuntimeError):
    """The simulator crashed or hung; the episode is lost, the run is not."""


class Answer(NamedTuple):
    """What a reset or a step led to."""

    values: Mapping[str, float]
    success: bool
    reward: float


class Simulator:
    """One worker, started when it is first needed and anew after it was lost."""

    def __init__(self, command: Sequence[str], *, starting: float = STARTING, answering: float = ANSWERING):
        self._command, self._starting, self._answering = list(command), starting, answering
        self._child: subprocess.Popen | None = None
        self._link: socket.socket | None = None
        self._lines: IO[str] | None = None
        self.restarts = -1

    def reset(self, seed: int) -> Answer:
        """The start of a new episode."""
        if self._lines is None:
            self._start()
        return self._asked({"do": "reset", "seed": int(seed)})

    def step(self, action: Sequence[float]) -> Answer:
        """What the action led to."""
        if self._lines is None:
            raise SimulatorLostError("the simulator does not run; expected a `reset` before a `step`.")
        return self._asked({"do": "step", "action": [float(a) for a in action]})

    def close(self) -> None:
        """Ends the worker."""
        for part in (self._lines, self._link):
            if part is not None:
                with suppress(OSError):  # it is gone already
                    part.close()
        self._lines = self._link = None
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None

    def __enter__(self) -> "Simulator":
        return self

    def __exit__(self, *_error) -> None:
        self.close()

    def _start(self) -> None:
        self.restarts += 1
        with socket.socket() as door, tempfile.TemporaryFile() as words:
            door.bind(("127.0.0.1", 0))
            door.listen(1)
            command = [*self._command, str(door.getsockname()[1])]
            self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=words, stderr=words)
            try:
                self._link = _connected(door, self._child, self._starting)
            except OSError as error:
                words.seek(0)
                said = words.read().decode("utf-8", "replace").strip().splitlines()[-6:]
                self.close()
                raise SimulatorLostError(
                    f"the simulator did not connect ({error}); it said: {' / '.join(said) or 'nothing'}."
                    f" Run it by hand: "
                    f"{' '.join(command[:-1])} PORT."
                ) from error
        self._link.settimeout(self._answering)
        self._lines = self._link.makefile("rw", encoding="utf-8")

    def _asked(self, request: dict) -> Answer:
        assert self._lines is not None
        try:
            self._lines.write(json.dumps(request) + "\n")
            self._lines.flush()
            line = self._lines.readline()
            if not line:
                raise ConnectionError("it closed the connection")
            found = json.loads(line)
            return Answer(found["values"], bool(found["success"]), float(found["reward"]))
        except (OSError, ValueError, KeyError) as error:
            self.close()
            raise SimulatorLostError(f"the simulator was lost in a {request['do']}: {error}.") from error


def _connected(door: socket.socket, child: subprocess.Popen, seconds: float) -> socket.socket:
    """The connection of the worker; an error where it ends or takes too long before it connects."""
    door.settimeout(1.0)
    for _ in range(max(1, round(seconds))):
        try:
            return door.accept()[0]
        except TimeoutError:
            if child.poll() is not None:
                raise ConnectionError(f"it ended with status {child.returncode}") from None
    raise TimeoutError(f"no connection within {seconds:g} s")


def maniskill_simulator(task: str, python: Path | None = None) -> Simulator:
    """A ManiSkill task with `pd_ee_delta_pose`, in ManiSkill's own environment."""
    able = interpreter(python, VARIABLE, FOLDER, "mani_skill", REMEDY)
    return Simulator([str(able), str(WORKER / "serve.py"), task])
