"""The questions at the end of notebook 05, with the wrong answers that show an oversight."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.checks import kit
from course_lib.facts import fsdp_bytes, hides_from

REFERENCES = ("course_lib.facts", "course_lib.pictures.fsdp_explorer")
GPUS, SPEED, EACH_WAY, HALF = 16, 0.4 * 989e12, 50e9, 2
TOKENS = hides_from(GPUS, SPEED, EACH_WAY, HALF)
BLOCK, BLOCKS, MICROBATCHES = 202_383_360, 32, 8
WHOLE = 2 * HALF * BLOCK / 1e6  # the block that computes and the next one
TRAFFIC = fsdp_bytes(1, 2, MICROBATCHES, weights=1, gradients=1, keep="gradients") * 2
QUEUE = "the next gather queues behind them"
REASONS = ("gradients are not ready", QUEUE, "every rank waits in backward")
DIFFERENT = "rank 0 prefetches two units, rank 1 one"
ORDERS = (DIFFERENT, "all ranks prefetch nothing", "rank 1 has fewer tokens")


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
                "answer_1", TOKENS, unit="tokens",
                slips={
                    TOKENS * GPUS / (GPUS - 1): ("A GPU already has 1/16 of the unit, so the gather "
                                                "brings 15/16."),
                    TOKENS / 2: ("Your answer is half. Each way means one direction, and forward has "
                                "two FLOPs."),
                    2 * TOKENS: ("Your answer is twice as many. A parameter has 2 bytes, and costs 2 "
                                "FLOPs per token."),
                    TOKENS / 0.4: ("You used the peak, but the GPUs reach only 40 % of it and take "
                                  "longer to compute."),
                    8 * TOKENS: "Bytes, not bits: 50 GB/s.",
                },
                otherwise="T = (n-1)/n · itemsize/2 · FLOP/s / bytes a second.",
            ),
            kit.Answer(
                "answer_2", (QUEUE,), options=REASONS,
                slips={
                    REASONS[0]: "The reduce of a unit begins after its backward, when they are ready. "
                                "Look at the wire: which message queues behind it?",
                    REASONS[2]: "Asynchronous means that no rank waits for the reduce. Look at the "
                                "wire: which message queues behind it?",
                },
            ),
            kit.Answer(
                "answer_3", WHOLE, unit="MB",
                slips={
                    WHOLE / 2: "One unit ahead makes two, because the unit that computes also counts. "
                               "A parameter in bfloat16 has two bytes.",
                    BLOCKS * WHOLE / 2: "You counted all blocks, as on a replica.",
                    2 * WHOLE: "A parameter in bfloat16 has two bytes, not four.",
                    1.5 * WHOLE: ("One unit ahead makes two, because the unit that computes also "
                                 "counts."),
                    WHOLE * 1e6: "That is in bytes.",
                    WHOLE * 1e6 / 2**20: ("Your answer is in MiB, of 1,048,576 bytes, but a MB has a "
                                         "million."),
                },
                otherwise="Two blocks at most, of two bytes a parameter.",
            ),
            kit.Answer(
                "answer_4", TRAFFIC, unit="units of traffic", tolerance=1e-6,
                slips={
                    3 * MICROBATCHES: "You counted a reduce-scatter in each microbatch, but only the "
                                      "last one reduces.",
                    MICROBATCHES + 2: "You kept whole weights in between as well. Shards must be "
                                      "gathered twice in each microbatch.",
                    2 * MICROBATCHES: "The last microbatch reduces, so there is one unit more.",
                    3: "You counted one microbatch, but there are eight.",
                    2 * MICROBATCHES + 2: "A reduce-scatter is one unit; an all-reduce would be two.",
                    2: "You counted with weights that stay whole for the entire step.",
                },
                otherwise="Two gathers in each microbatch, and one reduce-scatter in the whole step.",
            ),
            kit.Answer(
                "answer_5", ("hybrid",), options=("full", "hybrid"),
                slips={
                    "full": "The states fit in a node, so islands of 8 are enough. Then gathers stay inside, "
                    "and only an eighth of the gradients crosses between nodes."
                },
            ),
            kit.Answer(
                "answer_6", (DIFFERENT,), options=ORDERS,
                slips={
                    ORDERS[1]: ("This case is slow, but all ranks call the same collectives in the "
                               "same order."),
                    ORDERS[2]: "The others wait for the slower rank's messages, or it for theirs, but all "
                    "call the same collectives in the same order.",
                },
            ),
        ]
    )  # fmt: skip
