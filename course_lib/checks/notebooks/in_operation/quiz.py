"""The questions at the end of notebook 12, with the wrong answers that show an oversight."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

from course_lib.checks import kit
from course_lib.checks.notebooks.in_operation.references import REFERENCES

SAVE, HOURS, GPUS = 60, 3.1, 16_384
MTBF = 3600 * HOURS
INTERVAL = sqrt(2 * SAVE * MTBF)
SECONDS = {
    sqrt(SAVE * MTBF): "The factor 2 is missing. A failure costs half an interval on average, so the best "
    "interval is the root of twice the product.",
    sqrt(SAVE * MTBF / 2): "You took the root of half of the product, but the factor is 2.",
    INTERVAL / 60: "Your answer is the interval in minutes, which you also get with hours under the root. "
    "Write both the time between failures and the interval in seconds.",
    INTERVAL / 3600: "Your answer is in hours instead of seconds.",
    sqrt(
        2 * SAVE * MTBF * GPUS
    ): "Your answer is the interval for failures of one GPU, but the failures of all GPUs end the run.",
    sqrt(
        2 * SAVE * MTBF / GPUS
    ): "The 3.1 hours are already the time between failures of the whole run, so do not divide them among "
    "the GPUs.",
    2 * SAVE * MTBF: "The root is missing.",
    INTERVAL + SAVE: "Your answer includes the time of the save, but the interval does not.",
    MTBF / 2: "Your answer is half of the time between failures. Saves cost so little that more of them "
    "pay off.",
}
FIRST = "A rank that waits is early. Name the rank that waits for no other, because all others wait for it."
RULED_OUT = {
    "b": "A wrong gradient goes into the average of all ranks, and all of them take the same wrong step. So "
    "their parameters agree.",
    "c": "All ranks apply the same step to the same parameters, whatever rows it came from. So their "
    "parameters agree.",
}
FILES = {
    1: "A part of tp 4 is twice as wide as a saved part.",
    4: "pp decides which layers a rank has, but it does not cut a matrix. Only tp cuts it.",
    8: "A rank of tp 4 reads only the saved parts that overlap with its own part.",
    16: "pp decides which layers a rank has, but it does not cut a matrix. Only tp cuts it.",
    64: "Your answer counts all files of the checkpoint.",
    0.5: "A part of tp 4 is twice as wide as a saved part, not half as wide.",
}
QUESTIONS = (
    kit.Answer(
        "answer_1", INTERVAL, SECONDS, "seconds", tolerance=0.015, otherwise="The interval is "
        "sqrt(2 * save * time between failures), in seconds."
    ),
    kit.Answer("answer_2", 1, {0: FIRST, 2: FIRST, 3: FIRST}, "a rank", tolerance=1e-9, otherwise=FIRST),
    kit.Answer(
        "answer_3", ("a",), RULED_OUT, options=("a", "b", "c"),
        otherwise="Which of the three would make the parameters of one rank differ from all other ranks?",
    ),
    kit.Answer(
        "answer_4", 2, FILES, "files", tolerance=1e-9,
        otherwise="A rank of tp 4 has a quarter of each matrix, while each file of tp 8 has an eighth.",
    ),
)  # fmt: skip


@kit.exercise(
    points=3, objects=tuple(question.name for question in QUESTIONS), references=REFERENCES, constants=True
)
def questions(draw: kit.Draw) -> Iterator[kit.Case]:
    yield kit.answers(QUESTIONS)
