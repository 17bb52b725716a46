"""broadcast, by a binomial tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from course_lib.checks import kit, words
from course_lib.checks.notebooks.collectives.sums import REFERENCE, other_dtype
from course_lib.facts import bytes_sent_per_rank, rounds

IN_A_GROUP = (
    "`src` is a rank of the whole world, but ranks within the group have other numbers. Translate it with "
    "dist.get_group_rank(group, src), then count relative to that, within the group."
)


def broadcast_hint(src: int, n: int, in_a_group: bool) -> Callable[[list[kit.Mistake]], str]:
    def hint(mistakes: list[kit.Mistake]) -> str:
        missed = sorted({rank for mistake in mistakes if mistake.sign == "own" for rank in mistake.ranks})
        count = rounds("broadcast", n)
        if any(mistake.sign in ("partial", "twice", "times") for mistake in mistakes):
            return "A broadcast replaces the other ranks' values and adds nothing."
        if any(src in mistake.ranks for mistake in mistakes):
            return (
                IN_A_GROUP
                if in_a_group
                else (
                    "The source's own tensor was overwritten. The tree has to start at `src`, here rank "
                    f"{src}, so count ranks relative to it, (rank - src) % N."
                )
            )
        if missed and len(missed) == n - 1:
            return (
                "Nothing arrived in `tensor` on the other ranks. Receive into it, or copy the received "
                "value back with copy_()."
            )
        if missed and n > 2 and src == 0 and min(missed) >= 1 << (count - 1):
            return (
                f"The last ranks were never reached. With {n} ranks, a broadcast takes ceil(log2 {n}) = "
                f"{count} rounds."
            )
        if missed:
            return (
                "Some ranks were never reached. In round k, every rank with the value must send it 2**k "
                "further."
            )
        return (
            f"Ranks got another rank's value. Pass on only the value of rank {src}, and only after it has "
            "arrived."
        )

    return hint


def broadcast_trouble(case: kit.Case, kind: str, text: str) -> str:
    if dtype := other_dtype(kind, text):
        return dtype
    if case.groups and (kind == "error" or "finished" in text.splitlines()[0]):
        return IN_A_GROUP
    waits_in = set(re.findall(r"rank \d+: in (\w+)\(", text))
    n = case.world_size
    if kind == "deadlock" and "finished" in text.splitlines()[0] and waits_in == {"send"} and n & (n - 1):
        return (
            f"Ranks send to others that receive nothing. {n} is not a power of two, so the last round is cut "
            "short: send only if the place 2**k further is below N, and do not wrap around."
        )
    if kind == "deadlock" and "finished" in text.splitlines()[0]:
        return (
            "A rank waits for a sender that never sends to it, or sends to a rank that does not receive. "
            "Both ends must agree on the parent. Count relative to the source, (rank - src) % N, then "
            "translate back with + src."
        )
    if kind == "deadlock":
        return (
            "A rank must have the value before it sends it, so first receive from the parent, then send to "
            "the children. A child does not have the value yet. In round k, it is the rank 2**k further."
        )
    if kind == "error" and re.search("invalid|in this group is one of", text.lower()):
        return (
            "Not every rank has a child in every round, because the last round is cut short if N is not a "
            "power of two."
        )
    return ""


def broadcast_cost(ratio: float, observed: kit.Observed) -> str:
    return (
        "Every rank except the source receives the tensor once, so (N-1) M is sent in all. No rank sends "
        "more than one message per round, so at most ceil(log2 N) M."
    )


def broadcast_rounds(ratio: float, observed: kit.Observed) -> str:
    return (
        "Every rank with the value must pass it on in every round, so that the number of such ranks "
        "doubles. Such a binomial tree takes ceil(log2 N) rounds."
    )


def broadcast_case(draw: kit.Draw, on: kit.Setting, src: int) -> kit.Case:
    """`tensor` of every member becomes that of the global rank `src`."""
    values = on.numbers(draw)
    count, numel = len(on.ranks), values[0].numel()
    arguments = on.arguments(values)
    judge = kit.both(
        kit.Exact(
            name="tensor",
            members=on.ranks,
            expected=[values[on.ranks.index(src)]] * count,
            provenance=kit.Provenance(kit.contributions(values)),
            homes=[np.arange(numel)] * count,
            language=kit.Language(
                size=numel, ranks=on.ranks, summed=count, belongs=lambda rank, element: f"rank {src}'s"
            ),
            hint=broadcast_hint(src, count, bool(on.members)),
        ),
        kit.gaps_left_alone("tensor", dict(zip(on.ranks, arguments, strict=True))),
    )
    sides = [
        kit.side({"tensor": argument}, returned=["tensor"], extra=[src], group=on.group)
        for argument in arguments
    ]
    size = f"{words.counted(on.n, 'rank')}, {words.counted(numel, 'element')}"
    needed = (count - 1) * values[0].nbytes
    return on.case(f"from rank {src}, {size}", sides, judge, needed=needed)


def traffic(n: int, nbytes: int, suffix: str = "") -> list[kit.Line]:
    most = int(bytes_sent_per_rank("broadcast", n, nbytes))
    title = f"bytes sent{suffix}"
    return [
        kit.total_bytes_line((n - 1) * nbytes, busiest=most, hint=broadcast_cost, weight=2.5, title=title),
        kit.essential(
            kit.rounds_line(rounds("broadcast", n), hint=broadcast_rounds, weight=2, title=f"rounds{suffix}")
        ),
    ]


@kit.exercise(
    points=6, objects=("broadcast",), references=REFERENCE, hint=broadcast_trouble,
    point="a tree, in which everybody who has the value passes it on",
)  # fmt: skip
def broadcast(draw: kit.Draw) -> Iterator[kit.Case]:
    def case(n: int, *shape: int, src: int = 0, **more: Any) -> kit.Case:
        return broadcast_case(draw, kit.Setting(n, shape, **more), src)

    def small(n: int, *shape: int, src: int = 0, **more: Any) -> kit.Case:
        return case(n, *shape, src=src, aspect="shape", short=True, **more)

    yield case(4, 6, weight=2)
    yield case(4, 3, src=2, weight=2)
    odd = case(5, 4, weight=1.5, aspect="shape", more=(*traffic(5, 16), kit.only_messages(0.5)))
    yield replace(odd, proves="rounds")
    yield case(3, 5, src=1, aspect="shape")
    # The default dtype in the ranks is float32, so a new tensor needs the dtype of the argument.
    yield small(2, 3, 2, dtype=torch.float64, layout="transposed", title="non-contiguous")
    yield small(4, 5, src=1, members=(1, 3), title="sub-group {1, 3}, from rank 1")
    yield small(1, 4, title="1 rank", trivial=True, weight=0.5)
    if draw.hidden:
        yield small(2, 0, title="no elements", trivial=True, weight=0.5)
        yield case(5, 3, src=4, aspect="shape")
        yield case(8, 2, src=5, aspect="shape", more=tuple(traffic(8, 8, ", 8 ranks")))
        yield small(5, 4, src=4, members=(0, 3, 4), title="sub-group {0, 3, 4}, from rank 4")
        yield small(3, 4, dtype=torch.bfloat16, title="bfloat16")
        yield small(2, 6, src=1, layout="every_other", title="a view with gaps")
