"""Weights on the wire in eight bits: an all-gather with a quarter of the bytes of float32.

A block of 256 weights is divided by its largest magnitude / 127 and rounded. This takes one byte per weight
and a float32 scale per block, 3.94 times less than float32. The masters stay as they are, so the rounding
does not add up from step to step. Each step rounds the true weights again, by at most half a scale.

    rank r sends     [ scales: 4 bytes per block | weights: 1 byte each ]     as uint8
    all ranks        weight x scale of its block, even for a rank's own shard, so all have the same bits

Gradients are another matter. A sum of 8-bit numbers does not fit eight bits, and blocks with different scales
cannot be added. Therefore ZeRO++ sends gradients by all-to-all and adds them after decoding, as
`course_lib.compression.int8_all_reduce` also does.

Source: Wang et al., "ZeRO++: Extremely Efficient Collective Communication for Giant Model Training", 2023
(quantised weights, in blocks); Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import Group, all_gather, check_fit, group_size

BLOCK = 256  # weights that share a scale
LARGEST = 127  # -128 is not used, so that the range is symmetric
SCALE = 4  # bytes


@torch.no_grad()
def all_gather_int8(output: Tensor, shard: Tensor, block: int = BLOCK, group: Group = None) -> None:
    """Write all ranks' shards into `output`, each rounded to eight bits by blocks of `block` elements.

    shard: s elements, contiguous, floating-point, the same size on every rank. It is not changed.
    output: N x s elements, contiguous, floating-point, on the shard's device. It is overwritten, with rank
        r's shard from r x s on. An element is off by at most half of its block's largest magnitude / 127,
        plus the rounding of output's dtype. Each shard begins a new block. A block with an infinite element
        or a NaN arrives as NaN, so that the fault shows on all ranks.
    Sends (N-1) (s + 4 ceil(s/block)) bytes per rank, in one all-gather of uint8. All ranks end with the same
    bits.

    Raises ValueError if block, sizes or devices do not fit or a tensor is not contiguous, TypeError for a
    dtype that is not floating-point.
    """
    n = group_size(group)
    check_fit(n, output=output, shard=shard)
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise ValueError(f"block={block!r}: the number of elements that share a scale is 1 or more")
    size = shard.numel()
    if not size:
        return
    own = _packed(shard.detach().view(-1), block)
    packed = own.new_empty(n * own.numel())
    all_gather(packed, own, group=group)
    for row, arrived in zip(output.view(n, size), packed.view(n, -1), strict=True):
        row.copy_(_unpacked(arrived, size, block))


def _packed(row: Tensor, block: int) -> Tensor:
    """(size,) numbers -> (4 blocks + size,) bytes: the scales, then the elements."""
    blocks = F.pad(row.float(), (0, -row.numel() % block)).view(-1, block)
    scales = blocks.abs().amax(1, keepdim=True) / LARGEST
    steps = (blocks / scales.masked_fill(scales == 0, 1)).round().nan_to_num(0.0)
    elements = steps.clamp(-LARGEST, LARGEST).to(torch.int8).view(-1)[: row.numel()]
    return torch.cat([scales.view(-1).view(torch.uint8), elements.view(torch.uint8)])


def _unpacked(packed: Tensor, size: int, block: int) -> Tensor:
    """(size,) float32, from the output of `_packed`."""
    cut = packed.numel() - size
    scales = (
        packed[:cut].clone().view(torch.float32)
    )  # a copy, whose memory begins at a multiple of 4
    elements = packed[cut:].view(torch.int8).float()
    blocks = F.pad(elements, (0, -size % block)).view(-1, block)
    # an infinite or undefined scale makes all of its block NaN, even where the element is 0
    scales = torch.where(scales.isfinite(), scales, torch.nan)
    return (blocks * scales[:, None]).view(-1)[:size]
