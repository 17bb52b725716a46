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
    1: "The lecture says one per layer. But attention ends with a sum, and so does the MLP. And backward?",
    2: "You counted one direction only. Backward has as many, because each region begins with a sum there.",
    8: "You counted gathers and reduce-scatters, two for each all-reduce.",
}
SHARES = {
    1 - share(): "Your answer is the share that computes.",
    share(link=FAST): "You used NVLink between all 16, but two nodes are joined by the slower link.",
    share(n=8, link=FAST): (
        "You used 8 GPUs in one node, but 16 share the layer here, and communicate at 50 GB/s."
    ),
    share(n=8): "You used 8 GPUs, but 16 share the layer.",
    share(1): "A layer has two all-reduces, after attention and after the MLP, of 2 (N-1)/N M each.",
    share(flops=LAYER * RANKS): "The FLOPs are also shared, so each rank computes a sixteenth of them.",
    share(link=SLOW / 8): "50 GB/s are bytes, not bits, so there is no factor of 8.",
    share(4): "You counted the bytes of forward and backward. Count only forward.",
    100 * share(): "Give a share, between 0 and 1.",
}
FACTORS = {
    1: (
        "Nothing would be wrong, then. But its backward sums the ranks' gradients, although each is "
        "already whole."
    ),
    64: (
        "The factor appears once for each sum the gradient passes on its way back. For this MLP's "
        "weights, that is one sum."
    ),
    2: "The factor is not forward and backward. The gradient is added up over the 8 ranks.",
    1 / 8: "The gradients were summed, not divided, so they are too large.",
}
TIMES = {
    1: 'You kept the gathered inputs ("keep"). That form sends as much as tensor parallelism.',
    1.5: "You counted only backward, but forward has no second gather.",
    2: (
        "An all-reduce is a gather and a reduce-scatter, so the pairs send as much. Count the second gather."
    ),
    1.125: "Both regions gather again in backward, attention and MLP.",
    0.8: "Your ratio is upside down. The question asks how many times as many.",
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
                otherwise="There are two regions, attention and MLP. Each has a sum at its end in "
                          "forward, and one at its beginning in backward.",
            ),
            kit.Answer(
                "answer_2", share(), slips=SHARES,
                otherwise="Take 24 h^2 FLOPs per token over 16 GPUs, and two all-reduces of 2 bytes * "
                          "h * tokens over the slowest link, then communication / (communication + "
                          "computation).",
            ),
            kit.Answer(
                "answer_3", ("the activation function",),
                options=("the activation function", "the bias", "the size of the weights"),
                slips={
                    "the bias": "A bias could be added once, after any sum.",
                    "the size of the weights": ("The size decides how much memory a rank needs, but not "
                                               "when the terms can be added."),
                },
            ),
            kit.Answer(
                "answer_4", 8, slips=FACTORS, unit="times", tolerance=1e-9,
                otherwise="Every rank's backward begins with the whole gradient of the loss, and these are "
                "added up.",
            ),
            kit.Answer(
                "answer_5", 1.25, slips=TIMES, unit="times",
                otherwise=("There are eight halves of an all-reduce without, and ten with the two that "
                          "gather again."),
            ),
        ]
    )  # fmt: skip
