"""Mistakes that a run's values alone leave open, told apart by the record of its messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from course_lib.checks import kit
from course_lib.ledger.operation import Operation


def sends(observed: kit.Observed, rank: int) -> list[Operation]:
    return [operation for operation in observed.operations[rank] if operation.op == "send"]


def turned_left(observed: kit.Observed, members: Sequence[int]) -> str:
    """That the ring ran from rank r to rank r - 1, where it did; for values that are wrong."""
    n = len(members)
    if n < 3:
        return ""  # two ranks are each other's neighbour on both sides
    for place, rank in enumerate(members):
        sent = sends(observed, rank)
        if not sent or any(operation.peer != members[place - 1] for operation in sent):
            return ""
    return (
        "Every rank sent to its left neighbour, r - 1, but these chunks belong to a ring that sends to r + "
        "1. Turn the ring, or count the chunks the other way around."
    )


def sent_wider(observed: kit.Observed, dtype: torch.dtype = torch.float32) -> str:
    """The hint if messages had more bytes an element than the function's argument."""
    for rank in range(observed.world_size):
        for operation in sends(observed, rank):
            if getattr(torch, operation.dtype, dtype).itemsize > dtype.itemsize:
                return (
                    f"Some messages were {operation.dtype}, but the argument is {str(dtype)[6:]}. Send "
                    "values in the argument's dtype."
                )
    return ""


def other_partners(observed: kit.Observed, members: Sequence[int]) -> str:
    """The first rank that sends to one rank and next receives from another: "rank 0 sent to ..."; or ""."""
    for rank in members:
        to = [operation.peer for operation in sends(observed, rank)]
        source = [operation.peer for operation in observed.operations[rank] if operation.op == "recv"]
        for there, here in zip(to, source, strict=False):
            if there != here:
                return f"rank {rank} sent to rank {there} and received from rank {here}"
    return ""


def a_round_more(line: kit.Line, rounds: int, chunk: int) -> kit.Line:
    """The line of a ring's bytes, to which a round too many of one chunk each shows the point all the same.

    chunk: the bytes of a chunk. A wrong value with it is a slip, as with a round too few.
    """

    def shows(observed: kit.Observed) -> float:
        share = line.shows(observed) if line.shows else 0.0
        messages = [sends(observed, rank) for rank in range(observed.world_size)]
        few = all(len(of_rank) <= rounds + 1 for of_rank in messages)
        small = all(message.nbytes <= chunk for of_rank in messages for message in of_rank)
        return 1.0 if share < 0 and few and small else share

    return replace(line, shows=shows)
