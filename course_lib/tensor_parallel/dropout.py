"""Dropout outside a sharded region, with equal masks, and inside, with a mask for each rank.

Outside a sharded region, all ranks compute the same activations and must drop the same ones. With different
masks, they would go on with different values, and every sum that follows would be wrong. Inside (heads,
hidden features, parts of the sequence), each rank has elements of its own and must drop them by a mask of its
own. With the same mask on all ranks, head 0 of every rank would lose the same weights.

So there are two streams of random numbers. The first is PyTorch's default generator, in the same state on all
ranks of the group (`same_random_state`, once). The second is seeded at each use with a number drawn from the
first, plus the rank, so the ranks differ inside and agree again afterwards. Since only the first stream has a
state that lasts, a recomputed forward (`torch.utils.checkpoint`) draws the same masks as before.

Source: Shoeybi et al., "Megatron-LM", 2019, appendix B.2 (seeds of model-parallel regions).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .conjugate import Group, place


def same_random_state(group: Group = None) -> None:
    """Give the default generators of all ranks the state of the group's first rank. All ranks must call it.

    From then on, the ranks agree as long as they draw the same numbers, as ranks with the same data do. It
    broadcasts the generator's state, which is 5 KB, plus 16 bytes for a GPU.
    """
    _, n = place(group)
    if n == 1:
        return
    first = dist.get_process_group_ranks(group or dist.group.WORLD)[0]
    on_gpu = "nccl" in dist.get_backend(group)
    carried = torch.random.get_rng_state()
    row = carried.cuda() if on_gpu else carried
    dist.broadcast(row, first, group=group)
    torch.random.set_rng_state(row.cpu())
    if on_gpu:
        row = torch.cuda.get_rng_state().cuda()
        dist.broadcast(row, first, group=group)
        torch.cuda.set_rng_state(row.cpu())


@contextmanager
def own_random_state(group: Group = None) -> Iterator[None]:
    """Inside, random numbers differ from rank to rank; afterwards the ranks agree again.

    The ranks must be in the same random state, and all of them must enter. Nothing is sent.
    """
    rank, _ = place(group)
    seed = int(torch.randint(2**62, ()))
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed + rank)
        yield


class ShardDropout(nn.Dropout):
    """`nn.Dropout` for tensors that are cut over the ranks, with different masks on every rank of `group`."""

    def __init__(self, p: float = 0.5, group: Group = None):
        super().__init__(p)
        self.group = group

    def forward(self, input: Tensor) -> Tensor:
        if not (self.training and self.p):
            return input
        with own_random_state(self.group):
            return super().forward(input)
