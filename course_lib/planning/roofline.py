"""A layer against the clock of one GPU: products of matrices, and the bytes of everything else.

A product takes as long as its arithmetic or its bytes, whichever takes longer (see `facts.matmul_seconds`).
The other operations move bytes and compute almost nothing. The peaks on data sheets are not reached. Bytes
move at REACHED of their peak, on links and in memory, and arithmetic runs at `efficiency`, which is the only
constant that is fitted.

For pointwise operations we count the bytes, in 16 bits, that a fused kernel reads and writes, forward and
backward (fused as in Narayanan et al., 2021, section 4.2; the counts are ours):

| operation | forward | backward |
|---|---|---|
| a norm, per element of the stream | x, y: 4 | x, dy, dx: 6 |
| bias, dropout, residual, per element of the stream | x, residual, y, mask: 7 | dy, mask, dx: 5 |
| GELU, per element of the MLP's width | x, y: 4 | x, dy, dx: 6 |
| SwiGLU, per element of the MLP's width | gate, up, y: 6 | gate, up, dy, two gradients: 10 |
| scale, mask, softmax, per score | x, y: 4 | y, dy, dx: 6 |
| dropout, per score | x, y, mask: 5 | dy, mask, dx: 5 |

A flash kernel keeps the scores on the chip, so none of their bytes count.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.facts.budget import matmul_seconds
from course_lib.facts.hardware import Gpu
from course_lib.facts.transformer import Shape

REACHED = 0.8  # of a data sheet's bytes per second
FORWARD, BACKWARD = 0, 1
STREAM = (
    2 * 4 + 2 * 7,
    2 * 6 + 2 * 5,
)  # two norms and two residual additions per layer, forward and backward
SCORE = (4 + 5, 6 + 5)
ACTIVATION = {"gelu": (4, 6), "swiglu": (6, 10)}


@dataclass(frozen=True)
class Work:
    """How a GPU works: the share of its peak that products reach, and whether attention keeps its scores.

    flash: the kernel of attention writes no scores; causal: it skips the masked half. overlap: the replicas
    sum their gradients while backward continues, as FSDP does; otherwise, after the last backward.
    """

    efficiency: float
    flash: bool = False
    causal: bool = False
    overlap: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.efficiency <= 1:
            raise ValueError(
                f"efficiency={self.efficiency} is a share of the peak: above 0, at most 1"
            )


def product_seconds(m: float, k: float, n: float, gpu: Gpu, work: Work) -> float:
    """Seconds of a product (m, k) @ (k, n) in 16 bits."""
    return matmul_seconds(m, k, n, gpu.flops * work.efficiency, gpu.bandwidth * REACHED)  # type: ignore[arg-type]


def bytes_seconds(nbytes: float, gpu: Gpu) -> float:
    """Seconds in which a GPU reads and writes so many bytes of its memory."""
    return nbytes / (gpu.bandwidth * REACHED)


@dataclass(frozen=True)
class Layer:
    """Seconds of one layer on one rank, without communication; `scores`: attention's part of each."""

    forward: float
    backward: float
    scores: float

    def total(self, recompute: str) -> float:
        """Forward and backward, and what runs again."""
        again = {"none": 0.0, "selective": self.scores, "full": self.forward}[recompute]
        return self.forward + self.backward + again


def scores_seconds(
    shape: Shape, tokens: float, seq: int, tp: int, gpu: Gpu, work: Work
) -> tuple[float, float]:
    """Attention's two products and softmax, forward and backward, for `tokens` queries with `seq` keys each.

    A product writes the scores or reads them, 2 bytes each; backward has two products for each of forward's.
    """
    scores = tokens * seq * shape.heads / tp * (0.5 if work.causal else 1.0)
    products = 4 * scores * shape.head_dim / (gpu.flops * work.efficiency)
    if work.flash:
        return products, 2.5 * products  # a flash kernel computes the scores again
    products = max(products, bytes_seconds(4 * scores, gpu))
    forward, backward = (bytes_seconds(each * scores, gpu) for each in SCORE)
    return products + forward, 2 * products + backward


def layer_seconds(
    shape: Shape, tokens: float, seq: int, tp: int, sequence: bool, gpu: Gpu, work: Work
) -> Layer:
    """One layer on one of tp ranks. tokens: in the rank's microbatch; seq: the keys of each query."""
    queries = shape.heads * shape.head_dim // tp
    keys = max(1, shape.key_value_heads // tp) * shape.head_dim
    inward = 2 if shape.mlp == "swiglu" else 1
    hidden = shape.mlp_width // tp
    products = sum(
        product_seconds(tokens, k, n, gpu, work)
        for k, n in (
            (shape.width, queries + 2 * keys), (queries, shape.width),
            (shape.width, inward * hidden), (hidden, shape.width),
        )
    )  # fmt: skip
    stream = tokens * shape.width / (tp if sequence else 1)
    forward, backward = (
        bytes_seconds(stream * STREAM[way] + tokens * hidden * ACTIVATION[shape.mlp][way], gpu)
        for way in (FORWARD, BACKWARD)
    )
    scores = scores_seconds(shape, tokens, seq, tp, gpu, work)
    return Layer(products + forward + scores[0], 2 * products + backward + scores[1], scores[0])


def head_seconds(shape: Shape, tokens: float, tp: int, gpu: Gpu, work: Work) -> float:
    """The head and the loss, forward and backward: three products; the logits in float32, four passes."""
    vocab = shape.vocab_size / tp
    products = 3 * product_seconds(tokens, shape.width, vocab, gpu, work)
    return products + bytes_seconds(4 * 4 * tokens * vocab, gpu)
