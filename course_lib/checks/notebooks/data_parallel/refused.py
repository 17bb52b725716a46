"""Parts of PyTorch that would do the exercises' work, and the message to a student who uses one of them (see
`refusing`)."""

from __future__ import annotations

SAMPLER = {
    "torch.utils.data.distributed:DistributedSampler": (
        "PyTorch's DistributedSampler deals the samples out by itself. Write that yourself: one permutation, "
        "the same on every rank, of which rank r takes every world_size-th."
    )
}
REDUCER = {
    "torch.distributed:Reducer": (
        "PyTorch's reducer, which DistributedDataParallel is built on, would do all of it. That is what you "
        "are to build: broadcast the first rank's parameters and buffers, and reduce the gradients yourself."
    )
}
