"""Cases that all all-reduces share: a sum over the ranks, in place."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import torch

from course_lib.checks import kit, words
from course_lib.facts import chunk_sizes

REFERENCE = ("course_lib.collectives",)
# (mistakes, ranks, elements, the record) -> the usual cause
SumHint = Callable[[list[kit.Mistake], int, int, kit.Observed], str]
Extra = Callable[[int], list]  # rank -> further arguments, described as in `harness.call`


def chunks(numel: int, n: int) -> list[tuple[int, int]]:
    """The first and the last + 1 element of each of n chunks, as torch.tensor_split cuts."""
    return list(pairwise(accumulate(chunk_sizes(numel, n), initial=0)))


def sum_case(
    draw: kit.Draw,
    on: kit.Setting,
    hint: SumHint,
    extra: Extra | None = None,
    groups: Sequence[list[int]] = (),
) -> kit.Case:
    """`tensor` of every member becomes the sum over the members."""
    values = on.numbers(draw)
    count, numel = len(on.ranks), values[0].numel()
    total = torch.stack(values).to(torch.float64).sum(0).to(on.dtype)
    arguments = on.arguments(values)
    exact = kit.Exact(
        name="tensor",
        members=on.ranks,
        expected=[total] * count,
        provenance=kit.Provenance(kit.contributions(values)),
        homes=[np.arange(numel)] * count,
        language=kit.Language(
            size=numel,
            ranks=on.ranks,
            summed=count,
            # where the ranks do not divide the size, a student may cut it otherwise
            chunks=chunks(numel, count) if numel and numel % count == 0 else (),
        ),
    )

    def summed(observed: kit.Observed) -> kit.Finding:
        hinted = replace(exact, hint=lambda mistakes: hint(mistakes, count, numel, observed))
        return hinted(observed)

    judge = kit.both(summed, kit.gaps_left_alone("tensor", dict(zip(on.ranks, arguments, strict=True))))
    sides = [
        kit.side(
            {"tensor": argument}, returned=["tensor"], group=on.group, extra=extra(rank) if extra else ()
        )
        for rank, argument in zip(on.ranks, arguments, strict=True)
    ]
    title = f"sum, {words.counted(on.n, 'rank')}, {words.counted(numel, 'element')}"
    return on.case(title, sides, judge, groups, needed=all_reduce_needs(values))


def all_reduce_needs(values: Sequence[torch.Tensor]) -> int:
    """Bytes of any all-reduce: every rank but one hands its share on, and is told the sum."""
    return 2 * (len(values) - 1) * values[0].nbytes


def rounding_case(
    draw: kit.Draw,
    on: kit.Setting,
    extra: Extra | None = None,
    groups: Sequence[list[int]] = (),
    why: Callable[[kit.Observed], str] | None = None,
) -> kit.Case:
    """Normal floats: rounding is allowed, ranks that differ in their bits are not; why: they do."""
    values = torch.stack([draw.normal(*on.shape) for _ in on.ranks])
    wide = values.to(torch.float64)
    bound = on.n * torch.finfo(torch.float32).eps * wide.abs().sum(0)
    same = kit.same_bits("tensor", on.ranks)

    def bits(observed: kit.Observed) -> kit.Finding:
        finding = same(observed)
        cause = "" if finding.ok else kit.usual(why, observed)
        return replace(finding, sentences=(*finding.sentences, cause)) if cause else finding

    judge = kit.both(kit.rounded("tensor", on.ranks, wide.sum(0), bound), bits)
    sides = [
        kit.side({"tensor": tensor}, returned=["tensor"], extra=extra(rank) if extra else ())
        for rank, tensor in enumerate(values)
    ]
    title = "floats: within rounding, the same bits on every rank"
    return on.case(title, sides, judge, groups, needed=all_reduce_needs(list(values)))


# ---- what wrong sums have in common

READ_TOO_EARLY = "A receive buffer was read before its message had arrived. Call wait() first, then add."
OTHER_PLACES = (
    "Either a receive buffer was read before its message had arrived (wait() first, then add), or a chunk "
    "was added to the wrong chunk."
)

TWO_ENDS = re.compile(r"sends (\w+)\[[\d, ]*\], but rank \d+ receives into (\w+)\[")


def other_dtype(kind: str, text: str) -> str:
    """The cause of a message whose two ends have different dtypes."""
    ends = TWO_ENDS.search(text) if kind == "error" else None
    if not ends or ends[1] == ends[2]:
        return ""
    return (
        "A new tensor has the default dtype unless you name another. Give a buffer the dtype of the tensor "
        "that is sent, as torch.empty_like(x) does."
    )


def tail(mistakes: list[kit.Mistake], n: int, numel: int) -> bool:
    """The remainder of numel / n alone was left as it was."""
    rest = numel % n
    return bool(rest) and all(
        mistake.sign == "own" and mistake.elements == tuple(range(numel - rest, numel))
        for mistake in mistakes
    )


def common_hint(mistakes: list[kit.Mistake], n: int, numel: int) -> str:
    """Causes of a wrong sum that do not depend on the algorithm."""
    signs = {mistake.sign for mistake in mistakes}
    if "mean" in signs and signs <= {"mean", "unknown"}:  # unknown: a mean that was rounded
        return "An all-reduce sums, so a caller that wants the mean divides afterwards."
    if signs == {"times"}:
        return "All values were counted too often, by the same factor. Usually a phase ran more than once."
    if signs & {"nan", "zero", "unknown"} and "twice" not in signs:
        return READ_TOO_EARLY if signs & {"nan", "zero"} else OTHER_PLACES
    everywhere = len({rank for mistake in mistakes for rank in mistake.ranks}) == n
    if signs == {"own"} and everywhere and all(len(mistake.elements) == numel for mistake in mistakes):
        return (
            "The sum never arrived in `tensor`. If you worked on a copy (contiguous(), reshape, clone), "
            "write it back with copy_()."
        )
    return ""


def counts_of(mistakes: list[kit.Mistake]) -> list[tuple[int, ...]]:
    """How often each rank counts, for every piece that is a sum."""
    return [piece.origin.counts for mistake in mistakes for piece in mistake.pieces if piece.origin.counts]


def complete_chunks(mistakes: list[kit.Mistake], n: int, numel: int) -> list[int]:
    """How many chunks are right on each rank that has something wrong."""
    wrong: dict[int, set[int]] = {}
    for mistake in mistakes:
        for rank in mistake.ranks:
            wrong.setdefault(rank, set()).update(mistake.elements)
    return [
        sum(elements.isdisjoint(range(low, high)) for low, high in chunks(numel, n) if high > low)
        for elements in wrong.values()
    ]
