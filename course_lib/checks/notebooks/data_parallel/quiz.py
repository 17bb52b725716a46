"""The questions at the end of notebook 03, with the wrong answers that show an oversight."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.notebooks.data_parallel.formulas import REFERENCE

# 7B parameters in bf16 are 14 GB; 8 ranks, backward takes 1 s, 20 buckets; 50 and 10 GB/s
SENT = facts.data_parallel_bytes(8, 14)
FAST, SLOW = SENT / 50, SENT / 10
EXPOSED = facts.exposed_communication(1, FAST, 20)
EFFICIENCY = facts.scaling_efficiency(1.5, facts.exposed_communication(1, SLOW, 20))
BREAK_EVEN = facts.topk_break_even(0.02)

STICKS_OUT = {
    FAST: "Your answer is the whole time on the wire, but most of it passes while backward runs.",
    1 + FAST: "Your answer adds backward and communication, although they overlap.",
    1
    + FAST / 20: "Your answer is when the last bucket has arrived, but the question asks for the time after "
    "backward.",
    0: "The last bucket leaves when backward ends, so it is exposed in any case.",
    14 / 50 / 20: "A ring all-reduce sends 2 (N-1)/N of 14 GB, not 14 GB.",
    28 / 50 / 20: "You multiply by 2, but with 8 ranks 2 (N-1)/N is 1.75.",
    SENT / 2 / 50 / 20: "An all-reduce has two phases, so it sends 2 (N-1)/N.",
    FAST / 20 * 8: "50 GB/s are bytes, not bits, so there is no factor of 8.",
}
SPEED = {
    1.5
    / (
        1.5 + SLOW
    ): "Your answer assumes no overlap, but part of the communication passes while backward runs.",
    1.5
    / (
        1.5 + SLOW / 20
    ): "Here communication takes longer, so it continues after backward, and more than the last bucket is "
    "exposed.",
    1.5
    / (
        0.5 + SLOW
    ): "Communication cannot begin with backward, because the first bucket is full only after 1/20 of it.",
    2: "Your answer is upside down, because efficiency is at most 1.",
    facts.scaling_efficiency(1.5, EXPOSED): "Your answer is for 50 GB/s, not for 10.",
}
SCALE = (
    "AdamW divides by the root of the second moment, which is scaled in the same way, so the factor cancels."
)
MEANS = {
    4: "Your answer is the mean of the two means. Instead, sum over all tokens and divide by their number.",
    8: "Do not add the means, because every token counts the same.",
    120: "Your answer is the sum. Divide it by the tokens of both ranks.",
    60: "Divide by the tokens of both ranks, 40, not by the number of ranks.",
    5: "The weights are exchanged, since rank 0 has the 30 tokens.",
}
TOP = {
    100: "Your answer is for 1 %, but at 2 % it comes earlier.",
    25: "Indices have 4 bytes and values 4, so compare (N-1) k 8 with 2 (N-1)/N 4 size.",
    8: "The answer depends on the share sent. Set (N-1) k 8 equal to 2 (N-1)/N 4 size.",
}


@kit.exercise(
    points=6,
    objects=("answer_1", "answer_2", "answer_3", "answer_4", "answer_5"),
    references=REFERENCE,
    constants=True,
)
def questions(draw: kit.Draw) -> Iterator[kit.Case]:
    yield kit.answers(
        [
            kit.Answer(
                "answer_1", EXPOSED, slips=STICKS_OUT, unit="seconds",
                otherwise="Divide the bytes of a ring by the bandwidth. Backward takes longer, so only the "
                "last of 20 buckets is exposed.",
            ),
            kit.Answer(
                "answer_2", EFFICIENCY, slips=SPEED,
                otherwise="Divide compute by compute + exposed, with five times the time on the wire.",
            ),
            kit.Answer(
                "answer_3", ("sgd",), slips=dict.fromkeys(("adamw", "both", "neither"), SCALE),
                options=("sgd", "adamw", "both", "neither"),
            ),
            kit.Answer(
                "answer_4", 3, slips=MEANS,
                otherwise="Divide the sum over all 40 tokens by 40.",
            ),
            kit.Answer(
                "answer_5", BREAK_EVEN, slips=TOP, unit="ranks",
                otherwise="Set (N-1) k 8 bytes equal to 2 (N-1)/N 4 size bytes, with k = 0.02 size.",
            ),
        ]
    )  # fmt: skip
