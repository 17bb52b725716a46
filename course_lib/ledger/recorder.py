"""The operations of a rank, written down while it begins them, or refused if ranks' calls differ.

`RecordingGroup` is a `torch.distributed.ProcessGroup` around the real one. Everything that
communicates ends in its methods: `dist.*`, `batch_isend_irecv`, functional collectives, DDP's C++
reducer, FSDP2, DTensor and pipelining. Each call becomes one row of the ledger and one entry on the
rank's board (see `rows`). The recorder checks some rules that the backends do not check:

* tensors are contiguous (gloo's all-reduce of a strided view is silently wrong);
* both ends of a message have the same size and dtype (gloo aborts the process, or delivers garbage);
* all members of a group call the same collective with the same shapes;
* each member of an all-to-all expects from every other member what it sends (gloo aborts, or leaves garbage);
* a tensor that is being sent is not changed before `wait`.

Each violation raises `CommunicationError`, a sentence with both sides, before the backend is called.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch.distributed import Work

from course_lib.ledger import rows
from course_lib.ledger.asleep import Sleep
from course_lib.ledger.booking import logical_bytes
from course_lib.ledger.exchange import Exchange
from course_lib.ledger.pending import Mark, Pending
from course_lib.ledger.tensors import comparable, describe, dtype_name, shape_text
from course_lib.ledger.wires import TimedOut, Topology, Wires

TORCH = os.path.dirname(torch.__file__)
COURSE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARIES = (os.path.dirname(TORCH), os.path.dirname(os.__file__), COURSE, "<frozen")
C10D = os.path.join(TORCH, "distributed", "distributed_c10d.py")


OF = " of "  # before a tensor's label
OTHER_CALLS = (
    "All members of a group must call the same collectives, in the same order, with tensors of the same size "
    "and dtype."
)
OTHER_UNITS = (
    "Each rank would get a part of another rank's weights or gradients. All ranks must use the same units, "
    "in the same order, so look for a branch that depends on the rank or on its data."
)
OTHER_ROWS = (
    "The rows of the two ends differ in size, but the output must have as many numbers in a row as the "
    "input, and the same dtype."
)
NO_ROWS = (
    "A tensor at one of the two ends holds no elements, although its split sizes ask for rows."
)
SPLITS = (
    "The sender's number for the receiver in input_split_sizes must be the receiver's number for the sender "
    "in output_split_sizes."
)
Observer = Callable[[str, int, torch.Tensor | None], None]


class CommunicationError(RuntimeError):
    """A communication call that no backend should see. The message says what to do."""


class Members(Protocol):
    """A process group, as far as the recorder needs it: its name, its members' global ranks, its channels."""

    label: functools.cached_property[str]
    ranks: functools.cached_property[tuple[int, ...]]

    def channel(self, op: str, rank: int, peer: int, tag: int) -> tuple: ...


class Recorder:
    """The rank's log and board, and the counters that number its operations."""

    has_values = True  # False if the tensors have shapes only, as in a dry run

    def __init__(
        self, rank: int, world_size: int, board: rows.Board, log: rows.Log, most: int = rows.OWN.rows
    ):  # fmt: skip
        """most: operations that the log may hold."""
        self.rank, self.world_size, self.board, self.log, self.most = (
            rank,
            world_size,
            board,
            log,
            most,
        )
        self.state = rows.RankState(0, rows.IDLE, 0, 0, 0, time.monotonic(), -1, 0)
        self.turns: dict[int | tuple, int] = {}
        self.observers: list[Observer] = []
        self.batched = -1  # operations of the batch that is being begun; -1: there is no batch
        # The handles of messages without a wait until now. gloo may never send a message whose handle is
        # gone: the other end would wait for ever, and no error would tell the sender what it forgot.
        self.handles: dict[int, Work] = {}
        self.pending = Pending(self.completed_on_device)
        self.sleep = Sleep(functools.partial(board.mark_asleep, rank))
        self.wires: Wires | None = None  # emulated ones, on which an operation takes its time
        self.publish()

    def publish(self) -> None:
        self.state.events += 1
        self.state.text_bytes = self.log.texts.end
        self.board.write(self.rank, self.state)

    def begin_task(self, task: int) -> None:
        """Empty the log for a new task, so that ranks kept from call to call start afresh."""
        self.log.rows.end = self.state.rows = 0
        self.turns.clear()
        self.handles.clear()
        self.pending.clear()
        self.wires = None
        self.state.task = task
        self.set_state(rows.RUNNING)

    def emulate(self, topology: Topology) -> None:
        """From now on, for this task, operations are as slow as the links of `topology`."""
        self.wires = Wires(topology, self.rank, self.board)

    def cross(self, row: int, until: float = math.inf) -> float:
        """Sleep until the operation, whose data has come, is over on the emulated wires. Returns seconds.

        until: TimedOut if it is not over at this moment, on the monotonic clock.
        """
        if self.wires is None:
            return 0.0
        since, due = time.monotonic(), self.wires.due(row)
        self.wires.sleep_until(min(due, until), self.publish)
        if due > until:
            raise TimedOut(
                f"Operation timed out! On the emulated wires (launch(..., wires=)) it would have taken "
                f"{due - until:.3g} s longer than the time-out of wait()."
            )
        self.wires.land(row)
        return time.monotonic() - since

    def has_crossed(self, row: int) -> bool:
        """Whether the operation, whose data has arrived, is also over on the emulated wires."""
        return self.wires is None or self.wires.due(row) <= time.monotonic()

    def crossing(self, row: int, future: torch.futures.Future) -> torch.futures.Future:
        """A future that has the value of `future` when the operation has crossed the emulated wires."""
        return future if self.wires is None else self.wires.later(row, future)

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Within this context, all operations are begun together."""
        self.batched = 0
        try:
            yield
        finally:
            self.batched = -1

    def set_state(self, state: int) -> None:
        self.state.state = state
        self.state.since, self.state.blocked_row = time.monotonic(), -1
        self.publish()

    def turn(self, channel: tuple) -> int:
        number = self.turns[channel] = self.turns.get(channel, 0) + 1
        return number

    def begin_wait(self, row: int) -> float:
        line, _ = students_line()
        self.state.blocked_row, self.state.since = row, time.monotonic()
        self.state.blocked_line = self.log.text(line)
        self.publish()
        return self.state.since

    @contextlib.contextmanager
    def calling(self, row: int) -> Iterator[None]:
        """Within this context, a backend call can hold up the host before there is a handle to wait for.

        NCCL connects two ranks in the call in which they first meet, and each rank waits there for its peer.
        """
        self.state.blocked_row, self.state.since = row, time.monotonic()
        at = row * rows.ROW.size + rows.LINE_AT
        (self.state.blocked_line,) = rows.struct.unpack_from("<I", self.log.rows.map, at)
        self.publish()
        try:
            yield
        finally:
            self.state.blocked_row = -1
            self.publish()

    def waits_on_stream(self, row: int, before: Mark | None, work: Work | None = None) -> None:
        """The host has gone on, and a stream of the GPU waits; see `Pending.add`."""
        self.log.rows.map[row * rows.ROW.size + rows.FLAGS_AT] |= rows.STREAM
        self.pending.add(row, before, work)

    def gave_future(self, row: int) -> None:
        """Other code has the operation's future, and might wait for it in C++."""
        self.log.rows.map[row * rows.ROW.size + rows.FLAGS_AT] |= rows.WAITED | rows.FUTURE
        self.sleep.watch()

    def end_wait(self, row: int, since: float, done: bool = True) -> None:
        now, at, log = time.monotonic(), row * rows.ROW.size, self.log.rows.map
        (blocked,) = rows.struct.unpack_from("<d", log, at + rows.BLOCKED_AT)
        rows.struct.pack_into("<d", log, at + rows.BLOCKED_AT, blocked + now - since)
        rows.struct.pack_into("<d", log, at + rows.WAITED_AT, now)
        if done:
            rows.struct.pack_into("<d", log, at + rows.DONE_AT, now)
        rows.struct.pack_into("<I", log, at + rows.WAIT_LINE_AT, self.state.blocked_line)
        log[at + rows.FLAGS_AT] |= rows.WAITED | (rows.DONE if done else 0)
        self.state.blocked_row, self.state.since = -1, now
        self.publish()
        for observer in self.observers:
            observer("done", row, None)

    def completed_on_device(self, row: int, moment: float, blocked: float = 0.0) -> None:
        """The stream finished an operation at this `moment` (of `time.monotonic`).

        blocked: seconds for which the operation held up the stream.
        """
        at, log = row * rows.ROW.size, self.log.rows.map
        rows.struct.pack_into("<dd", log, at + rows.BLOCKED_AT, blocked, moment)
        log[at + rows.FLAGS_AT] |= rows.DONE

    def waited_in_backend(self, row: int, before: Mark | None) -> None:
        """The backend has waited in the call, and has returned no handle.

        before: the point the GPU's stream had reached before the call, if the stream waits now.
        """
        slept = self.cross(row)
        line, _ = students_line()
        at, log = row * rows.ROW.size, self.log.rows.map
        rows.struct.pack_into("<I", log, at + rows.WAIT_LINE_AT, self.log.text(line))
        rows.struct.pack_into("<d", log, at + rows.WAITED_AT, time.monotonic())
        log[at + rows.FLAGS_AT] |= rows.WAITED
        if before is not None:
            self.waits_on_stream(row, before)
        else:
            self.completed_on_device(row, time.monotonic(), slept)
        for observer in self.observers:
            observer("done", row, None)

    @contextlib.contextmanager
    def marking_refused(self) -> Iterator[None]:
        """Within this context, write down and begin a collective. If it raises, the row is marked."""
        row = self.state.rows
        try:
            yield
        except BaseException:
            at, log = row * rows.ROW.size, self.log.rows.map
            if row < self.state.rows and log[at] > 1:
                rows.struct.pack_into("<i", log, at + rows.TAG_AT, rows.REFUSED)
            raise

    def never_waited(self) -> list[int]:
        """Rows of messages the student's own line began but never waited for."""
        size, log = rows.ROW.size, self.log.rows.map
        forgotten = []
        for index in range(self.state.rows):
            op, flags = log[index * size], log[index * size + rows.FLAGS_AT]
            if op <= 1 and flags & rows.DIRECT and not flags & rows.WAITED:
                forgotten.append(index)
        return forgotten

    def add(
        self, op: str, tensors: list[torch.Tensor], nbytes: int, group: Members,
        peer: int = -1, tag: int = 0, agree: str = "", label: str = "", exchange: Exchange | None = None,
    ) -> int:  # fmt: skip
        """Write the row, tell the board, compare with the other end. Returns the row's index.

        agree: words in which the members of a collective must agree, beside its operation and tensors' size.
        label: see `label_of`. exchange: of an all-to-all.
        """
        if self.state.rows >= self.most:
            raise CommunicationError(
                f"more than {self.most:,} operations on one rank, but the ledger of one launch holds no "
                "more. Is this a loop without an end? If not, set COURSE_LEDGER=off, or launch in parts."
            )
        first = tensors[0] if tensors else None
        signature = describe(tensors)
        line, direct = students_line()
        channel = group.channel(op, self.rank, peer, tag)
        turn = self.turn(channel)
        sent = nbytes if op == "send" else logical_bytes(op, group.ranks, self.rank, nbytes, peer)
        tensor, carried = f"{dtype_name(first)}|{shape_text(first)}", nbytes
        if exchange is not None:
            place = group.ranks.index(self.rank)
            sent, carried = exchange.bytes_sent(place), int(exchange.carried(place))
            tensor += "|" + ",".join(str(part.nbytes) for part in exchange.goes)
        log, flags = self.log, rows.DIRECT if direct else 0
        if self.batched >= 0:
            flags |= rows.JOINED if self.batched else 0
            self.batched += 1
        row = log.add(
            rows.Row(
                rows.OP_NUMBER[op], flags, peer, tag,
                log.text(f"{group.label}|{','.join(map(str, group.ranks))}"),
                log.text(tensor),
                log.text(line), turn, 0, nbytes, sent, time.monotonic(), 0.0, 0.0, 0.0,
            )
        )  # fmt: skip
        self.state.rows = row + 1
        message = op in ("send", "recv")
        said = rows.cut(f"{op} {signature} {agree}".strip() + (f"{OF}{label}" if label else ""))
        key = rows.channel_key(self.state.task, channel, turn, message)  # earlier tasks never match
        ready = 0.0
        if self.wires is not None:
            ready = self.wires.begin(row, op, group.ranks, peer, carried, key)
        self.board.post(self.rank, key, carried, said, ready)
        self.publish()
        if message:
            self.compare_message(op, peer, key, nbytes, signature, first)
        else:
            self.compare_collective(op, group, key, turn, said)
        if exchange is not None:
            self.compare_parts(exchange, group, channel, turn)
        for observer in self.observers:
            observer("issue", row, first)
        return row

    def compare_message(
        self, op: str, peer: int, key: int, nbytes: int, signature: str, tensor: torch.Tensor | None
    ) -> None:
        other = self.board.look(peer, key) if peer >= 0 else None
        if other is None:
            return
        its_bytes, its = other
        its_op, _, its_signature = its.partition(" ")
        same_dtype = its_signature.split("[")[0] == dtype_name(tensor)
        if its_op == op or (its_bytes == nbytes and same_dtype):
            return
        here, there = f"rank {self.rank}", f"rank {peer}"
        sender, receiver = (here, there) if op == "send" else (there, here)
        sent, wanted = (signature, its_signature) if op == "send" else (its_signature, signature)
        raise CommunicationError(
            f"the two ends of a message differ: {sender} sends {sent}, but {receiver} receives into "
            f"{wanted}. Both ends must have the same number of elements and the same dtype."
        )

    def compare_collective(self, op: str, group: Members, key: int, turn: int, mine: str) -> None:
        calls = {self.rank: mine}
        for member in group.ranks:
            if member != self.rank and (posted := self.board.look(member, key)) is not None:
                calls[member] = posted[1]
        if len({comparable(call) for call in calls.values()}) == 1:
            return
        whole = len(group.ranks) == self.world_size
        who = "the ranks" if whole else f"the ranks of group {list(group.ranks)}"
        said = "; ".join(f"rank {member}: {call}" for member, call in sorted(calls.items()))
        nameless = {comparable(call.partition(OF)[0]) for call in calls.values()}
        raise CommunicationError(
            f"{who} do not agree on their collective number {turn}: {said}. "
            f"{OTHER_CALLS if len(nameless) > 1 else OTHER_UNITS}"
        )

    def compare_parts(self, exchange: Exchange, group: Members, channel: tuple, turn: int) -> None:
        """Each two members of an all-to-all agree on the parts that go between them."""
        for place, member in enumerate(group.ranks):
            if member == self.rank:
                continue
            pair = (*channel, *sorted((self.rank, member)))
            key = rows.channel_key(self.state.task, pair, turn, True)
            goes, comes = exchange.goes[place], exchange.comes[place]
            self.board.post(self.rank, key, goes.nbytes, f"{goes}|{comes}|{comes.nbytes}")
            if (posted := self.board.look(member, key)) is None:
                continue
            its_goes, its_comes, its_expected = posted[1].split("|")
            ends = (
                (self.rank, goes, goes.nbytes, member, its_comes, int(its_expected)),
                (member, its_goes, posted[0], self.rank, comes, comes.nbytes),
            )
            for sender, sends, sent, receiver, expects, expected in ends:
                if sent != expected:
                    alike = str(sends).partition(" (")[0] == str(expects).partition(" (")[0]
                    why = (OTHER_ROWS if sent and expected else NO_ROWS) if alike else SPLITS
                    raise CommunicationError(
                        f"the two ends of an all-to-all differ: rank {sender} sends {sends} to rank "
                        f"{receiver}, which expects {expects} from it. {why}"
                    )


_recorder: Recorder | None = None


def current_recorder() -> Recorder:
    if _recorder is None:
        raise RuntimeError(
            "nothing is recorded here, because the recorder lives in a rank that launch() started"
        )
    return _recorder


@contextlib.contextmanager
def observe(callback: Observer) -> Iterator[None]:
    """In a rank: call `callback("issue" | "done", index, tensor)` at each operation of the block.

    "issue" comes before the backend gets the operation, with the tensor of a message (None for some
    collectives); "done" after its wait has returned, with None.
    """
    observers = current_recorder().observers
    observers.append(callback)
    try:
        yield
    finally:
        observers.remove(callback)


def students_line() -> tuple[str, bool]:
    """("file|line" of the nearest frame outside all libraries, called directly?)."""
    frame, direct = sys._getframe(2), True
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(LIBRARIES):
            return f"{name}|{frame.f_lineno}", direct
        if name != C10D and name.startswith(TORCH):
            direct = False
        frame = frame.f_back
    return "", False
