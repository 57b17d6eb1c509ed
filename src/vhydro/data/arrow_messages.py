"""How much the messages of an Arrow file unfold to, before any of them is read.

pyarrow allocates what a packed buffer claims to unfold to, and tells nothing of it beforehand. The little that has to
be known of a message is read here: its header is a flatbuffer, tables of offsets.
"""

import io
import struct
from pathlib import Path

CONTINUED = 0xFFFFFFFF
DICTIONARY, BATCH = 2, 3  # kinds of message
LONGEST_HEADER = 1 << 26


class Flat:
    """A table of a flatbuffer; struct.error or ValueError where an offset leads out of it."""

    def __init__(self, data: bytes, place: int):
        self.data, self.place = data, place
        self.fields = place - self.number("<i", place)

    def number(self, form: str, place: int) -> int:
        if place < 0:
            raise ValueError("an offset before the beginning")
        return struct.unpack_from(form, self.data, place)[0]

    def find(self, field: int) -> int | None:
        """Where a field is, if the table has it."""
        if 4 + 2 * field >= self.number("<H", self.fields):
            return None
        offset = self.number("<H", self.fields + 4 + 2 * field)
        return self.place + offset if offset else None

    def table(self, field: int) -> "Flat | None":
        place = self.find(field)
        return None if place is None else Flat(self.data, place + self.number("<I", place))

    def long(self, field: int) -> int:
        place = self.find(field)
        return 0 if place is None else self.number("<q", place)

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """A list of pairs of long numbers."""
        place = self.find(field)
        if place is None:
            return []
        start = place + self.number("<I", place)
        count = self.number("<I", start)
        end = start + 4 + 16 * count
        if end > len(self.data):
            raise ValueError(f"a list of {count} in a message of {len(self.data)} bytes")
        return list(struct.iter_unpack("<qq", self.data[start + 4 : end]))


def unfolded_size(path: Path, start: int) -> tuple[int, int]:
    """Bytes that the messages from this byte on unfold to, and the rows of the batches among them."""
    size = rows = 0
    with path.open("rb") as file:
        end = file.seek(0, io.SEEK_END)
        place = start
        while place < end:
            file.seek(place)
            mark, length = struct.unpack("<Ii", file.read(8))
            if mark != CONTINUED or not 0 <= length <= min(LONGEST_HEADER, end - place):
                raise ValueError(f"no message at byte {place}")
            if not length:
                break
            header = file.read(length)
            message = Flat(header, struct.unpack_from("<I", header)[0])
            body = message.long(3)
            if not 0 <= body <= end - place - 8 - length:
                raise ValueError(f"a message of {body:,} bytes at byte {place}, more than there are")
            kind, batch = batch_of(message)
            if batch is not None:
                size += batch_size(file, place + 8 + length, body, batch)
                rows += batch.long(0) if kind == BATCH else 0
            place += 8 + length + body
    return size, rows


def batch_of(message: Flat) -> tuple[int, Flat | None]:
    """The kind of a message, and its batch of buffers if it has one."""
    place, content = message.find(1), message.table(2)
    kind = 0 if place is None else message.number("<B", place)
    if content is None or kind not in (DICTIONARY, BATCH):
        return kind, None
    return kind, content if kind == BATCH else content.table(1)


def batch_size(file: io.BufferedIOBase, start: int, length: int, batch: Flat) -> int:
    """Bytes that the buffers of a batch unfold to."""
    packed = batch.find(3) is not None
    total = 0
    for offset, size in batch.pairs(2):
        if not 0 <= offset <= length or not 0 <= size <= length - offset:
            raise ValueError(f"a buffer at bytes {offset} to {offset + size} of {length}")
        told = size
        if packed and size >= 8:
            file.seek(start + offset)
            told = struct.unpack("<q", file.read(8))[0]
            told = size if told == -1 else told  # not worth packing
            if told < 0:
                raise ValueError("a buffer of negative size")
        total += told
    return total
