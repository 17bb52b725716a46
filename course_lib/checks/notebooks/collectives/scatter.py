"""reduce_scatter: every rank ends with one chunk of the sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from course_lib.checks import kit, words
from course_lib.checks.notebooks.collectives.record import a_round_more, sends, turned_left
from course_lib.checks.notebooks.collectives.shards import (
    OVERWRITE,
    ShardHint,
    chunks,
    output_case,
    ring_order,
    ring_trouble,
    traffic,
    with_old,
)
from course_lib.checks.notebooks.collectives.sums import OTHER_PLACES, READ_TOO_EARLY, REFERENCE, counts_of

SIGNS = {  # in this order: the first sign that is there tells
    "old": OVERWRITE,
    "mean": "reduce_scatter sums, so a caller that wants the mean divides afterwards.",
    "nan": READ_TOO_EARLY,
    "zero": READ_TOO_EARLY,
    "unknown": OTHER_PLACES,
    "twice": "A value was added more than once. Each rank adds its own chunk once to the chunk that arrives, "
    "then passes the sum on.",
    "times": "A value was added more than once. Each rank adds its own chunk once to the chunk that arrives, "
    "then passes the sum on.",
    "moved_copy": "Parts of different chunks were added. For rank r to end with chunk r, chunk "
    "r - k - 2 (mod N) must arrive in round k.",
}

CHUNKS = "one chunk of 1/N in a round, and never the whole input"
WHOLE = 3  # times the bytes of such chunks; whole inputs are four times as many on four ranks


def scatter_hint(members: Sequence[int], chunk: int) -> ShardHint:
    n = len(members)

    def hint(mistakes: list[kit.Mistake], observed: kit.Observed) -> str:
        if left := turned_left(observed, members):
            return left
        signs = {mistake.sign for mistake in mistakes}
        if n == 1:
            return "The sum over a single rank is its own input, so copy it into `output`."
        if signs & {"unknown", "moved_copy"} and all(len(sends(observed, rank)) == n for rank in members):
            return (
                "Every rank sent N messages, although there are N - 1 rounds. After these the chunk is "
                "complete, so whatever a further round adds does not belong to it."
            )
        if signs == {"moved"} and any(len(mistake.elements) < chunk for mistake in mistakes):
            return (
                "The sums are complete, but elements of different chunks are mixed. Cut `input` along dim 0 "
                "into N chunks."
            )
        if signs == {"moved"}:
            off = {piece.origin.offset // chunk % n for mistake in mistakes for piece in mistake.pieces}
            shift = f" Here it is chunk r + {off.pop()} (mod {n})." if len(off) == 1 else ""
            return (
                f"The sums are complete but on the wrong ranks. Rank r must end with chunk r.{shift} Start "
                "the ring with another chunk, so that the rank's own chunk arrives last."
            )
        if sentence := next((text for sign, text in SIGNS.items() if sign in signs), ""):
            return sentence
        if signs == {"own"}:
            return (
                "The sum of the other ranks' values for chunk r never arrived at rank r. The last of the N "
                "- 1 rounds brings it, and rank r then adds its own chunk."
            )
        if n > 2 and {counts.count(0) for counts in counts_of(mistakes)} == {1}:
            return "Every sum misses one rank. Run N - 1 rounds, and also add in the last one."
        return (
            "The sums include only some ranks. In each of the N - 1 rounds, pass on the received chunk "
            "plus the rank's own chunk."
        )

    return hint


def scatter_cost(ratio: float, observed: kit.Observed) -> str:
    if abs(ratio - observed.world_size) < 0.02:
        return "Every round sends the whole input, although one chunk of 1/N is enough."
    if abs(ratio - 2) < 0.02:
        return "You send as much as an all-reduce, but a reduce-scatter needs only the first half."
    return "In each of the N - 1 rounds, one chunk of 1/N goes to the right."


def reduce_scatter_case(draw: kit.Draw, on: kit.Setting) -> kit.Case:
    """The setting's shape is that of the output; the input holds one such chunk for each member."""
    count, (length, *rest) = len(on.ranks), on.shape
    inputs = on.numbers(draw, (count * length, *rest))
    total = torch.stack(inputs).to(torch.float64).sum(0).to(on.dtype)
    expected = list(total.tensor_split(count))
    size = expected[0].numel()
    homes = [np.arange(size) + k * size for k in range(count)]
    return output_case(
        on,
        f"{words.counted(on.n, 'rank')}, {words.counted(size, 'element')} each",
        inputs,
        expected,
        with_old(inputs, coarse=on.dtype.itemsize <= 2),
        homes,
        kit.Language(
            size=size,
            ranks=on.ranks,
            summed=count,
            chunks=chunks(size, count),
            homes=dict(zip(on.ranks, homes, strict=True)),
        ),
        scatter_hint(on.ranks, size),
        "Add into a buffer of your own, because the caller still needs its gradients.",
        needed=(count - 1) * inputs[0].nbytes,
    )


def cost(n: int, chunk: int, suffix: str = "") -> list[kit.Line]:
    sent, *others = traffic("reduce_scatter", n, n * chunk, scatter_cost, ring_order, suffix, WHOLE)

    def judge(observed: kit.Observed) -> kit.Finding:
        """Too many bytes, of which one message is a whole input: as where one rank adds everything."""
        finding = sent.judge(observed)
        messages = (operation.nbytes for rank in range(n) for operation in sends(observed, rank))
        whole = not finding.ok and max(messages, default=0) >= 4 * n * chunk
        return replace(finding, misses_point=True) if whole else finding

    return [a_round_more(replace(sent, judge=judge), n - 1, 4 * chunk), *others]


@kit.exercise(points=8, objects=("reduce_scatter",), references=REFERENCE, hint=ring_trouble, point=CHUNKS)
def reduce_scatter(draw: kit.Draw) -> Iterator[kit.Case]:
    def case(n: int, *shape: int, **more: Any) -> kit.Case:
        return reduce_scatter_case(draw, kit.Setting(n, shape, **more))

    def small(n: int, *shape: int, **more: Any) -> kit.Case:
        return case(n, *shape, aspect="shape", short=True, **more)

    yield case(4, 6, weight=2, more=(*cost(4, 6), kit.only_messages(0.5)))
    yield case(3, 5, weight=2)
    yield case(2, 4)
    yield small(3, 2, 3, title="two dimensions")
    yield small(3, 4, dtype=torch.bfloat16, title="bfloat16")
    yield small(2, 2, 3, layout="transposed", title="non-contiguous input")
    yield small(4, 4, members=(1, 3), title="sub-group {1, 3}")
    yield small(1, 4, title="1 rank", trivial=True, weight=0.5)
    if draw.hidden:
        yield case(5, 3, aspect="shape", more=tuple(cost(5, 3, ", 5 ranks")))
        yield small(3, 4, dtype=torch.int64, title="int64")
        yield small(2, 0, title="no elements", trivial=True, weight=0.5)
