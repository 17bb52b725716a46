"""Shared memory between the ranks and the process that watches them.

Two things are written here, by the same code, for every communication operation:

* a *row* in the rank's log: the ledger is read from it after the run, also when the rank was killed;
* the rank's *board*: what it does at this moment, read by whoever explains a hang, and the
  signatures of its latest operations, read by the other ranks to notice a mismatch before the
  backend sees it.

All of it lives in anonymous memory files (`memfd_create`), whose descriptors are inherited: there is
no name in any folder, so nothing can be left behind.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import zlib
from dataclasses import dataclass
from typing import NamedTuple

OPS = [
    "send", "recv", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce",
    "gather", "scatter", "barrier", "new_group",
]  # fmt: skip
OP_NUMBER = {name: number for number, name in enumerate(OPS)}

# op, flags, peer, tag, group, tensor, line, turn, wait line | nbytes | bytes sent, issued, blocked, done
ROW = struct.Struct("<BBxxiiIIIIIQdddd")
WAIT_LINE_AT, BLOCKED_AT, DONE_AT, FLAGS_AT = 28, 56, 64, 1
WAITED, DONE, DIRECT = 1, 2, 4  # flags; DIRECT: called by the student's line, not inside a library
GROWTH = 1 << 20  # bytes by which a log grows


class Row(NamedTuple):
    """One row, numbers and text identifiers as they stand in the log."""

    op: int
    flags: int
    peer: int  # global rank, -1: none
    tag: int
    group: int  # text: "name|0,1,2"
    tensor: int  # text: "float32|2,3"
    line: int  # text: "file|line"
    turn: int  # the how-manieth on its channel, from 1
    wait_line: int  # text, 0: not waited
    nbytes: int
    bytes_sent: float
    issued: float
    blocked: float
    completed: float


def anonymous_file(name: str) -> int:
    """A file descriptor of memory without a name; an unlinked temporary file where there is no memfd."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, 0)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class GrowingFile:
    """A memory-mapped file that one process appends to."""

    def __init__(self, fd: int):
        self.fd = fd
        os.ftruncate(fd, GROWTH)
        self.map = mmap.mmap(fd, GROWTH)
        self.end = 0

    def reserve(self, nbytes: int) -> int:
        """Offset of `nbytes` new bytes."""
        start, self.end = self.end, self.end + nbytes
        if self.end > len(self.map):
            self.map.resize(len(self.map) + max(GROWTH, nbytes))
        return start


# ---- the board: one region per rank, all in one file that every rank maps

STATE = struct.Struct("<IIQQQdqII")
# task, state, events, rows, text bytes, since, row in which the rank is blocked, line, reserved
IDLE, RUNNING, RETURNED, RAISED = range(4)
KEY = struct.Struct("Q")  # native, so that it is written in one store
BODY = struct.Struct("<Q112s")  # bytes, signature
SLOT_SIZE = KEY.size + BODY.size
SLOTS = 128
SLOTS_AT = 128
REGION = SLOTS_AT + SLOTS * SLOT_SIZE


@dataclass(slots=True)
class RankState:
    """What a rank does, as it stands on its board."""

    task: int
    state: int
    events: int
    rows: int
    text_bytes: int
    since: float
    blocked_row: int  # -1: not blocked in communication
    blocked_line: int


class Board:
    """The boards of all ranks of one pool."""

    def __init__(self, fd: int, world_size: int):
        os.ftruncate(fd, REGION * world_size)
        self.map = mmap.mmap(fd, REGION * world_size)

    def write(self, rank: int, s: RankState) -> None:
        STATE.pack_into(
            self.map, rank * REGION, s.task, s.state, s.events, s.rows, s.text_bytes, s.since,
            s.blocked_row, s.blocked_line, 0,
        )  # fmt: skip

    def read(self, rank: int) -> RankState:
        return RankState(*STATE.unpack_from(self.map, rank * REGION)[:8])

    def post(self, rank: int, key: int, nbytes: int, signature: str) -> None:
        at = rank * REGION + SLOTS_AT + key % SLOTS * SLOT_SIZE
        KEY.pack_into(self.map, at, 0)  # nobody may find the key while the rest is half written
        BODY.pack_into(self.map, at + KEY.size, nbytes, signature.encode()[:112])
        KEY.pack_into(self.map, at, key)

    def look(self, rank: int, key: int) -> tuple[int, str] | None:
        """(bytes, signature) of the operation that `rank` posted under `key`, or None."""
        at = rank * REGION + SLOTS_AT + key % SLOTS * SLOT_SIZE
        if KEY.unpack_from(self.map, at) != (key,):
            return None
        nbytes, signature = BODY.unpack_from(self.map, at + KEY.size)
        if KEY.unpack_from(self.map, at) != (key,):  # overwritten meanwhile by a later operation
            return None
        return nbytes, signature.rstrip(b"\0").decode(errors="replace")


def channel_key(*parts: object) -> int:
    """A number that both ends of a message, or all members of a collective, compute alike."""
    text = repr(parts).encode()
    return zlib.crc32(text) << 32 | zlib.adler32(text) | 1


class Log:
    """A rank's own rows and texts: written by the rank, read by whoever holds the descriptors."""

    def __init__(self, rows_fd: int, texts_fd: int):
        self.rows, self.texts = GrowingFile(rows_fd), GrowingFile(texts_fd)
        self.known: dict[str, int] = {}
        self.text("")

    def text(self, text: str) -> int:
        """The identifier of a text (its offset + 1), written down when it is new."""
        number = self.known.get(text)
        if number is None:
            raw = text.encode(errors="replace")
            at = self.texts.reserve(4 + len(raw))
            self.texts.map[at : at + 4 + len(raw)] = struct.pack("<I", len(raw)) + raw
            number = self.known[text] = at + 1 if text else 0
        return number

    def add(self, row: Row) -> int:
        """Append a row; returns its index."""
        at = self.rows.reserve(ROW.size)
        ROW.pack_into(self.rows.map, at, *row)
        return at // ROW.size


def read_log(
    rows_fd: int, texts_fd: int, rows: int, text_bytes: int
) -> tuple[list[Row], dict[int, str]]:
    """The first `rows` rows of a log and its texts, also when its writer is dead."""
    # a rank can write anything onto its board: believe it no further than its log reaches
    raw = os.pread(rows_fd, min(rows * ROW.size, os.fstat(rows_fd).st_size), 0)
    found = [Row(*fields) for fields in ROW.iter_unpack(raw[: len(raw) // ROW.size * ROW.size])]
    raw = os.pread(texts_fd, min(text_bytes, os.fstat(texts_fd).st_size), 0)
    texts, at = {0: ""}, 0
    while at + 4 <= len(raw):
        (size,) = struct.unpack_from("<I", raw, at)
        texts[at + 1] = raw[at + 4 : at + 4 + size].decode(errors="replace")
        at += 4 + size
    texts[1] = ""  # the empty text is written first and has the number 0
    return found, texts
