"""`write`: logs made in Python, as one file that `read` and every verb take."""

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path

from vhydro.data.dataset import Dataset
from vhydro.data.npz_native import write_npz
from vhydro.episodes import Episode


def write(
    logs: Dataset | Episode | Iterable[Episode],
    path: str | PathLike[str],
    *,
    names: Sequence[str] = (),
    overwrite: bool = False,
) -> Path:
    """The path of a file with these logs: a self-described npz, which `read` and every verb take.

    The logs have the same channels and inputs; each has its own length and time step. Names, groups, units, labels and
    contact forces are kept. `names` are of the logs; without them they are called `log_0`, `log_1`, … The file is
    written whole or not at all, and one that exists is replaced only with `overwrite`.

    >>> write([vhydro.Episode(places, commands, 0.05, channels, inputs)], "my_logs.npz")
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"{path} is no name of an npz file; expected one, such as {path.stem}.npz.")
    if not isinstance(logs, Dataset):
        every = [logs] if isinstance(logs, Episode) else list(logs)
        if names and len(names) != len(every):
            raise ValueError(f"{len(names)} names for {len(every)} logs; expected one for each, or none.")
        logs = Dataset("Python", path, tuple(names) or tuple(f"log_{i}" for i in range(len(every))), every.__getitem__)
    return write_npz(logs, path, overwrite=overwrite)
