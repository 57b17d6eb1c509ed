"""Ctrl-C: the work ends, what is not finished goes, and the process ends before its libraries are taken apart."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from vhydro.outputs import is_critical, remove_unfinished

INTERRUPTED = 130  # the status of a process that was interrupted
AGAIN = 3.0  # seconds after which an interrupt that some library swallowed is raised once more


@dataclass
class Interrupt:
    """Whether an interrupt has come."""

    came: bool = False

    def __call__(self, _number: int, _frame: Any) -> None:
        self.came = True
        # Raised inside a callback or a destructor of a library, it would be reported and forgotten.
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        if not is_critical():
            raise KeyboardInterrupt


@contextmanager
def interruptible(*, last: bool = False) -> Iterator[Interrupt]:
    """An interrupt that comes inside the block is raised until it has left it.

    `last`: the process ends with the block, and an interrupt that comes later finds nothing left to stop.
    """
    interrupt = Interrupt()
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as of a job in a shell's background
        yield interrupt
        return
    numbers = [signal.SIGINT] + ([signal.SIGALRM] if hasattr(signal, "setitimer") else [])
    before = {number: signal.signal(number, interrupt) for number in numbers}
    shown = sys.unraisablehook
    sys.unraisablehook = lambda said: None if said.exc_type is KeyboardInterrupt else shown(said)  # it comes again
    try:
        yield interrupt
    finally:
        _calm()
        if not last:
            sys.unraisablehook = shown
            for number, handler in before.items():
                signal.signal(number, handler)


def _calm() -> None:
    """No further interrupt is raised."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def stop() -> NoReturn:
    """Ends the process with the status of an interrupt.

    Compilers and thread pools may be at work: an interpreter that takes itself apart under them ends in a crash.
    """
    while True:
        try:
            _calm()
            break
        except KeyboardInterrupt:
            continue
    remove_unfinished()
    with suppress(OSError, ValueError):
        print("vhydro: stopped.", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(INTERRUPTED)
