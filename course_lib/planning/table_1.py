"""Table 1 of Narayanan et al. (SC 2021), in the plain numbers of notebook 10: ten steps on 32 to 3,072 A100s.

The paper does not print microbatches and chunks, so they are those with which the model of `by_hand.py` is
fastest. `published.py` has the same rows for the model that keeps the parts of a step separate.

Source: Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, section 5.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from course_lib.models import GPTConfig

VOCAB, SEQ = 51_200, 2048


class PaperRow(NamedTuple):
    """A row of the table. billions: of parameters. tflops: of each GPU, with recomputation."""

    billions: float
    heads: int
    width: int
    layers: int
    tp: int
    pp: int
    gpus: int
    batch: int
    tflops: float
    microbatch: int  # not in the paper, and neither are the chunks
    chunks: int


TABLE_1 = (
    PaperRow(1.7, 24, 2304, 24, 1, 1, 32, 512, 137, 1, 1),
    PaperRow(3.6, 32, 3072, 30, 2, 1, 64, 512, 138, 16, 1),
    PaperRow(7.5, 32, 4096, 36, 4, 1, 128, 512, 142, 16, 1),
    PaperRow(18.4, 48, 6144, 40, 8, 1, 256, 1024, 135, 16, 1),
    PaperRow(39.1, 64, 8192, 48, 8, 2, 512, 1536, 138, 2, 4),
    PaperRow(76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140, 1, 5),
    PaperRow(145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148, 1, 5),
    PaperRow(310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155, 1, 3),
    PaperRow(529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163, 1, 3),
    PaperRow(1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163, 1, 2),
)


def row_tflops(row: PaperRow, step_seconds: Callable[..., float], *hardware: Any) -> float:
    """Return the TFLOP/s of each GPU in a row's step, by the paper's equation 3, with recomputation.

    step_seconds: as in `by_hand.py`. hardware: its last arguments, namely GPU, links and efficiency.
    """
    layout = {
        "pp": row.pp, "dp": row.gpus // (row.tp * row.pp), "cp": 1, "tp": row.tp,
        "microbatch": row.microbatch, "chunks": row.chunks,
        "zero": 0, "recompute": "full", "sequence": False,
    }  # fmt: skip
    shape = GPTConfig(VOCAB, SEQ, row.layers, row.heads, row.width)
    h, stack = row.width, row.layers * row.width
    flops = 96 * row.batch * SEQ * stack * h * (1 + SEQ / (6 * h) + VOCAB / (16 * stack))
    return flops / row.gpus / step_seconds(shape, layout, row.batch, *hardware) / 1e12
