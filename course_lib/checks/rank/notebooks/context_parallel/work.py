"""In the rank: the products of matrices, and the messages under way during each of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from course_lib.checks.rank.memory import Patience
from course_lib.checks.rank.peak import FIRST_FACTOR, Peak
from course_lib.checks.wire import Count
from course_lib.ledger import rows
from course_lib.ledger.recorder import current_recorder

RECEIVE = rows.OP_NUMBER["recv"]


@dataclass
class Done:
    """One direction: FLOPs of products of matrices; bytes of the receives that were under way at products
    worth it; the most bytes alive at any moment, inputs left out."""

    flops: Count
    under_way: Count
    alive: Count


class Work(Peak):
    """`Peak` that also notes the receives that were under way at a product of matrices.

    under_way: {row of the record: [bytes, FLOPs]} of receives that had
    begun and were not waited for while products of so many FLOPs were computed. worth: FLOPs from which on
    that is overlap; fewer are none, such as a product of two numbers.
    """

    def __init__(
        self,
        apart_from: Iterable[torch.Tensor],
        worth: float = 0,
        patience: Patience | None = None,
        name: str = "",
    ):
        super().__init__(apart_from, patience, name)
        self.worth = worth
        self.under_way: dict[int, list[int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = func._schema.name.partition("::")[2]
        waiting = receives_under_way() if kind in FIRST_FACTOR else {}
        before = self.flops
        made = super().__torch_dispatch__(func, types, args, kwargs)
        for row, nbytes in waiting.items():
            self.under_way.setdefault(row, [nbytes, 0])[1] += self.flops - before
        return made

    def start_again(self, name: str = "") -> None:
        super().start_again(name)
        self.under_way = {}

    def done(self) -> Done:
        under_way = sum(n for n, flops in self.under_way.values() if flops >= self.worth)
        return Done(self.flops, under_way, self.highest)


def receives_under_way() -> dict[int, int]:
    """{row: bytes} of this rank's receives whose wait() has not been called yet."""
    recorder = current_recorder()
    log, size = recorder.log.rows.map, rows.ROW.size
    under_way = {}
    for k in range(recorder.state.rows):
        row = rows.Row._make(rows.ROW.unpack_from(log, k * size))
        if row.op == RECEIVE and not row.flags & rows.WAITED:
            under_way[k] = row.nbytes
    return under_way
