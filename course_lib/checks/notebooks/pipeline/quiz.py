"""The questions at the end of notebook 07, with the wrong answers that show an oversight."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.checks import kit
from course_lib.checks.notebooks.pipeline.references import REFERENCES

STAGES, MICROBATCHES, GIGABYTES, STAGE = 8, 32, 1.5, 2
IDLE = (STAGES - 1) / (MICROBATCHES + STAGES - 1)
SHARES = {
    (STAGES - 1) / MICROBATCHES: "Your share is over the *ideal* time, the lecture's (N-1)/M. But "
    "the total has the bubble in it, so the share is (p-1)/(m+p-1).",
    1 - IDLE: "Your answer is the share that computes.",
    STAGES / MICROBATCHES: "The first stage works from the start, so p - 1 steps of filling, over m + p - 1.",
    STAGES / (MICROBATCHES + STAGES): "The first stage works from the start, so filling takes p - 1 steps.",
    (STAGES - 1) / STAGES: "Your share is for the naive schedule, but microbatches follow one another "
    "into the pipeline.",
    100 * IDLE: "Give a share, between 0 and 1.",
}
ENOUGH = {
    70: "Your bubble is a tenth of the *ideal* time, but the total has the bubble in "
    "it, so 7 / (m + 7) <= 0.1.",
    64: "One less is enough, because 7 / (63 + 7) is a tenth.",
    62: "7 / (62 + 7) is more than a tenth.",
    72: "The first stage works from the start, so p - 1 = 7 steps are idle, not 8.",
    80: "The first stage works from the start, and the total has the bubble in it, so 7 / (m + 7) <= 0.1.",
}
HELD = {
    MICROBATCHES * GIGABYTES: "GPipe holds all 32, but 1F1B goes backward as soon as it can.",
    STAGES * GIGABYTES: "Stage 0 holds this much. The further down, the sooner a microbatch is back.",
    (STAGES - STAGE - 1) * GIGABYTES: "Five forwards warm up, but one more comes before the first backward.",
    (STAGES - STAGE + 1) * GIGABYTES: "Stages are counted from 0, so stage 2 has five behind it.",
    (STAGE + 1) * GIGABYTES: "Your order is reversed. The first stage waits longest, so it holds most.",
    GIGABYTES: "The last stage holds this much, since it goes back immediately. Stage 2 has five behind it.",
    STAGES - STAGE: "Your answer is the number of microbatches. Multiply it by 1.5 GB.",
}
SMALLER = ("the bubble", "the peak of activations", "the bytes sent")
POSTPONED = ("no other rank waits for its result", "it needs no activations", "it takes less time")


@kit.exercise(
    points=4,
    objects=("answer_1", "answer_2", "answer_3", "answer_4", "answer_5"),
    references=REFERENCES,
    constants=True,
)
def questions(draw: kit.Draw) -> Iterator[kit.Case]:
    yield kit.answers(
        [
            kit.Answer(
                "answer_1", IDLE, slips=SHARES,
                otherwise="p - 1 steps fill and drain while m compute, so the share is (p-1)/(m+p-1).",
            ),
            kit.Answer(
                "answer_2", 63, slips=ENOUGH, unit="microbatches", tolerance=1e-9,
                otherwise="(p-1)/(m+p-1) <= 1/10 means m >= 9 (p-1).",
            ),
            kit.Answer(
                "answer_3", ("the peak of activations",), options=SMALLER,
                slips={
                    "the bubble": "The lecture says so, but both take as long to fill and drain, (p-1)(F+B). "
                    "Instead, interleaving makes the bubble smaller.",
                    "the bytes sent": "Each activation goes down and each gradient up, once, in any order.",
                },
            ),
            kit.Answer(
                "answer_4", (STAGES - STAGE) * GIGABYTES, slips=HELD, unit="GB", tolerance=1e-6,
                otherwise="min(m, p - i) microbatches on stage i of p, 1.5 GB each.",
            ),
            kit.Answer(
                "answer_5", (POSTPONED[0],), options=POSTPONED,
                slips={
                    "it needs no activations": "W needs x and dy of each linear layer, so a rank that "
                    "postpones W keeps these activations longer.",
                    "it takes less time": "Even a longer W could wait. Ask which action needs "
                    "the result, and when.",
                },
            ),
        ]
    )  # fmt: skip
