"""Result files: all of a run's or none, and who wrote them."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from vhydro.outputs import LOCK, locked, remove_stale, unfinished, uninterrupted


def version() -> str:
    """The installed version of the package; a bare source tree has none."""
    try:
        return metadata.version("vhydro")
    except metadata.PackageNotFoundError:
        return "unreleased"


@contextmanager
def staged(folder: Path, names: Sequence[str] = ()) -> Iterator[Path]:
    """A scratch folder whose files move into `folder` when the block ends well, and vanish when it does not.

    Opened before the work, so that a folder that cannot be written, that another run is writing, or where one of
    `names` is somebody else's is refused before the work.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; expected a folder for the results. Give another one.")
    _refuse_foreign(folder, names)
    before = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(
            f"{folder} cannot be made ({error.strerror}); expected a place of your own. Give another --out."
        ) from None
    try:
        with locked(folder / LOCK, folder):
            remove_stale(folder / "results")
            with unfinished(folder / "results") as scratch:
                scratch.mkdir()
                yield scratch
                with uninterrupted():
                    for file in sorted(scratch.iterdir()):
                        os.replace(file, folder / file.name)
    except BaseException:
        if not before:
            with suppress(OSError):  # not empty: what is there is not ours
                folder.rmdir()
        raise


def _refuse_foreign(folder: Path, names: Sequence[str]) -> None:
    """Raises where only some of the names are there: results come together, so those are not results."""
    there = [name for name in names if (folder / name).exists()]
    if there and len(there) < len(names):
        raise FileExistsError(
            f"{folder} has {', '.join(there)} but no {', '.join(n for n in names if n not in there)}, so it is not "
            "known to be a result of this program; expected a new folder or an old result. Give another --out."
        )


def plain(value: Any) -> Any:
    """The value as JSON can hold it: paths as text, numbers that are not finite as null."""
    match value:
        case dict():
            return {str(k): plain(v) for k, v in value.items()}
        case list() | tuple():
            return [plain(v) for v in value]
        case Path():
            return str(value)
        case float() if not math.isfinite(value):
            return None
    return value


def write_json(path: Path, value: Any) -> None:
    """Nothing; the file holds the value as JSON, one entry to a line."""
    path.write_text(json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")
