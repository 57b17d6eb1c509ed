"""MCAP files: what is in them by their index, and their messages one after another, never all at once.

The container is walked here and not by the library's readers, because these load whole records before they look at
them, unpack without a limit, and sort all messages of a file without an index in memory.
"""

import io
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vhydro.data.assembly import translated
from vhydro.data.errors import DataError
from vhydro.data.memory import allowance_of

MAGIC = b"\x89MCAP0\r\n"
HEADER, FOOTER, SCHEMA, CHANNEL, MESSAGE, CHUNK, MESSAGE_INDEX, CHUNK_INDEX = 1, 2, 3, 4, 5, 6, 7, 8
STATISTICS, DATA_END = 0x0B, 0x0F
RECORD = struct.Struct("<BQ")  # opcode and length, before every record
HEAD = struct.Struct("<HIQQ")  # channel, sequence, log time and publish time, before the bytes of a message
LARGEST_RECORD = 1 << 28  # bytes of a record that is read whole, packed or not
FOOTER_SIZE = RECORD.size + 20
EXPECTED = "an MCAP file that was closed properly"
RECOVER = "Repair it with `mcap recover`, or fetch it again."


class Topic(NamedTuple):
    """What a channel of a file says about its messages."""

    name: str
    encoding: str  # of the messages, such as cdr
    type: str  # such as sensor_msgs/msg/JointState
    schema_encoding: str  # such as ros2msg
    schema: str  # the definition of the type


class Count(NamedTuple):
    """How many messages a channel has, and when it had the first and the last, in ns."""

    messages: int
    first: int
    last: int


class ChunkPlace(NamedTuple):
    """Where a chunk lies, when its messages were logged, and where the index of each of its channels lies."""

    start: int
    length: int
    first: int  # ns
    last: int
    channels: Mapping[int, int]


@dataclass(frozen=True)
class McapFile:
    """A file by its index, or by one pass over it where it has none."""

    path: Path
    topics: Mapping[int, Topic]
    counts: Mapping[int, Count]
    chunks: tuple[ChunkPlace, ...] | None  # None: not indexed
    data_end: int  # where the messages end

    def messages(self, wanted: Collection[int]) -> Iterator[tuple[int, int, memoryview]]:
        """Channel, log time (ns) and bytes of every message of these channels, in the order of the file."""
        left = {channel: self.counts[channel].messages for channel in wanted if channel in self.counts}
        with translated(self.path, EXPECTED, remedy=RECOVER), self.path.open("rb") as file:
            for channel, time, data in self._walked(file, frozenset(left)):
                left[channel] -= 1
                yield channel, time, data
        if any(left.values()):
            missed, few = next((c, n) for c, n in left.items() if n)
            promised = self.counts[missed].messages
            raise DataError(
                self.path, key=self.topics[missed].name, found=f"{promised - few} messages",
                expected=f"{promised}, as its index says", remedy=RECOVER,
            )  # fmt: skip

    def span(self, wanted: Collection[int]) -> tuple[int, int]:
        """Between which times (ns) all messages of these channels were logged."""
        if self.chunks is None:
            return min(self.counts[c].first for c in wanted), max(self.counts[c].last for c in wanted)
        mine = [c for c in self.chunks if not c.channels.keys().isdisjoint(wanted)]
        return min(c.first for c in mine), max(c.last for c in mine)

    def _walked(self, file: io.BufferedIOBase, wanted: frozenset[int]) -> Iterator[tuple[int, int, memoryview]]:
        most = largest_record(self.path)
        if self.chunks is None:
            yield from messages_between(file, len(MAGIC), self.data_end, wanted, most)
            return
        for place in self.chunks:
            if wanted.isdisjoint(place.channels):
                continue
            opcode, start, length = record_at(file, place.start, self.data_end)
            if opcode != CHUNK or length + RECORD.size != place.length:
                raise ValueError(f"no chunk of {place.length} bytes at byte {place.start}, where the index has one")
            yield from messages_between(*unpacked(file, start, length, most), wanted, most)


def opened(path: Path) -> McapFile:
    """The file by its index; one that has none is walked through once, without its messages being kept."""
    with translated(path, EXPECTED, remedy=RECOVER), path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError("another beginning")
        file.seek(max(0, size - len(MAGIC)))
        if file.read() != MAGIC or size < FOOTER_SIZE + 2 * len(MAGIC):
            raise ValueError("no end, as of a recording that was cut off")
        end = size - len(MAGIC) - FOOTER_SIZE
        summary, checksum = footer(file, end)
        found = Contents()
        if summary:
            check_summary(file, summary, end, checksum)
            for opcode, start, length in records(file, summary, end):
                found.add(opcode, partial(content, file, start, length, largest_record(path)))
        data_end = summary or end
        if found.indexed:
            return indexed(path, file, found, data_end)
        return scanned(path, file, data_end)


def largest_record(path: Path) -> int:
    return min(LARGEST_RECORD, allowance_of(path))


def footer(file: io.BufferedIOBase, place: int) -> tuple[int, int]:
    """Where the summary begins (0: there is none), and its checksum (0: not told)."""
    opcode, start, length = record_at(file, place, place + FOOTER_SIZE)
    if (opcode, length) != (FOOTER, 20):
        raise ValueError("no footer")
    summary, _, checksum = struct.unpack("<QQI", content(file, start, length, length))
    if summary and not len(MAGIC) <= summary <= place:
        raise ValueError(f"a summary at byte {summary}")
    return summary, checksum


def check_summary(file: io.BufferedIOBase, start: int, end: int, checksum: int) -> None:
    """Raises if the bytes of the summary are not those that were written."""
    found = zlib.crc32(content(file, start, end - start, LARGEST_RECORD >> 2))
    file.seek(end)
    if checksum and zlib.crc32(file.read(FOOTER_SIZE - 4), found) != checksum:
        raise ValueError("a summary with another checksum")


@dataclass
class Contents:
    """What records of a summary, or of a whole file, say."""

    schemas: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    channels: dict[int, tuple[str, str, int]] = field(default_factory=dict)
    chunks: list[ChunkPlace] = field(default_factory=list)
    promised: dict[int, int] | None = None  # messages of each channel
    promised_chunks: int = 0

    def add(self, opcode: int, read: Callable[[], bytes]) -> None:
        """Takes in a record if it is of interest; only then is it read."""
        if opcode not in (SCHEMA, CHANNEL, CHUNK_INDEX, STATISTICS):
            return
        from mcap import records as kinds
        from mcap.data_stream import ReadDataStream

        stream = ReadDataStream(io.BytesIO(read()))
        if opcode == SCHEMA:
            schema = kinds.Schema.read(stream)
            self.schemas[schema.id] = (schema.name, schema.encoding, schema.data.decode("utf-8", "replace"))
        elif opcode == CHANNEL:
            channel = kinds.Channel.read(stream)
            self.channels[channel.id] = (channel.topic, channel.message_encoding, channel.schema_id)
        elif opcode == CHUNK_INDEX:
            chunk = kinds.ChunkIndex.read(stream)
            times = (chunk.message_start_time, chunk.message_end_time)
            place = (chunk.chunk_start_offset, chunk.chunk_length)
            self.chunks.append(ChunkPlace(*place, *times, chunk.message_index_offsets))
        else:
            told = kinds.Statistics.read(stream)
            self.promised, self.promised_chunks = dict(told.channel_message_counts), told.chunk_count

    @property
    def indexed(self) -> bool:
        """Whether chunks are found, and what is in each, without looking into them."""
        complete = self.promised is not None and len(self.chunks) == self.promised_chunks
        return complete and bool(self.chunks) and all(c.channels for c in self.chunks)

    @property
    def topics(self) -> dict[int, Topic]:
        none = ("", "", "")
        return {
            c: Topic(name, how, *self.schemas.get(schema, none)) for c, (name, how, schema) in self.channels.items()
        }


def indexed(path: Path, file: io.BufferedIOBase, found: Contents, data_end: int) -> McapFile:
    """The file by its index, after that was checked against itself."""
    place = len(MAGIC)
    chunks = sorted(found.chunks, key=lambda c: c.start)
    for chunk in chunks:
        if chunk.start < place or chunk.start + chunk.length > data_end or chunk.length < RECORD.size:
            raise ValueError(f"an index with a chunk at bytes {chunk.start} to {chunk.start + chunk.length}")
        place = chunk.start + chunk.length
    counts = {}
    for channel, messages in (found.promised or {}).items():
        mine = [c for c in chunks if channel in c.channels]
        if channel not in found.channels or not messages or not mine:
            continue
        first, last = (index_times(file, c.channels[channel], channel, data_end) for c in (mine[0], mine[-1]))
        counts[channel] = Count(messages, int(first.min()), int(last.max()))
    return McapFile(path, found.topics, counts, tuple(chunks), data_end)


def index_times(file: io.BufferedIOBase, place: int, channel: int, end: int) -> np.ndarray:
    """The times of the messages of a channel in a chunk."""
    opcode, start, length = record_at(file, place, end)
    data = content(file, start, length, LARGEST_RECORD)
    if opcode != MESSAGE_INDEX or struct.unpack_from("<H", data)[0] != channel or (length - 6) % 16 or length < 22:
        raise ValueError(f"no index of messages at byte {place}")
    return np.frombuffer(data, "<u8", offset=6)[::2]


def scanned(path: Path, file: io.BufferedIOBase, end: int) -> McapFile:
    """The file by a pass over all of it."""
    found, counts, most = Contents(), {}, largest_record(path)
    for channel, time, _ in messages_between(file, len(MAGIC), end, None, most, found.add):
        had = counts.get(channel, Count(0, time, time))
        counts[channel] = Count(had.messages + 1, min(had.first, time), max(had.last, time))
    if unknown := sorted(set(counts) - set(found.channels)):
        raise ValueError(f"messages of a channel {unknown[0]} that is not described")
    return McapFile(path, found.topics, counts, None, end)


def messages_between(
    file: io.BufferedIOBase,
    start: int,
    end: int,
    wanted: Collection[int] | None,
    most: int,
    other: Callable[[int, Callable[[], bytes]], None] | None = None,
) -> Iterator[tuple[int, int, memoryview]]:
    """The messages of these channels (None: of all, without their bytes) from one byte to another, chunks unpacked."""
    for opcode, place, length in records(file, start, end):
        if opcode == MESSAGE:
            channel, _, time, _ = HEAD.unpack(content(file, place, HEAD.size, HEAD.size))
            if wanted is None:
                yield channel, time, memoryview(b"")
            elif channel in wanted:
                data = content(file, place + HEAD.size, length - HEAD.size, most)
                yield channel, time, memoryview(data)
        elif opcode == CHUNK and isinstance(file, io.BytesIO):
            raise ValueError("a chunk inside a chunk")
        elif opcode == CHUNK:
            yield from messages_between(*unpacked(file, place, length, most), wanted, most, other)
        elif other is not None:
            other(opcode, partial(content, file, place, length, most))
        if opcode == DATA_END:
            return


def records(file: io.BufferedIOBase, place: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Opcode, place and length of the records from one byte to another; none is read."""
    while place < end:
        opcode, start, length = record_at(file, place, end)
        yield opcode, start, length
        place = start + length


def record_at(file: io.BufferedIOBase, place: int, end: int) -> tuple[int, int, int]:
    file.seek(place)
    head = file.read(RECORD.size)
    opcode, length = RECORD.unpack(head) if len(head) == RECORD.size else (0, 0)
    if not opcode or place + RECORD.size + length > end:
        raise ValueError(f"no whole record at byte {place}")
    return opcode, place + RECORD.size, length


def content(file: io.BufferedIOBase, start: int, length: int, most: int) -> bytes:
    """The bytes of a record, or of a part of it, if they are there and not too many."""
    if not 0 <= length <= most:
        raise ValueError(f"a record of {length:,} bytes, where at most {most:,} are read at once")
    file.seek(start)
    data = file.read(length)
    if len(data) != length:
        raise ValueError(f"{len(data)} of {length} bytes")
    return data


def unpacked(file: io.BufferedIOBase, start: int, length: int, most: int) -> tuple[io.BytesIO, int, int]:
    """The records of a chunk, unpacked and checked, and from where to where they go."""
    data = content(file, start, length, most)
    size, checksum, word = struct.unpack_from("<QII", data, 16)
    compression = data[32 : 32 + word].decode()
    packed = memoryview(data)[40 + word :]
    if size > most or struct.unpack_from("<Q", data, 32 + word)[0] != len(packed):
        raise ValueError(f"a chunk of {len(packed):,} bytes that unfolds to {size:,}, where at most {most:,} are read")
    whole = unfolded(packed, compression, size)
    if len(whole) != size or (checksum and zlib.crc32(whole) != checksum):
        raise ValueError(f"a chunk at byte {start} with another size or checksum")
    return io.BytesIO(whole), 0, size


def unfolded(packed: memoryview, compression: str, size: int) -> bytes | memoryview:
    """The bytes that were packed; never more than one above `size`, whatever the packed ones claim."""
    if compression == "zstd":
        import zstandard

        with zstandard.ZstdDecompressor().stream_reader(packed) as stream:
            return stream.read(size + 1)
    if compression == "lz4":
        import lz4.frame

        return lz4.frame.LZ4FrameDecompressor().decompress(bytes(packed), max_length=size + 1)
    if compression:
        raise ValueError(f"a chunk packed by {compression}; lz4, zstd and none are known")
    return packed
