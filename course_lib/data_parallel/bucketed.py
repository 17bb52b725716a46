"""Data parallelism during backward: gradients are sent in buckets while earlier layers still compute.

Backward runs from the last layer to the first, so the last layer's gradient is complete while most of the
work remains to be done. If it is sent immediately, its time is hidden. But one message for each parameter
would pay too much latency, and a single message for all can be sent only at the end. Buckets of some
megabytes are the compromise.

    layers    1   2   3   4
    buckets  [2] [1] [  0  ]          filled in reverse order of registration
    time      4 . 3 . 2 . 1 .         backward computes
                      0 0 0 1 1 2 2   buckets travel; the time after backward is exposed

All ranks must start their all-reduces in the same order, but their gradients might be ready in different
orders, for example if only one rank's data takes a branch. So a bucket that is ready waits until all buckets
before it have been sent.

Each rank sends 2 (N-1)/N of the gradients' bytes per step, as without buckets.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 13
(2020), sections 3.2.2 and 3.2.3, on bucketing, overlap, order and unused parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from .replicas import (
    Group,
    Replicas,
    broadcast_state,
    check_buckets,
    check_frozen,
    dense_gradient,
)


class BucketedDataParallel(Replicas):
    """Replicas of `module`, whose gradients are averaged in buckets while backward runs.

    module, group, find_unused_parameters and errors: see `Replicas`.
    bucket_bytes: the largest size of a bucket, except that a larger parameter gets a larger bucket.
    ValueError if it is below 1. A bucket holds one dtype and device.
    From its arrival until `finish_gradient_synchronization()`, a gradient is in its bucket and `.grad` is
    None. Afterwards `.grad` is a view of the bucket, which the next step overwrites.
    """

    def __init__(
        self,
        module: nn.Module,
        bucket_bytes: int = 25 << 20,
        group: Group = None,
        find_unused_parameters: bool = False,
    ):
        check_buckets(module, bucket_bytes)
        super().__init__(module, group, find_unused_parameters)
        broadcast_state(module, group)
        parameters = [p for p in module.parameters() if p.requires_grad]
        self.buckets = [Bucket(held) for held in fill(reversed(parameters), bucket_bytes)]
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.slots}
        self._begin()
        for p in self.bucket_of:
            p.register_post_accumulate_grad_hook(self._arrived)
            p.held_by = type(self).__name__  # pyright: ignore[reportAttributeAccessIssue]

    @torch.no_grad()
    def finish_gradient_synchronization(self, count: float | None = None) -> None:
        """Wait for the buckets and make every `.grad` the mean over the ranks; call it on all ranks.

        count: see `NaiveDataParallel`; it takes one more all-reduce, of 8 bytes. All ranks must run equally
        many backward passes outside no_sync(). The gradients of all passes after the first are added in a
        second all-reduce of all buckets.

        Raises RuntimeError inside no_sync(), if no backward has run, if all counts are 0, or if a
        parameter was unfrozen after wrapping; ValueError for a negative count or a sparse gradient.
        """
        self._check_finish(count, self._backward_ran)
        check_frozen(self.module, self.bucket_of)
        self._send_the_rest()
        if any(p.grad is not None for p in self.bucket_of):  # they came after their bucket was sent
            self._send_again()
        present = {p: p in bucket.present for p, bucket in self.bucket_of.items()}
        used = set(self._used(present))
        divisor = self._divisor(count)  # the number of ranks, unless there is a count
        for bucket, work in zip(self.buckets, self.under_way, strict=True):
            work.wait()
            bucket.flat /= divisor  # (elements of the bucket,), while the next is under way
            for p, slot in bucket.slots.items():
                p.grad = slot if p in used else None  # the parameter's shape
            bucket.present.clear()
        self._begin()

    def _begin(self) -> None:
        for bucket in self.buckets:
            bucket.missing = set(bucket.slots)
        self.under_way = []  # the handles of the buckets that have been sent
        self._backward_ran = False

    @torch.no_grad()
    def _arrived(self, p: nn.Parameter) -> None:
        """The hook that runs as soon as backward has finished `p.grad` in this pass."""
        self._backward_ran = True
        bucket = self.bucket_of[p]
        if self.synchronises and p in bucket.missing:
            bucket.take(p, self.module)
            self._launch()

    def _launch(self) -> None:
        """Start the next buckets in order, as far as they are complete."""
        for bucket in self.buckets[len(self.under_way) :]:
            if bucket.missing:
                break
            self.under_way.append(dist.all_reduce(bucket.flat, group=self.group, async_op=True))

    def _send_the_rest(self) -> None:
        """Fill the buckets with gradients that arrived only under no_sync(), or with zeros, and send them."""
        for bucket in self.buckets:
            for p in list(bucket.missing):
                bucket.take(p, self.module)
        self._launch()

    def _send_again(self) -> None:
        """Add the gradients of a further backward from `.grad`, with a second message for each bucket."""
        totals = []
        for bucket, work in zip(self.buckets, self.under_way, strict=True):
            work.wait()
            totals.append(bucket.flat.clone())
        self._begin()
        self._send_the_rest()
        for bucket, work, total in zip(self.buckets, self.under_way, totals, strict=True):
            work.wait()
            bucket.flat += total


class Bucket:
    """Gradients of one dtype and device in one flat tensor, which travels as one message.

    slots: each parameter's part of `flat`, in the parameter's shape.
    missing: parameters whose gradient has not been taken in this step.
    present: parameters whose gradient was taken and was not None.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]):
        sizes = [p.numel() for p in parameters]
        self.flat = parameters[0].new_zeros(sum(sizes), requires_grad=False)
        pieces = self.flat.split(sizes)
        self.slots = {p: piece.view(p.shape) for p, piece in zip(parameters, pieces, strict=True)}
        self.missing: set[nn.Parameter] = set()
        self.present: set[nn.Parameter] = set()

    def take(self, p: nn.Parameter, module: nn.Module) -> None:
        """Move `p.grad` into its slot, or write zeros if there is none."""
        slot = self.slots[p]
        if p.grad is None:
            slot.zero_()
        else:
            gradient = dense_gradient(module, p)
            if gradient.data_ptr() != slot.data_ptr():  # a gradient that was not reset is the slot
                slot.copy_(gradient)
            self.present.add(p)
            p.grad = None  # a further backward must not write into a bucket under way
        self.missing.discard(p)


def fill(parameters: Iterable[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Lists of parameters of one dtype and device, of at most `bucket_bytes` unless one parameter is larger.

    They are in the order in which the gradients will be complete.
    """
    full: list[list[nn.Parameter]] = []
    being_filled: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for p in parameters:
        held = being_filled.setdefault((p.dtype, p.device), [])
        nbytes = sum(other.nbytes for other in held)
        if nbytes and nbytes + p.nbytes > bucket_bytes:  # no bucket without elements
            full.append(held.copy())
            held.clear()
        held.append(p)
    return [*full, *being_filled.values()]
