"""Event files TensorBoard can read, written without TensorBoard, which takes 161 MB.

A file is a sequence of records, and each record is framed as in TensorFlow's TFRecord:

    length   8 bytes, little-endian          checksum of the length   4 bytes
    data     so many bytes                   checksum of the data     4 bytes

So a record torn by a crash is recognised, and the records before it are good. The checksum is CRC-32C (the
polynomial of Castagnoli), rotated by 15 bits and with a constant added, because otherwise it would be a poor
checksum for data that contain checksums. The data are one Event in protobuf's encoding, of which four fields
are needed:

    1 wall_time double   2 step int64   3 file_version string   5 summary {1 value {1 tag, 2 simple_value}}

A field is its number times 8 plus its kind (0 varint, 1 eight bytes, 2 a length and bytes, 5 four bytes).

Sources: tensorflow/core/lib/io/record_writer.h and lib/hash/crc32c.h (the mask),
tensorflow/core/util/event.proto and framework/summary.proto; protobuf's page on its encoding; RFC 3720,
appendix B.4, for values of CRC-32C.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

POLYNOMIAL = 0x82F63B78  # Castagnoli's, its bits reversed


class Scalar(NamedTuple):
    tag: str
    step: int
    value: float
    wall_time: float


class EventWriter:
    """Writes scalars into a new event file in `folder`, which TensorBoard finds below its --logdir."""

    def __init__(self, folder: str | Path):
        Path(folder).mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self.path = Path(folder) / name
        self.file = self.path.open("xb")
        self.file.write(record(_wall_time(time.time()) + _bytes(3, b"brain.Event:2")))

    def scalar(self, tag: str, value: float, step: int, wall_time: float | None = None) -> None:
        """Add one point to the curve `tag`. It is in the file after `flush`."""
        now = time.time() if wall_time is None else wall_time
        value_of_tag = _bytes(1, tag.encode()) + struct.pack("<Bf", 2 << 3 | 5, value)
        summary = _bytes(5, _bytes(1, value_of_tag))
        self.file.write(record(_wall_time(now) + _varint(2 << 3) + _varint(step) + summary))

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def read_scalars(path: str | Path) -> Iterator[Scalar]:
    """The scalars of an event file, in order, up to the first record that is torn or damaged."""
    for data in read_records(Path(path).read_bytes()):
        event = _fields(data)
        for summary in event.get(5, []):
            for value in _fields(summary).get(1, []):
                parts = _fields(value)
                (number,) = struct.unpack("<f", parts[2][0])
                (wall_time,) = struct.unpack("<d", event[1][0])
                yield Scalar(parts[1][0].decode(), event.get(2, [0])[0], number, wall_time)


# ---- records


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    checksums = (struct.pack("<I", masked(crc32c(part))) for part in (length, data))
    return length + next(checksums) + data + next(checksums)


def read_records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        part = data[at + 12 : at + 12 + length]
        if data[at : at + 16 + length] != record(part):
            return
        yield part
        at += 16 + length


def masked(checksum: int) -> int:
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder = TABLE[(remainder ^ byte) & 255] ^ (remainder >> 8)
    return remainder ^ 0xFFFFFFFF


def _row(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


TABLE = [_row(byte) for byte in range(256)]

# ---- protobuf


def _varint(number: int) -> bytes:
    """Seven bits per byte, the lowest first; the eighth bit says that more bytes follow."""
    number &= (1 << 64) - 1  # a negative number as its two's complement
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])


def _bytes(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _wall_time(seconds: float) -> bytes:
    return struct.pack("<Bd", 1 << 3 | 1, seconds)


def _fields(data: bytes) -> dict[int, list]:
    """The values of a message by field: integers for varints, bytes for all other kinds."""
    fields: dict[int, list] = {}
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _read_varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                size, at = _read_varint(data, at)
            value, at = data[at : at + size], at + size
        fields.setdefault(number, []).append(value)
    return fields


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number, shift = 0, 0
    while data[at] & 128:
        number |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    number |= data[at] << shift
    return number - (1 << 64) if number >= 1 << 63 else number, at + 1
