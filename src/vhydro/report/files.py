"""Result files: all of a run's or none, and who wrote them."""

import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any


def version() -> str:
    """The installed version of the package; a bare source tree has none."""
    try:
        return metadata.version("vhydro")
    except metadata.PackageNotFoundError:
        return "unreleased"


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A scratch folder whose files move into `folder` when the block ends well, and vanish when it does not.

    Opened before the work, so that a folder that cannot be written is refused before the work.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; expected a folder for the results. Give another one.")
    before = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f".partial-{secrets.token_hex(4)}"
    scratch.mkdir()
    try:
        yield scratch
        for file in sorted(scratch.iterdir()):
            os.replace(file, folder / file.name)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        if not before and not any(folder.iterdir()):
            folder.rmdir()
        raise
    scratch.rmdir()


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
