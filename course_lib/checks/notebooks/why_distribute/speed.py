"""The roofline: the least time of a product, and from which size on arithmetic is the bound."""

from __future__ import annotations

import math
from collections.abc import Iterator

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.notebooks.why_distribute.references import REFERENCES

GIB = 2**30 / 10**9


def arithmetic(m: int, k: int, n: int, flops: float) -> float:
    return 2 * m * k * n / flops


def moving(m: int, k: int, n: int, bandwidth: float, itemsize: float) -> float:
    return (m * k + k * n + m * n) * itemsize / bandwidth


def product(faster: float = 1, slower: float = 1, item: int | None = None) -> kit.Formula:
    """faster: so many times the FLOPs a second; slower: the seconds of the bytes."""

    def seconds(m: int, k: int, n: int, flops: float, bandwidth: float, itemsize: float = 2) -> float:
        size = itemsize if item is None else item
        return max(arithmetic(m, k, n, flops) / faster, slower * moving(m, k, n, bandwidth, size))

    return seconds


PRODUCT: dict[str, kit.Formula] = {
    "That is the sum of both times: they overlap, the longer one counts.": (
        lambda m, k, n, flops, bandwidth, itemsize=2: (
            arithmetic(m, k, n, flops) + moving(m, k, n, bandwidth, itemsize)
        )
    ),
    "Three are moved, both factors and the product: that is the bytes of one matrix.": (
        lambda m, k, n, flops, bandwidth, itemsize=2: max(
            arithmetic(m, k, n, flops), k * n * itemsize / bandwidth
        )
    ),
    "Three are moved: the product is written, too.": (
        lambda m, k, n, flops, bandwidth, itemsize=2: max(
            arithmetic(m, k, n, flops), (m * k + k * n) * itemsize / bandwidth
        )
    ),
    "That is the arithmetic alone: with few rows the bytes take longer.": (
        lambda m, k, n, flops, bandwidth, itemsize=2: arithmetic(m, k, n, flops)
    ),
    "That is the bytes alone: with many rows the arithmetic takes longer.": (
        lambda m, k, n, flops, bandwidth, itemsize=2: moving(m, k, n, bandwidth, itemsize)
    ),
    "The shorter of both times cannot be reached: the longer one counts.": (
        lambda m, k, n, flops, bandwidth, itemsize=2: min(
            arithmetic(m, k, n, flops), moving(m, k, n, bandwidth, itemsize)
        )
    ),
    "Half of the time: a FLOP is a multiplication or an addition, 2 m k n. Or the peak is taken twice: that "
    "is with half of the numbers zero, the sparse one.": product(faster=2),
    "bandwidth is in bytes a second, GB and not GiB: off by 1.074.": product(slower=1 / GIB),
    "bandwidth is in bytes a second, GB and not GiB: off by 1.074, the other way.": product(slower=GIB),
    "bandwidth is in bytes a second, not in bits.": product(slower=8),
    "bandwidth is in bytes a second already: do not convert it from bits.": product(slower=1 / 8),
    "A number has itemsize bytes; that counts 2 always.": product(item=2),
    "A number has itemsize bytes; that counts numbers.": product(item=1),
}  # fmt: skip
RIDGE: dict[str, kit.Formula] = {
    "That is upside down: FLOPs for each byte, not bytes for each FLOP.": (
        lambda flops, bandwidth: bandwidth / flops
    ),
    "FLOPs a byte were asked for, and no number has a size here: no itemsize. Or the peak is taken twice, as "
    "it is with half of the numbers zero.": (lambda flops, bandwidth: 2 * flops / bandwidth),
    "FLOPs for each *byte* were asked for, not for each number of two bytes.": (
        lambda flops, bandwidth: flops / bandwidth / 2
    ),
    "bandwidth is in bytes a second, GB and not GiB: off by 1.074.": (
        lambda flops, bandwidth: flops / bandwidth / GIB
    ),
    "bandwidth is in bytes a second, GB and not GiB: off by 1.074, the other way.": (
        lambda flops, bandwidth: flops / bandwidth * GIB
    ),
    "bandwidth is in bytes a second, not in bits.": lambda flops, bandwidth: 8 * flops / bandwidth,
    "bandwidth is in bytes a second already: do not convert it from bits.": (
        lambda flops, bandwidth: flops / bandwidth / 8
    ),
}
TOKENS: dict[str, kit.Formula] = {
    "That is twice as many: for itemsize bytes of a weight each token brings 2 FLOPs, so divide by 2.": (
        lambda flops, bandwidth, itemsize=2: flops * itemsize / bandwidth
    ),
    "A weight of itemsize bytes brings 2 FLOPs a token. That is right for 2 bytes alone.": (
        lambda flops, bandwidth, itemsize=2: flops / bandwidth
    ),
    "Do not round: least_tokens is where both times are equal.": (
        lambda flops, bandwidth, itemsize=2: math.ceil(flops * itemsize / (2 * bandwidth))
    ),
    "That is upside down.": lambda flops, bandwidth, itemsize=2: 2 * bandwidth / (flops * itemsize),
    "Larger numbers take longer to bring, so that more tokens are needed, not fewer.": (
        lambda flops, bandwidth, itemsize=2: 2 * flops / (bandwidth * itemsize)
    ),
    "A FLOP is a multiplication or an addition: a token brings two for each weight.": (
        lambda flops, bandwidth, itemsize=2: flops * itemsize / bandwidth / 4
    ),
}  # fmt: skip


@kit.exercise(points=6, objects=("matmul_seconds", "ridge", "least_tokens"), references=REFERENCES)
def roofline(draw: kit.Draw) -> Iterator[kit.Case]:
    """The published GPUs, and one that is drawn; products on both sides of the ridge."""
    gpus = [(gpu.flops, gpu.bandwidth) for gpu in facts.GPUS]
    own = 1e12 * draw.integer(100, 120), 1e9 * draw.integer(900, 1100)  # a ridge between few and many rows
    few, many = draw.integer(2, 9), 1024 * draw.integer(6, 20)
    width, hidden = 64 * draw.integer(20, 90), 64 * draw.integer(100, 200)
    yield from kit.evaluated(
        [
            kit.Prediction(
                "matmul_seconds", 0,
                [(1, 4096, 4096, *gpus[1]), (few, width, hidden, *own, 4), (few, width, hidden, *own, 2),
                 (few, width, width, *gpus[0])],
                facts.matmul_seconds, PRODUCT, title="matmul_seconds: few rows", weight=2.5,
                otherwise="All bytes of the three matrices over the bandwidth, or 2 m k n over flops.",
            ),
            kit.Prediction(
                "matmul_seconds", 0,
                [(many, 8192, 8192, *gpus[1]), (many, 8192, hidden, *own, 4), (many, many, many, *own)],
                facts.matmul_seconds, PRODUCT, title="matmul_seconds: many rows", weight=0.5,
                otherwise="All bytes of the three matrices over the bandwidth, or 2 m k n over flops.",
            ),
            kit.Prediction(
                "ridge", 1, [*gpus, own], facts.ridge, RIDGE, weight=0.75,
                otherwise="FLOPs a second over bytes a second.",
            ),
            kit.Prediction(
                "least_tokens", 2,
                [gpus[1], (*gpus[1], 4), (*gpus[0], 2), (*own, 1), (*own, 4)],
                facts.least_tokens, TOKENS, weight=1.25,
                otherwise="For k and n far above m the bytes are those of the weight, k n itemsize.",
            ),
        ]
    )  # fmt: skip
