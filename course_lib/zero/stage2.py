"""ZeRO-2: the full gradient never exists either.

ZeRO-1 keeps all gradients until the step, although each rank will read only 1/N of them. So ZeRO-2
reduce-scatters them while backward produces them. A bucket of parameters, filled from the last layer to the
first, is sent as soon as its last gradient has arrived, and each rank keeps only its shard of the sum.

    memory   2P + 14P/N bytes in mixed precision, and up to two buckets
    sent     2 (N-1)/N P for one backward, as in ZeRO-1; (K + 1) (N-1)/N P for K backwards, since gradients
             that are not kept cannot wait for the gradients of the next backward

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020,
sections 5.2 and 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .backward import Backward
from .bucket import Bucket
from .shards import Home, ParamGroup
from .stage1 import Zero1
from .transport import Transport


class Zero2(Zero1):
    """Like Zero1, but the gradients are also sharded.

    bucket_bytes: a bucket is full when it holds this many bytes.
    kept: for each bucket, this rank's shard of the mean gradient, (shard_numel,), and which parameters have
        a gradient.

    Buckets are sent in the same order on all ranks.
    """

    def __init__(
        self,
        groups: Sequence[ParamGroup],
        optimizer_cls: type[torch.optim.Optimizer],
        defaults: Mapping[str, Any],
        transport: Transport,
        home: Home,
        bucket_bytes: int,
    ):
        self.bucket_bytes = bucket_bytes
        super().__init__(groups, optimizer_cls, defaults, transport, home)
        self.buckets.reverse()  # as backward runs
        self.kept: dict[Bucket, tuple[torch.Tensor, list[bool]]] = {}
        self._backward = Backward(". Or did the last one fail? Call zero_grad()")
        self._turn = 0  # the bucket that is sent next in this backward
        self._under_way: list[Callable[[], None]] = []

    def arrived(self, bucket: Bucket, i: int) -> None:
        """A hook calls this when the bucket's i-th gradient is complete, to send buckets whose turn it is."""
        if self._backward.joined(self._send_the_rest):
            self._turn = 0
        check_unsent(bucket, self.buckets[: self._turn])
        bucket.add(i)
        while self._turn < len(self.buckets) and all(self.buckets[self._turn].arrived):
            self._send()

    def _send(self) -> None:
        self._collect()  # so that no more than two full buckets exist
        bucket = self.buckets[self._turn]
        whole, arrived = bucket.take_gradient()
        wait = self.transport.start_reduce_scatter_mean(whole)  # (n * shard,) -> (shard,)
        self._under_way.append(lambda: self._keep(bucket, wait(), arrived))
        self._turn += 1

    def _collect(self) -> None:
        """Wait for the bucket under way, and keep this rank's shard of the mean."""
        while self._under_way:
            self._under_way.pop()()

    @torch.no_grad()
    def _keep(self, bucket: Bucket, mean: torch.Tensor, arrived: Sequence[bool]) -> None:
        """Keep the mean of this backward, and add it to the mean of the backwards before."""
        present = bucket.present(mean, arrived)
        for piece, here in zip(bucket.pieces(mean), present, strict=True):
            if not here:
                piece.zero_()
        if bucket in self.kept:
            kept, before = self.kept[bucket]
            kept += mean.to(kept.device)
            present = [now or then for now, then in zip(present, before, strict=True)]
        elif self.home.is_apart(mean.device):
            kept = self.home.empty(mean.numel(), mean.dtype, mean.device).copy_(mean)
        else:
            kept = mean
        self.kept[bucket] = kept, present

    def _send_the_rest(self) -> None:
        """After backward, send the buckets in which a parameter got no gradient."""
        while self._turn < len(self.buckets):
            self._send()
        self._collect()
        self._backward.over()

    def mean_gradient(self, bucket: Bucket) -> tuple[torch.Tensor, list[bool]]:
        """The mean left here by backward, or none if no backward has run since `zero_grad`."""
        return self.kept.get(bucket) or (bucket.own, [False] * len(bucket.params))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradient shards, or keep them as zeros with set_to_none=False.

        Leftovers of a backward that failed are also forgotten.
        """
        super().zero_grad()
        self._backward.over()
        self._under_way.clear()
        for bucket in self.buckets:
            bucket.forget_gradient()
        if set_to_none:
            self.kept.clear()
        for mean, _ in self.kept.values():
            mean.zero_()

    def in_buckets(self, params: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
        return neighbours(params, self.bucket_bytes)


def check_unsent(bucket: Bucket, sent: Sequence[Bucket]) -> None:
    if any(bucket is other for other in sent):
        raise RuntimeError(
            "a parameter's gradient arrived twice in one backward, after its bucket had been sent: use "
            "torch.utils.checkpoint with use_reentrant=False"
        )


def neighbours(params: Iterable[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Runs of parameters of one dtype and device, of at most bucket_bytes unless one parameter is larger."""
    runs: list[list[nn.Parameter]] = []
    kind, room = None, 0
    for param in params:
        if (param.dtype, param.device) != kind or param.nbytes > room:
            runs.append([])
            kind, room = (param.dtype, param.device), bucket_bytes
        runs[-1].append(param)
        room -= param.nbytes
    return runs
