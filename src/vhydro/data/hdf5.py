"""HDF5 files read with suspicion: what a key holds is checked before it is used, and every fault is a `DataError`."""

import math
import os
import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5l, h5o, h5s, h5t  # pyright: ignore[reportAttributeAccessIssue] - compiled, no stubs

from vhydro.data.errors import DataError
from vhydro.data.guarded_file import GuardedFile
from vhydro.data.memory import REMEDY, allowance
from vhydro.printable import printable

BROKEN = (OSError, LookupError, RuntimeError, ValueError, TypeError, ArithmeticError, MemoryError, SystemError)
MOST_OPEN = 32  # files at a time; a folder may hold more than a process may open
LARGEST_ATTRIBUTE = 1 << 24  # values
PLAIN_KINDS = (h5t.INTEGER, h5t.FLOAT, h5t.STRING, h5t.ENUM)
CLOCK = count()


class Hdf5File:
    """A file opened when it is needed and kept open; of many, the one not used for longest is let go."""

    opened: ClassVar[weakref.WeakSet["Hdf5File"]] = weakref.WeakSet()

    def __init__(self, path: Path):
        self.path = path
        self.handle: h5py.File | None = None
        self.used = self.process = 0

    def __reduce__(self):
        return Hdf5File, (self.path,)  # an open handle means nothing in another process

    def root(self) -> "Group":
        """The file's root group."""
        if self.handle is None or self.process != os.getpid():  # a forked child would share the reading position
            self.handle = self.open_handle()
        self.used = next(CLOCK)
        try:
            return Group(self.path, "", "", h5g.open(self.handle.id, b"/"), Budget(allowance(self.size)))
        except BROKEN as error:
            raise self.unreadable(error) from None

    def unreadable(self, error: BaseException) -> DataError:
        found = f"an HDF5 file that does not open ({said(error)})"
        return DataError(self.path, found=found, expected="a complete one", remedy="Copy or download it again.")

    def open_handle(self) -> h5py.File:
        if len(self.opened) >= MOST_OPEN:
            oldest = min(self.opened, key=lambda f: f.used)
            oldest.handle = None  # HDF5 closes it when nothing reads from it any more
            self.opened.discard(oldest)
        try:
            self.size, self.process = self.path.stat().st_size, os.getpid()
            handle = h5py.File(GuardedFile(self.path), "r")
            widths = handle.id.get_create_plist().get_sizes()
        except BROKEN as error:
            raise self.unreadable(error) from None
        if widths != (8, 8):
            raise DataError(
                self.path, found=f"addresses and lengths of {widths} bytes", expected="8 bytes, as is usual"
            )
        self.opened.add(self)
        return handle


@dataclass(slots=True)
class Budget:
    """Bytes that may be read of one episode; many datasets of a bearable size are too much together."""

    limit: int
    spent: int = 0

    def spend(self, size: int) -> bool:
        """Whether that much is left, which it then no longer is."""
        self.spent += size
        return self.spent <= self.limit


@dataclass(frozen=True, slots=True)
class Group:
    """A group of a file; it gives numbers of the shape asked for, or says what was there instead."""

    file: Path
    episode: str
    key: str  # within the episode
    handle: h5g.GroupID
    budget: Budget  # shared by the groups of an episode

    def fault(self, name: str, found: str, expected: str, remedy: str = "") -> DataError:
        """The error of a key of this group."""
        return DataError(
            self.file, episode=self.episode, key=self.path(name), found=found, expected=expected, remedy=remedy
        )

    def path(self, name: str) -> str:
        return f"{self.key}/{name}" if self.key and name else self.key or name

    def names(self) -> list[str]:
        """The keys in this group, in alphabetical order."""
        try:
            names = sorted(name.decode() for name in self.handle)
        except BROKEN as error:
            raise self.fault("", f"a group that cannot be listed ({said(error)})", "its keys") from None
        odd = next((n for n in names if not n.isprintable() or not n), None)
        if odd is not None:
            raise self.fault("", f"a key named {odd!a}", "names of printable text")
        return names

    def has(self, name: str) -> bool:
        try:
            return bool(self.handle.links.exists(name.encode()))
        except BROKEN:
            return False

    def member(self, name: str) -> h5g.GroupID | h5d.DatasetID:
        """What a key, or a path of keys, holds: a group or a dataset of this very file."""
        path = name.encode()
        steps = [path[:i] for i in range(len(path)) if path[i : i + 1] == b"/"] if b"/" in path else []
        try:
            here = all(self.handle.links.get_info(step).type == h5l.TYPE_HARD for step in [*steps, path])
            found = h5o.open(self.handle, path) if here else None
        except BROKEN as error:
            raise self.fault(name, f"nothing readable ({said(error)})", "a group or a dataset") from None
        if found is None:
            remedy = "Copy the data into the file, for example with `h5copy` or `h5repack`."
            raise self.fault(name, "a link to somewhere else", "the data itself", remedy)
        if not isinstance(found, (h5g.GroupID, h5d.DatasetID)):
            raise self.fault(name, "a named type", "a group or a dataset")
        return found

    def subgroup(self, name: str) -> "Group | None":
        """The group of that name, or None if the name is a dataset's."""
        found = self.member(name)
        if not isinstance(found, h5g.GroupID):
            return None
        return Group(self.file, self.episode, self.path(name), found, self.budget)

    def group(self, name: str, *, episode: str = "") -> "Group":
        """The group of that name; with `episode`, keys are counted from there."""
        found = self.subgroup(name)
        if found is None:
            raise self.fault(name, "a dataset", "a group")
        return Group(self.file, episode, "", found.handle, Budget(self.budget.limit)) if episode else found

    def dataset(self, name: str) -> "Stored":
        """A dataset of numbers, unread."""
        found = self.member(name)
        if not isinstance(found, h5d.DatasetID):
            raise self.fault(name, "a group", "a dataset of numbers")
        try:
            stored = Stored(found, found.shape or (), found.dtype)
            outside = is_outside(found)
        except BROKEN as error:
            raise self.fault(name, f"a dataset that cannot be read ({said(error)})", "numbers") from None
        if stored.dtype.kind not in "fiub":
            raise self.fault(name, f"values of type {said(ValueError(stored.dtype))}", "numbers")
        if outside:
            raise self.fault(name, "data kept in another file", "the data itself", "Copy it into this file.")
        return stored

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a dataset, unread."""
        return self.dataset(name).shape

    def numbers(self, name: str, *shape: int | None, last: int = 0, stored: "Stored | None" = None) -> np.ndarray:
        """The numbers under a key, whose shape is `shape` (None: any length); with `last`, only its last rows."""
        found, actual, dtype = stored or self.dataset(name)
        if len(actual) != len(shape) or any(b is not None and a != b for a, b in zip(actual, shape, strict=True)):
            wanted = ", ".join("any" if n is None else str(n) for n in shape)
            raise self.fault(name, f"shape {actual}", f"shape ({wanted})")
        if last:
            actual = (min(last, actual[0]), *actual[1:])
        size = math.prod(actual) * dtype.itemsize
        if not self.budget.spend(size):
            what = f"a dataset of {size:,} bytes, {self.budget.spent:,} with those before it"
            raise self.fault(name, what, f"at most {self.budget.limit:,} in an episode of this file", REMEDY)
        try:
            if (chunk := chunk_size(found)) > self.budget.limit:
                raise ValueError(f"pieces of {chunk:,} bytes, which are read whole")
            return native(values_of(found, actual, dtype))
        except BROKEN as error:
            raise self.fault(name, f"values that cannot be read ({said(error)})", "numbers") from None

    def attribute(self, name: str) -> Any:
        """A plain attribute: text, a number, a flag, a list of one of these, or None if there is none."""
        try:
            if not h5a.exists(self.handle, name.encode()):
                return None
            found = h5a.open(self.handle, name.encode())
            kind, size = found.get_type().get_class(), math.prod(found.shape or ())
            # Lists of varying length make libhdf5 read where it must not if their lengths are damaged: no others pass.
            if kind not in PLAIN_KINDS or size > LARGEST_ATTRIBUTE:
                raise ValueError(f"{size} values of kind {kind}")
            value = h5py.AttributeManager(h5py.Group(self.handle))[name]
            value = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
            return value.decode() if isinstance(value, bytes) else value
        except BROKEN as error:
            what = f"an attribute that cannot be read ({said(error)})"
            raise self.fault(f"@{name}", what, "text or numbers") from None


class Stored(NamedTuple):
    """A dataset that is open and unread."""

    handle: h5d.DatasetID
    shape: tuple[int, ...]
    dtype: np.dtype


def is_outside(dataset: h5d.DatasetID) -> bool:
    """Whether the values lie in other files. A place in this file settles it, and is quicker to ask for."""
    if dataset.get_offset() is not None:
        return False
    storage = dataset.get_create_plist()
    return storage.get_layout() == h5d.VIRTUAL or storage.get_external_count() > 0


def chunk_size(dataset: h5d.DatasetID) -> int:
    """Bytes of the pieces that a dataset is kept in: of each, all is read for any part of it."""
    storage = dataset.get_create_plist()
    if storage.get_layout() != h5d.CHUNKED:
        return 0
    return math.prod(storage.get_chunk()) * dataset.dtype.itemsize


def values_of(dataset: h5d.DatasetID, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The last `shape[0]` rows of a dataset."""
    out = np.zeros(shape, dtype)
    if not out.size:
        return out
    if shape == dataset.shape:
        dataset.read(h5s.ALL, h5s.ALL, out)
        return out
    space = dataset.get_space()
    start = (dataset.shape[0] - shape[0],) + (0,) * (len(shape) - 1)
    space.select_hyperslab(start, shape)
    dataset.read(h5s.create_simple(shape), space, out)
    return out


def native(values: np.ndarray) -> np.ndarray:
    """The values in this machine's byte order, as floats of at most 8 bytes or as they were if they are not floats."""
    if values.dtype.kind == "f" and values.dtype.itemsize > 8:
        with np.errstate(all="ignore"):  # what overflows is infinite, and refused as such
            return values.astype(np.float64)
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def said(error: BaseException) -> str:
    """A library's complaint on one line of printable text."""
    text = " ".join(str(error).split()) or type(error).__name__
    return printable(text)[:200]


def is_hdf5(path: Path) -> bool:
    """Whether the file carries HDF5's signature; it may be damaged all the same."""
    try:
        return path.is_file() and bool(h5py.is_hdf5(path))
    except BROKEN:
        return False


def in_order(names: list[str], prefix: str) -> list[str]:
    """The names `prefix_0, prefix_1, …` by number, so that 2 comes before 10."""
    matches = [m for n in names if (m := re.fullmatch(rf"{prefix}_?([0-9]{{1,18}})", n))]
    return [m.group() for m in sorted(matches, key=lambda m: (int(m.group(1)), m.group()))]


def mapping(value: Any) -> dict:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def plain(record: Mapping[str, Any]) -> dict[str, str | float | bool]:
    """The entries that are text, numbers or flags."""
    return {k: float(v) if type(v) is int else v for k, v in record.items() if isinstance(v, (str, float, bool, int))}
