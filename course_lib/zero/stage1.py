"""ZeRO-1: every rank keeps the optimizer's state only for its shard.

Data parallelism keeps N copies of everything, and does the optimizer's work N times. The optimizer's state
is the largest part (12 of 16 bytes per parameter), but only the optimizer's step uses it. So ZeRO-1 gives
rank r only the r-th part of the state:

    1. reduce-scatter the gradients     rank r has the mean gradient of its shard     (N-1)/N P
    2. the optimizer's step             on that shard, 1/N of the work
    3. all-gather the parameters        every rank has the new ones                   (N-1)/N P

Each rank sends 2 (N-1)/N P elements, as many as an all-reduce of the gradients would. (ZeRO-1 is often
drawn as an all-reduce, a step, and then the sharing of the parameters. This costs 3 (N-1)/N P, because the
all-reduce also gathers gradients that no rank reads.)

Memory: 4P + 12P/N bytes in mixed precision, or 8P + 8P/N for Adam with float32 parameters.

Read on in `transport.py` (the two collectives), `shards.py` (how parameters are cut), `bucket.py` and
`gradients.py` (parameters and gradients in a row). `Zero1Optimizer` in `optimizers.py` gives this algorithm
the interface of torch.optim. It also checks, saves and offloads.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020,
sections 5.1 and 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .bucket import Bucket, alike
from .shards import Home, ParamGroup
from .transport import Transport


class Zero1:
    """An elementwise optimizer, of which this rank runs only the part for its shards.

    groups: as in torch.optim; all of their parameters are trained.
    optimizer_cls, defaults: such as torch.optim.AdamW, {"lr": 1e-3}.
    home: where the shards and the state are kept.

    A step sends 2 (N-1)/N of the parameters, however many backward passes came before it.
    """

    def __init__(
        self,
        groups: Sequence[ParamGroup],
        optimizer_cls: type[torch.optim.Optimizer],
        defaults: Mapping[str, Any],
        transport: Transport,
        home: Home,
    ):
        self.transport, self.home = transport, home
        self.buckets = [  # each has a row `flat` (n * shard,) and this rank's `own` (shard,)
            Bucket(params, transport, home)
            for group in groups
            for params in self.in_buckets(group["params"])
        ]
        self.optimizer = optimizer_cls(self._of_shards(groups), **defaults)  # knows shards only
        self.averaged = False  # whether the shards have the mean gradient for the next step

    @torch.no_grad()
    def step(self) -> None:
        """Average the gradients, update this rank's shard, and give all ranks the new parameters."""
        self.average_gradients()  # 1. reduce-scatter, unless that was done ahead of the step
        self.update_shards()  # 2. the optimizer's step, on this rank's shards
        for bucket in self.buckets:
            self.transport.all_gather(bucket.flat, bucket.own)  # 3. (shard,) -> (n * shard,)

    @torch.no_grad()
    def average_gradients(self) -> None:
        """Make the gradient of each shard its mean over the ranks."""
        if not self.averaged:
            for bucket in self.buckets:
                mean, present = self.mean_gradient(bucket)
                bucket.give(mean, present)
        self.averaged = True

    def mean_gradient(self, bucket: Bucket) -> tuple[torch.Tensor, list[bool]]:
        """This rank's shard of the mean gradient, and which parameters have one on some rank."""
        mean = self.transport.reduce_scatter_mean(bucket.flat_gradient())  # (n * shard,) -> own
        return mean, bucket.present(mean, bucket.arrived)

    def update_shards(self) -> None:
        """Take the optimizer's step on the shards or their copies, and copy the result into every `own`."""
        for bucket in self.buckets:
            bucket.to_master()
        self.optimizer.step()
        self.forget_average()
        for bucket in self.buckets:
            bucket.from_master()

    # ---- around backward

    def arrived(self, bucket: Bucket, i: int) -> None:
        """A hook calls this when the bucket's i-th gradient is complete, to move it into the row.

        It moves immediately, because otherwise the step would hold it twice.
        """
        bucket.params[i].grad = bucket.put(i)

    def forget_average(self) -> None:
        self.optimizer.zero_grad()
        self.averaged = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, but keep the row for them."""
        self.forget_average()
        for bucket in self.buckets:
            bucket.zero_grad(set_to_none)

    # ---- the constructor's parts

    def in_buckets(self, params: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
        """Each parameter group as one bucket, if all its parameters have the same dtype and device."""
        return alike(params)

    def _of_shards(self, groups: Sequence[ParamGroup]) -> list[ParamGroup]:
        """The groups with the same options, but with shards in place of the parameters."""
        shard_of = {
            param: shard
            for bucket in self.buckets
            for param, shard in zip(bucket.params, bucket.shards, strict=True)
        }
        return [{**group, "params": [shard_of[p] for p in group["params"]]} for group in groups]
