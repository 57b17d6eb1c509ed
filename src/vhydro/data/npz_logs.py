"""Plain npz logs: our own layout, described ones, well-known public ones, and the rest by a guess."""

import json
import math
from functools import cache
from importlib import resources
from pathlib import Path

from vhydro.data.automatic import guessed_description
from vhydro.data.dataset import Dataset
from vhydro.data.description import Description, beside, description
from vhydro.data.npz_archive import Archive, is_npz
from vhydro.data.npz_native import DESCRIPTION, native_dataset
from vhydro.data.options import DEFAULT, ReadOptions
from vhydro.data.tables import tabular_dataset


class Npz:
    """An npz file of plain arrays."""

    name = "npz"
    choices = ("rate",)

    def recognises(self, path: Path) -> bool:
        try:
            return path.is_file() and is_npz(path)
        except OSError:
            return False

    def open(self, path: Path, options: ReadOptions = DEFAULT) -> Dataset:
        archive = Archive.opened(path)
        if DESCRIPTION in archive.members:
            return native_dataset(self.name, archive)
        said = beside(path) or well_known(archive) or guessed_description(archive, column_names(archive), options.dt)
        return tabular_dataset(self.name, archive, said)


def well_known(archive: Archive) -> Description | None:
    """The shipped description of a public file, recognised by its arrays and their ranks."""
    ranks = {key: len(shape) for key, shape in archive.shapes.items()}
    return next((d for d in shipped() if dict(d.ranks) == ranks), None)


@cache
def shipped() -> tuple[Description, ...]:
    """The descriptions that come with this package."""
    folder = resources.files("vhydro.data") / "descriptions"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".json")), key=lambda f: f.name)
    return tuple(description(json.loads(f.read_text("utf-8")), Path(f.name)) for f in files)


def column_names(archive: Archive) -> dict[str, list[str]]:
    """For each table its column names, from `TABLE_columns` or the shared `columns`."""
    named = {}
    for key, shape in archive.shapes.items():
        source = next((k for k in (f"{key}_columns", "columns") if k in archive.headers), None)
        if len(shape) != 2 or source is None or archive.headers[source].dtype.kind != "U":
            continue
        if math.prod(archive.headers[source].shape) == shape[1]:
            names = [str(n) for n in archive.array(source).reshape(-1)]
            if len(set(names)) == len(names) and all(names):
                named[key] = names
    return named
