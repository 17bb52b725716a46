"""exchange and ring_shift: every rank ends with the value of one other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from course_lib.checks import kit, words
from course_lib.checks.notebooks.first_ranks.references import REFERENCE


@dataclass(frozen=True)
class Arrival:
    """An exercise in which each rank gets the value of the rank at source(place, size).

    in_place: into the argument; else it is returned, and the argument left alone. single: the hint for a
    rank that is alone.
    """

    source: Callable[[int, int], int]
    in_place: bool
    hint: Callable[[list[kit.Mistake], Sequence[int]], str]
    single: str

    def case(self, draw: kit.Draw, on: kit.Setting) -> kit.Case:
        values, ranks = on.numbers(draw), on.ranks
        arguments = on.arguments(values)
        numel, size = values[0].numel(), len(ranks)
        froms = [self.source(place, size) for place in range(size)]
        whose = {rank: ranks[source] for rank, source in zip(ranks, froms, strict=True)}
        exact = kit.Exact(
            name="tensor" if self.in_place else "result",
            members=ranks,
            expected=[values[source] for source in froms],
            provenance=kit.Provenance(kit.contributions(values)),
            homes=[np.arange(numel)] * size,
            language=kit.Language(
                size=numel, ranks=ranks, summed=size, belongs=lambda rank, element: f"rank {whose[rank]}'s"
            ),
            hint=lambda mistakes: self.hint(mistakes, ranks) if size > 1 else self.single,
        )
        gaps = kit.gaps_left_alone("tensor", dict(zip(ranks, arguments, strict=True)))
        why = "Receive into a new tensor, such as torch.empty_like(tensor.contiguous())."
        alone = kit.both(kit.left_alone("tensor", dict(zip(ranks, values, strict=True)), why), new_tensor)
        sides = [
            kit.side(
                {"tensor": argument},
                returned=["tensor"],
                result=None if self.in_place else kit.Spec.of(argument.values),
                group=on.group,
            )
            for argument in arguments
        ]
        judge = kit.both(told_if_unsent(exact) if size > 1 else exact, gaps)
        if not self.in_place and size == 1:
            judge = kit.both(judge, alone)
        if not self.in_place and on.more:  # a line of its own, so that this slip costs no values
            line = kit.Line("a new tensor, and `tensor` is unchanged", alone, aspect="shape", trivial=True)
            on = replace(on, more=(line, *on.more))
        title = f"{words.counted(on.n, 'rank')}, {words.counted(numel, 'element')}"
        moved = sum(source != place for place, source in enumerate(froms))
        return on.case(title, sides, judge, needed=moved * values[0].nbytes)


UNSENT = (
    "No rank has sent anything. A P2POp only describes a message, so begin it with dist.batch_isend_irecv, "
    "or use dist.isend and dist.irecv."
)


def told_if_unsent(exact: kit.Exact) -> Callable[[kit.Observed], kit.Finding]:
    """The same judge; where no message was begun at all, that is the usual cause."""

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = exact(observed)
        if finding.ok or finding.raised or observed.ledger.operations():
            return finding
        return replace(finding, sentences=(finding.sentences[0], UNSENT), cause=UNSENT)

    return judge


def new_tensor(observed: kit.Observed) -> kit.Finding:
    """The result has memory of its own."""
    for rank, values in enumerate(observed.values):
        if values.same_memory:
            return kit.wrong(
                f"on rank {rank}, the returned tensor and `tensor` are in the same memory.",
                "The result must be a tensor of its own, such as tensor.clone().",
                cause="same memory",
            )
    return kit.RIGHT


def one_message(n: int, nbytes: int) -> tuple[kit.Line, ...]:
    """Each of the n ranks sends its tensor once."""

    def hint(ratio: float, observed: kit.Observed) -> str:
        return "Each rank sends its tensor once, to one other rank."

    return (
        kit.bytes_line([nbytes] * n, hint=hint),
        kit.messages_line([1] * n, weight=0.5),
        kit.only_messages(0.5),
    )


# ---- exchange


def exchange_hint(mistakes: list[kit.Mistake], ranks: Sequence[int]) -> str:
    sign = mistakes[0].sign
    if sign == "own" and 2 * len({rank for mistake in mistakes for rank in mistake.ranks}) <= len(ranks):
        return (
            "Only one rank of a pair has its partner's value, but both must send. A rank sends its own "
            "value, and not what it has just received."
        )
    if sign == "own":
        return (
            "The partner's value never arrived in `tensor`. Receive into it, or copy the received value "
            "there with copy_(). After an assignment such as `tensor = tensor.contiguous()`, the name can "
            "stand for another tensor than the argument."
        )
    if sign == "copy":
        return PARTNER
    if sign in ("times", "partial", "twice"):
        return "Swap, do not add, because the value that arrives replaces the old one."
    return ""


PARTNER = "The partner of rank r is r ^ 1, so 0 and 1 swap, 2 and 3, and so on."
BEGUN = ".wait()"  # in the line in which a rank is stuck, so its messages have begun


def exchange_trouble(case: kit.Case, kind: str, text: str) -> str:
    if case.world_size % 2 and kind in ("deadlock", "error"):
        return (
            "With an odd number of ranks, the last one has no partner, so it keeps its own value and sends "
            "nothing."
        )
    if kind == "deadlock" and BEGUN in text:
        return (
            "Partners send to each other and receive from each other, so both messages of a rank must begin "
            "before the rank waits."
        )
    if kind == "error" and "number in this group is one of" in text:
        return PARTNER
    if kind == "deadlock":
        return (
            "Both partners do the same thing first. Let one send while the other receives, or post both "
            "together."
        )
    return ""


def partner(place: int, size: int) -> int:
    return place ^ 1 if place ^ 1 < size else place


EXCHANGE = Arrival(
    partner, in_place=True, hint=exchange_hint, single="A single rank has no partner, so it keeps its tensor."
)


@kit.exercise(points=1, objects=("exchange",), references=REFERENCE, hint=exchange_trouble)
def exchange(draw: kit.Draw) -> Iterator[kit.Case]:
    def case(n: int, *shape: int, **more: Any) -> kit.Case:
        return EXCHANGE.case(draw, kit.Setting(n, shape, **more))

    def small(n: int, *shape: int, **more: Any) -> kit.Case:
        return case(n, *shape, aspect="shape", short=True, **more)

    yield case(2, 6, weight=2)
    yield case(4, 5, weight=2, more=one_message(4, 20))
    yield case(3, 4, weight=2, aspect="shape", title="3 ranks: the last has no partner")
    yield small(2, 3, 4, layout="transposed", title="non-contiguous")
    yield small(4, 6, members=(1, 3), dtype=torch.int64, title="sub-group {1, 3}, int64")
    yield small(1, 3, title="1 rank", trivial=True)
    if draw.hidden:
        yield case(5, 7, aspect="shape", dtype=torch.int64, title="5 ranks, int64")
        yield small(2, 8, layout="every_other", title="a view with gaps")
        yield small(2, 0, title="no elements", trivial=True)


# ---- ring_shift


UNARRIVED = ("zero", "nan", "unknown")  # values of a buffer into which nothing was received


def shift_hint(mistakes: list[kit.Mistake], ranks: Sequence[int]) -> str:
    sign = mistakes[0].sign
    wrong = {rank for mistake in mistakes for rank in mistake.ranks}
    if sign in ("own", *UNARRIVED) and wrong == {ranks[0]}:
        return (
            "Only rank 0 of the group is wrong. The circle is closed, so the last rank sends to rank 0, and "
            "it sends its own tensor."
        )
    if all(from_first(mistake) for mistake in mistakes) and ranks[0] in wrong:
        return (
            "All ranks end with the tensor of rank 0, so they pass on what they receive. Instead, each rank "
            "sends its own tensor."
        )
    if sign == "own":
        return (
            "A rank returned its own value. Return the tensor into which you received the neighbour's value."
        )
    if sign == "copy" and all(from_right(mistake) for mistake in mistakes):
        return (
            "The values went around the wrong way. Send to (rank + 1) % N, and receive from (rank - 1) % N."
        )
    if sign == "copy":
        return "Each rank must receive from the rank before it, (rank - 1) % N."
    if sign in UNARRIVED:
        return "The buffer was read before the message had arrived. Call wait() on the receive first."
    return ""


def from_first(mistake: kit.Mistake) -> bool:
    """Every rank holds the value of the first one."""
    counts = [piece.origin.counts for piece in mistake.pieces]
    return all(any(some) and some[0] == 1 == sum(some) for some in counts)


def from_right(mistake: kit.Mistake) -> bool:
    """Every rank holds its right neighbour's value."""
    counts = [(piece.rank, piece.origin.counts) for piece in mistake.pieces]
    return all(1 in some and some.index(1) == (rank + 1) % len(some) for rank, some in counts)


def shift_trouble(case: kit.Case, kind: str, text: str) -> str:
    if kind == "deadlock" and "finished" in text.splitlines()[0]:
        return (
            "The circle must close. The last rank's right neighbour is rank 0, so rank 0's left neighbour "
            "is the last rank."
        )
    if kind == "deadlock" and BEGUN in text:
        return (
            "Every rank sends to (rank + 1) % N and receives from (rank - 1) % N, so both messages of a "
            "rank must begin before the rank waits."
        )
    if kind == "deadlock":
        return (
            "Every rank does the same thing first, then waits for its neighbour. Post the send and the "
            "receive together (dist.batch_isend_irecv), or let one rank start the other way around."
        )
    return ""


RING_SHIFT = Arrival(
    lambda place, size: (place - 1) % size,
    in_place=False,
    hint=shift_hint,
    single="A single rank receives nothing, so it returns a copy of its tensor.",
)


@kit.exercise(points=2, objects=("ring_shift",), references=REFERENCE, hint=shift_trouble)
def ring_shift(draw: kit.Draw) -> Iterator[kit.Case]:
    def case(n: int, *shape: int, **more: Any) -> kit.Case:
        return RING_SHIFT.case(draw, kit.Setting(n, shape, **more))

    def small(n: int, *shape: int, **more: Any) -> kit.Case:
        return case(n, *shape, aspect="shape", short=True, **more)

    yield case(3, 6, weight=2)
    yield case(4, 5, weight=2, more=one_message(4, 20))
    yield case(2, 4)
    yield small(3, 3, 4, layout="transposed", title="non-contiguous")
    yield small(4, 6, members=(1, 3), dtype=torch.int64, title="sub-group {1, 3}, int64")
    yield small(1, 3, title="1 rank", trivial=True)
    if draw.hidden:
        yield case(5, 7, aspect="shape", dtype=torch.int64, title="5 ranks, int64")
        yield small(3, 2, 4, layout="every_other", title="a view with gaps")
        yield small(3, 6, dtype=torch.bfloat16, title="bfloat16")
        yield small(2, 0, title="no elements", trivial=True)
