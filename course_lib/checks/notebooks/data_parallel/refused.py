"""Parts of PyTorch that would do the exercises' work, and the message to a student who uses one of them.

`course_lib.checks.rank.refusing` refuses them.
"""

from __future__ import annotations

SAMPLER = {
    "torch.utils.data.distributed:DistributedSampler": (
        "PyTorch's DistributedSampler would deal out the samples for you. Write that yourself. Draw one "
        "permutation, the same on every rank, and let rank r take every world_size-th index."
    )
}
REDUCER = {
    "torch.distributed:Reducer": (
        "PyTorch's reducer, on which DistributedDataParallel is built, would do all of it. Build that part "
        "yourself. Broadcast the first rank's parameters and buffers, and reduce the gradients."
    )
}
