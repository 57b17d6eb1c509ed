"""Replay buffers of UMI and diffusion policy: Zarr stores with arrays in `data` and where episodes end in `meta`."""

import re
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from vhydro.data import zarr_store
from vhydro.data.assembly import REMEDY
from vhydro.data.automatic import GUESSED, NO_RATE, guessed_description
from vhydro.data.columns import POSITION
from vhydro.data.dataset import Dataset
from vhydro.data.description import Block, Description, overlaid
from vhydro.data.errors import DataError
from vhydro.data.npz_archive import is_npz
from vhydro.data.options import DEFAULT, ReadOptions
from vhydro.data.tables import MOST_EPISODES, tabular_dataset
from vhydro.data.zarr_store import FolderStore, Store, ZarrArray, ZipStore
from vhydro.episodes import Channel

ENDS = "meta/episode_ends"
MARKER = f"{ENDS}/.zarray"
LENGTHS = "lengths"  # of the episodes, by which tables are divided
TURN = (("rx", "rad"), ("ry", "rad"), ("rz", "rad"))
UMI = {  # what robot0_… holds: body, quantities and group
    "eef_pos": ("tcp", POSITION, "end_effector"),
    "eef_rot_axis_angle": ("tcp", TURN, "end_effector"),
    "gripper_width": ("gripper", (("width", "m"),), "gripper"),
    "demo_start_pose": ("demo_start", POSITION + TURN, "scene"),
    "demo_end_pose": ("demo_end", POSITION + TURN, "scene"),
}
NAMED = "What the arrays hold was taken from their names."
ASK = 'Say it with --rate, or as {"dt": SECONDS} in NAME.channels.json beside it.'


class ReplayBuffer:
    """A Zarr store of format 2, a folder or a zip file."""

    name = "Zarr replay buffer"
    choices = ("rate",)

    def recognises(self, path: Path) -> bool:
        """Whether it says where episodes end."""
        try:
            if path.is_dir():
                return any((path / ENDS / name).is_file() for name in (".zarray", "zarr.json"))
            if not path.is_file() or is_npz(path) or not zipfile.is_zipfile(path):
                return False
            with zipfile.ZipFile(path) as zipped:
                return any(name.endswith(MARKER) for name in zipped.namelist())
        except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, LookupError):
            return False

    def open(self, path: Path, options: ReadOptions = DEFAULT) -> Dataset:
        if (path / ENDS / "zarr.json").is_file():
            raise DataError(
                path, found="a Zarr store of format 3", expected="format 2, as UMI and diffusion policy write"
            )
        table = ZarrTable.of(FolderStore(path) if path.is_dir() else ZipStore.opened(path, MARKER))
        usual = usual_description(table)
        said = overlaid(usual, path, options.dt, 0.0, "")
        if said.parts[0].time is None and not said.parts[0].dt:
            raise DataError(path, found="no time and no rate in the store", expected="a rate", remedy=ASK)
        if said.parts[0].observations == usual.parts[0].observations:
            said = replace(said, notes=(NAMED, *said.notes))
        return tabular_dataset(self.name, table, said)


@dataclass
class ZarrTable:
    """The arrays of numbers in `data`, each with a row for each time, read once when asked for."""

    file: Path
    store: Store
    headers: dict[str, ZarrArray]
    shapes: dict[str, tuple[int, ...]]
    notes: tuple[str, ...]
    loaded: dict[str, np.ndarray] = field(default_factory=dict)

    def __getstate__(self) -> dict:
        return self.__dict__ | {"loaded": {}}  # read again in another process

    @classmethod
    def of(cls, store: Store) -> "ZarrTable":
        ends = zarr_store.header(store, ENDS)
        if len(ends.shape) != 1 or ends.dtype.kind not in "iu" or not 0 < ends.shape[0] <= MOST_EPISODES:
            found = f"{ends.dtype} {ends.shape}"
            raise DataError(store.file, key=ENDS, found=found, expected="whole numbers, one for each episode")
        found = {name: zarr_store.header(store, f"data/{name}") for name in store.arrays("data")}
        refused = {name: why for name, array in found.items() if (why := zarr_store.refusal(array))}
        headers = {n: a for n, a in found.items() if n not in refused}
        gaps = {n: count for n, a in headers.items() if (count := zarr_store.missing(store, f"data/{n}", a))}
        notes = [f"Left out: {', '.join(f'{n} ({w})' for n, w in list(refused.items())[:12])}."] if refused else []
        notes += [f"{n}: {c} pieces are not stored and stand for {headers[n].fill}." for n, c in gaps.items()]
        shapes = {n: a.shape for n, a in headers.items()} | {LENGTHS: ends.shape}
        return cls(store.file, store, headers, shapes, tuple(notes))

    def dtype(self, key: str) -> np.dtype:
        return np.dtype(np.int64) if key == LENGTHS else self.headers[key].dtype

    def array(self, key: str, episode: str = "") -> np.ndarray:  # noqa: ARG002 (an array holds all episodes)
        if key not in self.loaded:
            self.loaded[key] = self.lengths() if key == LENGTHS else self.numbers(key)
        return self.loaded[key]

    def numbers(self, key: str) -> np.ndarray:
        return zarr_store.values(self.store, f"data/{key}", self.headers[key])

    def lengths(self) -> np.ndarray:
        ends = zarr_store.values(self.store, ENDS, zarr_store.header(self.store, ENDS))
        if (ends > np.iinfo(np.int64).max // 2).any():
            raise DataError(self.file, key=ENDS, found=f"{ends.max()}", expected="numbers of rows", remedy=REMEDY)
        return np.diff(ends.astype(np.int64), prepend=0)


def usual_description(table: ZarrTable) -> Description:
    """What the arrays mean by their names; those of UMI are known."""
    guessed = guessed_description(table, {})
    part = guessed.parts[0]
    observed = tuple(umi_block(b, table.shapes[b.reference.key]) for b in part.observations)
    told = part.dt if isinstance(part.dt, str) else None  # the guess has 1 s where nothing tells
    notes = (*table.notes, *(n for n in guessed.notes if n not in (NO_RATE, GUESSED)))
    return replace(guessed, parts=(replace(part, observations=observed, dt=told),), notes=notes)


def umi_block(block: Block, shape: tuple[int, ...]) -> Block:
    match = re.fullmatch(r"robot([0-9]+)_(\w+)", block.reference.key)
    if match is None or match[2] not in UMI or len(shape) != 2 or shape[1] != len(UMI[match[2]][1]):
        return block
    body, quantities, group = UMI[match[2]]
    whose = body if int(match[1]) == 0 else f"robot{int(match[1])}.{body}"
    return replace(block, channels=tuple(Channel(f"{whose}.{name}", group, unit) for name, unit in quantities))
