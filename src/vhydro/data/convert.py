"""`convert`: any log this package reads, as one npz file or as a LeRobot dataset."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from vhydro.data.dataset import Dataset
from vhydro.data.errors import DataError
from vhydro.data.lerobot_write import LeRobotVersion, write_lerobot
from vhydro.data.npz_native import write_npz
from vhydro.data.options import DEFAULT, ReadOptions
from vhydro.data.read import read
from vhydro.usage import UsageError

Target = Literal["npz", "lerobot"]


def convert(
    path: Path | str,
    to: Target = "npz",
    out: Path | str | None = None,
    *,
    overwrite: bool = False,
    lerobot_version: LeRobotVersion = "v3.0",
    change: Callable[[Dataset], Dataset] = lambda logs: logs,
    options: ReadOptions = DEFAULT,
) -> Path:
    """The path of what was written: every episode of `path`, changed where that is asked for, whole, or nothing."""
    path = Path(path)
    if to not in get_args(Target):
        raise UsageError(f"cannot convert to {to!r}; expected one of {', '.join(get_args(Target))}.")
    if out is None and not path.exists() and "*" in path.name:
        raise UsageError(f"{path} is a pattern; expected a name for the result. Give --out.")
    target = Path(out) if out is not None else default_target(path, to)
    dataset = change(read(path, **vars(options)))
    if path.resolve().is_relative_to(target.resolve()):
        raise DataError(
            target,
            found="the log itself, or a folder that holds it",
            expected="another name",
            remedy="Give another --out.",
        )
    write = write_npz if to == "npz" else partial(write_lerobot, version=lerobot_version)
    try:
        return write(dataset, target, overwrite=overwrite)
    except OSError as error:
        why = error.strerror or str(error)
        raise DataError(
            target, found=why, expected="a place to write to", remedy="Free some space, or give another --out."
        ) from None


def default_target(path: Path, to: Target) -> Path:
    """A name beside the log: `LOG.npz`, or `LOG_lerobot`."""
    stem = path.name if path.is_dir() else path.stem
    return path.resolve().parent / (f"{stem}.npz" if to == "npz" else f"{stem}_lerobot")
