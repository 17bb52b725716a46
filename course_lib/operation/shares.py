"""Where the time goes: waiting for the last rank, moving bytes, or computing.

A collective cannot begin to move bytes before its last rank has called it. So the time during which a rank is
blocked in a call has two parts, which need different remedies. Until the last rank arrives it *waits*, and no
faster network shortens that. After that, bytes *move*. Bytes that move while a rank computes are *hidden*,
and cost the rank nothing.

    rank 0   computes |--- waits ---|--- moves ---| computes
    rank 1   computes  ... computes |--- moves ---| computes
                                    ^ the last rank's call

A call is (issued, waited, done): when the rank called it, when it began to wait for it, and when it was over.
For a call that blocks, waited = issued, whereas for a call with async_op=True, the rank computes between the
two. If a rank waits for a handle after the call was over, this has cost nothing.

Sources: Holistic Trace Analysis (Meta) cuts a GPU's time in the same way, into computing, communication and
idle time, and computes their overlap. MegaScale's heat map shows the wait for the last rank (Jiang et al.,
NSDI 2024, section 5.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Call = tuple[float, float, float]
Interval = tuple[float, float]


def breakdown(
    calls: Sequence[Sequence[Call]], rank: int, start: float, end: float
) -> dict[str, float]:
    """Seconds of `rank` between `start` and `end`: "computing", "waiting", "moving", and "hidden".

    calls[r][k]: (issued, waited, done) of the k-th collective on rank r. All ranks take part in all calls,
    and a rank is blocked in only one call at a time. First, every interval is cut to the window.
    waiting + moving + computing is the window. hidden is a part of computing. It is the time in which at
    least one collective that every rank has begun is moving while this rank is not blocked, and is counted
    once even if several are moving.

    Raises ValueError if the ranks do not have equally many calls, or if end < start.
    """
    if end < start or len({len(of_rank) for of_rank in calls}) > 1:
        raise ValueError(
            "expected are start <= end, and as many calls on each rank: all take part in all"
        )
    waiting = moving = 0.0
    blocked, travelling = list[Interval](), list[Interval]()
    for k, (_, waited, done) in enumerate(calls[rank]):
        last = max(of_rank[k][0] for of_rank in calls)  # when the last rank called it
        waiting += _length([(waited, min(last, done))], start, end)
        moving += _length([(max(waited, last), done)], start, end)
        blocked.append((waited, done))
        travelling.append((last, done))
    hidden = _length(blocked + travelling, start, end) - _length(blocked, start, end)
    computing = end - start - waiting - moving
    return {"computing": computing, "waiting": waiting, "moving": moving, "hidden": hidden}


def _length(intervals: Iterable[Interval], start: float, end: float) -> float:
    """Seconds of the window covered by at least one of the intervals."""
    length, reached = 0.0, start
    for begin, over in sorted(intervals):
        begin, over = max(begin, reached), min(over, end)
        if over > begin:
            length += over - begin
            reached = over
    return length


def calls_of(ledger: Any) -> list[list[Call]]:
    """The calls of a run's `ledger` in which all ranks took part, in the form `breakdown` takes.

    A call that was never waited for is over when its rank knew it, or when the rank called it.
    """
    whole = [c for c in ledger.collectives() if len(c.calls) == ledger.world_size]
    return [
        [_call(collective.calls[rank]) for collective in whole] for rank in range(ledger.world_size)
    ]


def _call(operation: Any) -> Call:
    if operation.at_once or not operation.waited:  # one line began it and waited for it
        return operation.issued, operation.issued, operation.issued + operation.blocked
    over = operation.waited_at or operation.completed
    return operation.issued, over - operation.blocked, over
