"""Kept elsewhere: tensors leave the device when autograd keeps them, and return when backward needs them.

On a GPU they go to the host's memory over PCIe, at 32 GB/s each way for version 4 with 16 lanes. A block
keeps 34 bytes for each of T h and takes 24 T h^2 FLOPs. At h = 12,288 and 40 % of an A100's 312 TFLOP/s,
copying takes half as long as the block's forward, so a copy on its own stream could hide behind it. (Here it
does not.) Without a GPU, a file mapped into memory replaces the host. It shows the bytes and what is freed,
but says nothing about time.

Source: PyTorch's `torch.autograd.graph.save_on_cpu`.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


@dataclass
class Offloaded:
    """The tensors that left, with their bytes, and the tensors that came back."""

    tensors: int = 0
    nbytes: int = 0
    returned: int = 0


@dataclass
class _Elsewhere:
    """A tensor that left: its copy, and the device to which it must return."""

    copy: Tensor
    device: torch.device


@contextlib.contextmanager
def offload_saved(
    module: nn.Module | None = None, at_least: int = 1 << 16, folder: str | None = None
) -> Iterator[Offloaded]:
    """Within, tensors that autograd keeps are moved away, and copied back when backward needs them.

    module: its parameters stay, and so do views of them. at_least: smaller tensors also stay. folder: the
    place for the files that replace the host if there is no GPU. They have no names and are deleted with the
    tensors. A tensor kept by two operations moves twice, as with `save_on_cpu`. Yields the counts.
    """
    own = {param.untyped_storage()._cdata for param in module.parameters()} if module else set()
    counts = Offloaded()

    def pack(tensor: Tensor) -> Any:
        if tensor.nbytes < at_least or tensor.untyped_storage()._cdata in own:
            return tensor.detach()  # the tensor itself would keep its own graph alive
        counts.tensors += 1
        counts.nbytes += tensor.nbytes
        return _Elsewhere(_moved(tensor.detach(), folder), tensor.device)

    def unpack(kept: Any) -> Tensor:
        if not isinstance(kept, _Elsewhere):
            return kept
        counts.returned += 1
        return kept.copy.to(kept.device, copy=True)

    with saved_tensors_hooks(pack, unpack):
        yield counts


def _moved(tensor: Tensor, folder: str | None) -> Tensor:
    """A copy in the host's pinned memory, or, for a tensor on the CPU, a copy in a mapped file."""
    if tensor.device.type != "cpu":
        there = torch.empty_like(tensor, device="cpu", pin_memory=True)
    else:
        with tempfile.NamedTemporaryFile(dir=folder) as file:  # the mapping outlives the name
            there = torch.from_file(
                file.name, shared=True, size=tensor.numel(), dtype=tensor.dtype
            ).view(tensor.shape)
    return there.copy_(tensor)
