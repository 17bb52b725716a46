"""Where a shard and its optimizer state are kept: on the device, in host memory, or in a file.

The optimizer's step reads and writes each of its bytes once and computes next to nothing, so it can run
where memory is cheap. ZeRO-Offload runs it in host memory and on the host's processor. ZeRO-Infinity also
uses disks. Here this means a memory-mapped file, which the operating system reads and writes as needed.

    offload=None            on the parameters' device
    offload="cpu"           in host memory, page-locked if there is a GPU, so that copies do not wait
    offload="/some/folder"  in files that are mapped into memory, as MappedFile(folder)

Source: Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", USENIX ATC 2021; Rajbhandari
et al., "ZeRO-Infinity: Breaking the GPU Memory Wall for Extreme Scale Deep Learning", SC 2021.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch

from .shards import Home


class HostMemory(Home):
    """Host memory. Parameters on the CPU are already in it, so they are not moved."""

    def is_apart(self, device: torch.device) -> bool:
        return device.type != "cpu"

    def empty(self, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(numel, dtype=dtype, pin_memory=device.type == "cuda")


class MappedFile(Home):
    """Memory-mapped files in `folder`, which is made if it is missing.

    Space is reserved when a file is made, so that a full disk raises an error here instead of ending the
    process later. A file loses its name once it is mapped (`ls` does not show it), so its space is free
    again when the process ends, in whatever way.

    nbytes: how many bytes have been mapped so far.

    Raises OSError if the folder cannot be made or the disk is full.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.nbytes = 0

    def is_apart(self, device: torch.device) -> bool:
        return True

    def empty(self, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if numel == 0:
            return torch.empty(0, dtype=dtype)
        nbytes = numel * dtype.itemsize
        descriptor, name = tempfile.mkstemp(prefix="shard-", suffix=".bin", dir=self.folder)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, nbytes)
            mapped = torch.from_file(name, shared=True, size=numel, dtype=dtype)
        finally:
            os.close(descriptor)
            os.unlink(name)
        self.nbytes += nbytes
        return mapped

    def keeps(self, tensor: torch.Tensor) -> bool:
        return tensor.dim() == 0 or tensor.untyped_storage().filename is not None


Place = str | os.PathLike[str] | Home | None  # of an argument `offload`


def home(offload: Place) -> Home:
    """The memory named by an argument `offload`; TypeError for anything else."""
    if offload is None:
        return Home()
    if isinstance(offload, Home):
        return offload
    if offload == "cpu":
        return HostMemory()
    if isinstance(offload, str | os.PathLike):
        return MappedFile(offload)
    raise TypeError(
        f"offload is None, 'cpu', the path of a folder or a MappedFile, not {offload!r}"
    )


def keep_state(optimizer: torch.optim.Optimizer, where: Home) -> None:
    """Move the states an optimizer made in its first step to the place `where` the shards are kept.

    From then on, the optimizer writes them there in place.
    """
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and not where.keeps(value):
                moved = where.empty(value.numel(), value.dtype, value.device)
                state[name] = moved.copy_(value)
