"""Messages that are waited for where they are begun: a remark, since gloo and the values do not show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from course_lib.checks.kit import Observed
from course_lib.checks.notebooks.pipeline.running_lines import members, operations
from course_lib.checks.notebooks.pipeline.running_whole import Run
from course_lib.ledger.matching import POINT_TO_POINT
from course_lib.ledger.operation import Operation

EARLY = (
    "dist.send and dist.recv, and isend and irecv whose wait follows at once, let a rank compute only when "
    "its message is through: on NCCL all that it computes after them waits as well. Begin a receive (irecv, "
    "or batch_isend_irecv) before the computation that runs meanwhile, and wait where the tensor is needed."
)


def waits_at_once(run: Run) -> Callable[[Observed], Sequence[str]]:
    """The remark on this run of a case."""

    def look(observed: Observed) -> list[str]:
        ranks = range(len(members(observed)))
        return takes_turns([operations(run, observed, stage) for stage in ranks])

    return look


def takes_turns(ranks: Sequence[Sequence[Operation]]) -> list[str]:
    """Messages that are waited for where they are begun, alone: no computing hides them."""
    for begun in ranks:
        messages = [operation for operation in begun if operation.op in POINT_TO_POINT]
        # of each: whether another of the same batch follows
        followed = [*(message.joined for message in messages[1:]), False]
        for message, batch in zip(messages, followed, strict=True):
            if message.at_once and not message.joined and not batch:
                return [EARLY]
    return []
