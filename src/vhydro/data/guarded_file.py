"""A file that libhdf5 can read without being sent into an endless loop by a damaged heap."""

import io
import struct
from pathlib import Path

SIGNATURE = b"GCOL"  # of a global heap, where HDF5 keeps texts
METADATA = 1 << 20  # bytes: libhdf5 reads what is not a dataset in smaller pieces than this


class GuardedFile(io.FileIO):
    """Gives libhdf5 its bytes, and fails where a global heap would never end.

    An object of no index and no size, as a zeroed block leaves it, makes libhdf5 2.0 and earlier read the same place
    for ever (HDFGroup/hdf5 issue 1707): no exception, and no way to interrupt it from Python.
    """

    def __init__(self, path: Path):
        super().__init__(path, "rb")
        self.sound: set[int] = set()  # addresses of heaps that end
        self.end = self.seek(0, io.SEEK_END)

    def __del__(self):
        self.close()  # libhdf5 never does, and is done with it when it lets go

    def readinto(self, buffer) -> int:
        start = self.tell()
        count = super().readinto(buffer)
        content = bytes(buffer[: count if count <= METADATA else len(SIGNATURE)])
        place = content.find(SIGNATURE)
        while place >= 0:
            self.refuse_endless_heap(start + place)
            place = content.find(SIGNATURE, place + 1)
        return count

    def refuse_endless_heap(self, address: int) -> None:
        if address in self.sound:
            return
        self.seek(address)
        head = self.read(16)
        size = struct.unpack_from("<Q", head, 8)[0] if len(head) == 16 else 0
        # Anything else that is wrong with it libhdf5 notices by itself.
        if head[4:8] == b"\x01\x00\x00\x00" and size <= self.end - address and not ends(self.read(size - 16)):
            raise OSError(f"the heap at byte {address} is damaged")
        self.sound.add(address)


def ends(objects: bytes) -> bool:
    """Whether the objects of a heap follow one another to its end."""
    place = 0
    while place + 16 <= len(objects):
        index, size = struct.unpack_from("<H6xQ", objects, place)
        step = 16 + (size + 7) // 8 * 8 if index else size
        if not 0 < step <= len(objects) - place:
            # The object that fills the rest may count the padding after it or not.
            return index != 0 and place + 16 + size <= len(objects)
        place += step
    return True
