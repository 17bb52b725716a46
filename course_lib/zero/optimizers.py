"""The optimizers of ZeRO-1 and ZeRO-2, as a program uses them.

The algorithms are in `stage1.py` and `stage2.py`, and all that surrounds them is in `sharded_optimizer.py`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .offload import Place, home
from .sharded_optimizer import ShardedOptimizer
from .stage1 import Zero1
from .stage2 import Zero2
from .transport import Collective, Group, Transport


class Zero1Optimizer(ShardedOptimizer):
    """Any elementwise torch optimizer, with its state sharded over the ranks of `group`.

    params, optimizer_cls, **defaults: as torch.optim takes them, such as torch.optim.AdamW, lr=1e-3.
    offload, reduce_scatter, all_gather, 16 bits, unused parameters, errors: see `ShardedOptimizer`.
    A step sends 2 (N-1)/N of the parameters, however many backward passes came before it.
    """

    stage = Zero1

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_cls: type[torch.optim.Optimizer],
        *,
        group: Group = None,
        offload: Place = None,
        reduce_scatter: Collective | None = None,
        all_gather: Collective | None = None,
        **defaults: Any,
    ):
        transport = Transport(group, reduce_scatter, all_gather)
        super().__init__(params, optimizer_cls, defaults, transport, home(offload))


class Zero2Optimizer(Zero1Optimizer):
    """Like Zero1Optimizer, but the gradients are also sharded.

    bucket_bytes: a bucket is full when it holds this many bytes. Small buckets save memory, large buckets
    save messages.

    After backward, `.grad` of the parameters is None, because the averaged gradient is in shards, in the
    optimizer. The optimizer's `zero_grad()` clears it, but the module's cannot. Buckets are sent in the same
    order on all ranks, and all ranks must call backward equally often. So if a rank's loss reaches no
    parameter, it must join the other ranks with a loss of zero.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_cls: type[torch.optim.Optimizer],
        *,
        bucket_bytes: int = 25 << 20,
        **arguments: Any,
    ):
        if not bucket_bytes > 0:
            raise ValueError(f"bucket_bytes is a positive number of bytes, not {bucket_bytes!r}")
        self.bucket_bytes = bucket_bytes
        self.stage = functools.partial(Zero2, bucket_bytes=bucket_bytes)
        super().__init__(params, optimizer_cls, **arguments)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Raises RuntimeError, because there is no memory for gradients that are not reduced."""
        raise RuntimeError(
            "Zero2Optimizer keeps no full gradients, so every backward must reduce them: leave no_sync out, "
            "or use Zero1Optimizer"
        )
        yield
