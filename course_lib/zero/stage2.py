"""ZeRO-2: the full gradient never exists either.

ZeRO-1 keeps all gradients until the step, though each rank will read 1/N of them. So reduce-scatter them
while backward produces them: a bucket of parameters, filled from the last layer to the first, is sent off
when its last gradient has arrived, and only this rank's shard of the sum is kept.

    memory   2P + 14P/N bytes in mixed precision, and up to two buckets
    sent     2 (N-1)/N P for one backward, as in ZeRO-1; (K + 1) (N-1)/N P for K of them, since what is not
             kept cannot wait for the others

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020,
sections 5.2 and 7.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from .shards import Bucket
from .stage1 import Zero1Optimizer


class Zero2Optimizer(Zero1Optimizer):
    """As Zero1Optimizer, with gradients sharded too.

    bucket_bytes: a bucket is full when it holds that much. Small ones save memory, large ones messages.
    The other arguments, what is right and what is refused: as in Zero1Optimizer.

    Backward leaves `.grad` of the parameters None: the averaged gradient is in shards, in the optimizer.
    `zero_grad()` of the optimizer clears it; that of the module cannot. Buckets are sent in one order on
    all ranks, and all ranks call backward equally often: one whose loss reaches no parameter must be
    joined to the others by a loss of zero.
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
        self._next = 0  # the bucket whose turn it is in this backward
        self._task = -1  # the backward that is under way, as autograd numbers them
        self._waiting: list[tuple[Bucket, list[bool], Callable[[], torch.Tensor]]] = []
        self._kept: dict[Bucket, tuple[torch.Tensor, list[bool]]] = {}
        super().__init__(params, optimizer_cls, **arguments)
        self.buckets.reverse()
        self._masters.reverse()

    def _make_buckets(self, params: Sequence[torch.nn.Parameter]) -> list[Bucket]:
        """Runs of parameters of one dtype and device, up to bucket_bytes each, in order."""
        runs: list[list[torch.nn.Parameter]] = []
        kind, room = None, 0
        for param in params:
            nbytes = param.numel() * param.element_size()
            if (param.dtype, param.device) != kind or nbytes > room:
                runs.append([])
                kind, room = (param.dtype, param.device), self.bucket_bytes
            runs[-1].append(param)
            room -= nbytes
        return [Bucket(run, self.transport.rank, self.transport.n) for run in runs]

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """RuntimeError: there is nowhere to keep gradients that are not reduced."""
        raise RuntimeError(
            "Zero2Optimizer keeps no full gradients, so every backward must reduce them: leave no_sync out, "
            "or use Zero1Optimizer"
        )
        yield

    # ---- during backward

    def _arrived(self, bucket: Bucket, i: int) -> None:
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._begin(task)
        if self._is_sent(bucket):
            raise RuntimeError(
                "a parameter's gradient arrived twice in one backward, after its bucket had been sent: use "
                "torch.utils.checkpoint with use_reentrant=False"
            )
        bucket.put(i, add=True)
        bucket.params[i].grad = None
        while self._next < len(self.buckets) and all(self.buckets[self._next].arrived):
            self._send()

    def _begin(self, task: int) -> None:
        """The first gradient of a backward."""
        if self._task != -1:
            raise RuntimeError(
                "a backward began before the last one had ended. Inside another one, by checkpoints? Use "
                "torch.utils.checkpoint with use_reentrant=False. Or did the last one fail? Call zero_grad()"
            )
        self._task, self._next = task, 0
        torch.autograd.Variable._execution_engine.queue_callback(self._end)  # type: ignore[attr-defined]

    def _is_sent(self, bucket: Bucket) -> bool:
        return any(bucket is one for one in self.buckets[: self._next])

    def _send(self) -> None:
        bucket = self.buckets[self._next]
        self._next += 1
        self._collect()  # so that no more than two full buckets exist
        whole, arrived = bucket.take_gradient()
        self._waiting.append((bucket, arrived, self.transport.reduce_scatter_mean(whole)))

    def _collect(self) -> None:
        """Wait for the buckets under way and add this rank's shards to what it keeps."""
        for bucket, arrived, finish in self._waiting:
            self._keep(bucket, finish(), arrived)
        self._waiting = []

    @torch.no_grad()
    def _end(self) -> None:
        """After backward: buckets of which a parameter got no gradient are sent as they are."""
        while self._next < len(self.buckets):
            self._send()
        self._collect()
        self._task = -1

    @torch.no_grad()
    def _keep(self, bucket: Bucket, shard: torch.Tensor, arrived: Sequence[bool]) -> None:
        present = bucket.present(shard, arrived)
        for piece, here in zip(bucket.pieces(shard), present, strict=True):
            if not here:
                piece.zero_()
        if bucket in self._kept:
            kept, before = self._kept[bucket]
            kept += shard.to(kept.device)
            present = [now or then for now, then in zip(present, before, strict=True)]
        elif self.home.is_apart(shard.device):
            kept = self.home.empty(shard.numel(), shard.dtype, shard.device).copy_(shard)
        else:
            kept = shard
        self._kept[bucket] = kept, present

    # ---- in the step

    def _mean_gradient(self, bucket: Bucket) -> tuple[torch.Tensor, list[bool]]:
        """What backward has left here; nothing when there was none since the last `zero_grad`."""
        if bucket not in self._kept:
            return bucket.own, [False] * len(bucket.params)
        return self._kept[bucket]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradient shards; with set_to_none=False they stay, as zeros.

        Also forgets what a backward that failed has left behind.
        """
        self._task, self._waiting = -1, []
        for bucket in self.buckets:
            bucket.forget_gradient()
        if set_to_none:
            self._kept = {}
        for kept, _ in self._kept.values():
            kept.zero_()
