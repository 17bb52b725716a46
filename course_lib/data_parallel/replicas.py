"""The frame of every wrapper: equal replicas, no_sync, the options of a step, arguments that are refused.

The gradients are sent by `naive.py` and `bucketed.py`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

Group = dist.ProcessGroup | None

UNINITIALIZED = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)


class Replicas(nn.Module):
    """A wrapper of `module`, of which every rank of `group` has a replica.

    module: it is wrapped, not copied, and stays at `.module`. At construction its parameters and buffers
    get the values of the group's first rank. Buffers are not synchronised again, so each rank has its own
    running statistics of a batch normalisation.
    find_unused_parameters: ask all ranks, in one small all-reduce, which parameters had a gradient on any
    rank. All others keep None, so an optimizer skips them. Without this option, their gradient becomes 0,
    which is the right mean, but then weight decay and momentum move them.

    Raises TypeError if module is not an nn.Module; ValueError if it is wrapped already, has no parameter
    that requires a gradient, has a tensor without storage, or if this rank is not in the group.
    """

    def __init__(self, module: nn.Module, group: Group, find_unused_parameters: bool):
        super().__init__()
        check_module(module)
        self.module, self.group = module, group
        self.find_unused_parameters = find_unused_parameters
        self.synchronises = True

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """In here, backward only adds to `.grad`. The next backward outside sends the total."""
        before, self.synchronises = self.synchronises, False
        try:
            yield
        finally:
            self.synchronises = before

    # ---- the options of `finish_gradient_synchronization`

    def _used(self, present: Mapping[nn.Parameter, bool]) -> list[nn.Parameter]:
        """The parameters to which the step gives a gradient.

        present: for each parameter, whether this rank has a gradient for it.

        All parameters are used, or, with find_unused_parameters, only parameters for which some rank has a
        gradient. Asking takes one all-reduce with one byte for each parameter.
        """
        used = list(present.values())
        if self.find_unused_parameters:
            flags = torch.tensor(used, dtype=torch.uint8, device=next(iter(present)).device)
            dist.all_reduce(flags, dist.ReduceOp.MAX, group=self.group)
            used = flags.bool().tolist()
        else:
            used = [True] * len(used)
        return [p for p, here in zip(present, used, strict=True) if here and p.requires_grad]

    def _divisor(self, count: float | None) -> float:
        """The divisor of the sum over the ranks, which is their number or the total of their counts."""
        if count is None:
            return dist.get_world_size(self.group)
        device = next(p.device for p in self.module.parameters() if p.requires_grad)
        total = torch.tensor(float(count), dtype=torch.float64, device=device)
        dist.all_reduce(total, group=self.group)
        if total == 0:
            raise RuntimeError("count is 0 on every rank: there is no sample to take the mean over")
        return total.item()

    def _check_finish(self, count: float | None, has_gradients: bool) -> None:
        if not self.synchronises:
            raise RuntimeError(
                "finishing inside no_sync(): run the last microbatch, and finish, outside"
            )
        if count is not None and not count >= 0:
            raise ValueError(f"count={count!r}: this rank's loss sums up 0 samples or more")
        if not has_gradients and count != 0:
            raise RuntimeError(
                "no parameter has a new gradient: call backward() on the loss before "
                "finish_gradient_synchronization(). A rank without samples passes count=0."
            )


@torch.no_grad()
def broadcast_state(module: nn.Module, group: Group) -> None:
    """Give parameters and buffers, frozen ones included, the values of the group's first rank."""
    if dist.get_rank(group) < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in the group that it passed")
    first = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)[0]
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.numel():
            once = without_repeats(tensor)
            row = once.contiguous()
            dist.broadcast(row, src=first, group=group)
            if row.data_ptr() != once.data_ptr():
                once.copy_(row)


def without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """A view with each element of an expanded tensor once, because only such a view can be written."""
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def all_reduce(tensor: torch.Tensor, group: Group) -> None:
    """dist.all_reduce for any tensor. It copies a view with gaps, which gloo would read without gaps."""
    if tensor.numel():
        row = tensor.contiguous()
        dist.all_reduce(row, group=group)
        if row is not tensor:
            tensor.copy_(row)


def dense_gradient(module: nn.Module, parameter: nn.Parameter) -> torch.Tensor:
    """The parameter's gradient, which is set to zeros if there is none.

    Raises ValueError for a sparse gradient.
    """
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    if parameter.grad.layout != torch.strided:
        name = next(name for name, p in module.named_parameters() if p is parameter)
        raise ValueError(
            f"the gradient of {name} is {parameter.grad.layout}; only dense gradients can be added up by an "
            "all-reduce: make its embedding with sparse=False"
        )
    return parameter.grad


# ---- arguments that are refused


def check_module(module: nn.Module) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(f"module is a {type(module).__name__}; a torch.nn.Module is expected")
    for inner in module.modules():
        ours = hasattr(inner, "finish_gradient_synchronization")
        if ours or isinstance(inner, nn.parallel.DistributedDataParallel):
            raise ValueError(f"module is wrapped by {type(inner).__name__} already: wrap it once")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if holder := getattr(tensor, "held_by", ""):
            raise ValueError(
                f"a {holder} holds {name} already: wrap a module, or a part of it, once"
            )
        if getattr(tensor, "shared_out", False):
            raise ValueError(
                f"{name} holds experts of this rank alone. Gradients of experts are summed over "
                "fewer ranks than others, and this wrapper has one group for all. `course_lib.mesh` has both"
            )
        if tensor.is_meta or isinstance(tensor, UNINITIALIZED):
            raise ValueError(
                f"{name} has no storage yet (meta or lazy): give it one before wrapping"
            )
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError("module has no parameter that requires a gradient: use it as it is")


def check_buckets(module: nn.Module, bucket_bytes: int) -> None:
    check_module(module)
    if not bucket_bytes >= 1:
        raise ValueError(f"bucket_bytes={bucket_bytes!r}: a bucket holds at least 1 byte")


def check_frozen(module: nn.Module, known: Container[nn.Parameter]) -> None:
    """Check that every parameter that requires a gradient did so when the module was wrapped."""
    for name, p in module.named_parameters():
        if p.requires_grad and p not in known:
            raise RuntimeError(
                f"{name} was missing or frozen when the module was wrapped: wrap later"
            )
