"""The arrays of an npz file: headers first, contents when asked for, nothing unpickled."""

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from vhydro.data.assembly import GIBIBYTE, REMEDY, translated
from vhydro.data.errors import DataError
from vhydro.data.memory import allowance_of

CHUNK = 1 << 20
MOST_ARRAYS = 100_000
LONGEST_HEADER = 1 << 16  # bytes; one of numpy's has a hundred or so
LOCAL_HEADER = 30
DESCRIPTORS = (0, 12, 16, 20, 24)  # bytes that may follow a member to repeat its checksum and sizes
TEXT_SHARE = 16  # JSON takes about so many times its length in memory


@dataclass(frozen=True)
class Header:
    """What an array says about itself before its contents."""

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool
    offset: int  # of the contents, within the member

    @property
    def size(self) -> int:
        count = self.dtype.itemsize
        for n in self.shape:
            count *= n
        return count


def is_npz(path: Path) -> bool:
    """Whether the file begins as a zip archive whose first member is an array or our own description."""
    with path.open("rb") as file:
        head = file.read(LOCAL_HEADER + 300)
    name = head[LOCAL_HEADER : LOCAL_HEADER + int.from_bytes(head[26:28], "little")]
    return head[:4] == b"PK\x03\x04" and name.endswith((b".npy", b"vhydro.json"))


@dataclass
class Archive:
    """An npz file. Arrays stored as they are stay on disk; compressed ones are unfolded once and kept."""

    file: Path
    headers: dict[str, Header] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    members: dict[str, zipfile.ZipInfo] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)  # of the bytes of members, in the file
    loaded: dict[str, np.ndarray] = field(default_factory=dict)

    def __getstate__(self) -> dict:
        return self.__dict__ | {"loaded": {}}  # contents are read again in another process

    @classmethod
    def opened(cls, path: Path) -> "Archive":
        """The archive with every header read and checked against the size of its member."""
        archive = cls(path)
        with translated(path, "a zip archive of arrays"), zipfile.ZipFile(path) as zipped:
            members = zipped.infolist()
            if len(members) > MOST_ARRAYS:
                raise ValueError(f"{len(members)} arrays, more than {MOST_ARRAYS}")
            archive.check_unfolded(members)
            for member, start in zip(members, member_starts(path, members, zipped.start_dir), strict=True):
                archive.add(zipped, member, start)
        return archive

    def check_unfolded(self, members: Sequence[zipfile.ZipInfo]) -> None:
        """Raises if compressed arrays would unfold to more than fits in memory."""
        unfolded = sum(m.file_size for m in members if m.compress_type != zipfile.ZIP_STORED)
        most = allowance_of(self.file)
        if unfolded > most:
            raise DataError(
                self.file, found=f"compressed arrays of {unfolded / GIBIBYTE:.3g} GiB",
                expected=f"at most {most / GIBIBYTE:.3g} GiB in a file of this size",
                remedy="Save it uncompressed (numpy.savez), which is read without loading it whole.",
            )  # fmt: skip

    def add(self, zipped: zipfile.ZipFile, member: zipfile.ZipInfo, start: int) -> None:
        key = member.filename.removesuffix(".npy")
        if key in self.members:
            raise DataError(self.file, key=key, found="the name twice", expected="arrays with different names")
        self.members[key], self.starts[key] = member, start
        if member.filename.endswith(".npy"):
            with translated(self.file, "the header of an array", key=key), zipped.open(member) as stream:
                self.headers[key] = array_header(stream)
            self.check_size(key, member)
            self.shapes[key] = self.headers[key].shape

    def check_size(self, key: str, member: zipfile.ZipInfo) -> None:
        header = self.headers[key]
        if header.dtype.hasobject:
            raise DataError(
                self.file, key=key, found="pickled Python objects", expected="plain numbers",
                remedy="Save plain arrays: pickles can execute code and are never opened.",
            )  # fmt: skip
        if header.offset + header.size != member.file_size:
            found = f"{member.file_size - header.offset} bytes of {header.dtype} {header.shape}"
            raise DataError(self.file, key=key, found=found, expected=f"{header.size} bytes")
        if member.compress_type == zipfile.ZIP_STORED and member.compress_size != member.file_size:
            raise DataError(self.file, key=key, found="two sizes for one array", expected="one size")

    def dtype(self, key: str) -> np.dtype:
        return self.headers[key].dtype

    def array(self, key: str, episode: str = "") -> np.ndarray:
        """The contents, checked against their checksum the first time."""
        if key not in self.loaded:
            with translated(self.file, "the contents of an array", episode=episode, key=key):
                self.loaded[key] = self.contents(key)
        return self.loaded[key]

    def contents(self, key: str) -> np.ndarray:
        header, member = self.headers[key], self.members[key]
        stored = member.compress_type == zipfile.ZIP_STORED and header.size > 0
        order = "F" if header.fortran else "C"
        # Opening the archive anew for every array would read its whole directory as often as it has entries.
        with self.file.open("rb") as file, member_stream(file, member, self.starts[key]) as stream:
            stream.read(header.offset)
            if stored:
                while stream.read(CHUNK):  # to the end, where the checksum is compared
                    pass
            else:
                flat = np.frombuffer(stream.read(header.size + 1), header.dtype)
                return flat.reshape(header.shape, order=order)
        return np.memmap(self.file, header.dtype, "r", self.starts[key] + header.offset, header.shape, order)

    def text(self, key: str) -> str:
        """A member that is text and no array."""
        with translated(self.file, "text", key=key), zipfile.ZipFile(self.file) as zipped:
            if self.members[key].file_size * TEXT_SHARE > allowance_of(self.file):
                raise ValueError(f"{self.members[key].file_size} bytes of text")
            return zipped.read(self.members[key]).decode("utf-8")


def array_header(stream: io.BufferedIOBase | IO[bytes]) -> Header:
    """The header with which the bytes of an array begin; ValueError if it is none."""
    head = header_bytes(stream)
    version = np.lib.format.read_magic(head)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"npy version {version}")
    read = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(head)
    if any(n < 0 for n in shape):
        raise ValueError(f"shape {shape}")
    return Header(shape, dtype, fortran, head.tell())


def header_bytes(stream: io.BufferedIOBase | IO[bytes]) -> io.BytesIO:
    """The bytes of a header. numpy itself would read as many as the header says it has, which can be 4 GiB."""
    start = stream.read(12)
    size = 10 + int.from_bytes(start[8:10], "little")
    if start[6:7] != b"\x01":
        size = 12 + int.from_bytes(start[8:12], "little")
    if size > LONGEST_HEADER:
        raise ValueError(f"a header of {size} bytes")
    return io.BytesIO(start + stream.read(max(0, size - len(start))))


def member_starts(path: Path, members: Sequence[zipfile.ZipInfo], end: int) -> list[int]:
    """Where the bytes of every member begin, or a `DataError`: the directory must list all that lies before it.

    A zip archive has no checksum of its directory: one wrong byte there hides an array or gives it another name.
    """
    starts, covered = {}, 0
    with path.open("rb") as file:
        for member in sorted(members, key=lambda m: m.header_offset):
            follows = member.header_offset - covered
            if follows not in DESCRIPTORS:
                break
            starts[member.header_offset] = member_start(file, member)
            covered = starts[member.header_offset] + member.compress_size
    if len(starts) != len(members) or end - covered not in DESCRIPTORS:
        raise DataError(
            path, key="zip directory", found=f"entries that do not account for bytes {covered} to {end}",
            expected="an entry for everything in the archive, one after another", remedy=REMEDY,
        )  # fmt: skip
    return [starts[m.header_offset] for m in members]


def member_start(file: IO[bytes], member: zipfile.ZipInfo) -> int:
    """Where the bytes of a member begin: behind its local header, which must agree with the directory."""
    file.seek(member.header_offset)
    head = file.read(LOCAL_HEADER)
    flags, method, checksum = (int.from_bytes(head[a:b], "little") for a, b in ((6, 8), (8, 10), (14, 18)))
    name, extra = (int.from_bytes(head[i : i + 2], "little") for i in (26, 28))
    later = flags & 8  # the checksum follows the contents
    if head[:4] != b"PK\x03\x04" or method != member.compress_type or (checksum != member.CRC and not later):
        raise ValueError(f"the entry of {member.filename} contradicts what lies there")
    if file.read(name).decode("utf-8" if flags & 0x800 else "cp437") != member.orig_filename:
        raise ValueError(f"another name than {member.filename} where that should lie")
    return member.header_offset + LOCAL_HEADER + name + extra


def member_stream(file: IO[bytes], member: zipfile.ZipInfo, start: int) -> zipfile.ZipExtFile:
    """The contents of a member, unpacked while they are read and checked against their checksum at the end."""
    file.seek(start)
    return zipfile.ZipExtFile(file, "r", member)  # pyright: ignore[reportArgumentType, reportCallIssue]
