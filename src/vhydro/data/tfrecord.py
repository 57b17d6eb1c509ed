"""TFRecord files and the `tf.train.Example` messages in them, read without TensorFlow."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vhydro.data.assembly import REMEDY
from vhydro.data.crc32c import masked_crc32c
from vhydro.data.errors import DataError
from vhydro.data.memory import allowance

HEADER, FOOTER = 12, 4


class Record(NamedTuple):
    """Where a record lies in its file."""

    file: Path
    number: int
    offset: int
    length: int


def is_tfrecord(path: Path) -> bool:
    """Whether the file begins with a record header whose checksum is right."""
    with path.open("rb") as file:
        head = file.read(HEADER)
    return len(head) == HEADER and masked_crc32c(head[:8]) == struct.unpack_from("<I", head, 8)[0]


def records(path: Path) -> list[Record]:
    """Every record of the file, by its headers alone."""
    size, at, found = path.stat().st_size, 0, []
    with path.open("rb") as file:
        while at < size:
            file.seek(at)
            length = record_length(path, file.read(HEADER), len(found), size - at)
            found.append(Record(path, len(found), at + HEADER, length))
            at += HEADER + length + FOOTER
    return found


def record_length(path: Path, head: bytes, number: int, left: int) -> int:
    """The length in a record's header, checked against its checksum and the rest of the file."""
    where = {"episode": str(number), "key": "record header", "remedy": REMEDY}
    if len(head) < HEADER:
        raise DataError(path, found=f"{left} bytes after the last record", expected="a whole record", **where)
    length, crc = struct.unpack("<QI", head)
    if masked_crc32c(head[:8]) != crc:
        raise DataError(path, found="a length with a wrong checksum", expected="its CRC-32C", **where)
    if HEADER + length + FOOTER > left or length > allowance(length):
        raise DataError(path, found=f"a record of {length} bytes with {left} left", expected="a whole record", **where)
    return length


def payload(record: Record) -> bytes:
    """The bytes of a record, checked against their checksum."""
    with record.file.open("rb") as file:
        file.seek(record.offset)
        data, foot = file.read(record.length), file.read(FOOTER)
    where = {"episode": str(record.number), "key": "record", "remedy": REMEDY}
    if len(data) < record.length or len(foot) < FOOTER:
        raise DataError(record.file, found=f"{len(data)} bytes", expected=f"{record.length} and a checksum", **where)
    if masked_crc32c(data) != struct.unpack("<I", foot)[0]:
        raise DataError(record.file, found="bytes with a wrong checksum", expected="their CRC-32C", **where)
    return data


Feature = np.ndarray | list[memoryview]  # float32 or int64 numbers, or byte strings left where they are


def example(data: bytes) -> dict[str, Feature]:
    """The features of a `tf.train.Example` by name; ValueError if the bytes are no such message."""
    features: dict[str, Feature] = {}
    for number, body in messages(memoryview(data)):
        if number == 1:
            for entry, content in messages(body):
                if entry == 1:
                    name, value = map_entry(content)
                    features[name] = value
    return features


def map_entry(content: memoryview) -> tuple[str, Feature]:
    """One entry of `map<string, Feature>`."""
    name, value = "", np.zeros(0, np.float32)
    for number, body in messages(content):
        if number == 1:
            name = str(body, "utf-8")
        elif number == 2:
            value = feature(body)
    return name, value


def feature(content: memoryview) -> Feature:
    """A `Feature`: one of a list of bytes, of floats, of integers."""
    value: Feature = np.zeros(0, np.float32)
    for number, body in messages(content):
        if number == 1:
            value = [item for inner, item in messages(body) if inner == 1]
        elif number == 2:
            value = np.frombuffer(b"".join(item for inner, item in messages(body) if inner == 1), "<f4")
        elif number == 3:
            value = integers(body)
    return value


def integers(body: memoryview) -> np.ndarray:
    """An `Int64List`: packed varints, or one field each in old files."""
    parts = [item for inner, item in messages(body) if inner == 1]
    return varints(np.frombuffer(b"".join(parts), np.uint8))


def varints(raw: np.ndarray) -> np.ndarray:
    """The signed integers of a run of base-128 varints."""
    ends = np.flatnonzero(raw < 0x80)
    if len(raw) and (not len(ends) or ends[-1] != len(raw) - 1):
        raise ValueError("a list of integers ends inside a number")
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])[: len(ends)]
    sizes = ends - starts + 1
    if len(ends) == 0:
        return np.zeros(0, np.int64)
    if sizes.max() > 10:
        raise ValueError("an integer of more than ten bytes")
    place = (np.arange(len(raw)) - np.repeat(starts, sizes)).astype(np.uint64)
    shifted = (raw & 0x7F).astype(np.uint64) << (np.uint64(7) * place)
    return np.bitwise_or.reduceat(shifted, starts).view(np.int64)


def messages(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Each field of a protobuf message: its number and its bytes (of a varint, the varint as it stands)."""
    at, size = 0, len(view)
    while at < size:
        tag, at = varint(view, at)
        start, kind = at, tag & 7
        if kind == 2:
            length, start = varint(view, at)
            at = start + length
        elif kind == 0:
            at = varint(view, at)[1]
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(f"a protobuf field of unknown kind {kind}")
        if at > size:
            raise ValueError(f"a protobuf field that ends {at - size} bytes past its message")
        yield tag >> 3, view[start:at]


def varint(view: memoryview, at: int) -> tuple[int, int]:
    """The number at this place, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(view):
            raise ValueError("a protobuf message that ends inside a number")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a protobuf number of more than ten bytes")
