"""The questions at the end of notebook 02, with the wrong answers that show an oversight."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.notebooks.collectives.formulas import FORMULAS

RING_SECONDS = facts.bytes_sent_per_rank("ring_all_reduce", 64, 70) / 50  # 70 GB, 50 GB/s
BUS = facts.bus_bandwidth("all_reduce", 8, 4, 0.1)  # 4 GB in 0.1 s

LEAST_TIME = {
    1.4: "That is the tensor once; a ring all-reduce sends 2(N-1)/N of it.",
    2.8: "Nearly: 2M is the limit for many ranks, with 64 it is 2 * 63/64.",
    RING_SECONDS / 2: "That is one phase; there are two, reduce-scatter and all-gather.",
    RING_SECONDS * 64: "Each round sends a chunk of 1/64, not the whole tensor.",
    RING_SECONDS * 2: "50 GB/s each way: a link sends and receives at the same time.",
    RING_SECONDS * 8: "50 GB/s are bytes, not bits: no factor of 8.",
    RING_SECONDS / 64: "The tensor was divided by the ranks once too often.",
}
HOW_MANY_TIMES = {
    16: "Divide by the least, 2(N-1)/N M, not by (N-1)/N M: there are two phases.",
    15: "That is how many tensors it sends; the least is not one tensor but 2 * 15/16.",
    4: "N - 1 tensors against 2(N-1)/N of one: N - 1 cancels.",
    30: "That colleague's ring goes round once: N - 1 rounds.",
    32: "That colleague's ring goes round once: N - 1 rounds.",
    7.5: "That divides by 2 tensors; the least is 2 * 15/16.",
    1: "The sum is right, the bytes are not: a round passes on 16 chunks where one would do.",
    1 / 8: "Upside down: how many times too many.",
}
BUS_BANDWIDTH = {
    40: "That is the algorithm bandwidth; the bus bandwidth counts the bytes on a link: times 2(N-1)/N.",
    80: "Times 2(N-1)/N, not times 2.",
    35: "An all-reduce has two phases: 2(N-1)/N, not (N-1)/N.",
    40 / 1.75: "Multiply by 2(N-1)/N: a link carries more than the tensor.",
    320: "Not times the ranks: it is the bandwidth of one rank's link.",
    560: "Not times the ranks: it is the bandwidth of one rank's link.",
    5: "Not divided by the ranks: times 2(N-1)/N.",
}
DOMINATES = {
    "bandwidth": "10 KB over 512 ranks are chunks of 20 bytes, and 1,022 rounds cost 1,022 times alpha."
}


@kit.exercise(
    points=4, objects=("answer_1", "answer_2", "answer_3", "answer_4"), references=FORMULAS, constants=True
)
def questions(draw: kit.Draw) -> Iterator[kit.Case]:
    yield kit.answers(
        [
            kit.Answer(
                "answer_1",
                RING_SECONDS,
                slips=LEAST_TIME,
                unit="seconds",
                tolerance=0.005,
                otherwise="Bytes that each rank sends in a ring, over the bandwidth of its link.",
            ),
            kit.Answer("answer_2", ("latency",), slips=DOMINATES, options=("latency", "bandwidth")),
            kit.Answer(
                "answer_3",
                8,
                slips=HOW_MANY_TIMES,
                unit="times",
                otherwise="Divide the bytes of that ring by 2(N-1)/N M.",
            ),
            kit.Answer(
                "answer_4",
                BUS,
                slips=BUS_BANDWIDTH,
                unit="GB/s",
                otherwise="nccl-tests: bus bandwidth = bytes / seconds * 2(N-1)/N.",
            ),
        ]
    )
