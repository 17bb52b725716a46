"""The questions at the end of notebook 04, with the wrong answers that show an oversight."""

from __future__ import annotations

import math
from collections.abc import Iterator

from course_lib.checks import kit
from course_lib.checks.notebooks.zero.memory import FORMULAS
from course_lib.facts import zero_memory, zero_volume

STAGE_2 = zero_memory(13, 16, 2)  # GB: 13B parameters, 16 GPUs
LEAST_GPUS = math.ceil(zero_memory(70, 1, 3) / 60)  # 70B parameters, 60 GB for model states
TIMES = zero_volume(2, microbatches=8) / zero_volume(1, microbatches=8)

MEMORY = {
    208: "That is without sharding: 16 bytes a parameter.",
    13: "That is ZeRO-3: stage 2 keeps the weights whole.",
    zero_memory(13, 16, 1): "That is ZeRO-1: stage 2 shards the gradients too.",
    26: "The weights alone; the rank's share of gradients and states comes on top.",
    2 * 13 + 10 * 13 / 16: "Adam's states are 12 bytes a parameter, with the float32 copy.",
}
HOW_MANY_TIMES = {
    1: "Same values, but not the same bytes: count the bytes of the all-reduce, and all that follow it.",
    2: "3P against 2P, not against the reduce-scatter alone.",
    3: "That is in units of P; ZeRO-1 itself sends 2P.",
    2 / 3: "Upside down: how many times as many.",
}
ACCUMULATED = {
    8: "Only the reduce-scatter comes K times: the parameters are gathered once a step.",
    9: "That is K + 1 in units of P; ZeRO-1 sends 2P in the same time.",
    1: "For one microbatch. Here gradients that are not kept whole must leave after each of them.",
    2 / 9: "Upside down: how many times as many.",
    16 / 9: "Compared with DDP that synchronises in every microbatch; ZeRO-1 reduces once a step.",
}
GPUS = {
    zero_memory(70, 1, 3) / 60: "GPUs are whole: round up.",
    math.floor(zero_memory(70, 1, 3) / 60): "Rounded down, each would have to hold more than 60 GB.",
    14: "20 of the 80 GB are taken: 60 are left.",
    3: "The weights alone are 140 GB; gradients and states are 14 bytes a parameter more.",
    5: "Weights and gradients take 280 GB; the states are 12 bytes a parameter more.",
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
                otherwise="ZeRO-2 keeps 2 bytes a parameter on every rank, and 14 divided by the ranks.",
            ),
            kit.Answer(
                "answer_2", 1.5, slips=HOW_MANY_TIMES, unit="times",
                otherwise="An all-reduce is 2P, and sharing the parameters P; ZeRO-1 needs 2P.",
            ),
            kit.Answer(
                "answer_3", TIMES, slips=ACCUMULATED, unit="times",
                otherwise="ZeRO-2: a reduce-scatter for each microbatch, one all-gather: K + 1. ZeRO-1: 2.",
            ),
            kit.Answer(
                "answer_4", LEAST_GPUS, slips=GPUS, unit="GPUs", tolerance=1e-9,
                otherwise="16 bytes a parameter, divided by the GPUs, must fit 60 GB.",
            ),
            kit.Answer(
                "answer_5", ("offload",), options=("stage 3", "offload"),
                slips={"stage 3": "One rank's shard is everything: sharding over 1 rank saves nothing."},
            ),
            kit.Answer(
                "answer_6", ("autograd",), options=("autograd", "the optimizer", "gloo"),
                slips={
                    "the optimizer": "The optimizer knows the shards alone.",
                    "gloo": "A collective lets go of its tensors when it is complete.",
                },
            ),
        ]
    )  # fmt: skip
