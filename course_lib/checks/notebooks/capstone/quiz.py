"""The questions at the end of notebook 13, with the wrong answers that show an oversight."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.checks import kit
from course_lib.checks.notebooks.capstone.references import REFERENCES

ROWS, STAGES, REPLICAS = 256, 8, 16
M = ROWS // REPLICAS  # microbatches of a replica
BUBBLE = (STAGES - 1) / (M + STAGES - 1)
SHARES = {
    (STAGES - 1) / M: "Your number is the idle time over the busy time, but the step has both.",
    (STAGES - 1) / (ROWS + STAGES - 1): "Your number is right for a replica that reads all 256 rows, but the "
    "16 replicas divide them.",
    STAGES / (M + STAGES): "Your number has eight idle moments, but the last of p stages begins after p - 1 "
    "forwards.",
    M / (M + STAGES - 1): "Your number is the share of the step in which a stage is busy.",
    100 * BUBBLE: "Your number is in percent. Write it as a number between 0 and 1.",
    (REPLICAS - 1) / (M + REPLICAS - 1): "Your number is right for a pipeline over the 16 replicas, but only "
    "the stages wait for each other.",
}
STAGES_OF_ZERO = {
    "a": "ZeRO-2 sends all gradients in each backward, since their owner has the only whole sum.",
    "c": "ZeRO-1 keeps whole gradients on each rank. It adds the microbatches up there, and sends one sum.",
    "d": "ZeRO-2 has no whole gradients to add up in, and ZeRO-3 has no whole parameters either.",
}
QUESTIONS = (
    kit.Answer(
        "answer_1", BUBBLE, SHARES, "a share of the step", tolerance=0.015,
        otherwise="Count the microbatches of a replica, then the moments in which a stage has none.",
    ),
    kit.Answer(
        "answer_2", ("b",), STAGES_OF_ZERO, options=("a", "b", "c", "d"),
        otherwise="Ask for each stage where a rank could add up the gradients of its microbatches.",
    ),
)  # fmt: skip


@kit.exercise(
    points=2, objects=tuple(question.name for question in QUESTIONS), references=REFERENCES, constants=True
)
def questions(draw: kit.Draw) -> Iterator[kit.Case]:
    yield kit.answers(QUESTIONS)
