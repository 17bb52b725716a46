"""The shared part of this package: a group's size, the two collectives, and arguments that are refused.

Messages carry contiguous rows, so the functions of this package ask for contiguous tensors. If they cannot
work with an argument, it is refused here, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None

# PyTorch 2.13 renames both and warns about the old names, but 2.6 knows only the old ones.
all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def group_size(group: Group) -> int:
    """The number of ranks in `group`; ValueError on a rank outside it."""
    if dist.get_rank(group) < 0:
        raise ValueError(
            f"rank {dist.get_rank()} is not in the group that it passed: only the group's own ranks "
            "may call. Guard the call with `if dist.get_rank() in ranks:`."
        )
    return dist.get_world_size(group)


@torch.no_grad()
def broadcast(tensor: Tensor, group: Group) -> None:
    """Give all ranks the values of the group's first rank, in place; the tensor can be a view."""
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim]:
            tensor = tensor.narrow(dim, 0, 1)  # of an expanded tensor each element once
    row = tensor.contiguous()
    dist.broadcast(row, group_src=0, group=group)
    if row.data_ptr() != tensor.data_ptr():
        tensor.copy_(row)


def message_device(tensors: Sequence[Tensor], group: Group) -> torch.device:
    """The device for a number in the group's messages: the first tensor's, if this rank has a tensor."""
    if tensors:
        return tensors[0].device
    on_gpu = dist.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def check_row(tensor: Tensor, name: str) -> None:
    """Require a dense, contiguous tensor of floating-point numbers; TypeError or ValueError otherwise."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; a torch.Tensor is expected")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} is {tensor.dtype}; a dtype of floating-point numbers is expected")
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise ValueError(
            f"{name} is not contiguous (strides {tensor.stride()}): a message is a row of memory. "
            f"Pass {name}.contiguous() to read from, and a new tensor to write into."
            if tensor.layout == torch.strided
            else f"{name} is {tensor.layout}; a dense tensor is expected"
        )


def check_fit(times: int, **tensors: Tensor) -> None:
    """The first of the two tensors must hold `times` as many elements as the second, on the same device."""
    (name, whole), (other, part) = tensors.items()
    for row, called in ((whole, name), (part, other)):
        check_row(row, called)
    if whole.numel() != times * part.numel() or whole.device != part.device:
        raise ValueError(
            f"{name} has {whole.numel()} elements on {whole.device}, {other} {part.numel()} on "
            f"{part.device}: {name} must have {times} x {part.numel()}, on the same device. Pad a size that "
            "the number of ranks does not divide."
        )
