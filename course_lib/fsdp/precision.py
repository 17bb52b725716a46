"""Two precisions in one step: weights travel in 16 bits, gradients are summed in 32.

A rank owns a shard of the *master*, the weights in float32, to which the optimizer adds its small steps. But
matrices are multiplied in 16 bits. So each step needs two casts, and both belong next to a message:

    forward, backward    master (float32) -> cast -> all-gather -> row of weights (bfloat16)    2 bytes
    backward             row of gradients (bfloat16) -> cast -> reduce-scatter -> mean (float32)   4 bytes

A cast *before* the all-gather halves its bytes, and the copy in 16 bits is needed anyway. A cast before the
reduce-scatter doubles its bytes, but is worth them. A bfloat16 has only 8 significant bits, so a sum loses
every term below 1/512 of it. For example, 512 equal gradients, added one after another, stop growing at 256
of them. In float32, only the rounding of each gradient is left.

    per parameter and step, in units of (N-1)/N    float32 12 bytes    this 2 + 2 + 4 = 8    all in 16 bits 6

Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018 (the master copy); Zhao et al., "PyTorch
FSDP", VLDB 2023, section 4.4 (the casts next to messages); `torch.distributed.fsdp.MixedPrecisionPolicy`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import Group, all_gather, check_fit, check_row, group_size, reduce_scatter

WIDE = (torch.float32, torch.float64)  # of an output, since 16 bits would round the mean again


@torch.no_grad()
def all_gather_cast(output: Tensor, shard: Tensor, group: Group = None) -> None:
    """Write all ranks' shards into `output`, in its dtype, which is also the dtype in which they travel.

    shard: this rank's master in float32, (s,) or any shape of s elements, contiguous, the same size on every
        rank. It is not changed.
    output: contiguous, N x s elements, of any floating dtype, on the shard's device. It is overwritten, with
        rank r's shard from r x s on.
    Sends (N-1) x s elements of output's dtype per rank, in one all-gather. Scratch: one shard of this dtype.

    Raises ValueError if sizes or devices do not fit or a tensor is not contiguous, TypeError for a dtype that
    is not floating-point.
    """
    check_fit(group_size(group), output=output, shard=shard)
    narrow = shard.detach().reshape(-1).to(output.dtype)  # a new row, unless the dtype is the same
    all_gather(output.view(-1), narrow, group=group)


@torch.no_grad()
def reduce_scatter_mean(
    output: Tensor, grads: Tensor, reduce_dtype: torch.dtype = torch.float32, group: Group = None
) -> None:
    """Write this rank's part of the mean of all ranks' `grads` into `output`, summed in `reduce_dtype`.

    grads: this rank's gradient of the whole row, N x s elements, contiguous, of any floating dtype. It is
        not changed.
    output: s elements, contiguous, float32 (or float64), on the device of grads. It is overwritten by the
        mean of the ranks' elements r x s to (r+1) x s, where r is this rank's number in the group.
    reduce_dtype: the dtype in which gradients travel and are added.
    Sends (N-1) x s elements of reduce_dtype per rank, in one reduce-scatter (over gloo, PyTorch's own is an
    all-reduce inside). Scratch: the row and one shard in reduce_dtype.

    The sum is divided after the cast to output's dtype, so that nothing is rounded twice. The largest number
    of float16 is only 65,504. So in float16, a part of the division, by a power of two, comes before the
    sum, as in `fully_shard`. If the sum still overflows, it arrives as infinity, for the loss scaler to see.

    Raises ValueError if sizes or devices do not fit or a tensor is not contiguous, TypeError for a dtype that
    is not floating-point and for an output in 16 bits, to which the mean would be rounded again.
    """
    n = group_size(group)
    check_row(output, "output")
    if output.dtype not in WIDE:
        raise TypeError(
            f"output is {output.dtype}; torch.float32 is expected: 16 bits would round the "
            "mean again, whose sum was made in reduce_dtype"
        )
    if not reduce_dtype.is_floating_point:
        raise TypeError(f"reduce_dtype is {reduce_dtype}; a floating-point dtype is expected")
    check_fit(n, grads=grads, output=output)
    before = 2 ** (n.bit_length() // 2) if reduce_dtype == torch.float16 else 1
    row = grads.detach().view(-1)
    row = (row / before if before > 1 else row).to(reduce_dtype)
    total = torch.empty(output.numel(), dtype=reduce_dtype, device=output.device)
    reduce_scatter(total, row, group=group)
    output.view(-1).copy_(total).mul_(before / n)
