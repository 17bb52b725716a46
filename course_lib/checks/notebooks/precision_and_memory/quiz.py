"""The questions at the end of notebook 09, with the wrong answers that show an oversight."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.notebooks.precision_and_memory.references import REFERENCES

STEP = 2.0**-10
REPAIRS = ("an inf on one rank", "gradients that are 0", "a loss that is not a number")
BYTES = 2 + 2 + 2 * (1 + 4 / 256)
LAYERS = 126
APART = ("each rank's data", "each rank's generator", "each rank's shard of the states")
SCALES = ("a scale for each tile", "a float32 accumulator", "stochastic rounding")


@kit.exercise(
    points=6,
    objects=("answer_1", "answer_2", "answer_3", "answer_4", "answer_5", "answer_6"),
    references=REFERENCES,
    constants=True,
)
def questions(draw: kit.Draw) -> Iterator[kit.Case]:
    yield kit.answers(
        [
            kit.Answer(
                "answer_1", STEP, tolerance=1e-9,
                slips={
                    2.0**-11: "Half a step rounds back to 1, to even: the next number is a whole step away.",
                    2.0**-9: "fp16 has 10 bits behind the point, not 9.",
                    2.0**-7: "That is bfloat16's step.",
                    2.0**-24: "That is the smallest number above 0; the step at 1 is larger.",
                    2.0**-23: "That is float32's step.",
                },
                otherwise="10 bits behind the point: how many numbers lie between 1 and 2?",
            ),
            kit.Answer(
                "answer_2", REPAIRS[2:], options=REPAIRS,
                slips={
                    "an inf on one rank": "The scaler skips the step and halves the scale, if all ranks hear "
                    "of it: that repairs an overflow.",
                    "gradients that are 0": "A larger scale lifts gradients that would be rounded to 0.",
                },
            ),
            kit.Answer(
                "answer_3", BYTES, tolerance=1e-3, unit="bytes",
                otherwise="Add up: weight, gradient, the codes of m and v, and a scale for each 256 codes.",
                slips={
                    6: "Codes need scales: a float32 for each block of 256, in m and in v.",
                    BYTES - 4 / 256: "m and v have scales of their own: two for each block.",
                    BYTES + 2: "That has gradients of 4 bytes: they are bfloat16, 2 bytes.",
                    BYTES - 4 / 256 + 2: "That has gradients of 4 bytes, and scales of one moment alone.",
                    BYTES + 4: "Stochastic rounding does without a master copy.",
                    BYTES - 2: "Gradients are there, too: 2 bytes.",
                    2 * (1 + 4 / 256): "That is the optimizer's state alone.",
                    12: "That is m and v in float32: each has 1 byte here, and its share of a scale.",
                },
            ),
            kit.Answer(
                "answer_4", facts.best_segment(LAYERS, 2, 34), tolerance=1e-9, unit="layers",
                slips={
                    11: "That is the square root of 126, for layers that keep no more than their input.",
                    1: "Every layer: 126 x 2 + 34 = 286. Fewer checkpoints keep less.",
                    2: "Every second: 63 x 2 + 2 x 34 = 194. Another distance has less at its worst moment.",
                    4: "Every fourth: 32 x 2 + 4 x 34 = 200. Another distance has less at its worst moment.",
                    42: "That is the number of checkpoints; their distance was asked for.",
                },
                otherwise="Your best_segment says it: 126 layers, 2 and 34.",
            ),
            kit.Answer(
                "answer_5", APART[1:2], options=APART,
                slips={
                    "each rank's data": "The gradients are averaged: different data do not matter.",
                    "each rank's shard of the states": "A shard has one owner: no one else rounds it.",
                },
            ),
            kit.Answer(
                "answer_6", SCALES[:1], options=SCALES,
                slips={
                    "a float32 accumulator": "It saves the sum's digits. A gradient of 1e-5 is 0 before any "
                    "sum, unless it is scaled.",
                    "stochastic rounding": "Range was asked for: the exponent's, or a scale's.",
                },
            ),
        ]
    )  # fmt: skip
