"""Files that are either whole or not there, and what is added to ManiSkill's own layout."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np


@contextmanager
def staged(folder: Path, name: str, *, overwrite: bool) -> Iterator[Path]:
    """A hidden path without ending to write `.h5` and `.json` under; they get their names only if all went well."""
    folder.mkdir(parents=True, exist_ok=True)
    stage = folder / f".{name}.partial-{os.getpid()}"
    try:
        yield stage
        publish(stage, folder / name, overwrite=overwrite)
    finally:
        for ending in (".h5", ".json"):
            beside(stage, ending).unlink(missing_ok=True)


def publish(stage: Path, final: Path, *, overwrite: bool) -> None:
    """Renames both files, the `.h5` last: where one stands, its `.json` stands too and belongs to it."""
    if beside(final, ".h5").exists():
        if not overwrite:
            raise FileExistsError(f"{beside(final, '.h5')} appeared while it was being collected; nothing was written.")
        beside(final, ".h5").unlink()
    for ending in (".json", ".h5"):
        beside(stage, ending).replace(beside(final, ending))


def beside(stem: Path, ending: str) -> Path:
    """The file of this stem and ending; unlike `with_suffix`, dots in the stem are left alone."""
    return stem.with_name(stem.name + ending)


def write_contacts(episode: h5py.Group, forces: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Adds `contact_forces/A__B/…` to an episode; index t is the force after action t."""
    steps = len(episode["actions"])
    group = episode.create_group("contact_forces", track_order=True)
    for pair, arrays in forces.items():
        for key, values in arrays.items():
            if len(values) != steps:
                raise ValueError(f"{len(values)} rows of {key} of {pair} for {steps} actions")
            group.create_dataset(f"{pair}/{key}", data=values)


def annotate(path: Path, *, control_freq: int, collection: Mapping[str, object]) -> None:
    """Adds the control rate and how the episodes were collected to the `.json`."""
    record = json.loads(path.read_text())
    record["env_info"]["control_freq"] = control_freq
    record["collection"] = dict(collection)
    path.write_text(json.dumps(record, indent=2) + "\n")
