"""Eight bits per element, quantised in blocks, and summed in a wider dtype.

A block of 256 elements is divided by its largest magnitude / 127 and rounded. This takes one byte per element
and one float32 scale per block, 3.94 times less than float32. A single scale for the whole tensor would be
cheaper still, but then one large element would round all small ones to zero.

Sums of int8 do not fit int8, and blocks with different scales cannot be added at all, so no ring or tree can
add them on the way. Two ways are left:

    all-gather everything        (N-1) M/4 bytes per rank     as much as float32's 2 (N-1)/N M at N = 8
    all-to-all, then all-gather  2 (N-1)/N M/4                a quarter for every N

This file uses the second way. Rank r gets shard r from all ranks, widens the values, adds them, divides by
N, quantises the mean again and hands it to all ranks. This is a reduce-scatter followed by an all-gather,
each in int8. The price is a second rounding.

Both rounding errors are kept. The rank that made the first error keeps it, and the shard's owner keeps the
second. The owner keeps N times the second error, since its next contribution will be divided by N again.
So at any time

    N x result + sum of the ranks' errors, afterwards  =  sum of the ranks' (tensor + error), before.

Sources: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022, for blocks with scales
of their own; Wang et al., "ZeRO++", 2023, for quantised gradients by all-to-all; Karimireddy et al. 2019 for
error feedback, and Tang et al., "DoubleSqueeze", ICML 2019, for error feedback on both sides.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F

from .common import Group, all_gather, check_pair, keep, rank_and_size

BLOCK = 256  # elements that share a scale
LARGEST = 127  # -128 is not used, so that the range is symmetric


@torch.no_grad()
def int8_all_reduce(
    tensor: torch.Tensor, error: torch.Tensor, group: Group = None, block: int = BLOCK
) -> None:
    """Replace `tensor` by the mean over the ranks of `tensor + error`, sent as eight bits per element.

    tensor: any shape, floating point; the same shape and dtype on every rank. Overwritten by the mean.
    error: the sum of this rank's rounding errors so far, in the tensor's shape. Zeros before the first
        step; float32 or wider, so that nothing of it is lost. Overwritten.
    block: elements that share a scale.
    Sends 2 (N-1) (s + 4 ceil(s/block)) bytes per rank, with s = ceil(size / N), in one all-to-all and
    one all-gather, scales included. Scratch: some copies of the tensor in float32. All ranks end with the
    same bits.

    Raises ValueError if block, dtype or error do not fit; TypeError if an argument is not a tensor.
    """
    rank, n = rank_and_size(group)
    check_pair(tensor, error, ("tensor", "error"))
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise ValueError(f"block={block!r}: the number of elements that share a scale is 1 or more")
    size = tensor.numel()
    if not size:
        return
    shard = -(-size // n)
    wide = torch.promote_types(error.dtype, torch.float32)
    asked = F.pad((tensor.to(wide) + error).reshape(-1), (0, n * shard - size)).view(n, shard)

    sent = quantize(asked, block)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    mean = dequantize(received, shard, block, wide).sum(0) / n

    own = quantize(mean[None], block)
    result = dequantize(all_gather(own, group), shard, block, wide)

    residual = asked - dequantize(sent, shard, block, wide)
    residual[rank] += n * (mean - result[rank])
    keep(error, residual.reshape(-1)[:size])
    tensor.copy_(result.reshape(-1)[:size].view(tensor.shape))


def quantize(rows: torch.Tensor, block: int = BLOCK) -> torch.Tensor:
    """(rows, size) real numbers -> (rows, size + 4 ceil(size/block)) int8: elements, then scales as bytes.

    An element is off by at most half the scale of its block, which is the block's largest magnitude / 127.
    The difference between the rows and the output of `dequantize` can be computed exactly.
    """
    blocks = _blocks(rows, block)
    scales = (blocks.abs().amax(-1, keepdim=True) / LARGEST).float()
    steps = blocks / scales.to(rows.dtype).masked_fill(scales == 0, 1)
    steps = steps.round().clamp(-LARGEST, LARGEST).nan_to_num(0.0)  # the infinite scale still shows
    elements = steps.to(torch.int8).flatten(1)[:, : rows.shape[1]]
    return torch.cat([elements, scales.flatten(1).view(torch.int8)], dim=1)


def dequantize(
    packed: torch.Tensor, size: int, block: int = BLOCK, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """(rows, size) of `dtype`, from the output of `quantize` for as many rows of `size` elements."""
    scales = (
        packed[:, size:].clone(memory_format=torch.contiguous_format).view(torch.float32).to(dtype)
    )
    blocks = _blocks(packed[:, :size].to(dtype), block)
    return (blocks * scales.unsqueeze(-1)).flatten(1)[:, :size]


def _blocks(rows: torch.Tensor, block: int) -> torch.Tensor:
    """(rows, blocks, block); the last block of each row is filled up with zeros."""
    padded = F.pad(rows, (0, -rows.shape[1] % block))
    return padded.reshape(len(rows), -1, block)
