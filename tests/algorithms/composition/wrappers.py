"""Programs of the wrappers of whole models: replicas, the stages of ZeRO, and hybrid sharding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import fsdp, zero
from course_lib.data_parallel import BucketedDataParallel, NaiveDataParallel

from .programs import MAX_NORM, OPTIONS, Trainer, a_batch, counted, make, sgd


class Naive(Trainer):
    """With masked targets the wrapper divides by the number of all ranks' targets."""

    wrapper: type = NaiveDataParallel

    def build(self, seed: int) -> None:
        self.model, self.sums = self.wrapper(make(self.plan, seed)), self.plan.masked
        self.optimizer = sgd(self.model.parameters())

    def finish(self, number: int) -> None:
        y = a_batch(self.plan, self.seed, number)[1].tensor_split(self.n)[self.rank]
        count = counted(y) if self.sums else None
        cast(Any, self.model).finish_gradient_synchronization(count)

    def clip(self) -> float:
        return float(nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM))

    def weights(self) -> dict[str, Tensor]:
        return cast(nn.Module, self.model.module).state_dict()

    def load(self, state: Any) -> None:
        cast(nn.Module, self.model.module).load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])


class Bucketed(Naive):
    wrapper = partial(BucketedDataParallel, bucket_bytes=800)  # type: ignore[assignment]


class Zero1(Trainer):
    wrapper: Callable[..., torch.optim.Optimizer] = zero.Zero1Optimizer

    def build(self, seed: int) -> None:
        self.model = make(self.plan, seed)
        wrapper = type(self).wrapper
        self.optimizer = wrapper(self.model.parameters(), torch.optim.SGD, **OPTIONS)

    def no_sync(self) -> Any:
        return cast(Any, self.optimizer).no_sync()

    def clip(self) -> float:
        optimizer = cast(zero.Zero1Optimizer, self.optimizer)
        optimizer.average_gradients()
        return fsdp.clip_grad_norm_(optimizer.shards, MAX_NORM)


class Zero2(Zero1):
    wrapper = partial(zero.Zero2Optimizer, bucket_bytes=800)


class Zero3(Trainer):
    def build(self, seed: int) -> None:
        self.model = zero.Zero3Module(make(self.plan, seed))
        self.optimizer = sgd(self.model.parameters())

    def weights(self) -> dict[str, Tensor]:
        return cast(Any, self.model).full_state_dict()

    def saved(self) -> Any:
        return self.weights(), cast(Any, self.model).optimizer_state_dict(self.optimizer)

    def load(self, state: Any) -> None:
        model = cast(zero.Zero3Module, self.model)
        model.load_full_state_dict(state[0])
        model.load_optimizer_state_dict(self.optimizer, state[1])


class Prefetched(Trainer):
    def build(self, seed: int) -> None:
        self.model = fsdp.PrefetchedModule(make(self.plan, seed))
        self.optimizer = sgd(self.model.parameters())

    def weights(self) -> dict[str, Tensor]:
        return cast(Any, self.model).full_state_dict()

    def saved(self) -> Any:
        return fsdp.full_state_dict(self.model, self.optimizer)

    def load(self, state: Any) -> None:
        fsdp.load_full_state_dict(self.model, state, self.optimizer)


class Hybrid(Trainer):
    """Shards inside islands, replicas across: two islands of two ranks, or one of all."""

    def build(self, seed: int) -> None:
        self.model, g = make(self.plan, seed), 2 if self.n == 4 else self.n
        for param in self.model.parameters():
            dist.broadcast(param.detach(), 0)
        shards, replicas = fsdp.hybrid_groups(self.n, g)
        groups = [cast(dist.ProcessGroup, dist.new_group(ranks)) for ranks in shards + replicas]
        self.island = groups[self.rank // g]
        self.equals = groups[len(shards) + self.rank % g]
        self.g, self.place = g, self.rank % g
        self.params = [param for param in self.model.parameters() if param.requires_grad]
        self.cut()

    def cut(self) -> None:
        own = zero.flatten_and_shard(self.params, self.g)[self.place].clone()
        self.shard = nn.Parameter(own)
        self.optimizer = sgd([self.shard])

    def finish(self, number: int) -> None:
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        row = torch.cat(zero.flatten_and_shard(gradients, self.g))
        self.shard.grad = torch.empty_like(self.shard)
        fsdp.hybrid_reduce(self.shard.grad, row, self.island, self.equals)
        self.model.zero_grad()

    def clip(self) -> float:
        return fsdp.clip_grad_norm_([self.shard], MAX_NORM, self.island, self.equals)

    @torch.no_grad()
    def update(self) -> None:
        super().update()
        row = self.shard.new_empty(self.g * self.shard.numel())
        fsdp.arguments.all_gather(row, self.shard.detach(), group=self.island)
        begin = 0
        for param in self.params:
            param.copy_(row[begin : begin + param.numel()].view_as(param))
            begin += param.numel()

    def load(self, state: Any) -> None:
        self.model.load_state_dict(state[0])
        self.cut()
        self.optimizer.load_state_dict(state[1])
