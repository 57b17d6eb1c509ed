"""Zarr stores of format 2, a folder or a zip file: their arrays of numbers, read by path and unpacked within limits.

The zarr library would do it, but runs whatever codec a store names, one of which unpickles; here only those that
unpack plain bytes are known, and each is told how many bytes may come out.
"""

import bz2
import itertools
import json
import lzma
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from vhydro.data.assembly import translated
from vhydro.data.errors import DataError
from vhydro.data.memory import REMEDY, allowance
from vhydro.data.npz_archive import member_starts, member_stream

DTYPE = re.compile(r"[<>|][fiu][1248]|\|b1")
FILLS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
LONGEST_HEADER = 1 << 20  # bytes
MOST_PIECES = 1 << 20
MOST_MEMBERS = 1 << 21  # of a zip file


@runtime_checkable
class Store(Protocol):
    """Named pieces of bytes."""

    @property
    def file(self) -> Path: ...

    def arrays(self, group: str) -> list[str]: ...

    def size(self, key: str) -> int | None: ...  # None: not there

    def content(self, key: str) -> bytes: ...


@dataclass(frozen=True)
class FolderStore:
    """A folder with a file for each piece; none may lie outside, wherever a link leads."""

    file: Path

    def arrays(self, group: str) -> list[str]:
        """The names of the arrays in a group."""
        return sorted(p.parent.name for p in (self.file / group).glob("*/.zarray"))

    def size(self, key: str) -> int | None:
        path = self.file / key
        return path.stat().st_size if path.is_file() else None

    def content(self, key: str) -> bytes:
        path = self.file / key
        if not path.resolve().is_relative_to(self.file.resolve()):
            raise DataError(self.file, key=key, found="a link that leaves the folder", expected="the data itself")
        return path.read_bytes()


@dataclass(frozen=True)
class ZipStore:
    """A zip file with a member for each piece; its directory has to account for every byte."""

    file: Path
    prefix: str
    members: Mapping[str, zipfile.ZipInfo]
    starts: Mapping[str, int]  # of their bytes, in the file

    @classmethod
    def opened(cls, path: Path, marker: str) -> "ZipStore":
        """The store in a zip file: at its root, or in the folder that has the member `marker`."""
        with translated(path, "a zip file of a Zarr store"), zipfile.ZipFile(path) as zipped:
            members = zipped.infolist()
            if len(members) > MOST_MEMBERS:
                raise ValueError(f"{len(members):,} members, more than {MOST_MEMBERS:,}")
            starts = member_starts(path, members, zipped.start_dir)
            prefix = next(m.filename for m in members if m.filename.endswith(marker)).removesuffix(marker)
        names = [m.filename for m in members]  # the last of a name counts
        return cls(path, prefix, dict(zip(names, members, strict=True)), dict(zip(names, starts, strict=True)))

    def arrays(self, group: str) -> list[str]:
        start, end = f"{self.prefix}{group}/", "/.zarray"
        names = [n[len(start) : -len(end)] for n in self.members if n.startswith(start) and n.endswith(end)]
        return sorted(n for n in names if n and "/" not in n)

    def size(self, key: str) -> int | None:
        member = self.members.get(self.prefix + key)
        return None if member is None else member.file_size

    def content(self, key: str) -> bytes:
        # Opening the archive anew for every piece would read its whole directory as often as it has pieces.
        name = self.prefix + key
        with self.file.open("rb") as file, member_stream(file, self.members[name], self.starts[name]) as stream:
            return stream.read()


@dataclass(frozen=True)
class ZarrArray:
    """The header of an array."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype
    order: str
    fill: float | None
    codec: str  # nothing if it is not packed
    filtered: bool
    separator: str

    @property
    def pieces(self) -> tuple[int, ...]:
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunks, strict=True))

    def keys(self, key: str) -> list[tuple[tuple[int, ...], str]]:
        """Place and name of every piece."""
        places = itertools.product(*(range(n) for n in self.pieces))
        return [(place, f"{key}/{self.separator.join(map(str, place))}") for place in places]


def header(store: Store, key: str) -> ZarrArray:
    """The header of an array; a `DataError` if it is not one of format 2."""
    name = f"{key}/.zarray"
    with translated(store.file, "the header of a Zarr array of format 2", key=name):
        if (store.size(name) or 0) > LONGEST_HEADER:
            raise ValueError(f"{store.size(name):,} bytes")
        said = json.loads(store.content(name))
        if said["zarr_format"] != 2:
            raise ValueError(f"format {said['zarr_format']}")
        shape, chunks = (tuple(int(n) for n in said[k]) for k in ("shape", "chunks"))
        if len(shape) != len(chunks) or min(shape, default=0) < 0 or min(chunks, default=1) < 1:
            raise ValueError(f"shape {shape} in pieces of {chunks}")
        if said["order"] not in ("C", "F") or said.get("dimension_separator", ".") not in (".", "/"):
            raise ValueError(f"order {said['order']!r}, separator {said.get('dimension_separator')!r}")
        plain = isinstance(said["dtype"], str) and DTYPE.fullmatch(said["dtype"])
        return ZarrArray(
            shape, chunks, np.dtype(said["dtype"]) if plain else np.dtype(object), said["order"],
            fill_value(said.get("fill_value")), str((said["compressor"] or {}).get("id", "")) if plain else "?",
            bool(said.get("filters")), said.get("dimension_separator", "."),
        )  # fmt: skip


def fill_value(said: Any) -> float | None:
    """What pieces that are not stored stand for; None where nothing does."""
    if said is None or isinstance(said, (bool, int, float)):
        return None if said is None else float(said)
    return FILLS.get(said) if isinstance(said, str) else None


def refusal(array: ZarrArray) -> str:
    """Why an array is not one of numbers that can be read; nothing if it is."""
    if array.dtype.hasobject or len(array.shape) not in (1, 2):
        return f"{len(array.shape)} axes" if len(array.shape) not in (1, 2) else "no numbers"
    if array.filtered or array.codec not in UNPACK:
        return "a filter" if array.filtered else f"codec {array.codec}"
    return ""


def missing(store: Store, key: str, array: ZarrArray) -> int:
    """How many pieces are not stored."""
    return sum(store.size(name) is None for _, name in checked_keys(store, key, array))


def checked_keys(store: Store, key: str, array: ZarrArray) -> list[tuple[tuple[int, ...], str]]:
    if math.prod(array.pieces) > MOST_PIECES:
        found = f"{math.prod(array.pieces):,} pieces"
        raise DataError(store.file, key=key, found=found, expected=f"at most {MOST_PIECES:,}")
    return array.keys(key)


def values(store: Store, key: str, array: ZarrArray) -> np.ndarray:
    """All numbers of an array."""
    keys = checked_keys(store, key, array)
    stored = sum(store.size(name) or 0 for _, name in keys)
    size = math.prod(array.shape) * array.dtype.itemsize
    piece = math.prod(array.chunks) * array.dtype.itemsize
    if max(size, piece) > (most := allowance(stored)):
        what = f"{size:,} bytes in pieces of {piece:,}, packed into {stored:,}"
        raise DataError(store.file, key=key, found=what, expected=f"at most {most:,}", remedy=REMEDY)
    out = np.zeros(array.shape, array.dtype)
    for place, name in keys:
        area = tuple(slice(i * c, (i + 1) * c) for i, c in zip(place, array.chunks, strict=True))
        target = out[area]
        if store.size(name) is None:
            target[...] = filled(store, name, array)
            continue
        with translated(store.file, f"{piece:,} bytes packed by {array.codec or 'nothing'}", key=name):
            if (packed := store.size(name) or 0) > 2 * piece + LONGEST_HEADER:
                raise ValueError(f"{packed:,} bytes")
            raw = UNPACK[array.codec](store.content(name), piece)
            if len(raw) != piece:
                raise ValueError(f"{len(raw):,} bytes")
            whole = np.frombuffer(raw, array.dtype).reshape(array.chunks, order=array.order)  # pyright: ignore[reportCallIssue, reportArgumentType]
            target[...] = whole[tuple(slice(0, n) for n in target.shape)]
    return out


def filled(store: Store, name: str, array: ZarrArray) -> float:
    fine = array.fill is not None and (array.dtype.kind == "f" or math.isfinite(array.fill))
    if not fine or array.fill is None:
        raise DataError(store.file, key=name, found="nothing there", expected="a piece of the array")
    return array.fill


# --- what pieces are packed by ----------------------------------------------------------------------------------------


def limited(decompressor: Callable[[], Any]) -> Callable[[bytes, int], bytes]:
    """Unpacks no more than is expected and one byte, which tells that it is too much."""
    return lambda data, size: decompressor().decompress(data, size + 1)


def by_numcodecs(name: str) -> Callable[[bytes, int], bytes]:
    def unpacked(data: bytes, size: int) -> bytes:
        try:
            import numcodecs
        except ImportError:
            raise ValueError(f"no numcodecs, which unpacks {name}. Run: pip install numcodecs") from None
        # The library reads and writes as far as the header says.
        if (told := TOLD_SIZES[name](data)) != size:
            raise ValueError(f"{len(data):,} bytes that say to unfold to {told}")
        out = np.zeros(size, np.uint8)
        getattr(numcodecs, name)().decode(data, out=out)
        return out.tobytes()

    return unpacked


def blosc_size(data: bytes) -> int | None:
    unfolded, folded = (int.from_bytes(data[a : a + 4], "little") for a in (4, 12))
    return unfolded if len(data) >= 16 and folded == len(data) else None


def zstd_size(data: bytes) -> int | None:
    """The size in the header of a frame (RFC 8878, 3.1.1.1), or None if it is not told."""
    if data[:4] != b"\x28\xb5\x2f\xfd" or len(data) < 9:
        return None
    flags, whole = data[4], data[4] >> 5 & 1
    width = (whole, 2, 4, 8)[flags >> 6]
    start = 5 + (1 - whole) + (0, 1, 2, 4)[flags & 3]
    told = int.from_bytes(data[start : start + width], "little")
    return told + 256 * (width == 2) if width else None


TOLD_SIZES: dict[str, Callable[[bytes], int | None]] = {
    "Blosc": blosc_size,
    "Zstd": zstd_size,
    "LZ4": lambda data: int.from_bytes(data[:4], "little") if len(data) > 4 else None,
}


UNPACK: dict[str, Callable[[bytes, int], bytes]] = {
    "": lambda data, _: data,
    "blosc": by_numcodecs("Blosc"),
    "zstd": by_numcodecs("Zstd"),
    "lz4": by_numcodecs("LZ4"),
    "zlib": limited(zlib.decompressobj),
    "gzip": limited(lambda: zlib.decompressobj(31)),
    "bz2": limited(bz2.BZ2Decompressor),
    "lzma": limited(lzma.LZMADecompressor),
}
