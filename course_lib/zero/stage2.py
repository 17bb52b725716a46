"""ZeRO-2: the full gradient never exists either.

ZeRO-1 keeps all gradients until the step, though each rank will read 1/N of them. So reduce-scatter them
while backward produces them: a bucket of parameters, filled from the last layer to the first, is sent
when its last gradient has arrived, and only this rank's shard of the sum is kept.

    memory   2P + 14P/N bytes in mixed precision, and up to two buckets
    sent     2 (N-1)/N P for one backward, as in ZeRO-1; (K + 1) (N-1)/N P for K of them, since gradients
             that are not kept cannot wait for those of the next backward

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020,
sections 5.2 and 7.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from .backward import Backward
from .bucket import Bucket, neighbours
from .stage1 import Zero1Optimizer


class Zero2Optimizer(Zero1Optimizer):
    """As Zero1Optimizer, with gradients sharded too.

    bucket_bytes: a bucket is full when it holds that many bytes. Small buckets save memory, large buckets
    save messages.

    After backward `.grad` of the parameters is None: the averaged gradient is in shards, in the optimizer.
    `zero_grad()` of the optimizer clears it; that of the module cannot. Buckets are sent in the same order
    on all ranks, and all ranks call backward equally often: a rank whose loss reaches no parameter must
    join the others with a loss of zero.
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
        self._backward = Backward(". Or did the last one fail? Call zero_grad()")
        self._turn = 0  # the bucket that is sent next in this backward
        self._under_way: list[Callable[[], None]] = []
        super().__init__(params, optimizer_cls, **arguments)
        self.buckets.reverse()  # as backward runs

    def _in_buckets(self, params: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
        return neighbours(params, self.bucket_bytes)

    def _arrived(self, bucket: Bucket, i: int) -> None:
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
        self._under_way.append(lambda: bucket.keep(wait(), arrived))
        self._turn += 1

    def _collect(self) -> None:
        """Wait for the bucket under way, which then keeps this rank's shard of the mean."""
        while self._under_way:
            self._under_way.pop()()

    def _send_the_rest(self) -> None:
        """After backward: send the buckets in which a parameter got no gradient."""
        while self._turn < len(self.buckets):
            self._send()
        self._collect()
        self._backward.over()

    def _mean_gradient(self, bucket: Bucket) -> tuple[torch.Tensor, list[bool]]:
        """The mean that backward has left in the bucket; none if there was no backward since `zero_grad`."""
        return bucket.kept or (bucket.own, [False] * len(bucket.params))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradient shards; with set_to_none=False they stay, as zeros.

        It also forgets the leftovers of a backward that failed.
        """
        super().zero_grad()
        self._backward.over()
        self._under_way.clear()
        for bucket in self.buckets:
            bucket.forget_gradient()
            bucket.forget_kept(set_to_none)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Raises RuntimeError: there is no place for gradients that are not reduced."""
        raise RuntimeError(
            "Zero2Optimizer keeps no full gradients, so every backward must reduce them: leave no_sync out, "
            "or use Zero1Optimizer"
        )
        yield


def check_unsent(bucket: Bucket, sent: Sequence[Bucket]) -> None:
    if any(bucket is other for other in sent):
        raise RuntimeError(
            "a parameter's gradient arrived twice in one backward, after its bucket had been sent: use "
            "torch.utils.checkpoint with use_reentrant=False"
        )
