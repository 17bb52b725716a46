"""Which backend carries the messages, and on which device the tensors live."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

BACKENDS = ("gloo", "nccl")
ALONE = "alone"  # of a task that needs no other rank: no process group, see `alone`
_told: set[int] = set()


def gpu_count() -> int:
    """GPUs of this machine, counted without starting CUDA in this process (by NVML)."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    return torch.cuda.device_count()


def choose(world_size: int, backend: str | None = None) -> str:
    """ "nccl" with one GPU a rank when there are enough, else "gloo" on the CPU.

    `backend`, then the environment variable COURSE_BACKEND, override. ValueError when "nccl" is asked
    for and cannot be had: NCCL before 2.30 has one rank a GPU.
    """
    asked = backend or os.environ.get("COURSE_BACKEND") or None
    if asked not in (None, *BACKENDS):
        where = "backend=" if backend else "the environment variable COURSE_BACKEND is "
        raise ValueError(
            f"{where}{asked!r} is not known; use 'gloo' (CPU) or 'nccl' (one GPU a rank)"
        )
    gpus = gpu_count()
    nccl = dist.is_nccl_available() and gpus > 0
    if asked == "nccl":
        if not nccl:
            raise ValueError(
                "backend 'nccl' needs NVIDIA GPUs and a PyTorch built with CUDA; here PyTorch sees "
                f"{gpus} GPUs. Leave `backend` out to run on the CPU with gloo."
            )
        if gpus < world_size:
            raise ValueError(
                f"{world_size} ranks over NCCL need {world_size} GPUs, one each; this machine has {gpus}. "
                f"Use world_size={gpus}, or backend='gloo' to run {world_size} ranks on the CPU."
            )
        return "nccl"
    if asked == "gloo" or not nccl:
        return "gloo"
    if gpus < world_size:
        if world_size not in _told:
            _told.add(world_size)
            print(
                f"{world_size} ranks, {gpus} GPU{'s' * (gpus > 1)}: running on the CPU with gloo."
            )
        return "gloo"
    return "nccl"


def device() -> torch.device:
    """The device of this rank's tensors.

    In a rank: its own GPU under NCCL, else the CPU. Outside `launch` and `torchrun`: what the rank of
    a world of one would get.
    """
    if dist.is_available() and dist.is_initialized():
        if dist.get_backend() == "nccl":
            return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        return torch.device("cpu")
    return torch.device("cuda", 0) if choose(1) == "nccl" else torch.device("cpu")
