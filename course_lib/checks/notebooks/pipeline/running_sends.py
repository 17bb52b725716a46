"""The order of a schedule as its messages show it, and messages that are waited for where they are begun.

A stage's own account of its passes is made in the rank, by an object that the student's code has in its
hands. The record of messages is not. It says less: a message may be sent long after it was computed. But
never before: in the order of a row no action can be done before all messages of earlier ones have come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from course_lib.checks import kit, words
from course_lib.checks.notebooks.pipeline.running_lines import ALL_FORWARDS, ONE_BY_ONE, members, operations
from course_lib.checks.notebooks.pipeline.running_whole import ScheduleRun
from course_lib.ledger.matching import POINT_TO_POINT
from course_lib.ledger.operation import Operation
from course_lib.pipeline import KINDS, Action

SMALL = 64  # bytes: a smaller message is not a microbatch; it may tell a shape
CALLED = {"F": "activation", "B": "gradient"}
NEVER = float("inf")
EARLY = (
    "dist.send and dist.recv, and isend and irecv whose wait follows at once, let a rank compute only when "
    "its message is through, and on NCCL everything it computes after them also waits. Instead, begin a "
    "receive (irecv, or batch_isend_irecv) before the computation that runs meanwhile, and wait where the "
    "tensor is needed."
)


@dataclass(frozen=True)
class Early:
    """Messages of a kind that were sent when not all had come for the actions up to `missing`."""

    kind: str
    sends: int
    missing: Action


def sends_line(run: ScheduleRun, title: str, weight: float = 1.0) -> kit.Line:
    """No rank sends a message that comes, by its row, after an action that it could not have done yet."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for stage, rank in enumerate(members(observed)):
            early = list(too_early(run, observed, stage))
            if early:
                return sent_too_early(run, observed, rank, stage, early)
        return kit.RIGHT

    return kit.Line(title, judge, weight)


def too_early(run: ScheduleRun, observed: kit.Observed, stage: int) -> Iterator[Early]:
    """Bytes are counted, not messages: stages may differ in the order of microbatches, whose sizes differ."""
    ranks, done = members(observed), operations(run, observed, stage)
    come: dict[str, list[tuple[float, int]]] = {}
    towards: dict[str, int] = {}
    for kind, source, to in (("F", stage - 1, stage + 1), ("B", stage + 1, stage - 1)):
        if 0 <= source < len(ranks):
            taken = [
                operation
                for operation in done
                if operation.op == "recv" and operation.peer in (ranks[source], None)
            ]
            come[kind] = [(when_there(receive), receive.nbytes) for receive in taken]
        if 0 <= to < len(ranks):
            towards[kind] = ranks[to]
    for kind, peer in towards.items():
        total, sends = 0, 0
        for operation in done:
            if operation.op != "send" or operation.peer != peer or operation.nbytes < SMALL:
                continue
            total, sends = total + operation.nbytes, sends + 1
            there = {kind: sum(n for at, n in some if at <= operation.issued) for kind, some in come.items()}
            able, missing = possible(run, run.actions[stage], there)
            if missing is not None and total > able[kind]:
                yield Early(kind, sends, missing)


def when_there(receive: Operation) -> float:
    """When what was received was known to be there, at the latest; without a moment, as early as can be."""
    if receive.waited_at is not None:
        return receive.waited_at
    return receive.issued if receive.waited else NEVER


def possible(
    run: ScheduleRun, row: Sequence[Action], there: dict[str, int]
) -> tuple[dict[str, int], Action | None]:
    """Bytes of the activations and gradients that a row gives out before the first action which needs more
    than what is `there`; and that action."""
    outgoing = {"F": 0, "B": 0}
    for action in row:
        needed = outgoing[action.kind] + run.nbytes(action.microbatch)
        if action.kind in there and needed > there[action.kind]:
            return outgoing, action
        outgoing[action.kind] = needed
    return outgoing, None


def sent_too_early(
    run: ScheduleRun, observed: kit.Observed, rank: int, stage: int, early: Sequence[Early]
) -> kit.Finding:
    """Which microbatch's did not come is not known: messages may overtake each other by their tags."""
    row, first, last = run.actions[stage], early[0], early[-1]
    to = members(observed)[stage + 1 if first.kind == "F" else stage - 1]
    kind = first.missing.kind
    many = sum(action.kind == kind for action in row[: row.index(first.missing) + 1])
    came, does = CALLED[kind], KINDS[kind]
    missing = (
        f"the {came} for the first {does} of its list had not come"
        if many == 1
        else f"the {came}s for the first {many} {does}s of its list had not all come"
    )
    one_of = "it belongs" if first.sends == 1 else "at least one of them belongs"
    all_first = last.kind == "F" and last.sends >= len(run.batch) and first.missing == last.missing
    backwards = [action for action in row if action.kind == "B"]
    says = ALL_FORWARDS if all_first and last.missing == backwards[0] else ONE_BY_ONE
    return kit.wrong(
        kit.Sentence(
            f"rank {rank} had sent {words.counted(first.sends, 'message')} to rank {to} when {missing}; "
            f"{one_of} to a later {KINDS[first.kind]} of its list.",
            f"rank {rank} had sent a message to rank {to} when messages had not come for actions that its "
            "list has before it.",
        ),
        says,
        cause=says,
        misses_point=True,
    )


# ---- a remark, since gloo and the values do not show it


def waits_at_once(run: ScheduleRun) -> Callable[[kit.Observed], Sequence[str]]:
    """The remark on this run of a case."""

    def look(observed: kit.Observed) -> list[str]:
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
