"""What gloo carries and NCCL might not: remarks that cost no points, since a check runs over gloo.

gloo carries what ranks have begun side by side, and tells messages apart by their tags. NCCL knows no tags,
and where a group has one communicator for all, as here, messages outside of a batch are done one after the
other, in the order in which a rank begins them (PyTorch's own warning on "unbatched P2P ops" in eager
initialization, ProcessGroupNCCL.cpp; NCCL user guide, "Point-to-point communication").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

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
    told = [f"rank {rank} is at its {nth(i)}, {what(steps[rank][i])}" for rank, i in stuck]
    general = "NCCL does what a rank begins outside of a batch one after the other. Ranks may wait for each"
    return [
        Sentence(f"{general} other: {', and '.join(told)}.", f"{general} other then."),
        TOGETHER,
    ]


def left_over(steps: Steps) -> list[tuple[int, int]]:
    """Ranks that would wait for each other, and the number of the step that each could not end."""
    messages = {rank: numbered(rank, all_of_it) for rank, all_of_it in steps.items()}
    at, done = dict.fromkeys(steps, 0), set[Message]()
    moved = True
    while moved:
        here = {rank: messages[rank][i] for rank, i in at.items() if i < len(messages[rank])}
        often = Counter(one for step in here.values() for one in step)
        done |= {one for one, ends in often.items() if ends == 2}
        ended = [rank for rank, step in here.items() if step <= done]
        at |= {rank: at[rank] + 1 for rank in ended}
        moved = bool(ended)
    waits = {
        rank: next(end for end in min(messages[rank][i] - done)[:2] if end != rank)
        for rank, i in at.items()
        if i < len(messages[rank])
    }
    return [(rank, at[rank]) for rank in circle(waits)]


def circle(waits: dict[int, int]) -> list[int]:
    """Ranks each of which waits for the next one, and the last for the first; or for somebody who is done."""
    path: list[int] = []
    rank = min(waits, default=-1)
    while rank in waits and rank not in path:
        path.append(rank)
        rank = waits[rank]
    return path[path.index(rank) :] if rank in path else path


def numbered(rank: int, all_of_it: Sequence[list[Operation]]) -> list[set[Message]]:
    """The messages of each step; the k-th send between two ranks meets the k-th receive."""
    often: Counter[tuple[int, int]] = Counter()
    found = []
    for step in all_of_it:
        messages = set()
        for one in step:
            ends = both_ends(rank, one)
            often[ends] += 1
            messages.add((*ends, often[ends]))
        found.append(messages)
    return found


def both_ends(rank: int, one: Operation) -> tuple[int, int]:
    """From whom to whom; -1: from anybody."""
    peer = -1 if one.peer is None else one.peer
    return (rank, peer) if one.op == "send" else (peer, rank)


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
            tags.setdefault(both_ends(rank, one), {"send": [], "recv": []})[one.op].append(one.tag)
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
