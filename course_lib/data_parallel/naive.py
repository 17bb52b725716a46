"""Data parallelism after backward: the gradients of all ranks are averaged once all are ready.

The gradient of a mean over a batch is the mean of the gradients of its parts. So if N replicas start equal,
each see a part of the batch, and average their gradients before each step, they stay equal forever. They
also take the same steps as one process with the whole batch.

    NaiveDataParallel   one all-reduce for each parameter, so P parameters pay P times the latency
    FlatDataParallel    one all-reduce in all, for which gradients are copied into one tensor and back

In both, each rank sends 2 (N-1)/N of the gradients' bytes per step. But it sends nothing until backward has
ended, so all of this time is exposed. `bucketed.py` hides it.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 13
(2020), section 3.2.1, for the naive solution; Stanford CS336 (2025), assignment 2, for naive against flat.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from .replicas import Group, Replicas, all_reduce, broadcast_state, dense_gradient


class NaiveDataParallel(Replicas):
    """Replicas of `module`, with one all-reduce for each parameter after backward.

    module, group, find_unused_parameters and errors: see `Replicas`.
    In a step, each rank sends 2 (N-1)/N of the gradients' bytes, in as many all-reduces as there are
    parameters that require a gradient. Scratch: none. Under `no_sync()` backward adds to `.grad`, as it
    also does outside. The context exists only so that one training loop fits all wrappers.
    """

    def __init__(
        self, module: nn.Module, group: Group = None, find_unused_parameters: bool = False
    ):
        super().__init__(module, group, find_unused_parameters)
        broadcast_state(module, group)

    @torch.no_grad()
    def finish_gradient_synchronization(self, count: float | None = None) -> None:
        """Make every `.grad` the mean over the ranks; call it on all ranks, after backward.

        count: for a loss that is a *sum*, how many samples or tokens it adds up on this rank. The
        gradients become the sum over all ranks, divided by the total count. This is right even if counts
        differ, whereas a mean of means is not. A rank without samples passes 0, and does not need a
        backward. The count takes one all-reduce of 8 bytes.

        Raises RuntimeError inside no_sync(), if no parameter has a gradient, or if all counts are 0;
        ValueError for a negative count or a sparse gradient.
        """
        present = {p: p.grad is not None for p in self.module.parameters() if p.requires_grad}
        self._check_finish(count, any(present.values()))
        # A parameter without a gradient on this rank counts as zeros, but also gets the mean.
        gradients = [dense_gradient(self.module, p) for p in self._used(present)]
        divisor = self._divisor(count)  # the number of ranks, unless there is a count
        self._sum_over_ranks(gradients)
        for gradient in gradients:
            gradient /= divisor

    def _sum_over_ranks(self, gradients: Iterable[torch.Tensor]) -> None:
        for gradient in gradients:
            all_reduce(gradient, self.group)  # the parameter's shape


class FlatDataParallel(NaiveDataParallel):
    """Replicas of `module`, with a single all-reduce after backward.

    Arguments, errors and bytes are the same as for `NaiveDataParallel`. Parameters of several dtypes or
    devices need one all-reduce for each kind. Scratch: a copy of the gradients. Copying them there and back
    takes time, but saves the latency of one message for each parameter.
    """

    def _sum_over_ranks(self, gradients: Iterable[torch.Tensor]) -> None:
        kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for gradient in gradients:
            kinds.setdefault((gradient.dtype, gradient.device), []).append(gradient)
        for alike in kinds.values():
            flat = torch.cat([gradient.flatten() for gradient in alike])  # (elements of all,)
            all_reduce(flat, self.group)
            pieces = flat.split([gradient.numel() for gradient in alike])
            for gradient, piece in zip(alike, pieces, strict=True):
                gradient.copy_(piece.view_as(gradient))
