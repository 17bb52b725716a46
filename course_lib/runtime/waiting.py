"""Which rank waits for which, and can it ever end? Read from the ranks' boards and logs.

A blocked rank can go on if the other end of its operation was issued, or can still be issued by a
rank that can go on. Ranks that cannot go on are in a deadlock. This is certain, because an operation that has
not been issued yet cannot come from a rank that has finished or is itself in the deadlock.

On NCCL it is not enough that the other end was issued, because its rank does one operation after another, and
an earlier operation can wait for ever (see `course_lib.ledger.order`).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from course_lib.ledger import rows
from course_lib.ledger.order import Order
from course_lib.ledger.read import operation
from course_lib.runtime.places import where
from course_lib.runtime.pools import Pool

IN_ORDER = {"nccl"}  # backends that run a rank's operations of a group one after the other


@dataclass
class Snapshot:
    """The operations that every rank has issued, and its place among them, at one moment."""

    states: list[rows.RankState]
    logs: list[list[rows.Row]]
    texts: list[dict[int, str]]
    in_order: bool = False

    @classmethod
    def of(cls, pool: Pool) -> Snapshot:
        states = [pool.board.read(rank) for rank in range(pool.world_size)]
        logs, texts = [], []
        for state, fds in zip(states, pool.logs, strict=True):
            reading = rows.read_log(*fds, state, pool.world_size, pool.most)
            logs.append(reading.rows)
            texts.append(reading.texts)
        return cls(states, logs, texts, pool.backend in IN_ORDER)

    def blocked_in(self, rank: int) -> rows.Row | None:
        """The operation in which the rank is blocked, or None: its host, or else its GPU's stream."""
        index = self.blocked_row(rank)
        return None if index is None else self.logs[rank][index]

    def blocked_row(self, rank: int) -> int | None:
        state, log = self.states[rank], self.logs[rank]
        if state.state != rows.RUNNING:
            return None
        if 0 <= state.blocked_row < len(log):
            return state.blocked_row
        on_stream = (row.flags & (rows.STREAM | rows.DONE) == rows.STREAM for row in log)
        index = next((index for index, waits in enumerate(on_stream) if waits), None)
        return self.awaited_in_cpp(rank) if index is None and state.asleep else index

    def awaited_in_cpp(self, rank: int) -> int | None:
        """The first operation whose future was given away, and to which some member has not come."""
        for index, row in enumerate(self.logs[rank]):
            if row.flags & rows.FUTURE and self.absent(rank, row):
                return index
        return None

    @functools.cached_property
    def issued(self) -> list[Counter]:
        """How many operations each rank has issued on each channel."""
        return [
            Counter(_channel(self, rank, row) for row in log) for rank, log in enumerate(self.logs)
        ]

    def absent(self, rank: int, row: rows.Row) -> set[int]:
        """The members of its group that have not come to this collective."""
        name, members = self.group(rank, row)
        return {m for m in members if m != rank and self.issued[m]["collective", name] < row.turn}

    def blocked_at(self, rank: int) -> tuple[int, float]:
        """The text of the line at which the rank is blocked, and the time since which it is."""
        state, row = self.states[rank], self.blocked_in(rank)
        if row is None or state.blocked_row >= 0:
            return state.blocked_line, state.since
        return row.wait_line, row.issued

    def group(self, rank: int, row: rows.Row) -> tuple[str, tuple[int, ...]]:
        name, _, members = self.texts[rank].get(row.group, "|").partition("|")
        return name, tuple(int(member) for member in members.split(",") if member)

    def blocked(self) -> dict[int, int]:
        """The ranks that are blocked in an operation, each with its index."""
        rows_of = {rank: self.blocked_row(rank) for rank in range(len(self.states))}
        return {rank: index for rank, index in rows_of.items() if index is not None}

    def order(self, going_on: Collection[int] = (), taken_in: bool = True) -> Order:
        """How far the ranks get if each does one operation after the other. For the arguments see `Order`."""
        issued = [
            [operation(rank, i, row, self.texts[rank], 0.0, where) for i, row in enumerate(log)]
            for rank, log in enumerate(self.logs)
        ]
        return Order(
            issued,
            done=lambda operation: bool(
                self.logs[operation.rank][operation.index].flags & rows.DONE
            ),
            blocked=self.blocked(),
            going_on=going_on,
            taken_in=taken_in,
        )


def waits_for(snap: Snapshot) -> dict[int, set[int]]:
    """For each rank blocked in an operation: the ranks that have not reached their part of it."""
    if snap.in_order:
        order = snap.order()
        return {rank: order.waits_for(rank, index) for rank, index in snap.blocked().items()}
    issued = snap.issued
    missing: dict[int, set[int]] = {}
    for rank in range(len(snap.states)):
        row = snap.blocked_in(rank)
        if row is None:
            continue
        op = rows.OPS[row.op]
        name, members = snap.group(rank, row)
        if op in ("send", "recv"):
            other = "recv" if op == "send" else "send"
            if row.peer < 0:  # any source: some rank has sent more than this rank has taken
                sent = sum(issued[q][other, name, q, rank, row.tag] for q in members if q != rank)
                taken = sum(c for k, c in issued[rank].items() if k[0] == "recv" and k[1] == name)
                missing[rank] = set() if sent >= taken else set(members) - {rank}
                continue
            ends = (rank, row.peer) if op == "send" else (row.peer, rank)
            there = issued[row.peer][other, name, *ends, row.tag] >= row.turn
            missing[rank] = set() if there else {row.peer}
        else:
            missing[rank] = snap.absent(rank, row)
    return missing


def _channel(snap: Snapshot, rank: int, row: rows.Row) -> tuple:
    name, _ = snap.group(rank, row)
    op = rows.OPS[row.op]
    if op == "send":
        return ("send", name, rank, row.peer, row.tag)
    if op == "recv":
        return ("recv", name, row.peer, rank, row.tag)
    return ("collective", name)


def stuck(snap: Snapshot, running: set[int], taken_in: bool = True) -> dict[int, set[int]]:
    """The ranks that can never go on, each with the ranks that it waits for.

    `running`: ranks whose process lives and whose function has not returned. A rank that meets all others
    issues nothing before these arrive, and so no operation for which one of them waits. taken_in: see
    `Order`. With False the answer is not a proof, so use it only for ranks in which nothing has happened for
    long.
    """
    running = {rank for rank in running if snap.states[rank].state != rows.MEETING}
    if snap.in_order:
        order = snap.order(going_on=running, taken_in=taken_in)
        blocked = sorted(snap.blocked().items())
        stopped = {rank: order.waits_for(rank, index) for rank, index in blocked if rank in running}
        return {rank: missing for rank, missing in stopped.items() if missing}
    missing = waits_for(snap)
    hopeless = {rank for rank in missing if missing[rank] and rank in running}
    while True:
        freed = set()
        for rank in hopeless:
            row = snap.blocked_in(rank)
            may_come = [m in running and m not in hopeless for m in missing[rank]]
            any_source = row is not None and row.peer < 0 and rows.OPS[row.op] == "recv"
            if any(may_come) if any_source else all(may_come):
                freed.add(rank)
        if not freed:
            return {rank: missing[rank] for rank in sorted(hopeless)}
        hopeless -= freed
