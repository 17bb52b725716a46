"""Parameters held by stages on several ranks, with one value at the start and one gradient at the end.

An embedding tied to the head is used at both ends of the model, so its gradient has two terms, and each end
computes one of them. If a stage has two copies, each sees half of the microbatches and also computes one
term. The terms are added up once, when all backwards are done. With equal gradients, the optimizers keep the
values equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

Group = dist.ProcessGroup | None


class Shared(NamedTuple):
    """A parameter, and the ranks of the group that hold it, in the order of their first stages."""

    param: nn.Parameter
    ranks: tuple[int, ...]


@torch.no_grad()
def same_values(stages: Sequence[dict[str, Shared]], rank: int, group: Group = None) -> None:
    """Give shared parameters the values of their first holder, which sends P to every other.

    All holders must call it.
    """
    operations, received = [], []
    for _, (param, ranks) in _once(stages):
        if rank == ranks[0]:
            values = param.detach().contiguous()
            operations += [_operation(dist.isend, values, other, group) for other in ranks[1:]]
        else:
            values = torch.empty_like(param, memory_format=torch.contiguous_format)
            operations.append(_operation(dist.irecv, values, ranks[0], group))
            received.append((param, values))
    _exchange(operations)
    for param, values in received:
        param.copy_(values)


def take_gradients(stages: Sequence[dict[str, Shared]]) -> dict[str, Tensor | None]:
    """Take away the gradients from before, since they have been added up already."""
    earlier = {}
    for name, (param, _) in _once(stages):
        earlier[name], param.grad = param.grad, None
    return earlier


@torch.no_grad()
def add_gradients(
    stages: Sequence[dict[str, Shared]],
    earlier: dict[str, Tensor | None],
    rank: int,
    group: Group = None,
) -> None:
    """Add up the terms of all holders, and the gradients taken away by `take_gradients`.

    All holders must call it. Each sends its term, P bytes, to every other; as a rule there are two holders.
    """
    operations, terms = [], {}
    for name, (param, ranks) in _once(stages):
        own = torch.zeros_like(param) if param.grad is None else param.grad.contiguous()
        others = {other: torch.empty_like(own) for other in ranks if other != rank}
        for other, values in others.items():
            operations.append(_operation(dist.isend, own, other, group))
            operations.append(_operation(dist.irecv, values, other, group))
        terms[name] = {rank: own, **others}
    _exchange(operations)
    for name, (param, _) in _once(stages):
        # in one order on all ranks, so the sums are the same to the last bit
        total = sum(term for _, term in sorted(terms[name].items()))
        before = earlier[name]
        if param.requires_grad:  # a frozen one has no gradient, and an optimizer must not see zeros
            param.grad = total if before is None else before + total  # type: ignore[assignment]


def _once(stages: Sequence[dict[str, Shared]]) -> list[tuple[str, Shared]]:
    """The shared parameters, each once, in the same order on all ranks."""
    return sorted(
        {name: parameter for shared in stages for name, parameter in shared.items()}.items()
    )


def _operation(what, tensor: Tensor, rank: int, group: Group) -> dist.P2POp:
    return dist.P2POp(what, tensor, group=group, group_peer=rank)


def _exchange(operations: list[dist.P2POp]) -> None:
    """Run all operations together, so neither the order nor the backend can make them wait for each other."""
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
