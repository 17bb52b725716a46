"""In the rank: how much is multiplied, and what is under way meanwhile, seen at each product of matrices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from course_lib.checks.engine.functions.peak import Peak
from course_lib.checks.engine.memory import Patience
from course_lib.ledger import recorder as recording
from course_lib.ledger import rows

# Its place among the arguments.
FIRST_FACTOR = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
RECEIVE = rows.OP_NUMBER["recv"]
_numel, _Tensor = torch.Tensor.numel, torch.Tensor


class Work(Peak):
    """`Peak` that also counts FLOPs of products, and notes the receives that were under way at one of them.

    flops: two for each multiplication; under_way: {row of the record: [bytes, FLOPs]} of receives that had
    begun and were not waited for while products of so many FLOPs were computed. worth: FLOPs from which on
    that is overlap; fewer are none, such as a product of two numbers.
    """

    flops = 0

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
        made = super().__torch_dispatch__(func, types, args, kwargs)
        if kind in FIRST_FACTOR and isinstance(made, _Tensor):
            flops = 2 * _numel(made) * args[FIRST_FACTOR[kind]].shape[-1]
            self.flops += flops
            for row, nbytes in waiting.items():
                self.under_way.setdefault(row, [nbytes, 0])[1] += flops
        return made

    def start_again(self, name: str = "") -> None:
        super().start_again(name)
        self.flops, self.under_way = 0, {}

    def told(self) -> dict[str, int]:
        return {
            "flops": self.flops,
            "under_way": sum(n for n, flops in self.under_way.values() if flops >= self.worth),
            "alive": self.highest,
            "made": self.made,
        }


def receives_under_way() -> dict[int, int]:
    """{row: bytes} of this rank's receives that nobody has waited for yet."""
    recorder = recording.recorder()
    log, size = recorder.log.rows.map, rows.ROW.size
    found = {}
    for k in range(recorder.state.rows):
        row = rows.Row._make(rows.ROW.unpack_from(log, k * size))
        if row.op == RECEIVE and not row.flags & rows.WAITED:
            found[k] = row.nbytes
    return found
