"""Online softmax merges attention to some keys and attention to others into attention to all of them.

Softmax divides by a sum over all keys, so it seems to need all of them at the same time. It does not. For the
scores s_j of one query with the keys of a block, keep two things,

    lse = log sum_j exp(s_j)             and             out = sum_j exp(s_j - lse) v_j,

the logarithm of the divisor and the block's attention. Multiplying out by exp(lse) gives back the undivided
sum. Two such sums can be added and then divided by the sum of both divisors:

    lse = log(exp(lse_a) + exp(lse_b)),  out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b.

Blocks can arrive in any order and from anywhere, for example from a tile of the cache or from another rank.

Three details of the code are due to rounding and infinities. exp(1000) is too large for any format, so the
larger logarithm is subtracted first, as `logaddexp` does. The weight of a,
exp(lse_a - lse) = 1 / (1 + exp(lse_b - lse_a)), is computed from the difference of lse_a and lse_b, because
lse, of the size of a score, has been rounded. A block in which a mask hides all keys has lse = -inf and
weight 0. But -inf - -inf is nan, in forward and in backward (a nan times a gradient of 0 is still nan), so
the lowest finite number takes the place of -inf.

Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; Rabe and Staats,
Self-attention Does Not Need O(n^2) Memory, 2021; Dao et al., FlashAttention, 2022, section 3.1.

This file imports torch only.
"""

from __future__ import annotations

import torch
from torch import Tensor


def online_softmax_merge(
    out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor
) -> tuple[Tensor, Tensor]:
    """(out, lse) of attention to the keys of both parts.

    out, block_out: attention to the keys of each part, (batch, seq, heads, head_dim), or any (..., head_dim).
    lse, block_lse: the logarithm of the sum of the exponentials of its scores, (batch, seq, heads), or (...);
        -inf if no key was seen, in which case out is 0.

    Returns new tensors. Gradients pass to all four, and none is nan. A part that saw no key gets 0 if the
    other part saw one. If neither saw one, each lse gets 0, and each out gets half of the gradient, although
    both are 0 for any q, k and v. Keep out and lse in float32 at least, because each merge in bf16 would
    round once more.
    """
    lowest = torch.finfo(lse.dtype).min  # in place of -inf, so no difference is nan
    old, new = lse.clamp_min(lowest), block_lse.clamp_min(lowest)
    out = (old - new).sigmoid()[..., None] * out + (new - old).sigmoid()[..., None] * block_out
    merged = torch.logaddexp(old, new)
    return out, merged.masked_fill(merged <= lowest, -torch.inf)
