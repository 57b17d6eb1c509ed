"""How much memory reading a file may take: one rule for all readers."""

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

SHARE = 4  # one part in so many of the machine's memory is the most that one file or episode gets
FREE = 1 << 28  # bytes that a file of any size may ask for
EXPANSION = 64  # beyond those, times its own size; packed numbers rarely shrink more, and bombs live by it
REMEDY = "Divide it into shorter episodes; if it is packed tightly, save it without compression."


def allowance(size: int) -> int:
    """Bytes that reading a file of `size` bytes may take at a time."""
    return min(memory() // SHARE, max(FREE, EXPANSION * size))


def allowance_of(path: Path) -> int:
    """Bytes that reading this file may take at a time; a file that is gone has no size."""
    try:
        return allowance(path.stat().st_size)
    except OSError:
        return allowance(0)


@cache
def memory() -> int:
    """Bytes of memory that this process may use: the machine's, or less where the process or its group has a limit."""
    found = [1 << 40]
    with suppress(OSError, ValueError, AttributeError):  # not every system tells
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(ImportError, OSError, ValueError):
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        found += [soft] if soft > 0 else []  # -1: none
    with suppress(OSError, ValueError):  # "max": none
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(found)
