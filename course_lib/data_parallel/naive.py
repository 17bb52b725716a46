"""Data parallelism after backward: the gradients of all ranks are averaged when all are there.

The gradient of a mean over a batch is the mean of the gradients of its parts. So N replicas that start
equal, see a part of the batch each, and average their gradients before each step stay equal for ever,
and make the step that one process would make on the whole batch.

    NaiveDataParallel   one all-reduce for each parameter: P of them pay P times the latency
    FlatDataParallel    one all-reduce in all: the gradients are copied into one tensor and back

Both send 2 (N-1)/N of the gradients' bytes by each rank and step, and nothing before backward has ended:
all of that time is exposed. `bucketed.py` hides it.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 13
(2020), section 3.2.1, the naive solution; Stanford CS336 (2025), assignment 2, for naive against flat.

This file imports torch only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

Group = dist.ProcessGroup | None


class NaiveDataParallel(nn.Module):
    """Replicas of `module`, with one all-reduce for each parameter after backward.

    module: is wrapped, not copied; it stays at `.module`. At construction its parameters and buffers
    become those of the group's first rank. Buffers are not touched again: running statistics of a batch
    normalisation are each rank's own.
    find_unused_parameters: asks all ranks, in one small all-reduce, which parameters had a gradient
    anywhere; those that had none keep None, and an optimizer passes them by. Without it their gradient
    becomes 0: the right mean, but weight decay and momentum then move them.

    A step sends 2 (N-1)/N of the gradients' bytes by each rank, in as many all-reduces as parameters
    require a gradient. Scratch: none.

    Raises TypeError when module is no nn.Module; ValueError when it is wrapped already, has no parameter
    that requires a gradient or one without storage, or this rank is not in the group.
    """

    def __init__(
        self, module: nn.Module, group: Group = None, find_unused_parameters: bool = False
    ):
        super().__init__()
        _check_module(module)
        self.module, self.group = module, group
        self.find_unused_parameters = find_unused_parameters
        self._synchronises = True
        _broadcast_state(module, group)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in here only accumulate, as all of this class do until `finish` is called.

        It is there so that one training loop fits all wrappers; finishing in here is refused.
        """
        before, self._synchronises = self._synchronises, False
        try:
            yield
        finally:
            self._synchronises = before

    @torch.no_grad()
    def finish_gradient_synchronization(self, count: float | None = None) -> None:
        """Make every `.grad` the mean over the ranks; call it on all ranks, after backward.

        count: how many samples or tokens the *sum* that was this rank's loss holds. The gradients become
        the sum over all ranks, divided by the count of all ranks: right when counts differ, where a mean
        of means is not. A rank without samples passes 0, and needs no backward. One all-reduce of 8 bytes.

        Raises RuntimeError inside no_sync(), when no parameter has a gradient, or all counts are 0;
        ValueError for a negative count or a sparse gradient.
        """
        _check_finish(self._synchronises, count)
        parameters = _trainable(self.module)
        if count != 0 and all(p.grad is None for p in parameters.values()):
            raise RuntimeError(NO_GRADIENT)
        present = [p.grad is not None for p in parameters.values()]
        if self.find_unused_parameters:
            present = _anywhere(present, next(iter(parameters.values())), self.group)
        else:
            present = [True] * len(present)
        gradients = []
        for (name, parameter), here in zip(parameters.items(), present, strict=True):
            if here:
                gradients.append(_dense_gradient(name, parameter))
        divisor = _divisor(count, next(iter(parameters.values())), self.group)
        self._sum_over_ranks(gradients)
        for gradient in gradients:
            gradient.div_(divisor)

    def _sum_over_ranks(self, gradients: Sequence[torch.Tensor]) -> None:
        for gradient in gradients:
            if gradient.numel():
                row = gradient.contiguous()  # gloo reads a view with gaps as if it had none
                dist.all_reduce(row, group=self.group)
                if row is not gradient:
                    gradient.copy_(row)


class FlatDataParallel(NaiveDataParallel):
    """Replicas of `module`, with a single all-reduce after backward.

    Arguments, errors and bytes are those of `NaiveDataParallel`; parameters of several dtypes or devices
    need one all-reduce for each kind. Scratch: the gradients once more, and the time to copy them there
    and back, which is what N messages of latency are traded for.
    """

    def _sum_over_ranks(self, gradients: Sequence[torch.Tensor]) -> None:
        kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for gradient in gradients:
            kinds.setdefault((gradient.dtype, gradient.device), []).append(gradient)
        for alike in kinds.values():
            flat = torch.cat([gradient.reshape(-1) for gradient in alike])
            if flat.numel():
                dist.all_reduce(flat, group=self.group)
            pieces = flat.split([gradient.numel() for gradient in alike])
            for gradient, piece in zip(alike, pieces, strict=True):
                gradient.copy_(piece.view(gradient.shape))


def _dense_gradient(name: str, parameter: nn.Parameter) -> torch.Tensor:
    """The parameter's gradient; zeros, if this rank has none while others may have."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    _check_dense(name, parameter.grad)
    return parameter.grad


# ---- plumbing: the same in naive.py and bucketed.py, so that each can be copied out alone

UNINITIALIZED = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)
NO_GRADIENT = (
    "no parameter has a new gradient: call backward() on the loss before "
    "finish_gradient_synchronization(). A rank without samples passes count=0."
)


def _check_module(module: nn.Module) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(f"module is a {type(module).__name__}; a torch.nn.Module is expected")
    for inner in module.modules():
        ours = hasattr(inner, "finish_gradient_synchronization")
        if ours or isinstance(inner, nn.parallel.DistributedDataParallel):
            raise ValueError(f"module is wrapped by {type(inner).__name__} already: wrap it once")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.is_meta or isinstance(tensor, UNINITIALIZED):
            raise ValueError(
                f"{name} has no storage yet (meta or lazy): give it one before wrapping"
            )
    if not _trainable(module):
        raise ValueError("module has no parameter that requires a gradient: use it as it is")


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that require a gradient, by name; one that is used twice (tied) stands once."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


@torch.no_grad()
def _broadcast_state(module: nn.Module, group: Group) -> None:
    """Make parameters and buffers, also frozen ones, those of the group's first rank."""
    if dist.get_rank(group) < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in the group that it passed")
    first = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)[0]
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.numel():
            row = tensor.detach().contiguous()
            dist.broadcast(row, src=first, group=group)
            if row.data_ptr() != tensor.data_ptr():
                tensor.copy_(row)


def _check_finish(synchronises: bool, count: float | None) -> None:
    if not synchronises:
        raise RuntimeError(
            "finishing inside no_sync(): run the last microbatch, and finish, outside"
        )
    if count is not None and not count >= 0:
        raise ValueError(f"count={count!r}: this rank's loss sums up 0 samples or more")


def _check_dense(name: str, gradient: torch.Tensor) -> None:
    if gradient.layout != torch.strided:
        raise ValueError(
            f"the gradient of {name} is {gradient.layout}; only dense gradients can be added up by an "
            "all-reduce: make its embedding with sparse=False"
        )


def _divisor(count: float | None, like: torch.Tensor, group: Group) -> float:
    """What the sum over the ranks is divided by: their number, or the count of all of them."""
    if count is None:
        return dist.get_world_size(group)
    total = torch.tensor(float(count), dtype=torch.float64, device=like.device)
    dist.all_reduce(total, group=group)
    if total == 0:
        raise RuntimeError("count is 0 on every rank: there is no sample to take the mean over")
    return total.item()


def _anywhere(present: list[bool], like: torch.Tensor, group: Group) -> list[bool]:
    """For each parameter whether any rank has a gradient for it: one byte each, in one all-reduce."""
    flags = torch.tensor(present, dtype=torch.uint8, device=like.device)
    dist.all_reduce(flags, dist.ReduceOp.MAX, group=group)
    return flags.bool().tolist()
