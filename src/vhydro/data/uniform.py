"""What writing needs: episodes of one kind, and files that appear whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vhydro.data.errors import DataError
from vhydro.episodes import Channel, Episode
from vhydro.outputs import LOCK, locked, remove_stale, unfinished


@dataclass(frozen=True)
class Kind:
    """What all episodes of a written file share."""

    name: str  # of the first such episode
    channels: tuple[Channel, ...]
    inputs: tuple[Channel, ...]
    observations: np.dtype
    actions: np.dtype
    labels: tuple[str, ...]
    contacts: tuple[tuple[tuple[str, str], bool], ...]  # bodies, and whether tangential forces are told

    @classmethod
    def of(cls, episode: Episode, name: str) -> "Kind":
        return cls(
            name=name,
            channels=episode.channels,
            inputs=episode.inputs,
            observations=episode.observations.dtype,
            actions=episode.actions.dtype,
            labels=tuple(sorted(episode.labels)),
            contacts=tuple((c.bodies, c.tangential is not None) for c in episode.contacts),
        )

    def same(self, episode: Episode, name: str, path: Path) -> "Kind":
        """This kind, if the episode is of it too; otherwise a `DataError` that says what differs."""
        other = Kind.of(episode, name)
        for what in ("channels", "inputs", "observations", "actions", "labels", "contacts"):
            mine, theirs = getattr(self, what), getattr(other, what)
            if mine != theirs:
                raise DataError(
                    path, episode=name, key=what, found=difference(theirs, mine),
                    expected=f"the same as in episode {self.name}, for one file has one kind of episode",
                    remedy="Convert episodes of each kind apart (`Dataset.named`), or `Dataset.map` them to the same.",
                )  # fmt: skip
        return self


def difference(found, expected) -> str:
    """What one kind has and the other has not."""
    if isinstance(found, np.dtype):
        return f"{found} instead of {expected}"
    here, there = set(found), set(expected)
    more = [shown(x) for x in found if x not in there]
    less = [shown(x) for x in expected if x not in here]
    parts = [f"{', '.join(more[:6])} more"] if more else []
    parts += [f"{', '.join(less[:6])} missing"] if less else []
    return " and ".join(parts) or "another order"


def shown(x) -> str:
    return f"{x.name} [{x.unit or '-'}, {x.group}]" if isinstance(x, Channel) else str(x)


def json_value(value):
    """A plain Python value for JSON, from a numpy one too."""
    return value.item() if isinstance(value, np.generic) else value


@contextmanager
def temporary_sibling(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """A hidden folder beside the path to write into; it is gone afterwards, whatever happens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f".{path.name}{LOCK}"), path):
        if path.exists() and not overwrite:
            raise DataError(
                path,
                found="a file or folder there already",
                expected="a new name",
                remedy="Choose another, or replace it with `--overwrite` (`overwrite=True`).",
            )
        remove_stale(path)
        with unfinished(path) as folder:
            folder.mkdir()
            yield folder


def move_folder(made: Path, path: Path, aside: Path) -> None:
    """Puts a finished folder in its place; what was there goes aside first, and only a dataset may be there."""
    if path.is_dir() and any(path.iterdir()) and not (path / "meta" / "info.json").is_file():
        raise DataError(
            path, found="a folder that is not a LeRobot dataset", expected="a new name, or one to replace",
            remedy="Choose another; nothing there was touched.",
        )  # fmt: skip
    try:
        if path.exists():
            path.rename(aside)
        os.replace(made, path)
    except BaseException:
        if aside.exists() and not path.exists():
            aside.rename(path)
        raise
