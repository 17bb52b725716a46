"""Data parallelism during backward: gradients leave in buckets while earlier layers still compute.

Backward runs from the last layer to the first, so the last layer's gradient is complete when most of the
work is still to be done. Sent at once, its time is hidden. One message for each parameter would pay too
much latency, and one for all can leave only at the end: buckets of some megabytes are between.

    layers    1   2   3   4
    buckets  [2] [1] [  0  ]          filled in reverse order of registration
    time      4 . 3 . 2 . 1 .         backward computes
                      0 0 0 1 1 2 2   buckets travel; what sticks out at the end is exposed

All ranks must start their all-reduces in one order, but their gradients need not be ready in one (a
branch that one rank's data takes): a bucket that is ready waits until all before it have left.

Bytes sent by each rank and step: 2 (N-1)/N of the gradients', as without buckets.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 13
(2020), sections 3.2.2 and 3.2.3: bucketing, overlap, order, unused parameters.

This file imports torch only.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

Group = dist.ProcessGroup | None

_hooked: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # their parameters have a hook already


class BucketedDataParallel(nn.Module):
    """Replicas of `module`, with gradients summed in buckets while backward runs.

    module: is wrapped, not copied; it stays at `.module`. At construction its parameters and buffers
    become those of the group's first rank. Buffers are not touched again: running statistics of a batch
    normalisation are each rank's own.
    bucket_bytes: no bucket exceeds it but that of a larger parameter. Each holds one dtype and device.
    find_unused_parameters: asks all ranks, in one small all-reduce, which parameters had a gradient
    anywhere; those that had none keep None, and an optimizer passes them by. Without it their gradient
    becomes 0: the right mean, but weight decay and momentum then move them.
    From its arrival until `finish_gradient_synchronization()` a gradient is in its bucket and `.grad` is
    None; afterwards `.grad` is a view of the bucket, which the next step overwrites.

    Raises TypeError for what is no nn.Module; ValueError when it is wrapped already or has nothing to
    train, a tensor has no storage, bucket_bytes < 1, or this rank is not in the group.
    """

    def __init__(
        self,
        module: nn.Module,
        bucket_bytes: int = 25 << 20,
        group: Group = None,
        find_unused_parameters: bool = False,
    ):
        super().__init__()
        _check_module(module)
        if any(inner in _hooked for inner in module.modules()):
            raise ValueError(
                "hooks of an earlier wrapper still take its gradients: wrap a module once"
            )
        if not bucket_bytes >= 1:
            raise ValueError(f"bucket_bytes={bucket_bytes!r}: a bucket holds at least 1 byte")
        self.module, self.group = module, group
        self.find_unused_parameters = find_unused_parameters
        self._synchronises = True
        self._backward_ran = False
        self._launched = 0  # buckets that have left in this step
        _broadcast_state(module, group)
        self._names: dict[torch.Tensor, str] = {p: name for name, p in _trainable(module).items()}
        self._buckets = _fill_buckets(reversed(self._names), bucket_bytes)
        self._bucket_of = {p: bucket for bucket in self._buckets for p in bucket.slots}
        for parameter in self._names:
            parameter.register_post_accumulate_grad_hook(self._gradient_arrived)
        _hooked.update(module.modules())

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in here only add to `.grad`; the next one outside sends the total."""
        before, self._synchronises = self._synchronises, False
        try:
            yield
        finally:
            self._synchronises = before

    @torch.no_grad()
    def finish_gradient_synchronization(self, count: float | None = None) -> None:
        """Wait for the buckets and make every `.grad` the mean over the ranks; call it on all ranks.

        count: how many samples or tokens the *sum* that was this rank's loss holds. The gradients become
        the sum over the ranks by the count of all: right where counts differ, and a mean of means is
        not. A rank without samples passes 0, and needs no backward. One all-reduce of 8 bytes more.
        Each rank must run equally many backward passes outside no_sync(); those after the first are
        added to it, in a second all-reduce of all buckets.

        Raises RuntimeError inside no_sync(), without a backward before, when all counts are 0, or for a
        parameter that was unfrozen after wrapping; ValueError for a negative count or a sparse gradient.
        """
        _check_finish(self._synchronises, count)
        self._check_backward(count)
        some = next(iter(self._names))
        self._send_the_rest()
        if any(p.grad is not None for p in self._names):  # came after their bucket had left
            self._send_again()
        used = dict.fromkeys(self._names, True)
        if self.find_unused_parameters:
            present = [p in self._bucket_of[p].present for p in used]
            used = dict(zip(used, _anywhere(present, some, self.group), strict=True))
        divisor = _divisor(count, some, self.group)
        for bucket in self._buckets:
            bucket.wait()
            bucket.flat.div_(divisor)  # while the next is under way
            for parameter, slot in bucket.slots.items():
                parameter.grad = slot if used[parameter] and parameter.requires_grad else None
            bucket.empty()
        self._launched, self._backward_ran = 0, False

    @torch.no_grad()
    def _gradient_arrived(self, parameter: torch.Tensor) -> None:
        """Backward has added the last of this pass to `parameter.grad`."""
        self._backward_ran = True
        bucket = self._bucket_of[parameter]
        if self._synchronises and parameter in bucket.missing:
            bucket.take(parameter, self._names[parameter])
            self._launch()

    def _launch(self) -> None:
        """Start the all-reduces of the next buckets in order, as far as they are complete."""
        for bucket in self._buckets[self._launched :]:
            if bucket.missing:
                break
            if bucket.flat.numel():
                bucket.work = dist.all_reduce(bucket.flat, group=self.group, async_op=True)
            self._launched += 1

    def _send_the_rest(self) -> None:
        """Take what arrived under no_sync() alone, and zeros where nothing did."""
        for bucket in self._buckets:
            for parameter in list(bucket.missing):
                bucket.take(parameter, self._names[parameter])
        self._launch()

    def _send_again(self) -> None:
        """Send what a further backward left in `.grad`, and add it to what is there."""
        for bucket in self._buckets:
            bucket.wait()
        before = [bucket.flat.clone() for bucket in self._buckets]
        for bucket in self._buckets:
            bucket.missing = set(bucket.slots)
        self._launched = 0
        self._send_the_rest()
        for bucket, total in zip(self._buckets, before, strict=True):
            bucket.wait()
            bucket.flat.add_(total)

    def _check_backward(self, count: float | None) -> None:
        if not self._backward_ran and count != 0:
            raise RuntimeError(NO_GRADIENT)
        for name, parameter in _trainable(self.module).items():
            if parameter not in self._names:
                raise RuntimeError(
                    f"{name} was missing or frozen when the module was wrapped: wrap later"
                )


class _Bucket:
    """Gradients of one dtype and device in one flat tensor, which travels as one message."""

    def __init__(self, parameters: Sequence[torch.Tensor]):
        sizes = [p.numel() for p in parameters]
        self.flat = parameters[0].new_zeros(sum(sizes), requires_grad=False)
        pieces = self.flat.split(sizes)
        self.slots = {p: piece.view(p.shape) for p, piece in zip(parameters, pieces, strict=True)}
        self.work: dist.Work | None = None
        self.empty()

    def empty(self) -> None:
        self.missing = set(self.slots)  # not taken yet
        self.present: set[torch.Tensor] = set()  # taken, and it was a gradient

    def take(self, parameter: torch.Tensor, name: str) -> None:
        """Move `parameter.grad` into its slot; zeros, if there is none."""
        slot, gradient = self.slots[parameter], parameter.grad
        if gradient is None:
            slot.zero_()
        else:
            _check_dense(name, gradient)
            if gradient.data_ptr() != slot.data_ptr():  # a gradient that was not reset is the slot
                slot.copy_(gradient)
            self.present.add(parameter)
            parameter.grad = None  # a further backward must not write into what is under way
        self.missing.discard(parameter)

    def wait(self) -> None:
        if self.work is not None:
            self.work.wait()
            self.work = None


def _fill_buckets(parameters: Iterable[torch.Tensor], bucket_bytes: int) -> list[_Bucket]:
    """Buckets of at most `bucket_bytes`, in the order in which they will be complete."""
    filled: list[list[torch.Tensor]] = []
    being_filled: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for parameter in parameters:
        kind = (parameter.dtype, parameter.device)
        held = being_filled.setdefault(kind, [])
        if held and sum(p.nbytes for p in held) + parameter.nbytes > bucket_bytes:
            filled.append(held)
            being_filled[kind] = held = []
        held.append(parameter)
    return [_Bucket(held) for held in [*filled, *being_filled.values()]]


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
