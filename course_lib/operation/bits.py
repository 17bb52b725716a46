"""Is a rank's memory right? Replicas must agree in every bit, so a checksum of bits shows a wrong replica.

A chip that computes wrongly, or a bit that flips, does not raise an error. But replicas that received the
same averaged gradient have the same parameters to the last bit, so eight bytes per rank are enough to compare
them. We sum the bits as integers, because sums of floats depend on the order, and lose small differences.

    after the all-reduce    a flip stays on its rank, which is named from this step on
    before it               the wrong gradient goes into the average of all ranks, and all agree

Bytes: one all-gather of 8 bytes per rank. Sources: Dixit et al., Silent Data Corruptions at Scale, 2021;
Llama Team, The Llama 3 Herd of Models, 2024, table 5 (six interruptions by silent data corruption).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

Group = dist.ProcessGroup | None


def odd_ranks(parameters: Iterable[Tensor], group: Group = None) -> list[int]:
    """The ranks of `group`, counted in it, whose parameters differ from the majority; the same on all.

    parameters: in the same order on all ranks. If no value is shared by more than half of the ranks, all
    ranks are named, because some of them are wrong and the checksums cannot say which.
    """
    mine = bit_sum(parameters)
    sums = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sums, mine, group=group)
    values = [int(value) for value in sums]
    common = max(values, key=values.count)
    if 2 * values.count(common) <= len(values):
        return list(range(len(values)))
    return [rank for rank, value in enumerate(values) if value != common]


def bit_sum(parameters: Iterable[Tensor]) -> Tensor:
    """A checksum of all bits: (), int64; overflow wraps around.

    One flipped bit always changes it. The change is a power of two times a power of 31, which is odd, so it
    is never a multiple of 2^64.
    """
    total = torch.zeros((), dtype=torch.int64)
    for tensor in parameters:
        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        words = F.pad(data, (0, -len(data) % 4)).view(torch.int32)
        total = total.to(words.device) * 31 + words.sum(dtype=torch.int64)
    return total
