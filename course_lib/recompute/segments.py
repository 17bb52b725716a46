"""After how many layers should a checkpoint be set? The square-root rule, and why it fails for transformers.

With a checkpoint every k of L layers, ceil(L/k) inputs stay until backward has used them. In addition, the
inside of *one* segment, which has k layers, exists while it is recomputed. The sum, in units of a layer's
input,

    ceil(L/k) kept + k inside

is smallest near k = sqrt(L kept / inside). Chen et al. count layers that keep no more than their input, so
inside = kept, and they arrive at sqrt(L). But a transformer's block keeps 34 bytes for each 2 bytes of its
input (Korthikanti et al.), which is 17 times as much, so for 80 layers k is 2 instead of 9.

Sources: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, section 4. Korthikanti et al.,
Reducing Activation Recomputation in Large Transformer Models, 2022, table 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch


def best_segment(layers: int, kept: float = 1.0, inside: float = 17.0) -> int:
    """The k for which a checkpoint every k layers needs the least memory at the worst moment.

    kept: the size of a layer's input; inside: the size of all a layer keeps for its backward, in the same
    unit. If two k need equal memory, the larger k is returned, because it makes fewer calls. Raises
    ValueError for less than one layer.
    """
    if layers < 1:
        raise ValueError(f"layers is {layers}: a model has at least one")

    def most(k: int) -> float:
        return -(-layers // k) * kept + k * inside

    return min(range(1, layers + 1), key=lambda k: (most(k), -k))


def run_segments(
    blocks: Iterable[Callable[..., Any]],
    x: torch.Tensor,
    *args: Any,
    every: int,
    checkpoint: Callable[..., Any],
) -> torch.Tensor:
    """x through all blocks, `block(x, *args)`, with `every` of them in one call of `checkpoint`.

    Forward keeps the input of each segment; backward recomputes one segment after the other, the last one
    first. The last segment is also recomputed, although its inside existed a moment before. To save that
    work, leave its blocks out of `checkpoint`.
    """
    blocks = list(blocks)
    if every < 1:
        raise ValueError(f"every is {every}: a segment has at least one block")
    for begin in range(0, len(blocks), every):
        x = checkpoint(partial(_run, blocks[begin : begin + every]), x, *args)
    return x


def _run(blocks: list[Callable[..., Any]], x: torch.Tensor, *args: Any) -> torch.Tensor:
    for block in blocks:
        x = block(x, *args)
    return x
