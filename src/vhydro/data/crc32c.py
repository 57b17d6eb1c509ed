"""CRC-32C (Castagnoli), the checksum of TFRecords, over many lanes at once so that numpy alone is quick enough."""

from functools import cache

import numpy as np

POLYNOMIAL = 0x82F63B78  # reflected
BLOCK = 512  # bytes of one lane


def crc32c(data: bytes | memoryview) -> int:
    """The CRC-32C of the bytes."""
    if len(data) < BLOCK:
        return serial(data)
    # Zeros in front leave a register of zero alone, so lanes can be filled up there; the usual starting value of all
    # ones is the same as flipping the first four bytes.
    padding = -len(data) % BLOCK
    padded = np.zeros(padding + len(data), np.uint8)
    padded[padding:] = np.frombuffer(data, np.uint8)
    padded[padding : padding + 4] ^= 0xFF
    lanes = np.ascontiguousarray(padded.view("<u2").reshape(-1, BLOCK // 2).T)
    table = word_table()
    register = np.zeros(lanes.shape[1], np.uint32)
    for words in lanes:
        register = table[(register & 0xFFFF) ^ words] ^ (register >> 16)
    return int(joined_lanes(register)) ^ 0xFFFFFFFF


def masked_crc32c(data: bytes | memoryview) -> int:
    """The checksum as TFRecords store it: rotated and offset, so that it is not the checksum of itself."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def joined_lanes(register: np.ndarray) -> np.uint32:
    """The register after all lanes in a row, from the registers of each lane alone."""
    level = 0
    while len(register) > 1:
        if len(register) % 2:
            register = np.concatenate([np.zeros(1, np.uint32), register])
        register = shifted(register[0::2], level) ^ register[1::2]
        level += 1
    return register[0]


def serial(data: bytes | memoryview) -> int:
    table, register = byte_list(), 0xFFFFFFFF
    for byte in bytes(data):
        register = table[(register ^ byte) & 0xFF] ^ (register >> 8)
    return register ^ 0xFFFFFFFF


@cache
def byte_table() -> np.ndarray:
    register = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        register = (register >> 1) ^ np.where(register & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    return register


@cache
def byte_list() -> list[int]:
    return byte_table().tolist()


@cache
def word_table() -> np.ndarray:
    register = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(2):
        register = byte_table()[register & 0xFF] ^ (register >> 8)
    return register


def shifted(register: np.ndarray, level: int) -> np.ndarray:
    """The registers after `BLOCK * 2**level` zero bytes."""
    tables = shift_tables(level)
    result = tables[0][register & 0xFF]
    for i in (1, 2, 3):
        result ^= tables[i][(register >> (8 * i)) & 0xFF]
    return result


@cache
def shift_tables(level: int) -> np.ndarray:
    """For each of the four bytes of a register, what its 256 values become; the map is linear over bits."""
    if level:
        once = shift_tables(level - 1).reshape(-1)
        return shifted(once, level - 1).reshape(4, 256)
    values = (np.arange(256, dtype=np.uint32)[None] << (8 * np.arange(4, dtype=np.uint32))[:, None]).reshape(-1)
    for _ in range(BLOCK):
        values = byte_table()[values & 0xFF] ^ (values >> 8)
    return values.reshape(4, 256)
