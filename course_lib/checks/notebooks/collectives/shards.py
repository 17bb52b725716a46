"""Cases in which chunks of a larger tensor move: an output buffer, an input that is left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from course_lib.checks import kit
from course_lib.checks.notebooks.collectives.record import sent_wider
from course_lib.checks.notebooks.collectives.sums import other_dtype
from course_lib.facts import exact_bytes, rounds

OLD = -3  # the content of output buffers before the call
OVERWRITE = "`output` can hold anything before the call, so write into it instead of adding to it."
ShardHint = Callable[[list[kit.Mistake], kit.Observed], str]


def chunks(length: int, count: int) -> list[tuple[int, int]]:
    """(first, last + 1) of `count` chunks of `length` positions; none when they are empty."""
    return [(k * length, (k + 1) * length) for k in range(count)] if length else []


class Coarse(kit.Provenance):
    """Of a dtype with few numbers, where a wrong one can be some sum by chance.

    An origin is believed if all wrong elements of the rank have it.
    """

    def origins(self, values: np.ndarray, home: np.ndarray) -> list[kit.Origin]:
        origins = super().origins(values, home)
        return origins if len(set(origins)) == 1 else [kit.Origin("unknown")] * len(origins)


def with_old(tensors: Sequence[torch.Tensor], coarse: bool = False) -> kit.Provenance:
    """The sources of a sum, and last the old content of the output."""
    sources = kit.contributions([*tensors, torch.full_like(tensors[0], OLD)])
    return (Coarse if coarse else kit.Provenance)(sources, summed=len(tensors))


def output_case(
    on: kit.Setting,
    title: str,
    inputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    provenance: kit.Provenance,
    homes: Sequence[np.ndarray],
    language: kit.Language,
    hint: ShardHint,
    why: str = "",
    *,
    needed: int,
) -> kit.Case:
    """f(output, input): every member's output becomes `expected`, its input stays.

    needed: bytes of all ranks together without which that cannot be, see `Case`.
    """
    exact = kit.Exact("output", on.ranks, expected, provenance, homes, language)

    def arrived(observed: kit.Observed) -> kit.Finding:
        def cause(mistakes: list[kit.Mistake]) -> str:
            return never_written(mistakes, on.ranks, language.size) or hint(mistakes, observed)

        return replace(exact, hint=cause)(observed)

    judge = kit.both(arrived, kit.left_alone("input", dict(zip(on.ranks, inputs, strict=True)), why))
    sides = [
        kit.side(
            {"output": torch.full_like(made, OLD), "input": kit.Argument(tensor, on.layout)},
            returned=["output", "input"],
            group=on.group,
        )
        for made, tensor in zip(expected, inputs, strict=True)
    ]
    return on.case(title, sides, judge, needed=needed)


def never_written(mistakes: list[kit.Mistake], members: Sequence[int], size: int) -> str:
    """That `output` is on every rank what it was, where that is so."""
    whole = all(
        len(mistake.elements) == size and not any(mistake.pieces[0].origin.counts[:-1])
        for mistake in mistakes
    )
    if {mistake.sign for mistake in mistakes} != {"old"} or not whole:
        return ""
    if {rank for mistake in mistakes for rank in mistake.ranks} != set(members):
        return ""
    if len(members) == 1:  # no message is needed, so no copy of the own part looks like this, too
        return (
            "Nothing was written into `output`, but even a single rank copies its own part into the given "
            "tensor. If your function has `output = ...`, write output.copy_(...) instead."
        )
    return (
        "Nothing was written into `output`. `output = ...` only gives that name to another tensor, and a "
        "returned tensor is not used. Write into the given tensor with output.copy_(...)."
    )


def traffic(
    algorithm: str,
    n: int,
    numel: int,
    cost: kit.Hint,
    order: kit.Hint,
    suffix: str = "",
    point: float = float("inf"),
) -> list[kit.Line]:
    """Bytes and rounds of an algorithm on `numel` float32 elements. point: of `bytes_line`."""
    least = [exact_bytes(algorithm, n, numel, 4, rank) for rank in range(n)]
    return [
        kit.bytes_line(
            least,
            hint=lambda ratio, observed: sent_wider(observed) or cost(ratio, observed),
            weight=4,
            title=f"bytes sent{suffix}",
            point=point,
        ),
        kit.rounds_line(rounds(algorithm, n), hint=order, title=f"rounds{suffix}", each_way=True),
    ]


def ring_order(ratio: float, observed: object) -> str:
    return "Each of the N - 1 rounds sends one message to the right. Send and receive at the same time."


NOT_AGREED = (
    "The two ends of a message must agree. In each round, rank r + 1 receives from its left the chunk rank "
    "r sends to its right. If one leaves out an empty chunk, so must its neighbour."
)


def ring_trouble(case: kit.Case, kind: str, text: str) -> str:
    if dtype := other_dtype(kind, text):
        return dtype
    if kind == "deadlock" and "finished" in text.splitlines()[0]:
        return NOT_AGREED
    if kind == "deadlock":
        return (
            "Every rank must send to its right and receive from its left in the same round, so post both "
            "together with dist.batch_isend_irecv."
        )
    return ""
