"""The roofline: the least time of a product, and from which size on arithmetic is the bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

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


BOTH = "Your answer is the sum of both times, but they overlap, so the longer one counts."
NO_BYTES = "Your answer is only the arithmetic, but with few rows the bytes take longer."
NO_FLOPS = "Your answer is only the bytes, but with many rows the arithmetic takes longer."
SHORTER = "The shorter of both times cannot be reached, so the longer one counts."
IDEAS = (BOTH, NO_BYTES, NO_FLOPS, SHORTER)
PRODUCT: dict[str, kit.Formula] = {
    BOTH: (
        lambda m, k, n, flops, bandwidth, itemsize=2: (
            arithmetic(m, k, n, flops) + moving(m, k, n, bandwidth, itemsize)
        )
    ),
    "You count the bytes of one matrix, but three are moved, both factors and the product.": (
        lambda m, k, n, flops, bandwidth, itemsize=2: max(
            arithmetic(m, k, n, flops), k * n * itemsize / bandwidth
        )
    ),
    "Three matrices are moved, because the product is also written.": (
        lambda m, k, n, flops, bandwidth, itemsize=2: max(
            arithmetic(m, k, n, flops), (m * k + k * n) * itemsize / bandwidth
        )
    ),
    NO_BYTES: (
        lambda m, k, n, flops, bandwidth, itemsize=2: arithmetic(m, k, n, flops)
    ),
    NO_FLOPS: (
        lambda m, k, n, flops, bandwidth, itemsize=2: moving(m, k, n, bandwidth, itemsize)
    ),
    SHORTER: (
        lambda m, k, n, flops, bandwidth, itemsize=2: min(
            arithmetic(m, k, n, flops), moving(m, k, n, bandwidth, itemsize)
        )
    ),
    "Your answer is half the time. Either there are 2 m k n FLOPs, since a multiplication and an addition "
    "are two, or you took twice the peak, the sparse one with half of the numbers zero.": product(faster=2),
    "bandwidth is in bytes per second, GB and not GiB, so it is off by 1.074.": product(slower=1 / GIB),
    "bandwidth is in bytes per second, GB and not GiB, off by 1.074 the other way.": product(slower=GIB),
    "bandwidth is in bytes per second, not in bits.": product(slower=8),
    "bandwidth is already in bytes per second, so do not convert it from bits.": product(slower=1 / 8),
    "A number has itemsize bytes, but your formula always counts 2.": product(item=2),
    "A number has itemsize bytes, but your formula always counts 4.": product(item=4),
    "A number has itemsize bytes, but your formula counts numbers.": product(item=1),
}  # fmt: skip
RIDGE: dict[str, kit.Formula] = {
    "Your answer is upside down. The ridge is FLOPs per byte, not bytes per FLOP.": (
        lambda flops, bandwidth: bandwidth / flops
    ),
    "The ridge is FLOPs per byte, and no number has a size here, so there is no itemsize. Or you took "
    "twice the peak, the sparse peak with half of the numbers zero.": (
        lambda flops, bandwidth: 2 * flops / bandwidth
    ),
    "The ridge is FLOPs per *byte*, not per number of two bytes.": (
        lambda flops, bandwidth: flops / bandwidth / 2
    ),
    "bandwidth is in bytes per second, GB and not GiB, so it is off by 1.074.": (
        lambda flops, bandwidth: flops / bandwidth / GIB
    ),
    "bandwidth is in bytes per second, GB and not GiB, off by 1.074 the other way.": (
        lambda flops, bandwidth: flops / bandwidth * GIB
    ),
    "bandwidth is in bytes per second, not in bits.": lambda flops, bandwidth: 8 * flops / bandwidth,
    "bandwidth is already in bytes per second, so do not convert it from bits.": (
        lambda flops, bandwidth: flops / bandwidth / 8
    ),
}


def rounded(how: Callable[[float], int]) -> kit.Formula:
    return lambda flops, bandwidth, itemsize=2: how(flops * itemsize / (2 * bandwidth))


TOKENS: dict[str, kit.Formula] = {
    "Your answer is twice as many. For itemsize bytes of a weight, each token brings 2 FLOPs, so divide by "
    "2.": (
        lambda flops, bandwidth, itemsize=2: flops * itemsize / bandwidth
    ),
    "A weight of itemsize bytes brings 2 FLOPs per token, but your formula is right only for 2 bytes.": (
        lambda flops, bandwidth, itemsize=2: flops / bandwidth
    ),
    "Do not round, because both times are equal exactly at least_tokens.": rounded(math.ceil),
    "Do not round down, because both times are equal exactly at least_tokens.": rounded(math.floor),
    "Your answer is upside down.": lambda flops, bandwidth, itemsize=2: 2 * bandwidth / (flops * itemsize),
    "Larger numbers take longer to bring, so that more tokens are needed, not fewer.": (
        lambda flops, bandwidth, itemsize=2: 2 * flops / (bandwidth * itemsize)
    ),
    "A FLOP is a multiplication or an addition, so a token brings two per weight.": (
        lambda flops, bandwidth, itemsize=2: flops * itemsize / bandwidth / 4
    ),
}  # fmt: skip


@kit.exercise(
    points=6,
    objects=("matmul_seconds", "ridge", "least_tokens"),
    references=REFERENCES,
    point="the longer of two times, for the arithmetic and for the bytes",
)
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
                facts.matmul_seconds, PRODUCT, title="matmul_seconds: few rows", weight=2.5, ideas=IDEAS,
                otherwise="Divide all bytes of the three matrices by the bandwidth, or 2 m k n by flops.",
            ),
            kit.Prediction(
                "matmul_seconds", 0,
                [(many, 8192, 8192, *gpus[1]), (many, 8192, hidden, *own, 4), (many, many, many, *own)],
                facts.matmul_seconds, PRODUCT, title="matmul_seconds: many rows", weight=0.5, ideas=IDEAS,
                otherwise="Divide all bytes of the three matrices by the bandwidth, or 2 m k n by flops.",
            ),
            kit.Prediction(
                "ridge", 1, [*gpus, own], facts.ridge, RIDGE, weight=0.75,
                otherwise="Divide FLOPs per second by bytes per second.",
            ),
            kit.Prediction(
                "least_tokens", 2,
                [gpus[1], (*gpus[1], 4), (*gpus[0], 2), (*own, 1), (*own, 4)],
                facts.least_tokens, TOKENS, weight=1.25,
                otherwise="For k and n far above m, only the bytes of the weight matter, k n itemsize. Do "
                "not round the result.",
            ),
        ]
    )  # fmt: skip
