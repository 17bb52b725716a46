"""The order of a prefetched module's messages, held against the moments at which its blocks compute.

Blocks of different sizes tell by a message's bytes the block that it belongs to. Clocks are not asked: a
message was in flight when a block began to compute if the rank had begun it, and had not waited for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from course_lib.checks import kit, words
from course_lib.checks.judge import training_runs
from course_lib.checks.judge.training_runs import begun_at
from course_lib.checks.judge.training_runs.single import Training
from course_lib.checks.notebooks.fsdp.stayed import NO_GRAPH_BEHIND, UNREACHED, not_waited, stayed
from course_lib.checks.rank.notebooks.fsdp.prefetched import Mark

IDLE = "Begin its gather before the previous block of the pass computes, because otherwise the wire idles."
LOWER = " In backward, the blocks ahead have lower numbers."
AT_ONCE = (
    "The weights were asked for early but waited for immediately, so nothing overlaps. Wait where the "
    "weights are needed, at the block's own forward or backward."
)
MEETING = (
    "No barrier is needed, because collectives of one group run in their order and each handle has a wait()."
)
FARTHER = (
    "Ask for {0}_prefetch blocks ahead in {0}: forward_prefetch is the number for forward, and "
    "backward_prefetch the number for backward."
)
ENDS = (
    "Before that, the blocks ahead were asked for in time. Does the range of blocks ahead end one too "
    "soon? Block {}, at the end of the list, belongs to it."
)
NO_UNIT = (
    "Gathers of another size were begun. Make a Unit for each block, with all parameters that no "
    "other block has."
)
QUEUES = (
    "On one wire, a gather queues behind a reduction begun before it, so ask for the weights of the "
    "next block before the gradients leave."
)
FROM_ABOVE = "Backward comes from above. After block {} it comes to block {}, but block {} was asked for."
PASSED = (
    "Block {} was asked for after its own {}, when nothing needs it anymore. Look at the direction "
    "and at the ends of the list: an index of -1 is its last block, and an index modulo the length "
    "starts again at 0."
)
GRADIENTS_WAIT = (
    "Keep the function that reduce() returned, and call it when the next reduction is to begin. If "
    "you wait immediately, you gain nothing over a reduction that blocks."
)
NO_GRADIENT = (
    "Block {} is frozen, so no gradient of its own shows that backward has left it. Free it when "
    "backward comes to the block below."
)
IN_FLIGHT = (
    "Wait for the last reduction when the next one is to begin, because each holds a row of gradients."
)
CALLED = {"F": "forward", "B": "backward"}


@dataclass(frozen=True)
class Step:
    """One rank's messages and marks of a step. gathers, reduces: per block, their places in the record.

    times: how often each mark was made. barriers: their places in the record. pieces: gathers that have no
    block's size.
    """

    rank: int
    number: int
    marks: dict[tuple[str, int], Mark]
    times: Mapping[tuple[str, int], int]
    gathers: dict[int, list[int]]
    reduces: dict[int, list[int]]
    turn: int  # messages begun when the last block's backward began
    barriers: list[int]
    pieces: int
    together: int | None  # the first block whose reduction was begun before the one before was waited for

    def mark(self, kind: str, block: int) -> Mark | None:
        return self.marks.get((kind, block))

    def ran(self) -> kit.Finding | None:
        """The finding if a block did not compute once in forward and once in backward; None if all did."""
        for kind, block in ((kind, block) for kind in CALLED for block in self.gathers):
            if (times := self.times[kind, block]) != 1:
                if not any(self.times[kind, k] for k in self.gathers) and kind == "B":
                    return kit.wrong(
                        f"backward reached no block in step {self.number + 1} on rank {self.rank}.",
                        NO_GRAPH_BEHIND,
                        cause=UNREACHED,
                    )
                how_often = f"{words.number(times)} times" if times else "not at all"
                return kit.wrong(
                    f"block {block} ran {how_often} in the {CALLED[kind]} of step {self.number + 1} on rank "
                    f"{self.rank}; once is right.",
                    "Call the module once in forward, and the hooks of its blocks do the rest.",
                    cause=f"{kit.ORDER} runs",
                )
        return None

    def in_pieces(self) -> kit.Finding | None:
        """The finding if blocks were gathered in several messages each; None if they were not."""
        if self.pieces <= len(self.gathers):
            return None
        return kit.wrong(
            f"in step {self.number + 1} rank {self.rank} began {words.number(self.pieces)} gathers that have "
            "no block's size.",
            "Put all parameters of a block into one Unit, so that one message brings the block.",
            cause=f"{kit.ORDER} pieces",
        )

    def too_late(self, kind: str, block: int, until: float = math.inf) -> bool:
        """Whether the block was gathered behind its own forward ("F") or backward, in the same pass."""
        own = self.mark(kind, block)
        return own is not None and any(own.begun <= at < until for at in self.gathered(kind, block))

    def gathered(self, kind: str, block: int) -> list[int]:
        """The block's gathers in forward ("F") or backward ("B")."""
        return [at for at in self.gathers[block] if (at < self.turn) == (kind == "F")]


def steps_of(observed: kit.Observed, training: Training) -> Iterator[Step]:
    """Of every rank."""
    sizes = {
        sum(p.numel() for p in block.parameters()) * training.dtype.itemsize: k
        for k, block in enumerate(training.built().blocks)
    }
    depth = len(sizes)
    for rank, operations in enumerate(observed.operations):
        reply = observed.values[rank]
        for number in range(len(training.steps[0])):
            marks = reply.marks[number] if number < len(reply.marks) else []
            first, last = (begun_at(observed, rank, 2 * number + k) for k in (0, 1))
            gathers: dict[int, list[int]] = {k: [] for k in range(depth)}
            reduces: dict[int, list[int]] = {k: [] for k in range(depth)}
            for at, operation in enumerate(operations[first:last], first):
                block = sizes.get(operation.nbytes)
                if block is not None and operation.op == "all_gather":
                    gathers[block].append(at)
                elif block is not None and operation.op == "reduce_scatter":
                    reduces[block].append(at)
            by_block = {(mark.kind, mark.block): mark for mark in marks}
            turn = next((m.begun for m in marks if m.kind == "F" and m.block == depth - 1), 0)
            own = operations[first:last]
            barriers = [at for at, operation in enumerate(own, first) if operation.op == "barrier"]
            pieces = sum(op.op == "all_gather" and op.nbytes not in sizes for op in own)
            times = Counter((mark.kind, mark.block) for mark in marks)
            in_turn = sorted((at, block) for block, places in reduces.items() for at in places)
            together = next((
                block for (before, _), (at, block) in pairwise(in_turn)
                if operations[at].issued < (operations[before].waited_at or 0)
            ), None)  # fmt: skip
            yield Step(rank, number, by_block, times, gathers, reduces, turn, barriers, pieces, together)


def asked_again(observed: kit.Observed, training: Training) -> str:
    """The hint if a block was gathered once more behind its own forward or backward; "" if none was."""
    for step in steps_of(observed, training):
        for kind, block in ((kind, block) for kind in CALLED for block in step.gathers):
            if step.too_late(kind, block):
                return PASSED.format(block, CALLED[kind])
    return ""


def each_way(depth: int, ahead: tuple[int, int]) -> Iterator[tuple[str, int, list[int]]]:
    """("F" or "B", a block, the blocks ahead of it that must be on their way when it computes)."""
    for k in range(depth):
        yield "F", k, list(range(k + 1, min(depth, k + 1 + ahead[0])))
    for k in reversed(range(depth)):
        yield "B", k, list(range(k - 1, max(-1, k - 1 - ahead[1]), -1))


def ahead_line(
    training: Training, ahead: tuple[int, int], reshard: bool, title: str, weight: float
) -> kit.Line:
    """When a block begins to compute, the gathers of those ahead are begun, and not waited for.

    The point is missed if in no run a gather travels while the block before computes, neither in forward nor
    in backward. Without resharding backward has no gathers, and nothing can be said.
    """
    depth = len(training.model["inner"])

    def shows(observed: kit.Observed) -> float:
        return float(
            any(
                travels(step, kind, step.marks[kind, block], other)
                for step in steps_of(observed, training)
                for kind, block, others in each_way(depth, (1, 1))
                for other in others
                if (kind, block) in step.marks
            )
        )

    def judge(observed: kit.Observed) -> kit.Finding:
        first = None
        for step in steps_of(observed, training):
            if step.barriers:
                return kit.wrong(
                    f"rank {step.rank} waited at {words.counted(len(step.barriers), 'barrier')} in a step, "
                    "for the slowest rank and for all messages before.",
                    MEETING, cause=f"{kit.ORDER} barrier", misses_point=not shows(observed),
                )  # fmt: skip
            if finding := step.ran() or step.in_pieces():
                return finding
            for kind, block, others in each_way(depth, ahead):
                mark = step.marks[kind, block]
                for other in others:
                    first = first or missing(step, kind, mark, other)
        return replace(first, misses_point=reshard and not shows(observed)) if first else kit.RIGHT

    return kit.Line(title, judge, weight, shows=shows, part="ahead")


def travels(step: Step, kind: str, mark: Mark, other: int) -> bool:
    """Whether the gather of block `other` was in flight when a block began, behind the last barrier."""
    places = [at for at in step.gathered(kind, other) if at < mark.begun]
    if not places or places[-1] not in mark.open:
        return False
    return not any(places[-1] < barrier < mark.begun for barrier in step.barriers)


def missing(step: Step, kind: str, mark: Mark, other: int) -> kit.Finding | None:
    """The finding if the gather of block `other` was not in flight when a block began; None if it was."""
    places = step.gathered(kind, other)
    if kind == "B" and other in mark.whole and not any(at < mark.begun for at in places):
        return None  # it was kept, which the lines on memory and bytes judge
    when = f"when block {mark.block} began its {CALLED[kind]} on rank {step.rank}"
    if not places:
        said = f"no gather of block {other}'s size was begun in {CALLED[kind]} on rank {step.rank}."
        return other_sizes(step, said) or kit.wrong(said, IDLE, cause=f"{kit.ORDER} none {kind}")
    if places[0] >= mark.begun:
        return too_late(step, kind, mark, other, places[0], when)
    if max(at for at in places if at < mark.begun) not in mark.open:
        said = f"the gather of block {other} had been waited for {when}."
        return kit.wrong(said, AT_ONCE, cause=f"{kit.ORDER} at once")
    return None


def other_sizes(step: Step, said: str) -> kit.Finding | None:
    """The finding if blocks were gathered in rows of other sizes, as in one row for all; None if none was."""
    return kit.wrong(said, NO_UNIT, cause=f"{kit.ORDER} no unit") if step.pieces else None


def too_late(step: Step, kind: str, mark: Mark, other: int, place: int, when: str) -> kit.Finding:
    """The finding on the first gather that began too late; all before it in the step began in time."""
    said = f"the gather of block {other} had not begun {when}."
    behind = [at for at in step.reduces[mark.block] if at < place]
    above = [k for k in step.gathers if (own := step.mark("B", k)) and step.gathers[k]
             and max(step.gathers[k]) >= own.begun]  # fmt: skip
    first, end = (0, len(step.gathers) - 1) if kind == "F" else (len(step.gathers) - 1, 0)
    if kind == "B" and above:
        why = FROM_ABOVE.format(mark.block, other, max(above))
    elif other == end and mark.block != first:
        why = ENDS.format(other)
    elif abs(other - mark.block) > 1:  # those between had begun
        why = FARTHER.format(CALLED[kind])
    elif kind == "B" and behind:
        why = QUEUES
    else:
        why = IDLE + LOWER * (kind == "B")
    return kit.wrong(said, why, cause=f"{kit.ORDER} {kind} {why[:20]}")


def reduce_line(training: Training, title: str, weight: float) -> kit.Line:
    """Every block's gradients leave once, and travel while the next block computes; one row at a time."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for step in steps_of(observed, training):
            if finding := step.ran() or step.in_pieces():
                return finding
            for block, places in step.reduces.items():
                where = f"of block {block} on rank {step.rank}"
                if len(places) != 1:
                    said = f"there were {words.counted(len(places), 'reduction')} of block {block}'s size on "
                    said += f"rank {step.rank} in a step; one is needed."
                    why = "Each block's gradients leave once, when backward has left the block."
                    cause = f"{kit.ORDER} reductions"
                    return (None if places else other_sizes(step, said)) or kit.wrong(said, why, cause=cause)
                own = step.mark("B", block)
                if own is not None and places[0] < own.begun:
                    return kit.wrong(
                        f"the gradients {where} left before it began its backward.",
                        (
                            "The gradients were not ready yet. Send a block's gradients when backward has "
                            "left it."
                        ),
                        cause=f"{kit.ORDER} gradients too early",
                    )
                soon = step.mark("B", block - 2) if block > 1 else None
                if soon is not None and places[0] >= soon.begun:
                    return kit.wrong(
                        f"the gradients {where} had not left when block {block - 2} began its backward.",
                        "Send a block's gradients when backward has left it, so that they travel "
                        "while the next block computes.",
                        cause=f"{kit.ORDER} gradients stay",
                    )
                later = [m for m in step.marks.values() if m.kind == "B" and m.begun > places[0]]
                after = min(later, key=lambda m: m.begun, default=None)
                if after is not None and places[0] not in after.open:
                    return kit.wrong(
                        f"the reduction {where} had been waited for when block {after.block} began its "
                        "backward.",
                        GRADIENTS_WAIT,
                        cause=f"{kit.ORDER} reduction at once",
                    )
            every = {at for places in step.reduces.values() for at in places}
            for mark in step.marks.values():
                if len(every & set(mark.open)) > 1:
                    return kit.wrong(
                        f"more than one reduction was in flight when block {mark.block} began its backward "
                        f"on rank {step.rank}.",
                        IN_FLIGHT,
                        cause=f"{kit.ORDER} reductions in flight",
                    )
            if step.together is not None:
                return kit.wrong(
                    f"the reduction of block {step.together} was begun on rank {step.rank} before the one "
                    "before it had been waited for.",
                    IN_FLIGHT,
                    cause=f"{kit.ORDER} reductions in flight",
                )
        return kit.RIGHT

    def shows(observed: kit.Observed) -> float:
        return float(any(any(step.reduces.values()) for step in steps_of(observed, training)))

    return kit.Line(title, judge, weight, shows=shows, part="gradients")


def waited_line(training: Training, title: str, weight: float) -> kit.Line:
    """After backward no message is in flight."""
    steps = len(training.steps[0])

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank, reply in enumerate(observed.values):
            kinds = {operation.op for operation in observed.operations[rank]}
            if len(reply.after) != steps or not {"all_gather", "reduce_scatter"} <= kinds:
                return kit.wrong(
                    f"rank {rank} began no gather, or no reduction, so that there was nothing to wait for.",
                    "Weights are gathered before they are used, and gradients are reduced after that.",
                    cause="no messages",
                )
            for number, after in enumerate(reply.after):
                for at in after:
                    if at < len(observed.operations[rank]):
                        return not_waited(rank, number, observed.operations[rank][at].op)
        return kit.RIGHT

    return kit.Line(title, judge, weight)


def held_line(training: Training, title: str, weight: float) -> kit.Line:
    """Few blocks are whole and one row of gradients travels while a block computes; nothing stays whole.

    For models whose blocks are of one size, with one block ahead in both directions.
    """

    def judge(observed: kit.Observed) -> kit.Finding:
        return stayed(observed, training) or held_in_backward(observed, training) or kit.RIGHT

    return kit.Line(title, judge, weight, "memory")


def held_in_backward(observed: kit.Observed, training: Training) -> kit.Finding | None:
    """The finding if too much was held when a block began its backward; None if it was not.

    A block that stands in the list twice may stay whole between its uses. Other blocks than frozen ones are
    left whole, or gathered again, for reasons that the lines on blocks of different sizes tell.
    """
    blocks = list(training.built().blocks)
    twice = {k for k, block in enumerate(blocks) if blocks.count(block) > 1}
    frozen = {k for k, block in enumerate(blocks) if not any(p.requires_grad for p in block.parameters())}
    too_long = None
    for rank, mark, left in in_backward(observed, repeats={k for k in twice if blocks.index(blocks[k]) < k}):
        when = f"when block {mark.block} began its backward on rank {rank}"
        operations = observed.operations[rank]
        if sum(operations[at].op == "reduce_scatter" for at in mark.open if at < len(operations)) > 1:
            said = f"more than one reduction was in flight {when}."
            return kit.wrong(said, IN_FLIGHT, cause=f"{kit.ORDER} reductions in flight")
        others = {*mark.whole} - twice - {mark.block}
        if others & left - frozen:
            return None
        if others & left and len(others) > 1 and not training.more.get("together"):
            block = min(others & left)
            said = f"block {block} was still whole {when}."
            too_long = too_long or kit.wrong(said, NO_GRADIENT.format(block), cause="frozen and whole")
    return too_long


def in_backward(observed: kit.Observed, repeats: set[int]) -> Iterator[tuple[int, Mark, set[int]]]:
    """(rank, a mark of a backward, the blocks whose backward had begun before it), in order.

    repeats: places of blocks that stood in the list before: each use has a mark for each place.
    """
    for rank in training_runs.members(observed):
        left = set[int]()
        for mark in (mark for step in observed.values[rank].marks for mark in step):
            if mark.kind == "F":
                left.clear()
            elif mark.block not in repeats:
                yield rank, mark, left - {mark.block}
                left.add(mark.block)


def whole_line(training: Training, ahead: tuple[int, int], reshard: bool, weight: float) -> kit.Line:
    """When a block begins to compute, it and those ahead are whole, or on their way, and no others."""
    depth = len(training.model["inner"])

    def judge(observed: kit.Observed) -> kit.Finding:
        for step in steps_of(observed, training):
            if finding := step.ran():
                return finding
            for mark in sorted(step.marks.values(), key=lambda mark: -len(mark.whole)):
                most = depth if not reshard else 1 + ahead[mark.kind == "B"]
                if len(mark.whole) > most:
                    return too_many(step, mark, most, depth)
        return stayed(observed, training) or kit.RIGHT

    if not reshard:
        return kit.Line("memory: nothing left between steps", judge, weight, "memory")
    return kit.Line(
        "memory: 1 + prefetch blocks", judge, weight, "memory", part="few whole",
        shows=lambda observed: float(judge(observed).ok),
    )  # fmt: skip


def too_many(step: Step, mark: Mark, most: int, depth: int) -> kit.Finding:
    called = CALLED[mark.kind]
    passed = [k for k in mark.whole if (k < mark.block if mark.kind == "F" else k > mark.block)]
    again = [
        PASSED.format(k, CALLED[kind]) for kind in {"F", mark.kind} for k in mark.whole
        if step.too_late(kind, k, mark.begun)
    ]  # fmt: skip
    if again:
        why = again[0]
    elif passed:
        why = f"Free a block when its {called} is over, as block {passed[0]} was not."
    else:
        why = f"Ask for no more than {called}_prefetch blocks ahead."
    whole, due = words.which("block", mark.whole), words.counted(most, "block")
    return kit.wrong(
        f"{whole} had memory behind their parameters when block {mark.block} began its {called} on rank "
        f"{step.rank}; {due} {words.verb([0] * most, 'is', 'are')} enough.",
        why,
        cause=f"whole {mark.kind} {bool(passed)} {bool(again)}",
        misses_point=len(mark.whole) == depth,
    )
