"""recursive_doubling_all_reduce: its cases, and the usual mistakes of doubling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from course_lib.checks import kit, words
from course_lib.checks.notebooks.collectives.record import other_partners, sends, sent_wider
from course_lib.checks.notebooks.collectives.sums import (
    REFERENCE,
    common_hint,
    counts_of,
    other_dtype,
    rounding_case,
    sum_case,
)
from course_lib.facts import bytes_sent_per_rank, rounds

NAME = "recursive_doubling_all_reduce"


def power_below(n: int) -> int:
    """The largest power of two that is at most n."""
    return 1 << (n.bit_length() - 1)


def doubling_hint(mistakes: list[kit.Mistake], n: int, numel: int, observed: kit.Observed) -> str:
    sent = {len(sends(observed, rank)) for rank in range(observed.world_size)}
    if power_below(n) < n and sent == {0}:
        return folding_hint(mistakes, n, power_below(n))
    if common := common_hint(mistakes, n, numel):
        return common
    if power_below(n) < n:
        return folding_hint(mistakes, n, power_below(n))
    if "twice" in {mistake.sign for mistake in mistakes}:
        return (
            "In round k, the partner of rank r is r ^ 2**k, so both then have the same sum of 2**(k+1) ranks."
        )
    if sent == {(n - 1).bit_length()}:
        return (
            "Every rank sent log2 N messages, but not all values came along. In each round, send everything "
            "you have, which is the sum so far, and not the rank's first tensor or the one that arrived last."
        )
    return "Rounds are missing. The distances are 1, 2, 4, ... up to half the number of ranks."


def folding_hint(mistakes: list[kit.Mistake], n: int, core: int) -> str:
    """The mistake with the n - core ranks that are too many for a power of two."""
    affected = sorted({rank for mistake in mistakes for rank in mistake.ranks})
    signs = {mistake.sign for mistake in mistakes}
    if signs <= {"own", "copy"} and len(affected) <= n - core:
        have = words.verb(affected, "has", "have")
        return (
            f"{words.ranks(affected).capitalize()} {have} no partner among the {core} ranks that double. "
            "Send every extra rank the sum at the end."
        )
    missing = {source for counts in counts_of(mistakes) for source, c in enumerate(counts) if not c}
    if "twice" not in signs and missing and len(missing) <= n - core:
        return (
            f"{n} is not a power of two, so before doubling, every extra rank must hand its values to one "
            f"of the {core} ranks that double."
        )
    twice = ", and values were counted twice" if "twice" in signs else ""
    return (
        f"{n} is not a power of two{twice}. Fold the extra ranks into the first {core}, double there, then "
        "send the extra ranks the sum."
    )


def no_partners(observed: kit.Observed) -> str:
    """Why the bits differ: each rank adds the values that come to it in an order of its own."""
    apart = other_partners(observed, range(observed.world_size))
    if not apart:
        return ""
    return (
        f"Ranks did not swap: {apart}. With r ^ 2**k as the partner, both add the same two sums, a + b and "
        "b + a, which are equal to the last bit."
    )


def doubling_trouble(case: kit.Case, kind: str, text: str) -> str:
    n = case.world_size
    core = power_below(n)
    if dtype := other_dtype(kind, text):
        return dtype
    if core < n and not case.groups and kind in ("deadlock", "error"):
        return (
            f"{n} is not a power of two, so r ^ distance is not always a rank. Fold the extra ranks in "
            f"first. Each sends its values to one of the first {core} ranks, waits, and receives the sum "
            "at the end."
        )
    if kind == "deadlock":
        return (
            "Partners swap their sums. Both send and both receive, so post the two together "
            "(batch_isend_irecv)."
        )
    return ""


def doubling_cost(ratio: float, observed: kit.Observed) -> str:
    return sent_wider(observed) or (
        "Each round swaps the tensor once with one partner, so there are log2 N rounds of M bytes each."
    )


def doubling_rounds(ratio: float, observed: kit.Observed) -> str:
    return (
        "The distance doubles each round (1, 2, 4, ...), and both partners send at the same time, so log2 "
        "N rounds are enough."
    )


def traffic(n: int, nbytes: int, suffix: str, weight: float) -> list[kit.Line]:
    """A rank that is folded in, be it without need, sends its tensor once; the closed form tells the most."""
    most = int(bytes_sent_per_rank(NAME, n, nbytes))
    title = f"bytes sent{suffix}"
    return [
        kit.bytes_line(
            [nbytes] * n,
            most=[most] * n,
            hint=doubling_cost,
            weight=weight,
            title=title,
            tells_the_point=True,
        ),
        kit.essential(
            kit.rounds_line(rounds(NAME, n), hint=doubling_rounds, weight=1.5, title=f"rounds{suffix}")
        ),
    ]


@kit.exercise(
    points=8, objects=(NAME,), references=REFERENCE, hint=doubling_trouble,
    point="partners at distances that double, so that log2 N rounds are enough",
)  # fmt: skip
def recursive_doubling_all_reduce(draw: kit.Draw) -> Iterator[kit.Case]:
    def case(n: int, *shape: int, **more: Any) -> kit.Case:
        return sum_case(draw, kit.Setting(n, shape, **more), doubling_hint)

    def small(n: int, *shape: int, **more: Any) -> kit.Case:
        return case(n, *shape, aspect="shape", short=True, **more)

    def odd(n: int, *shape: int, **more: Any) -> kit.Case:
        return case(n, *shape, aspect="shape", title=f"{n} ranks: no power of two", **more)

    first = case(4, 6, weight=3, more=(*traffic(4, 24, "", 2.5), kit.only_messages()))
    yield replace(first, proves="rounds")
    yield case(2, 5)
    yield odd(3, 4, weight=2)
    yield odd(5, 3, weight=2, more=tuple(traffic(5, 12, ", 5 ranks", 1)))
    yield small(4, 3, dtype=torch.bfloat16, title="bfloat16")
    yield small(2, 3, 2, layout="transposed", title="non-contiguous")
    yield small(4, 5, members=(1, 3), title="sub-group {1, 3}")
    yield small(1, 5, title="1 rank", trivial=True, weight=0.5)
    yield rounding_case(draw, kit.Setting(3, (9,), aspect="shape"))
    on = kit.Setting(4, (500,), "4 ranks: the same bits on every rank", aspect="shape", weight=2.5)
    yield rounding_case(draw, on, why=no_partners)
    if draw.hidden:
        yield small(2, 0, title="no elements", trivial=True, weight=0.5)
        yield odd(7, 2)
        yield case(8, 4, aspect="shape", more=tuple(traffic(8, 16, ", 8 ranks", 1)))
        yield small(2, 2, 3, layout="every_other", title="a view with gaps")
        yield small(6, 4, members=(1, 2, 5), title="sub-group {1, 2, 5}")
