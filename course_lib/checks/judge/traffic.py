"""Lines that are judged from the ledger: bytes, messages, rounds, and forbidden calls."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from course_lib.checks import words
from course_lib.checks.judge.case import (
    CHANGED,
    MORE,
    NEVER_WAITED,
    ORDER,
    RIGHT,
    Finding,
    Line,
    Observed,
    usual,
    wrong,
)
from course_lib.checks.sentence import at
from course_lib.ledger import matching
from course_lib.ledger.operation import Operation
from course_lib.ledger.rows import REFUSED

WRITING = {*matching.BUILT_IN} - {"barrier"}  # that leave something in a tensor
BUILT_IN = frozenset({*matching.BUILT_IN, "new_group"})  # all but point-to-point messages
BARRIER = frozenset({"barrier"})
ALLOWED = "send, recv, isend, irecv and batch_isend_irecv"

Hint = Callable[[float, Observed], str]  # (how many times too many, observed) -> the usual cause


def sent_bytes(operations: Sequence[Operation]) -> int:
    return sum(operation.nbytes for operation in operations if operation.op == "send")


def used(operations: Sequence[Sequence[Operation]], forbidden: frozenset[str]) -> Finding | None:
    """The first forbidden call of a run, as the finding for all its lines; None if there was none."""
    calls = [operation for rank in operations for operation in rank if operation.op in forbidden]
    if not calls:
        return None
    opened = [call for call in calls if call.op == "new_group"]
    first = (opened or calls)[0]
    line = f"{first.line}: {first.source}" if first.line and first.source else first.line
    if opened:
        return wrong(
            at(line, "a process group of your own was opened with dist.new_group", end="."),
            "Use the group that your function gets (None: all ranks); messages elsewhere count too.",
            cause="new_group",
        )
    return wrong(
        at(line, f"dist.{first.op} was called", end="."),
        f"This exercise is about building it from messages: only {ALLOWED} count.",
        cause="built-in",
    )


def too_little(operations: Sequence[Sequence[Operation]], needed: int) -> Finding | None:
    """Fewer bytes in messages than any algorithm needs, as the finding for all lines of the run."""
    sent = sum(sent_bytes(rank) for rank in operations)
    if sent >= needed:
        return None
    return wrong(
        f"all ranks together sent {words.number(sent)} bytes in messages; the result needs at "
        f"least {words.number(needed)}.",
        "The values came another way than by messages in the given group.",
        cause="too few bytes",
    )


def raced(finding: Finding, observed: Observed) -> Finding:
    """A finding on wrong values, with the cause if a collective of the run was never waited for.

    A tensor whose message is on its way may hold any numbers, which look like another mistake. A call that
    raised has begun no message, and has no handle.
    """
    has_cause = finding.cause.startswith((NEVER_WAITED, ORDER)) or finding.cause.endswith(CHANGED)
    if finding.ok or finding.raised or has_cause:
        return finding
    for rank, operations in enumerate(observed.operations):
        left = [o.op for o in operations if o.op in WRITING and not o.waited and o.tag != REFUSED]
        if left:
            times = f", {words.number(len(left))} times" if len(left) > 1 else ""
            why = (
                f"Rank {rank} began {left[0]} with async_op=True{times}, and never waited for it: until then "
                "the tensors that it writes hold anything. Keep the handle that the call returns, and call "
                "its wait() before the values are used."
            )
            return replace(finding, sentences=(*finding.sentences[:1], why), cause=NEVER_WAITED)
    return finding


def only_messages(weight: float = 1.0) -> Line:
    """The line that is right when nothing forbidden was called (see `Case.forbidden`), nor a barrier."""

    def judge(observed: Observed) -> Finding:
        return used(observed.operations, BARRIER) or RIGHT

    return Line("only point-to-point messages", judge, weight, "communication")


def bytes_line(
    least: Sequence[int],
    *,
    most: Sequence[int] | None = None,
    hint: Hint | None = None,
    weight: float = 1.0,
    title: str = "bytes sent",
    what: str = "",
    point: float = float("inf"),
    tells_the_point: bool = False,
) -> Line:
    """Bytes that each rank sends: between `least` and `most` (the same when left out), per rank.

    hint: given the ratio of the busiest rank's bytes to those that it may send, the usual cause. point: from
    that many times too many bytes on, the point of the exercise is missed (see `Exercise`). tells_the_point:
    no more bytes than these show that a solution with wrong values has it.
    """
    allowed = list(most or least)

    def judge(observed: Observed) -> Finding:
        sent = [sent_bytes(operations) for operations in observed.operations]
        over = [r for r in range(len(sent)) if sent[r] > allowed[r]]
        under = [r for r in range(len(sent)) if sent[r] < least[r]]
        if over:
            rank = max(over, key=lambda r: sent[r] / max(allowed[r], 1))
            ratio = sent[rank] / max(allowed[rank], 1)
            who = "every rank" if len(over) == len(sent) and len(set(sent)) == 1 else f"rank {rank}"
            enough = f"{words.number(allowed[rank])} are enough{what}"
            many = f", {words.number(ratio)} times as many" if allowed[rank] else ""
            said = f"{who} sent {words.number(sent[rank])} bytes; {enough}{many}."
            cause, missed = f"bytes {ratio:.2f}", ratio >= point
            return wrong(said, usual(hint, ratio, observed), cause=cause, misses_point=missed)
        if under:
            rank = under[0]
            return wrong(
                f"rank {rank} sent {words.number(sent[rank])} bytes; the other ranks need at least "
                f"{words.number(least[rank])} from it.",
                "The values came another way than by messages in the given group.",
                cause="too few bytes",
            )
        return Finding(True, title=f"{title}: {share(sent, least if most is None else most, most is None)}")

    def of_those_due(observed: Observed) -> float:
        return share_of([sent_bytes(operations) for operations in observed.operations], allowed)

    tells = of_those_due if math.isfinite(point) or tells_the_point else None
    return Line(title, judge, weight, "communication", shows=tells)


def share_of(sent: Sequence[float], allowed: Sequence[float]) -> float:
    """The share that the ranks sent of all bytes that they may send; MORE if a rank sent more than it may."""
    if any(own > most + 0.5 for own, most in zip(sent, allowed, strict=True)):
        return MORE
    return sum(sent) / max(sum(allowed), 1)


def share(sent: Sequence[int], bound: Sequence[int], is_least: bool) -> str:
    busiest = max(range(len(sent)), key=lambda r: sent[r])
    each = "per rank" if len(set(sent)) == 1 else "by the busiest rank"
    is_least = is_least or bound[busiest] == sent[busiest]
    of = f"of at {'least' if is_least else 'most'} {words.number(bound[busiest])}"
    return f"{words.number(sent[busiest])} {of} {each}"


def total_bytes_line(
    least: int, *, busiest: int, hint: Hint | None = None, weight: float = 1.0, title: str = "bytes sent"
) -> Line:
    """Bytes of all ranks together exactly `least`, and of one rank at most `busiest`."""

    def judge(observed: Observed) -> Finding:
        sent = [sent_bytes(operations) for operations in observed.operations]
        total, most = sum(sent), max(sent)
        if total < least:
            return wrong(
                f"all ranks together sent {words.number(total)} bytes; {words.number(least)} are needed.",
                "The values came another way than by messages in the given group.",
                cause="too few bytes",
            )
        if total > least or most > busiest:
            ratio = total / max(least, 1) if total > least else most / max(busiest, 1)
            said = (
                f"all ranks together sent {words.number(total)} bytes; {words.number(least)} are enough."
                if total > least
                else f"rank {sent.index(most)} alone sent {words.number(most)} bytes; "
                f"{words.number(busiest)} are enough for the busiest rank."
            )
            return wrong(said, usual(hint, ratio, observed), cause=f"bytes {ratio:.2f}")
        return Finding(True, title=f"{title}: {words.number(total)} by all ranks together")

    def of_those_due(observed: Observed) -> float:
        sent = [sent_bytes(operations) for operations in observed.operations]
        return MORE if sum(sent) > least or max(sent) > busiest else sum(sent) / max(least, 1)

    return Line(title, judge, weight, "communication", shows=of_those_due)


def most_messages(operations: Sequence[Operation], each_way: bool = False) -> int:
    """Messages that a rank sent, in all; each_way: to the peer that got most of them."""
    to = Counter(operation.peer for operation in operations if operation.op == "send")
    return max(to.values(), default=0) if each_way else to.total()


def rounds_line(
    most: int, *, hint: Hint | None = None, weight: float = 1.0, title: str = "rounds", each_way: bool = False
) -> Line:
    """At most `most` rounds, in each of which a rank sends at most one message.

    They are counted as messages that had to follow one another (see `course_lib.ledger.rounds`), and
    are no fewer than the messages of the rank that sends most. each_way: in a round a rank may send one
    message to each of its neighbours, as where a ring runs in both directions.
    """
    way = " to each neighbour" if each_way else ""

    def judge(observed: Observed) -> Finding:
        busiest = max(most_messages(operations, each_way) for operations in observed.operations)
        took = max(len(observed.ledger.rounds()), busiest)
        if took <= most:
            return Finding(True, title=f"{title}: {words.number(took)}")
        return wrong(
            f"it took {words.counted(took, 'round')} (a rank sends one message a round{way}); "
            f"{words.number(most)} {words.verb([0] * most, 'is', 'are')} enough.",
            usual(hint, took / max(most, 1), observed),
            cause=f"rounds {took / max(most, 1):.2f}",
        )

    return Line(title, judge, weight, "communication")


def messages_line(
    most: Sequence[int], *, hint: Hint | None = None, weight: float = 1.0, title: str = "messages"
) -> Line:
    """At most so many messages sent by each rank."""

    def judge(observed: Observed) -> Finding:
        counts = [sum(operation.op == "send" for operation in rank) for rank in observed.operations]
        over = [r for r in range(len(counts)) if counts[r] > most[r]]
        if not over:
            each = "per rank" if len(set(counts)) == 1 else "by the busiest rank"
            return Finding(True, title=f"{title}: {words.number(max(counts))} {each}")
        rank = max(over, key=lambda r: counts[r])
        ratio = counts[rank] / max(most[rank], 1)
        return wrong(
            f"rank {rank} sent {words.counted(counts[rank], 'message')}; "
            f"{words.number(most[rank])} {words.verb([0] * most[rank], 'is', 'are')} enough. Each "
            "costs a latency.",
            usual(hint, ratio, observed),
            cause=f"messages {ratio:.2f}",
        )

    return Line(title, judge, weight, "communication")
