"""What gloo carries and NCCL might not: remarks that cost no points, since a check runs over gloo.

gloo carries what ranks have begun side by side, and tells messages apart by their tags. NCCL knows no tags,
and does what a rank has begun outside of a batch one after the other (PyTorch's notes on
`batch_isend_irecv`; NCCL user guide, "Point-to-point communication").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from course_lib.checks.engine.case import Finding, Line, Observed
from course_lib.checks.engine.sentence import Sentence
from course_lib.checks.pipeline.running_lines import members, operations
from course_lib.checks.pipeline.running_whole import Run
from course_lib.ledger.operation import Operation

ORDINAL = {1: "1st", 2: "2nd", 3: "3rd"}
TOGETHER = (
    "Begin sends and receives that meet in one dist.batch_isend_irecv, or all messages in one order that all "
    "ranks agree on: that of simulate(actions).events."
)
EARLY = (
    "dist.send and dist.recv, and isend and irecv whose wait follows at once, let a rank compute only when "
    "its message is through: on NCCL all that it computes after them waits as well. Begin a receive (irecv, "
    "or batch_isend_irecv) before what is computed meanwhile, and wait where the tensor is needed."
)
TAGS = (
    "NCCL has no tags: the first receive between two ranks gets what was sent first. Post each receive in "
    "the order in which its sender sends."
)
Message = tuple[int, int, int]  # from, to, and the how-manieth of them
Steps = dict[int, list[list[Operation]]]  # of each rank: what it begins together


class Meeting(NamedTuple):
    """The messages that a rank's step is about, by what NCCL would take them for."""

    rank: int
    step: list[Operation]
    messages: set[Message]


def nccl_line(run: Run, title: str, *looks: Callable[[Steps], Sequence[str]]) -> Line:
    """What the first of the looks has to say of a run that was right. Always passed; it weighs nothing."""

    def judge(seen: Observed) -> Finding:
        found = {
            rank: batches(
                [one for one in operations(run, seen, stage) if one.op in ("send", "recv")]
            )
            for stage, rank in enumerate(members(seen))
        }
        for look in looks:
            said = tuple(look(found))
            if said:
                return Finding(True, said, title=f"{title}: but on NCCL (costs no points)")
        return Finding(True, title=f"{title}: on NCCL as well")

    return Line(title, judge, 0.0, "communication", short=True)


def batches(begun: Sequence[Operation]) -> list[list[Operation]]:
    """What was begun together: a batch, or a single operation."""
    found: list[list[Operation]] = []
    for one in begun:
        if one.joined and found:
            found[-1].append(one)
        else:
            found.append([one])
    return found


def waits_for_ever(steps: Steps) -> list[str]:
    """Ranks that would wait for each other if each step of a rank had to end before the next one begins."""
    stuck = left_over(steps)
    if not stuck:
        return []
    told = [f"rank {rank} in its {nth(index)}, {what(step)}" for rank, index, step in stuck[:3]]
    general = "some of these messages are begun in orders that do not fit each other"
    return [
        Sentence(
            f"NCCL does what a rank begins one after the other, and then {general}: {'; '.join(told)}, and "
            "nobody can go on.",
            f"NCCL does what a rank begins one after the other, and then {general}.",
        ),
        TOGETHER,
    ]


def left_over(steps: Steps) -> list[tuple[int, int, list[Operation]]]:
    """Of each rank that would not come to its end: rank, number of the step, and the step."""
    meetings = {rank: list(numbered(rank, all_of_it)) for rank, all_of_it in steps.items()}
    at, done = dict.fromkeys(meetings, 0), set()
    moved = True
    while moved:
        moved = False
        here = {rank: meetings[rank][i] for rank, i in at.items() if i < len(meetings[rank])}
        often = Counter(message for one in here.values() for message in one.messages)
        done |= {message for message, ends in often.items() if ends == 2}
        for rank, one in here.items():
            if one.messages <= done:
                at[rank] += 1
                moved = True
    return [(rank, i, steps[rank][i]) for rank, i in at.items() if i < len(steps[rank])]


def numbered(rank: int, all_of_it: Sequence[list[Operation]]) -> list[Meeting]:
    """Each step with its messages; the k-th send between two ranks meets the k-th receive."""
    often: Counter[tuple[int, int]] = Counter()
    found = []
    for step in all_of_it:
        messages = set()
        for one in step:
            peer = -1 if one.peer is None else one.peer
            ends = (rank, peer) if one.op == "send" else (peer, rank)
            often[ends] += 1
            messages.add((*ends, often[ends]))
        found.append(Meeting(rank, step, messages))
    return found


def nth(index: int) -> str:
    return ORDINAL.get(index + 1, f"{index + 1}th")


def what(step: Sequence[Operation]) -> str:
    kinds = {"send": "a send to", "recv": "a receive from"}
    return " with ".join(f"{kinds[one.op]} rank {one.peer}" for one in step)


def takes_turns(steps: Steps) -> list[str]:
    """Messages that are waited for where they are begun, alone: no computing hides them."""
    alone = [step[0] for all_of_it in steps.values() for step in all_of_it if len(step) == 1]
    return [EARLY] if any(one.at_once for one in alone) else []


def mixed_up(steps: Steps) -> list[str]:
    """Messages that only their tags tell apart."""
    tags: dict[tuple[int, int], dict[str, list[int]]] = {}
    for rank, all_of_it in steps.items():
        for one in (one for step in all_of_it for one in step):
            peer = -1 if one.peer is None else one.peer
            ends = (rank, peer) if one.op == "send" else (peer, rank)
            tags.setdefault(ends, {"send": [], "recv": []})[one.op].append(one.tag)
    for (src, dst), one in sorted(tags.items()):
        if one["send"] != one["recv"]:
            general = (
                "a rank receives messages in another order than they are sent in, by their tags."
            )
            return [
                Sentence(
                    f"rank {dst} receives the messages of rank {src} in another order than they are sent "
                    "in, by their tags.",
                    general,
                ),
                TAGS,
            ]
    return []
