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
                "answer_1", STEP, tolerance=5e-3,  # 0.00098 and 0.000977 are right
                slips={
                    2.0**-11: "Half a step rounds back to 1, because ties go to even. The next number is a "
                    "whole step away.",
                    2.0**-9: "fp16 has 10 bits after the point, not 9.",
                    2.0**-7: "Your answer is bfloat16's step.",
                    2.0**-24: "Your answer is the smallest number above 0, but the step at 1 is larger.",
                    2.0**-23: "Your answer is float32's step.",
                },
                otherwise="With 10 bits after the point, how many numbers does fp16 have between 1 and 2?",
            ),
            kit.Answer(
                "answer_2", REPAIRS[2:], options=REPAIRS,
                slips={
                    "an inf on one rank": "If all ranks hear of an overflow, the scaler skips the step and "
                    "halves the scale, which repairs it.",
                    "gradients that are 0": "A larger scale lifts gradients that would otherwise be rounded "
                    "to 0.",
                },
            ),
            kit.Answer(
                "answer_3", BYTES, tolerance=1e-3, unit="bytes",
                otherwise="Add up weight, gradient, the codes of m and v, and a scale for each 256 codes.",
                slips={
                    6: "Codes also need scales, one float32 for each block of 256, in m and in v.",
                    BYTES - 4 / 256: "m and v each have their own scales, so count two for each block.",
                    BYTES + 2: "Your gradients take 4 bytes, but in bfloat16 they take 2 bytes.",
                    BYTES - 4 / 256 + 2: "Your gradients take 4 bytes, and only one moment has scales.",
                    BYTES + 4: "Stochastic rounding does without a master copy.",
                    BYTES - 2: "The weights take 2 bytes and the gradients take 2 bytes. Count both.",
                    2 * (1 + 4 / 256): "Your answer is only the optimizer's state.",
                    12: "You count m and v in float32, but each has 1 byte here, and its share of a scale.",
                },
            ),
            kit.Answer(
                "answer_4", facts.best_segment(LAYERS, 2, 34), tolerance=1e-9, unit="layers",
                slips={
                    11: "Your answer is the square root of 126, but that is right only for layers that "
                    "keep no more than their input.",
                    1: "Checkpoints in every layer take 126 x 2 + 34 = 286, but fewer checkpoints keep less.",
                    2: "Checkpoints in every second layer take 63 x 2 + 2 x 34 = 194, but another distance "
                    "takes less at its worst moment.",
                    4: "Checkpoints in every fourth layer take 32 x 2 + 4 x 34 = 200, but another distance "
                    "takes less at its worst moment.",
                    42: "Your answer is the number of checkpoints, but the question asks for their distance.",
                },
                otherwise="Call your best_segment with 126 layers, 2 and 34.",
            ),
            kit.Answer(
                "answer_5", APART[1:2], options=APART,
                slips={
                    "each rank's data": "The gradients are averaged, so different data do not matter.",
                    "each rank's shard of the states": "A shard has one owner, so no other rank rounds it.",
                },
            ),
            kit.Answer(
                "answer_6", SCALES[:1], options=SCALES,
                slips={
                    "a float32 accumulator": "This saves the sum's digits, but a gradient of 1e-5 is 0 "
                    "before any sum unless it is scaled.",
                    "stochastic rounding": "The question asks for range, which comes from the exponent "
                    "or from a scale.",
                },
            ),
        ]
    )  # fmt: skip
