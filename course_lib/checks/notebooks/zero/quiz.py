"""The questions at the end of notebook 04, with the wrong answers that show an oversight."""

from __future__ import annotations

import math
from collections.abc import Iterator

from course_lib.checks import kit
from course_lib.checks.notebooks.zero.references import FORMULAS
from course_lib.facts import zero_memory, zero_volume

STAGE_2 = zero_memory(13, 16, 2)  # GB: 13B parameters, 16 GPUs
LEAST_GPUS = math.ceil(zero_memory(70, 1, 3) / 60)  # 70B parameters, 60 GB for model states
TIMES = zero_volume(2, microbatches=8) / zero_volume(1, microbatches=8)

MEMORY = {
    208: "You counted 16 bytes per parameter, as without sharding.",
    13: "Your answer is ZeRO-3, but stage 2 keeps the weights whole.",
    zero_memory(13, 16, 1): "Your answer is ZeRO-1, but stage 2 also shards the gradients.",
    26: "You counted only the weights. Add the rank's share of gradients and states.",
    2 * 13 + 10 * 13 / 16: (
        "Adam's states are 12 bytes per parameter, because they include the float32 copy."
    ),
}
HOW_MANY_TIMES = {
    1: (
        "The values are the same, but not the bytes. Count the bytes of the all-reduce, and all bytes "
        "after it."
    ),
    2: "Compare 3P with 2P, not with only the reduce-scatter.",
    3: "Your answer is in units of P, but ZeRO-1 itself sends 2P.",
    2 / 3: "Your ratio is upside down. The question asks how many times as many.",
}
ACCUMULATED = {
    8: "Only the reduce-scatter runs K times, because the parameters are gathered once per step.",
    9: "Your answer is K + 1 in units of P, but ZeRO-1 sends 2P in the same time.",
    1: (
        "You counted one microbatch. Here gradients that are not kept whole must be sent after each of them."
    ),
    2 / 9: "Your ratio is upside down. The question asks how many times as many.",
    16 / 9: (
        "You compared with DDP that synchronises in every microbatch, but ZeRO-1 reduces once per step."
    ),
}
GPUS = {
    zero_memory(70, 1, 3) / 60: "A GPU cannot be divided, so round up.",
    math.floor(zero_memory(70, 1, 3) / 60): "If you round down, each GPU has to hold more than 60 GB.",
    14: "20 of the 80 GB are taken, so 60 are left.",
    3: "The weights alone are 140 GB, but gradients and states are 14 bytes per parameter more.",
    5: "Weights and gradients take 280 GB, but the states are 12 bytes per parameter more.",
}


@kit.exercise(
    points=6,
    objects=("answer_1", "answer_2", "answer_3", "answer_4", "answer_5", "answer_6"),
    references=FORMULAS,
    constants=True,
)
def questions(draw: kit.Draw) -> Iterator[kit.Case]:
    yield kit.answers(
        [
            kit.Answer(
                "answer_1", STAGE_2, slips=MEMORY, unit="GB", tolerance=0.005,
                otherwise=("ZeRO-2 keeps 2 bytes per parameter on every rank, and 14 divided by the "
                          "ranks."),
            ),
            kit.Answer(
                "answer_2", 1.5, slips=HOW_MANY_TIMES, unit="times",
                otherwise="An all-reduce is 2P, and sharing the parameters is P, but ZeRO-1 needs 2P.",
            ),
            kit.Answer(
                "answer_3", TIMES, slips=ACCUMULATED, unit="times",
                otherwise=("ZeRO-2 has a reduce-scatter for each microbatch and one all-gather, so K + "
                          "1. ZeRO-1 has 2."),
            ),
            kit.Answer(
                "answer_4", LEAST_GPUS, slips=GPUS, unit="GPUs", tolerance=1e-9,
                otherwise="16 bytes per parameter, divided by the GPUs, must fit in 60 GB.",
            ),
            kit.Answer(
                "answer_5", ("offload",), options=("stage 3", "offload"),
                slips={"stage 3": ("One rank's shard is everything, so sharding over 1 rank saves "
                                  "nothing.")},
            ),
            kit.Answer(
                "answer_6", ("autograd",), options=("autograd", "the optimizer", "gloo"),
                slips={
                    "the optimizer": "The optimizer knows only the shards.",
                    "gloo": "A collective releases its tensors when it is complete.",
                },
            ),
        ]
    )  # fmt: skip
