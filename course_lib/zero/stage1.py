"""ZeRO-1: every rank keeps the optimizer's state only for its shard.

Data parallelism keeps N copies of everything, and does the optimizer's work N times. The optimizer's state
is the largest part (12 of 16 bytes a parameter), and only the optimizer's step uses it. So give rank r the
r-th part of it:

    1. reduce-scatter the gradients     rank r has the mean gradient of its shard     (N-1)/N P
    2. the optimizer's step             on that shard, 1/N of the work
    3. all-gather the parameters        every rank has the new ones                   (N-1)/N P

Each rank sends 2 (N-1)/N P elements, as many as an all-reduce of the gradients alone. (All-reduce, step,
then share the parameters, as it is often drawn, costs 3 (N-1)/N P: the all-reduce gathers gradients that no
rank reads.)

Memory: 4P + 12P/N bytes in mixed precision; with float32 parameters 8P + 8P/N for Adam.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020,
sections 5.1 and 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .arguments import param_groups
from .bucket import Bucket
from .offload import Place, home
from .sharded_optimizer import ShardedOptimizer
from .transport import Collective, Group, Transport


class Zero1Optimizer(ShardedOptimizer):
    """Any elementwise torch optimizer, with its state sharded over the ranks of `group`.

    params, optimizer_cls, **defaults: as torch.optim takes them, such as torch.optim.AdamW, lr=1e-3.
    offload, reduce_scatter, all_gather, 16 bits, unused parameters, errors: see `ShardedOptimizer`.
    A step sends 2 (N-1)/N of the parameters, however many backward passes came before it.
    """

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
        groups = param_groups(params, optimizer_cls, defaults)
        self.transport, self.home = Transport(group, reduce_scatter, all_gather), home(offload)
        self._cut(groups)  # self.buckets: a row `flat` (n * shard,) and this rank's `own` (shard,)
        self.optimizer = optimizer_cls(self._of_shards(groups), **defaults)  # knows shards only
        self._complete()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Average the gradients, update this rank's shard, and give all ranks the new parameters."""
        loss = self._before_step(closure)
        self.average_gradients()  # 1. reduce-scatter, unless that was done ahead of the step
        self._update_shards()  # 2. the optimizer's step, on this rank's shards
        for bucket in self.buckets:
            self.transport.all_gather(bucket.flat, bucket.own)  # 3. (shard,) -> (n * shard,)
        return loss

    def _mean_gradient(self, bucket: Bucket) -> tuple[torch.Tensor, list[bool]]:
        """This rank's shard of the mean gradient, and which parameters have one on some rank."""
        mean = self.transport.reduce_scatter_mean(bucket.flat_gradient())  # (n * shard,) -> own
        return mean, bucket.present(mean, bucket.arrived)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; the row for them stays."""
        self._forget_average()
        for bucket in self.buckets:
            bucket.zero_grad(set_to_none)
