"""The questions at the end of notebook 01, with the wrong answers that show an oversight."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.notebooks.why_distribute.references import REFERENCES

MICROBATCH, SEQ, WIDTH, LAYERS, EVERY = 64, 4096, 8192, 80, 4
CHECKPOINTS = MICROBATCH * SEQ * WIDTH * 2 * (LAYERS // EVERY) / 1e9
SPEED = facts.tokens_per_second_per_gpu(70e9, 989e12, 0.4)
HELD = {
    CHECKPOINTS
    * EVERY: "Only every fourth layer keeps its input, 20 of the 80, and the microbatch is a quarter of a "
    "replica's 256 sequences.",
    CHECKPOINTS / 2: "A number in 16 bits has two bytes.",
    CHECKPOINTS * 2: "A number in 16 bits has two bytes, not four.",
    CHECKPOINTS / (LAYERS // EVERY): "Your answer is one checkpoint, but there are 20.",
    CHECKPOINTS / 8: "A replica's 8 GPUs do not divide a checkpoint, so each keeps all 20 in full.",
    CHECKPOINTS / MICROBATCH: "Your answer is one sequence of the microbatch, but there are 64.",
    CHECKPOINTS * 32: "The batch of 2,048 is divided by 8 replicas, and each does its 256 in 4 microbatches.",
    CHECKPOINTS / 2**30 * 1e9: "Your answer is in GiB, but the question asks for GB.",
    CHECKPOINTS * 1e9: "Your answer is in bytes, but the question asks for GB.",
}
TOKENS = {
    SPEED / 0.4: "A GPU reaches 40 % of its peak.",
    SPEED * 2: "Forward and backward are 6 FLOPs per parameter, and 989 TFLOP/s is the dense peak.",
    SPEED * 3: "2 FLOPs per parameter are only forward, but forward and backward are 6.",
    SPEED / 64: "All 64 GPUs work, each on its own tokens, at its own peak.",
    SPEED * 64: "Your answer is for all 64 GPUs, but the question asks for one GPU's tokens.",
    2.5: "Your answer is the plan's number. Instead, compute 6 N FLOPs per token, at 40 % of 989 TFLOP/s.",
}
TENSORS = ("one activation of the whole batch", "the weights", "one layer's scores", "the logits")
SAVED = ("memory", "time", "both")
PLANS = ("stage 3", "stage 1, checkpointed", "stage 2, checkpointed", "stage 3, checkpointed")
SCORES = 4 * WIDTH
HELD_BY_EACH = (
    "A replica holds all weights, gradients and states, so each GPU holds as much as a single GPU would."
)


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
                "answer_1", CHECKPOINTS, slips=HELD, unit="GB", tolerance=0.005,
                otherwise="Every checkpoint is one block's input, 64 x 4,096 x 8,192 numbers of 2 bytes.",
            ),
            kit.Answer(
                "answer_2", SPEED, slips=TOKENS, unit="tokens a second",
                otherwise="Divide 40 % of 989 TFLOP/s by 6 FLOPs for each of 70e9 parameters.",
            ),
            kit.Answer(
                "answer_3", TENSORS[:1], options=TENSORS,
                slips={
                    "the weights": "7B parameters are 28 GB in float32. 1,000 sequences of 4,096 tokens have "
                    "4.1e6 tokens, each with how many numbers?",
                    "one layer's scores": "One layer's scores are 1,000 x 32 x 4,096 x 4,096 numbers, "
                    "32 times as many.",
                    "the logits": "The logits are 1,000 x 4,096 x the vocabulary, 8 times as many for "
                    "32,000.",
                },
            ),
            kit.Answer(
                "answer_4", SCORES, unit="tokens", tolerance=1e-3,
                slips={
                    2 * WIDTH: "At 2h the scores are only half of the MLP's FLOPs, as attention with its "
                        "projections equals the MLP there.",
                    WIDTH: "A token's scores take 4 s h FLOPs, and its MLP 16 h^2.",
                    8 * WIDTH: "Scores have two products, and masked ones count, so a token takes 4 s h "
                        "FLOPs, not 2 s h.",
                    16 * WIDTH: "A token's scores take 4 s h FLOPs, and its MLP 16 h^2.",
                    4: "Your answer is in units of h, which is 8,192.",
                },
                otherwise="In forward, a token's scores take 4 s h FLOPs, and its MLP 16 h^2.",
            ),
            kit.Answer(
                "answer_5", ("time",), options=SAVED,
                slips={
                    "memory": HELD_BY_EACH,
                    "both": HELD_BY_EACH,
                },
            ),
            kit.Answer(
                "answer_6", PLANS[1:2], options=PLANS,
                slips={
                    "stage 3": "One sequence's activations are 53.7 GB, all else is 29.5 more, so 83.2 GB.",
                    "stage 2, checkpointed": "Your layout fits, but a cheaper one of the four also does.",
                    "stage 3, checkpointed": "Your layout fits, but a cheaper one of the four also does. "
                    "Stage 3 sends half as much again.",
                },
                otherwise="Your first_that_fits says it.",
            ),
        ]
    )  # fmt: skip
