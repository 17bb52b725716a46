"""Shared memory between the ranks and the process that watches them.

Two things are written here, by the same code, for every communication operation:

* a *row* in the rank's log, from which the ledger is read after the run, even if the rank was killed;
* the rank's *board*, which holds its present operation, from which the watching process explains a hang, and
  the signatures of its latest operations, in which the other ranks notice a mismatch before the
  backend sees it.

All of it lives in anonymous memory files (`memfd_create`), whose descriptors are inherited. They have
no name in any folder, so nothing can be left behind.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

OPS = [
    "send", "recv", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce",
    "gather", "scatter", "barrier", "new_group",
]  # fmt: skip
OP_NUMBER = {name: number for number, name in enumerate(OPS)}

# op, flags, peer, tag, group, tensor, line, turn, wait line | nbytes |
# bytes sent, issued, blocked, done, waited
ROW = struct.Struct("<BBxxiiIIIIIQddddd")
TAG_AT, LINE_AT, WAIT_LINE_AT, BLOCKED_AT, DONE_AT, WAITED_AT, FLAGS_AT = 8, 20, 28, 56, 64, 72, 1
WAITED, DONE, DIRECT = 1, 2, 4  # flags; DIRECT: called by the student's line, not inside a library
JOINED = 8  # flag: of one batch with the row before
REFUSED = -1  # in place of a collective's tag: the backend did not begin it
STREAM = 16  # flag: a GPU's stream waits for it; the host has gone on
FUTURE = (
    32  # flag: other code has its future, and may wait for that where the recorder does not see it
)
GROWTH = 1 << 20  # bytes by which a log grows
MOST_NUMBERS = 64  # dimensions of a tensor, members of a group


class Most(NamedTuple):
    """The most that is read of one rank's log: operations in one launch, and bytes of texts."""

    rows: int
    text: int


OWN = Most(1 << 20, 64 << 20)
# In a sandbox, whose judge holds the logs of all ranks as objects: a million rows are a gigabyte there.
JUDGED = Most(1 << 16, 1 << 20)


class Row(NamedTuple):
    """One row, with numbers and text identifiers as they are in the log."""

    op: int
    flags: int
    peer: int  # global rank, -1: none
    tag: int
    group: int  # text: "name|0,1,2"
    tensor: int  # text: "float32|2,3"; of an all-to-all also "|" and the bytes for each member
    line: int  # text: "file|line"
    turn: int  # the how-manieth on its channel, from 1
    wait_line: int  # text, 0: not waited
    nbytes: int
    bytes_sent: float
    issued: float
    blocked: float
    completed: float
    waited: float  # when the wait returned; the flag WAITED says whether there was one


def anonymous_file(name: str, size: int = 0) -> int:
    """A file descriptor of memory without a name; an unlinked temporary file if there is no memfd.

    With a `size`, the memory keeps that size for good, because a rank that cut it would end every process
    that maps it (SIGBUS).
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        if size:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return fd
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
# task, state, events, rows, text bytes, since, row in which the rank is blocked, line, asleep
ASLEEP = struct.Struct("<I")
ASLEEP_AT = STATE.size - ASLEEP.size
# MEETING: the rank waits, beside the record, until all ranks have come to the same place.
IDLE, RUNNING, RETURNED, RAISED, MEETING = range(5)
KEY = struct.Struct("Q")  # native, so that it is written in one store
SIGNATURE = 112  # bytes
BODY = struct.Struct(f"<Qd{SIGNATURE}s")  # bytes, when its wire was ready (see `wires`), signature
SLOT_SIZE = KEY.size + BODY.size
MESSAGES, COLLECTIVES = 768, 256  # of a rank, that the others can still look up
SLOTS_AT = 128
REGION = SLOTS_AT + (MESSAGES + COLLECTIVES) * SLOT_SIZE


@dataclass(slots=True)
class RankState:
    """The state of a rank, as written on its board."""

    task: int
    state: int
    events: int
    rows: int
    text_bytes: int
    since: float
    blocked_row: int  # -1: not blocked in communication
    blocked_line: int
    asleep: int = 0  # 1: in C++, until another rank does something; see `course_lib.ledger.asleep`


class Board:
    """The boards of all ranks of one pool."""

    def __init__(self, fd: int, world_size: int):
        """`fd`: an `anonymous_file` of `Board.size(world_size)` bytes."""
        self.map = mmap.mmap(fd, self.size(world_size))

    @staticmethod
    def size(world_size: int) -> int:
        return REGION * world_size

    def write(self, rank: int, s: RankState) -> None:
        STATE.pack_into(
            self.map, rank * REGION, s.task, s.state, s.events, s.rows, s.text_bytes, s.since,
            s.blocked_row, s.blocked_line, 0,
        )  # fmt: skip

    def mark_asleep(self, rank: int, asleep: bool) -> None:
        """For a thread beside the program, which changes nothing else; the next event takes it back."""
        ASLEEP.pack_into(self.map, rank * REGION + ASLEEP_AT, asleep)

    def read(self, rank: int) -> RankState:
        state = RankState(*STATE.unpack_from(self.map, rank * REGION))
        if not math.isfinite(state.since):  # a rank can write anything there
            state.since = 0.0
        return state

    def post(self, rank: int, key: int, nbytes: int, signature: str, ready: float = 0.0) -> None:
        at = slot_at(rank, key)
        KEY.pack_into(self.map, at, 0)  # no rank may find the key while the rest is half written
        BODY.pack_into(self.map, at + KEY.size, nbytes, ready, signature.encode()[:SIGNATURE])
        KEY.pack_into(self.map, at, key)

    def look(self, rank: int, key: int) -> tuple[int, str] | None:
        """(bytes, signature) of the operation that `rank` posted under `key`, or None."""
        posted = self._posted(rank, key)
        return posted and (posted[0], posted[2].rstrip(b"\0").decode(errors="replace"))

    def ready(self, rank: int, key: int) -> tuple[float, int] | None:
        """(when its wire was ready, bytes) of the operation that `rank` posted under `key`, or None."""
        posted = self._posted(rank, key)
        return posted and (posted[1], posted[0])

    def _posted(self, rank: int, key: int) -> tuple[int, float, bytes] | None:
        at = slot_at(rank, key)
        if KEY.unpack_from(self.map, at) != (key,):
            return None
        posted = BODY.unpack_from(self.map, at + KEY.size)
        if KEY.unpack_from(self.map, at) != (key,):  # overwritten meanwhile by a later operation
            return None
        return posted


def cut(signature: str) -> str:
    """A signature as the other ranks read it from the board, where a long one has lost its end."""
    return signature.encode()[:SIGNATURE].decode(errors="replace")


def channel_key(task: int, channel: tuple, turn: int, message: bool) -> int:
    """A number that both ends of a message, or all members of a collective, compute alike; never 0.

    channel: of a group's collectives, or of its messages from one rank to another with one tag. turn: the
    operation's number on this channel.
    """
    digest = zlib.crc32(repr((task, channel)).encode()) & ~1 | message
    return digest << 32 | turn << 1 | 1


def slot_at(rank: int, key: int) -> int:
    """The place on the board.

    The operations of a channel follow one another, so that a sender ahead of its receiver does not overwrite
    an entry the receiver still has to look up. Collectives have places of their own, so a barrier after many
    sends does not overwrite the entries of the sends.
    """
    number = (key >> 33) + (key >> 1 & 0x7FFFFFFF)
    slot = number % MESSAGES if key >> 32 & 1 else MESSAGES + number % COLLECTIVES
    return rank * REGION + SLOTS_AT + slot * SLOT_SIZE


class Log:
    """A rank's own rows and texts. The rank writes them; every holder of the descriptors can read them."""

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


class Reading(NamedTuple):
    """The contents of a rank's log. `damaged`: from some point on, the recorder did not write it."""

    rows: list[Row]
    texts: dict[int, str]
    damaged: bool


def read_log(
    rows_fd: int, texts_fd: int, state: RankState, world_size: int, most: Most = OWN
) -> Reading:
    """The log that belongs to `state`, also when its writer is dead.

    The memory belongs to the rank, and a rank can write anything there. The log is read as long as its rows
    make sense, and everything after a row that does not is left out.
    """
    raw = os.pread(rows_fd, min(state.rows, most.rows) * ROW.size, 0)
    texts, whole = read_texts(os.pread(texts_fd, min(state.text_bytes, most.text), 0))
    whole &= len(raw) == state.rows * ROW.size and state.text_bytes <= most.text
    readable: list[Row] = []
    for fields in ROW.iter_unpack(raw[: len(raw) // ROW.size * ROW.size]):
        row = Row(*fields)
        if not makes_sense(row, texts, world_size):
            return Reading(readable, texts, True)
        readable.append(row)
    return Reading(readable, texts, not whole)


def read_texts(raw: bytes) -> tuple[dict[int, str], bool]:
    """({identifier: text}, whether all of `raw` was such texts)."""
    texts, at = {0: ""}, 0
    while at + 4 <= len(raw):
        (size,) = struct.unpack_from("<I", raw, at)
        if at + 4 + size > len(raw):
            break
        texts[at + 1] = raw[at + 4 : at + 4 + size].decode(errors="replace")
        at += 4 + size
    texts[1] = ""  # the empty text is written first and has the number 0
    return texts, at == len(raw)


def makes_sense(row: Row, texts: dict[int, str], world_size: int) -> bool:
    """Could the recorder have written this row?"""
    times = (row.bytes_sent, row.issued, row.blocked, row.completed, row.waited)
    return (
        row.op < len(OPS)
        and -1 <= row.peer < world_size
        and all(math.isfinite(number) and number >= 0 for number in times)
        and numbers(texts.get(row.group, "?"), lambda rank: rank < world_size)
        and not texts[row.group].endswith("|")  # a group has members
        and sizes(texts.get(row.tensor, "?"))
    )


def sizes(text: str) -> bool:
    """Is it "dtype|shape", of an all-to-all with "|" and the bytes of its parts behind it?"""
    dtype, *listed = text.split("|")
    return 1 <= len(listed) <= 2 and all(numbers(f"{dtype}|{numerals}") for numerals in listed)


def numbers(text: str, fits: Callable[[int], bool] = lambda number: True) -> bool:
    """Is it "name|0,1,2", with numbers that fit?"""
    _, bar, listed = text.partition("|")
    parts = [part for part in listed.split(",") if part]
    few = bool(bar) and len(parts) <= MOST_NUMBERS
    return few and all(is_number(part) and fits(int(part)) for part in parts)


def is_number(text: str) -> bool:
    """Is it a number as the recorder writes one? Python refuses to read one of thousands of digits."""
    return text.isdecimal() and len(text) < 20
