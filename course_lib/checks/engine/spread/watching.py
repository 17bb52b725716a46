"""In the rank: how much is multiplied, and what is under way meanwhile, seen at each product of matrices."""

from __future__ import annotations

from typing import Any

import torch

from course_lib.checks.engine.functions.peak import Peak
from course_lib.ledger import recorder as recording
from course_lib.ledger import rows

FIRST_FACTOR = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # its place among the arguments
RECEIVE = rows.OP_NUMBER["recv"]
_numel, _Tensor = torch.Tensor.numel, torch.Tensor


class Work(Peak):
    """`Peak` that also counts FLOPs of products, and notes the receives that were under way at one of them.

    flops: two for each multiplication; under_way: {row of the record: bytes} of receives that had begun and
    were not waited for while a product was computed.
    """

    flops = 0

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.under_way: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = func._schema.name.partition("::")[2]
        if kind in FIRST_FACTOR:
            self.under_way |= receives_under_way()
        made = super().__torch_dispatch__(func, types, args, kwargs)
        if kind in FIRST_FACTOR and isinstance(made, _Tensor):
            self.flops += 2 * _numel(made) * args[FIRST_FACTOR[kind]].shape[-1]
        return made

    def start_again(self) -> None:
        super().start_again()
        self.flops, self.under_way = 0, {}

    def told(self) -> dict[str, int]:
        return {
            "flops": self.flops,
            "under_way": sum(self.under_way.values()),
            "alive": self.highest,
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
