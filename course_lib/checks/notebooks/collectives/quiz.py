"""The questions at the end of notebook 02, with the wrong answers that show an oversight."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.notebooks.collectives.formulas import FORMULAS

RING_SECONDS = facts.bytes_sent_per_rank("ring_all_reduce", 64, 70) / 50  # 70 GB, 50 GB/s
BUS = facts.bus_bandwidth("all_reduce", 8, 4, 0.1)  # 4 GB in 0.1 s

LEAST_TIME = {
    1.4: "Your answer counts the tensor once, but a ring all-reduce sends 2(N-1)/N of it.",
    2.8: "2M is only the limit for many ranks. With 64 ranks, each sends 2 * 63/64 of M.",
    RING_SECONDS
    / 2: "Your answer is the time of one phase, but there are two, reduce-scatter and all-gather.",
    RING_SECONDS * 64: "Each round sends a chunk of 1/64, not the whole tensor.",
    RING_SECONDS * 2: "50 GB/s is each way, so a rank sends and receives at the same time.",
    RING_SECONDS * 8: "50 GB/s are bytes, not bits, so there is no factor of 8.",
    RING_SECONDS / 64: "Your answer divides by the number of ranks once too often.",
}
HOW_MANY_TIMES = {
    16: "Divide by 2(N-1)/N M, not by (N-1)/N M, because there are two phases.",
    15: "Your answer is how many tensors that ring sends. The least is 2 * 15/16 tensors, not one.",
    4: "Divide N - 1 tensors by 2(N-1)/N of one, so that N - 1 cancels.",
    30: "That colleague's ring goes around once, so it takes N - 1 rounds.",
    32: "That colleague's ring goes around once, so it takes N - 1 rounds.",
    7.5: "Your answer divides by 2 tensors, but the least is 2 * 15/16.",
    1: "The sum is right, but the bytes are not. A round passes on 16 chunks, although one would do.",
    1 / 8: "Your ratio is upside down. The question asks how many times too many bytes are sent.",
}
BUS_BANDWIDTH = {
    40: "Your answer is the algorithm bandwidth. The bus bandwidth counts the bytes on a link, so multiply "
    "by 2(N-1)/N.",
    80: "Multiply by 2(N-1)/N, not by 2.",
    35: "An all-reduce has two phases, so the factor is 2(N-1)/N, not (N-1)/N.",
    40 / 1.75: "Multiply by 2(N-1)/N, because a link carries more than the tensor.",
    320: "The bus bandwidth is the bandwidth of one rank's link, so do not multiply by N.",
    560: "The bus bandwidth is the bandwidth of one rank's link, so do not multiply by N.",
    5: "Do not divide by the number of ranks. Multiply by 2(N-1)/N instead.",
}
DOMINATES = {
    "bandwidth": "Each rank sends about 20 MB, which takes 0.4 ms. But 1,022 rounds cost 1,022 times alpha, "
    "which is 10 ms."
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
                otherwise="Divide the bytes each rank sends in a ring by the bandwidth of its link.",
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
                otherwise="In nccl-tests, bus bandwidth = bytes / seconds * 2(N-1)/N.",
            ),
        ]
    )
