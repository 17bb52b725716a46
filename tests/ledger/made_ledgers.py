"""Ledgers made by hand, with a clock for each rank, as a run would have written them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from course_lib.ledger.booking import logical_bytes
from course_lib.ledger.ledger import Ledger
from course_lib.ledger.operation import Operation

ITEM = 4  # bytes of a float32


class MadeRun:
    """Operations of `n` ranks that take random times; `line` is where the next ones come from."""

    def __init__(self, n: int, seed: int = 0):
        self.n, self.random, self.line = n, random.Random(seed), "Cell In[5], line 3"
        self.source = ""
        self.now = [0.0] * n
        self.rows: list[list[Operation]] = [[] for _ in range(n)]

    def ledger(self, ended: float | None = None) -> Ledger:
        return Ledger(self.n, self.rows, ended=ended)

    def pause(self) -> float:
        return self.random.uniform(1e-5, 2e-4)

    def add(
        self, rank: int, op: str, peer: int | None, nbytes: int, issued: float, since: float,
        completed: float | None, group: Sequence[int] | None = None, tag: int = 0,
    ) -> Operation:  # fmt: skip
        """One row. `since`: when the rank began to wait for it."""
        members = tuple(range(self.n)) if group is None else tuple(group)
        root = -1 if peer is None else peer
        sent = nbytes if op == "send" else logical_bytes(op, members, rank, nbytes, root)
        one = Operation(
            rank=rank, index=len(self.rows[rank]), op=op, peer=peer, group=members, tag=tag,
            dtype="float32", shape=(nbytes // ITEM,), nbytes=nbytes,
            bytes_sent=sent, issued=issued,
            blocked=0.0 if completed is None else completed - since, completed=completed,
            waited=completed is not None, line=self.line, source=self.source,
        )  # fmt: skip
        self.rows[rank].append(one)
        return one

    def together(self, pairs: Iterable[tuple[int, int]], nbytes: int = 64, tag: int = 0) -> None:
        """Messages (src, dst) that all ranks post at once and then wait for."""
        listed = list(pairs)
        for rank in range(self.n):
            self.now[rank] += self.pause()
        issued = list(self.now)
        ends = [max(issued[src], issued[dst]) + self.pause() for src, dst in listed]
        for rank in range(self.n):
            for (src, dst), end in zip(listed, ends, strict=True):
                for op, me, peer in (("send", src, dst), ("recv", dst, src)):
                    if me == rank:
                        since = self.now[rank]
                        self.now[rank] = max(since, end) + 1e-6
                        self.add(
                            rank, op, peer, nbytes, issued[rank], since, self.now[rank], tag=tag
                        )

    def one(self, src: int, dst: int, nbytes: int = 64) -> None:
        """A blocking send and its blocking receive; the other ranks go on."""
        for rank in (src, dst):
            self.now[rank] += self.pause()
        end = max(self.now[src], self.now[dst]) + self.pause()
        for op, me, peer in (("send", src, dst), ("recv", dst, src)):
            self.add(me, op, peer, nbytes, self.now[me], self.now[me], end)
            self.now[me] = end

    def built_in(
        self, op: str, nbytes: int, group: Sequence[int] | None = None, root: int | None = None
    ) -> None:
        members = range(self.n) if group is None else group
        for rank in members:
            self.now[rank] += self.pause()
        end = max(self.now[rank] for rank in members) + self.pause()
        for rank in members:
            self.add(rank, op, root, nbytes, self.now[rank], self.now[rank], end, group)
            self.now[rank] = end


def ring(n: int, nbytes: int = 64, seed: int = 0, rounds: int | None = None) -> MadeRun:
    """The messages of a ring all-reduce whose chunks have `nbytes` bytes."""
    run = MadeRun(n, seed)
    for _ in range(2 * (n - 1) if rounds is None else rounds):
        run.together([(rank, (rank + 1) % n) for rank in range(n)], nbytes)
    return run


def binomial_broadcast(n: int, seed: int = 0) -> MadeRun:
    """Rank 0 sends to 1; 0 and 1 to 2 and 3; and so on, each with a blocking send."""
    run, reach = MadeRun(n, seed), 1
    while reach < n:
        for src in range(min(reach, n - reach)):
            run.one(src, src + reach)
        reach *= 2
    return run
