"""Top-k sparsification: send the largest elements, keep the rest for later.

Most of a gradient's norm comes from a few elements. A rank adds the elements it kept back in earlier steps,
picks the k elements of largest magnitude, sends them, and keeps all others. An element that is not sent is
not lost, because it adds up until it is large enough to be picked.

Ranks pick different elements, so they have no common row to all-reduce. Instead, an element travels as a
pair of index and value, and every rank gets all pairs of all ranks. This is an all-gather, so its traffic
grows with N. Each rank sends (N-1) k (index + value) bytes, whereas a ring all-reduce of M bytes never sends
more than 2 M. With 4-byte indices and values and k = fraction x size, the two are equal at N = 1 / fraction,
so 1 % saves nothing at 100 ranks. On two ranks 1 % compresses only 50 times instead of 100 times, since
indices cost as much as values.

Sources: Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; Lin et al.,
"Deep Gradient Compression", ICLR 2018; Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS
2018, for convergence.
"""

from __future__ import annotations

import torch

from .common import Group, all_gather, check_pair, keep, rank_and_size


@torch.no_grad()
def topk_all_reduce(
    tensor: torch.Tensor, fraction: float, error: torch.Tensor, group: Group = None
) -> None:
    """Replace `tensor` by the mean over the ranks of the largest elements of `tensor + error`.

    tensor: any shape, floating point; the same shape and dtype on every rank. Overwritten by the mean.
    fraction: share of the elements each rank sends, above 0 and at most 1; at least one element.
    error: the elements this rank has kept back so far, in the tensor's shape. Zeros before the first step;
        float32 or wider, so that nothing of it is lost. Overwritten, so that the sent values plus the new
        `error` are exactly the old `tensor + error`.
    Sends (N-1) k (4 + itemsize) bytes per rank, with k = round(fraction x size). One all-gather sends the
    indices (8 bytes each from 2^31 elements on), and another one the values, in the tensor's dtype. Scratch:
    one tensor and all pairs. All ranks end with the same bits.

    Raises ValueError if fraction, dtype or error do not fit; TypeError if an argument is not a tensor.
    """
    _, n = rank_and_size(group)
    check_pair(tensor, error, ("tensor", "error"))
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction={fraction}: the share of the elements to send lies in (0, 1]")
    if not tensor.numel():
        return
    k = max(1, round(fraction * tensor.numel()))
    wide = torch.promote_types(error.dtype, torch.float32)
    asked = (tensor.to(wide) + error).reshape(-1)
    indices = asked.abs().topk(k, sorted=False).indices
    values = asked[indices].to(tensor.dtype)
    every_index = all_gather(indices.to(_index_dtype(tensor.numel())), group)
    every_value = all_gather(values, group)

    mean = torch.zeros_like(asked)
    for theirs, value in zip(every_index, every_value, strict=True):  # no index twice in a row
        mean.index_add_(0, theirs.long(), value.to(mean.dtype))
    asked[indices] -= values.to(asked.dtype)
    keep(error, asked)
    tensor.copy_((mean / n).view(tensor.shape))


def _index_dtype(numel: int) -> torch.dtype:
    return torch.int32 if numel < 1 << 31 else torch.int64
