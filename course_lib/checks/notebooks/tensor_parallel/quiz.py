"""The questions at the end of notebook 06, with the wrong answers that show an oversight."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.notebooks.tensor_parallel.prediction import FORMULAS

# width 8,192, 4,096 tokens in bf16; 16 H100 in two nodes, 50 GB/s between them, 450 GB/s inside
WIDTH, TOKENS, RANKS = 8_192, 4_096, 16
FLOPS, SLOW, FAST = 989e12, 50e9, 450e9
LAYER = 24 * WIDTH**2 * TOKENS  # FLOPs of its matrices, forward


def share(regions: float = 2, n: int = RANKS, link: float = SLOW, flops: float = LAYER) -> float:
    """Communication in one layer's forward, over the whole of it."""
    nbytes = 2 * WIDTH * TOKENS
    compute, send = facts.tensor_parallel_seconds(n, flops, nbytes, 2, FLOPS, 0.0, 1 / link)
    send *= regions / 2
    return send / (send + compute)


SUMS = {
    1: "The lecture says one a layer. Attention ends with a sum, the MLP with another; and backward?",
    2: "That is one direction: backward has the conjugates of both.",
    8: "That counts gathers and reduce-scatters, two for each all-reduce.",
}
SHARES = {
    1 - share(): "That is the share that computes.",
    share(link=FAST): "That is with NVLink between all 16: two nodes are joined by the slower link.",
    share(n=8, link=FAST): "That is 8 GPUs in one node; here 16 share the layer, and communicate at 50 GB/s.",
    share(n=8): "That is for 8 GPUs; 16 share the layer.",
    share(1): "A layer has two all-reduces, after attention and after the MLP, of 2 (N-1)/N M each.",
    share(flops=LAYER * RANKS): "The FLOPs are shared, too: each rank computes a sixteenth of them.",
    share(link=SLOW / 8): "50 GB/s are bytes, not bits: no factor of 8.",
    share(4): "That is forward and backward's bytes; forward alone is asked for.",
    100 * share(): "As a share, between 0 and 1.",
}
FACTORS = {
    1: "Nothing would be wrong, then. Its backward sums the ranks' gradients, each whole already.",
    64: "Once for each of the sums that the gradient passes on its way back: to this MLP's weights, one.",
    2: "Not forward and backward: the gradient is added up over the 8 ranks.",
    1 / 8: "Summed, not divided: too large.",
}
TIMES = {
    1: 'That is with the gathered inputs kept ("keep"): then it sends as much as tensor parallelism.',
    1.5: "That is backward alone; forward has no second gather.",
    2: "An all-reduce is a gather and a reduce-scatter: the pairs send as much. Count the second gather.",
    1.125: "Both regions gather again in backward, attention and MLP.",
    0.8: "Upside down: how many times as many.",
}


@kit.exercise(
    points=3,
    objects=("answer_1", "answer_2", "answer_3", "answer_4", "answer_5"),
    references=FORMULAS,
    constants=True,
)
def questions(draw: kit.Draw) -> Iterator[kit.Case]:
    yield kit.answers(
        [
            kit.Answer(
                "answer_1", 4, slips=SUMS, unit="all-reduces", tolerance=1e-9,
                otherwise="Two regions, attention and MLP; a sum at the end of each forward, and one at its "
                "beginning backward.",
            ),
            kit.Answer(
                "answer_2", share(), slips=SHARES,
                otherwise="24 h^2 FLOPs a token, over 16 GPUs; two all-reduces of 2 bytes * h * tokens over "
                "the slowest link; then communication / (communication + computation).",
            ),
            kit.Answer(
                "answer_3", ("the activation function",),
                options=("the activation function", "the bias", "the size of the weights"),
                slips={
                    "the bias": "A bias could be added once, after any sum.",
                    "the size of the weights": "Rows or columns: a rank holds 1/n of the weights either way.",
                },
            ),
            kit.Answer(
                "answer_4", 8, slips=FACTORS, unit="times", tolerance=1e-9,
                otherwise="Every rank's backward begins with the whole gradient of the loss, and these are "
                "added up.",
            ),
            kit.Answer(
                "answer_5", 1.25, slips=TIMES, unit="times",
                otherwise="Eight halves of an all-reduce without, ten with the two that gather again.",
            ),
        ]
    )  # fmt: skip
