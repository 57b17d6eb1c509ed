"""Output that is not finished: who writes it, under which name, and what goes if the process ends early."""

import os
import secrets
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vhydro.printable import printable

try:
    import fcntl
except ImportError:  # not on every system; there two runs can still not mix, for their partial names differ
    fcntl = None

LOCK, PARTIAL = ".vhydro.lock", ".partial"
_unfinished: set[Path] = set()
_critical: list[None] = []


class BusyError(OSError):
    """Output that another run is writing."""


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A name beside `path` that nobody else has, for a file or a folder; it is gone afterwards, whatever happens."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}{PARTIAL}")
    _unfinished.add(part)
    try:
        yield part
    finally:
        _remove(part)
        _unfinished.discard(part)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A moment in which an interrupt has to wait: files that belong together take their places."""
    _critical.append(None)
    try:
        yield
    finally:
        _critical.pop()


def is_critical() -> bool:
    """Whether an interrupt has to wait."""
    return bool(_critical)


def remove_unfinished() -> None:
    """Removes what this process has not finished writing, for a process that is about to end."""
    for part in list(_unfinished):
        _remove(part)


def remove_stale(path: Path) -> None:
    """Removes what earlier runs that were killed left of `path`; whoever calls it holds its lock."""
    for part in path.parent.glob(f".*{PARTIAL}"):
        if part.name.startswith(f".{path.name}.") and part not in _unfinished:
            _remove(part)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Nothing; the file holds the content, and at no moment a part of it."""
    with unfinished(path) as part:
        with part.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)


@contextmanager
def locked(lock: Path, what: Path) -> Iterator[None]:
    """Holds the lock file of `what`, and removes it at the end; a `BusyError` says who else holds it.

    The system lets go of the lock of a process that was killed.
    """
    if fcntl is None:
        yield
        return
    handle = _held(lock, what)
    _unfinished.add(lock)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        _unfinished.discard(lock)
        os.close(handle)


def _held(lock: Path, what: Path) -> int:
    """The open lock file, held by this process alone."""
    assert fcntl is not None
    while True:
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise type(error)(
                f"{what} cannot be written ({error.strerror}); expected a place of your own. Give another --out."
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = printable(os.read(handle, 1000).decode("utf-8", "replace").strip()) or "another run"
            os.close(handle)
            raise BusyError(
                f"{what} is being written by {holder}; expected one run at a time. Wait for it, or give another --out."
            ) from None
        except OSError:  # a file system without locks
            return handle
        with suppress(OSError):
            if os.path.samestat(os.stat(lock), os.fstat(handle)):
                os.truncate(handle, 0)
                os.write(handle, f"{_who()}\n".encode())
                return handle
        os.close(handle)  # the run that had it ended just now and took the file with it: try again


def _who() -> str:
    words = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200]
    return f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')} ({words})"
