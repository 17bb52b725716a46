"""all_gather and all_to_all: nothing is added, every chunk must arrive where it belongs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from course_lib.checks import kit, words
from course_lib.checks.notebooks.collectives.record import sent_wider, turned_left
from course_lib.checks.notebooks.collectives.shards import (
    OVERWRITE,
    chunks,
    output_case,
    ring_order,
    ring_trouble,
    traffic,
    with_old,
)
from course_lib.checks.notebooks.collectives.sums import REFERENCE, other_dtype
from course_lib.facts import exact_bytes

SHARDS = "passing on one shard in a round, and never the whole output"
ONE_EACH = "sending each rank the chunk that is for it, and not the whole input"
WHOLE = 3  # times the bytes of such chunks; the whole is four times as many on four ranks


def not_contiguous(kind: str, text: str) -> str:
    """The cause of an error that views raise of a tensor that is not contiguous."""
    said = text.splitlines()[0]  # the lines after it quote the student's code
    if kind != "error" or not ("view size is not compatible" in said or "contiguous" in said):
        return ""
    return "`input` might not be contiguous, so take input.contiguous(), or use reshape instead of view."


def added(mistakes: list[kit.Mistake]) -> bool:
    """Whether values were added to what `output` held before the call; its content is the last source."""
    return any(
        any(piece.origin.counts[:-1])
        for mistake in mistakes
        if mistake.sign == "old"
        for piece in mistake.pieces
    )


# ---- all_gather


def gather_hint(mistakes: list[kit.Mistake], members: list[int], shard: int, observed: kit.Observed) -> str:
    signs = {mistake.sign for mistake in mistakes}
    if left := turned_left(observed, members):
        return left
    if added(mistakes):
        return OVERWRITE
    if signs == {"old"} and all(own_place(mistake, members, shard) for mistake in mistakes):
        return "A rank's own shard never arrived in `output`. Copy `input` there before the ring starts."
    if "old" in signs:
        return (
            "Parts of `output` were never written. N - 1 rounds bring N - 1 shards, and each rank also "
            "copies its own."
        )
    if signs & {"nan", "zero", "unknown"}:
        return (
            "A chunk was used before it had arrived. Call wait() on each round's receive before the next "
            "round."
        )
    if len(members) > 2 and all(from_the_left(mistake, members, shard) for mistake in mistakes):
        return (
            "Every wrong place holds the left neighbour's shard, because each round sent the rank's own "
            "shard once more. Instead, pass on the shard that arrived in the previous round."
        )
    return (
        "Shards are in the wrong places. In round k, the shard of rank r - k - 1 arrives from the left, "
        "and shard s belongs at index s of the output."
    )


def from_the_left(mistake: kit.Mistake, members: list[int], shard: int) -> bool:
    """Whether the left neighbour's shard stands there instead, on each rank."""
    return all(
        (element + piece.origin.offset) // shard == (members.index(piece.rank) - 1) % len(members)
        for piece in mistake.pieces
        for element in piece.elements
    )


def own_place(mistake: kit.Mistake, members: list[int], shard: int) -> bool:
    """It is the rank's own chunk, exactly, on each rank."""
    return all(
        piece.elements == tuple(range(place * shard, (place + 1) * shard))
        for piece in mistake.pieces
        for place in [members.index(piece.rank)]
    )


def gather_trouble(case: kit.Case, kind: str, text: str) -> str:
    if strided := not_contiguous(kind, text):
        return strided
    if case.groups and kind == "error" and "must match the size" in text.splitlines()[0]:
        return (
            "Within the group, dist.get_rank(group) and dist.get_world_size(group) count its ranks. Without "
            "`group`, they count all ranks, and there are as many chunks."
        )
    return ring_trouble(case, kind, text)


def gather_cost(ratio: float, observed: kit.Observed) -> str:
    return "In each of the N - 1 rounds, pass the shard that arrived last on to the right."


def all_gather_case(draw: kit.Draw, on: kit.Setting) -> kit.Case:
    """The setting's shape is that of each rank's input."""
    count = len(on.ranks)
    inputs = on.numbers(draw)
    whole, shard = torch.cat(inputs), inputs[0].numel()
    language = kit.Language(
        size=whole.numel(),
        ranks=[-1],  # one source holds every value: no rank's "own" stands out
        summed=1,
        expected="the value",
        chunks=chunks(shard, count),
        source=lambda source: "the content from before the call" if source else "its value",
        belongs=lambda rank, element: f"rank {on.ranks[element // shard]}'s shard",
        chunk_name=lambda k: f"rank {on.ranks[k]}'s shard",
    )
    return output_case(
        on,
        f"{words.counted(on.n, 'rank')}, {words.counted(shard, 'element')} each",
        inputs,
        [whole] * count,
        with_old([whole]),
        [np.arange(whole.numel())] * count,
        language,
        lambda mistakes, observed: gather_hint(mistakes, on.ranks, shard, observed),
        needed=(count - 1) * whole.nbytes,
    )


@kit.exercise(points=6, objects=("all_gather",), references=REFERENCE, hint=gather_trouble, point=SHARDS)
def all_gather(draw: kit.Draw) -> Iterator[kit.Case]:
    def case(n: int, *shape: int, **more: Any) -> kit.Case:
        return all_gather_case(draw, kit.Setting(n, shape, **more))

    def small(n: int, *shape: int, **more: Any) -> kit.Case:
        return case(n, *shape, aspect="shape", short=True, **more)

    def cost(n: int, shard: int, suffix: str = "") -> list[kit.Line]:
        return traffic("all_gather", n, n * shard, gather_cost, ring_order, suffix, WHOLE)

    yield case(4, 6, weight=2, more=(*cost(4, 6), kit.only_messages(0.5)))
    yield case(3, 5, weight=2)
    yield case(2, 4)
    # The default dtype in the ranks is float32, so a new tensor needs the dtype of the input.
    yield small(3, 2, 3, dtype=torch.float64, title="two dimensions")
    yield small(2, 2, 3, layout="transposed", title="non-contiguous input")
    yield small(4, 4, members=(1, 3), title="sub-group {1, 3}")
    yield small(1, 4, title="1 rank", trivial=True, weight=0.5)
    if draw.hidden:
        yield case(5, 3, aspect="shape", more=tuple(cost(5, 3, ", 5 ranks")))
        yield small(3, 4, dtype=torch.bfloat16, title="bfloat16")
        yield small(3, 4, dtype=torch.int64, title="int64")
        yield small(2, 0, title="no elements", trivial=True, weight=0.5)


# ---- all_to_all


def to_all_hint(mistakes: list[kit.Mistake], observed: kit.Observed) -> str:
    signs = {mistake.sign for mistake in mistakes}
    if added(mistakes):
        return OVERWRITE
    if signs == {"old"}:
        return (
            "Parts of `output` were never written. A rank copies its own chunk there, and every other "
            "chunk has one sender."
        )
    if "old" in signs:
        return "Some chunks never arrived. Each rank must send N - 1 messages and receive N - 1."
    if signs & {"nan", "zero", "unknown"}:
        return "A buffer was read or reused before its message had arrived. Call wait() first."
    return (
        "Chunk d of the input goes to rank d, and the chunk from rank s belongs at index s of the output, "
        "whatever round it arrives in."
    )


def to_all_trouble(case: kit.Case, kind: str, text: str) -> str:
    if strided := not_contiguous(kind, text):
        return strided
    if dtype := other_dtype(kind, text):
        return dtype
    if kind == "deadlock":
        return (
            "In round k, rank r sends to r + k and receives from r - k. Post send and receive together "
            "(batch_isend_irecv). Both ends of a message must name each other, and pairs with r ^ k do so "
            "only for powers of two."
        )
    if kind == "error" and re.search("out of range|in this group is one of", text.splitlines()[0]):
        return (
            "Ranks and chunks end at N - 1, so count mod N: send to r + k and receive from r - k. (With r ^ "
            "k, some partners do not exist unless N is a power of two.)"
        )
    return ""


def to_all_cost(ratio: float, observed: kit.Observed) -> str:
    n = observed.world_size
    if wider := sent_wider(observed):
        return wider
    if abs(ratio - n) < 0.02:
        return "The whole input went to every rank, but rank d needs only chunk d."
    if abs(ratio - n / 2) < 0.02:
        return (
            "A chunk passed around the ring travels up to N - 1 times, so send it directly to the rank "
            "that needs it."
        )
    return "Each rank sends one chunk to every other rank, and none to itself."


def all_to_all_case(draw: kit.Draw, on: kit.Setting) -> kit.Case:
    """The setting's shape is that of one chunk; input and output hold one for each member."""
    count, (length, *rest) = len(on.ranks), on.shape
    inputs = on.numbers(draw, (count * length, *rest))
    size = inputs[0].numel() // count
    expected = [torch.cat([x.tensor_split(count)[d] for x in inputs]) for d in range(count)]
    # positions: (rank, chunk, element), of all inputs in a row
    homes = [
        np.concatenate([np.arange(size) + (s * count + d) * size for s in range(count)]) for d in range(count)
    ]
    language = kit.Language(
        size=count * size,
        ranks=[-1],
        summed=1,
        expected="the value",
        chunks=chunks(size, count * count),
        source=lambda source: "the content from before the call" if source else "its value",
        belongs=lambda rank, element: f"rank {on.ranks[element // size]}'s chunk {on.ranks.index(rank)}",
        chunk_name=lambda k: f"rank {on.ranks[k // count]}'s chunk {k % count}",
        homes=dict(zip(on.ranks, homes, strict=True)),
    )
    return output_case(
        on,
        f"{words.counted(on.n, 'rank')}, {words.counted(size, 'element')} to each",
        inputs,
        expected,
        with_old([torch.cat(inputs)]),
        homes,
        language,
        to_all_hint,
        needed=(count - 1) * inputs[0].nbytes,
    )


@kit.exercise(points=5, objects=("all_to_all",), references=REFERENCE, hint=to_all_trouble, point=ONE_EACH)
def all_to_all(draw: kit.Draw) -> Iterator[kit.Case]:
    def case(n: int, *shape: int, **more: Any) -> kit.Case:
        return all_to_all_case(draw, kit.Setting(n, shape, **more))

    def small(n: int, *shape: int, **more: Any) -> kit.Case:
        return case(n, *shape, aspect="shape", short=True, **more)

    def cost(n: int, chunk: int, suffix: str = "") -> list[kit.Line]:
        least = [exact_bytes("all_to_all", n, n * chunk, 4, rank) for rank in range(n)]
        return [
            kit.bytes_line(least, hint=to_all_cost, weight=3, title=f"bytes sent{suffix}", point=WHOLE),
            kit.messages_line([n - 1] * n, weight=0.5, title=f"messages{suffix}"),
        ]

    first = case(4, 3, weight=2, more=(*cost(4, 3), kit.only_messages(0.5)))
    yield replace(first, proves="bytes")
    yield case(3, 2, weight=2)
    yield case(2, 4)
    # The default dtype in the ranks is float32, so a new tensor needs the dtype of the input.
    yield small(3, 2, 3, dtype=torch.float64, title="two dimensions")
    yield small(2, 2, 3, layout="transposed", title="non-contiguous input")
    yield small(4, 3, members=(1, 3), title="sub-group {1, 3}")
    yield small(1, 4, title="1 rank", trivial=True, weight=0.5)
    if draw.hidden:
        yield case(5, 2, aspect="shape", more=tuple(cost(5, 2, ", 5 ranks")))
        yield small(2, 3, dtype=torch.bfloat16, title="bfloat16")
        yield small(3, 2, dtype=torch.int64, title="int64")
        yield small(2, 0, title="no elements", trivial=True, weight=0.5)
