"""Mistakes that a run's values alone leave open, told apart by the record of its messages."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from course_lib.checks.kit import Observed
from course_lib.ledger.operation import Operation


def sends(seen: Observed, rank: int) -> list[Operation]:
    return [one for one in seen.operations[rank] if one.op == "send"]


def turned_left(seen: Observed, members: Sequence[int]) -> str:
    """That the ring ran from rank r to rank r - 1, where it did; for values that are wrong."""
    n = len(members)
    if n < 3:
        return ""  # two ranks are each other's neighbour on both sides
    for place, rank in enumerate(members):
        sent = sends(seen, rank)
        if not sent or any(one.peer != members[place - 1] for one in sent):
            return ""
    return (
        "Every rank sent to its left neighbour, r - 1, and received from the right one: these chunks belong "
        "to a ring that sends to r + 1. Turn the ring, or count the chunks the other way round."
    )


def sent_wider(seen: Observed, given: torch.dtype = torch.float32) -> str:
    """The hint if messages had more bytes an element than the function's argument."""
    for rank in range(seen.world_size):
        for one in sends(seen, rank):
            if getattr(torch, one.dtype, given).itemsize > given.itemsize:
                return (
                    f"The messages were {one.dtype}, and the argument is {str(given)[6:]}: send values in "
                    "the dtype in which they came."
                )
    return ""


def other_partners(seen: Observed, members: Sequence[int]) -> str:
    """Of the first rank that sends to one rank and next receives from another, which: "rank 0 ..."; or ""."""
    for rank in members:
        to = [one.peer for one in sends(seen, rank)]
        source = [one.peer for one in seen.operations[rank] if one.op == "recv"]
        for there, here in zip(to, source, strict=False):
            if there != here:
                return f"rank {rank} sent to rank {there} and received from rank {here}"
    return ""
