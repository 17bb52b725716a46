"""The two classes with which PyTorch spreads a model over ranks that each read different rows.

    ddp    DistributedDataParallel   every rank holds the model; one all-reduce of the gradients
    fsdp   fully_shard               every rank holds 1/n of it; each block is gathered when it is used

In units of (n-1)/n of the parameters' bytes, a rank sends 2 per step with ddp. With fsdp it sends 3, minus
one gather of the root. The parameters outside the blocks stay after forward, because backward begins with
them.

Source: the documentation of both classes; Li et al., PyTorch Distributed, VLDB 2020; Zhao et al., PyTorch
FSDP, VLDB 2023.
"""

from __future__ import annotations

from typing import Any

from torch import nn


def distribute(model: Any, how: str) -> nn.Module:
    """`model`, spread over all ranks. Call it, and train the parameters of the model it returns.

    model: with `blocks`, such as `course_lib.models.GPT`. how: "one" (nothing is done, for one rank),
        "ddp" or "fsdp".

    With ddp, all ranks get rank 0's values. With fsdp, each rank's own values are cut, and no rank asks for
    the values of others, so give all ranks one seed. It changes `model` in place, from the inside out: first
    the blocks, and last the model with its other parameters. If only the model were wrapped, everything would
    be gathered together.

    Ranks average their gradients, and the loss of each rank is the mean over its own rows. So give every rank
    equally many rows and targets. Make the optimizer afterwards. Raises ValueError for another `how`.
    """
    if how == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model)
    if how == "fsdp":
        from torch.distributed.fsdp import fully_shard  # half a second of imports

        for block in model.blocks:
            fully_shard(block)
        return fully_shard(model)
    if how != "one":
        raise ValueError(f'how={how!r}: it is "one", "ddp" or "fsdp"')
    return model
