"""Sentences on the operations of a run over gloo that NCCL would not carry out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from course_lib.ledger import wording
from course_lib.ledger.ledger import Ledger
from course_lib.ledger.matching import POINT_TO_POINT
from course_lib.ledger.operation import Operation
from course_lib.ledger.order import Held, Order, ends

MOST = 10_000  # operations of all ranks together: the first ones are looked at
SHOWN = 3  # ranks of a circle that are described
IN_TURN = "NCCL does what a rank begins in a group one after the other"
TOGETHER = (
    "Begin such messages together, with dist.batch_isend_irecv, or let one rank of the circle begin them the "
    "other way round."
)
ONE_ORDER = "Begin the messages and collectives of a group in one order that all ranks agree on."
TAGS = (
    "NCCL has no tags, so the first receive between two ranks gets the message that was sent first. Post the "
    "receives in the order in which the other rank sends."
)


@dataclass(frozen=True)
class Remark:
    """One thing NCCL would do differently.

    said: the observation; general: the same without naming operations; advice: the remedy. places: the lines
    of code that did it.
    """

    said: str
    general: str
    advice: str
    places: tuple[str, ...] = ()


def remarks(ledger: Ledger) -> Iterator[Remark]:
    """All that NCCL would do otherwise in a run that went well over gloo, the worst first."""
    each = MOST // ledger.world_size
    operations = [ledger.operations(rank)[:each] for rank in range(ledger.world_size)]
    messages = [
        operation for rank in operations for operation in rank if operation.op in POINT_TO_POINT
    ]
    anywhere = next((message for message in messages if message.peer is None), None)
    if anywhere is not None:
        said = f"rank {anywhere.rank} receives from any rank, which NCCL cannot do{at([anywhere.line])}."
        general = "a rank receives from any rank, which NCCL cannot do."
        yield Remark(said, general, "Name the sender: dist.recv(..., src).", (anywhere.line,))
        return
    if messages and any(side_by_side(operation) for operation in operations):
        circle = Order(operations).circle()
        if circle:
            yield hang(circle)
    yield from mixed_up(messages)


def side_by_side(operations: Sequence[Operation]) -> bool:
    """Whether this rank ever begins an operation in a group while an earlier one is under way.

    If no rank does, each operation waits for the previous operation on gloo as well.
    """
    over: dict[tuple, float] = {}  # of each group: when its last operation was known to be complete
    for operation in operations:
        group = (operation.group_name, operation.group)
        if not operation.joined and over.get(group, 0.0) > operation.issued:
            return True
        completed = float("inf") if operation.completed is None else operation.completed
        over[group] = max(completed, over.get(group, 0.0)) if operation.joined else completed
    return False


def hang(circle: Sequence[Held]) -> Remark:
    general = f"{IN_TURN}, so ranks can wait for each other there."
    said = f"{IN_TURN}, so this run can hang there: {described(circle)}."
    return Remark(said, general, cure(circle), tuple(places(circle)))


def stopped(circle: Sequence[Held]) -> Remark:
    """The same for a run on NCCL that has come to a stop there."""
    begun = all(held.then.index >= 0 for held in circle)
    general = f"Both ends were begun, but {IN_TURN}" if begun else IN_TURN
    said = f"{general}: {described(circle)}."
    return Remark(said, f"{general}.", cure(circle), tuple(places(circle)))


def cure(circle: Sequence[Held]) -> str:
    kinds = {operation.op for held in circle for operation in (held.first, held.then)}
    return TOGETHER if kinds <= set(POINT_TO_POINT) else ONE_ORDER


def described(circle: Sequence[Held]) -> str:
    """ "rank 0 begins send(dst=1) before recv(src=1), rank 1 begins send(dst=0) before recv(src=0)"."""
    several = (
        len({operation.group_name for held in circle for operation in (held.first, held.then)}) > 1
    )
    parts = []
    for held in circle[:SHOWN]:
        first, then = (name(operation, several) for operation in (held.first, held.then))
        parts.append(f"rank {held.first.rank} begins {first} before {then}")
    if len(circle) > SHOWN:
        parts.append(f"and so on in a circle of {len(circle)}")
    return ", ".join(parts) + at(places(circle[:SHOWN]))


def name(operation: Operation, with_group: bool) -> str:
    """ "send(dst=1)", "all_reduce", "all_reduce of group [0, 2]"."""
    group = f" of group {list(operation.group)}" if with_group else ""
    if operation.op not in POINT_TO_POINT:
        return f"{operation.op}{group}"
    return f"{operation.op}({'dst' if operation.op == 'send' else 'src'}={operation.peer}){group}"


def places(circle: Sequence[Held]) -> list[str]:
    lines = [
        operation.line for held in circle for operation in (held.first, held.then) if operation.line
    ]
    return list(dict.fromkeys(lines))


def at(lines: Sequence[str]) -> str:
    """ " (Cell In[5], lines 4 and 6)" of ["Cell In[5], line 6", "Cell In[5], line 4"]."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for line in lines:
        file, _, number = line.rpartition(", line ")
        if file and number.isdecimal():
            numbers[file].add(int(number))
    places = [
        f"{file}, line{'s' * (len(several) > 1)} {wording.listed(sorted(several))}"
        for file, several in numbers.items()
    ]
    return f" ({'; '.join(places)})" if places else ""


def mixed_up(messages: Sequence[Operation]) -> Iterator[Remark]:
    """Messages that only their tags tell apart."""
    tags: dict[tuple, dict[str, list[Operation]]] = defaultdict(lambda: {"send": [], "recv": []})
    for message in messages:
        tags[(*ends(message), message.group_name, message.group)][message.op].append(message)
    for (src, dst, *_), sides in sorted(tags.items()):
        sent, received = ([message.tag for message in sides[op]] for op in ("send", "recv"))
        if sent != received and sorted(sent) == sorted(received):
            first = next(
                message
                for message, tag in zip(sides["recv"], sent, strict=True)
                if message.tag != tag
            )
            order = "in a different order than they were sent"
            said = (
                f"rank {dst} uses tags to receive rank {src}'s messages {order}{at([first.line])}."
            )
            general = f"a rank uses tags to receive messages {order}."
            yield Remark(said, general, TAGS, (first.line,))
            return
