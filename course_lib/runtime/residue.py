"""The traces a task can leave in a rank that is kept for the next task.

Ranks over NCCL serve several calls. A function replaced in `torch.distributed`, a default device or a switch
for TF32 would reach from one cell into the next, so a rank in which one of these changed is not kept.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type)


class Residue(NamedTuple):
    """The state that is compared before and after a task."""

    functions: dict[
        tuple[str, str], Callable
    ]  # by module and name: the functions and classes of PyTorch
    settings: tuple[Any, ...]

    @classmethod
    def now(cls) -> Residue:
        modules = (dist, c10d, torch, torch.nn.functional)
        functions = {
            (module.__name__, name): value
            for module in modules
            for name, value in list(vars(module).items())
            if type(value)
            in FUNCTIONS  # asked of the type: some of PyTorch's names warn when they are touched
        }
        return cls(functions, settings())

    def unchanged(self) -> bool:
        """Whether everything is still as it was. Functions that came in addition were imported meanwhile."""
        now = Residue.now()
        same = (now.functions.get(name) is value for name, value in self.functions.items())
        return self.settings == now.settings and all(same)


def settings() -> tuple[Any, ...]:
    """PyTorch's switches that change the results or the device of later code. (A task sets the dtype.)"""
    return (
        str(torch.get_default_device()),
        torch.is_grad_enabled(),
        torch.is_anomaly_enabled(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
        torch.cuda.current_device() if torch.cuda.is_initialized() else None,
        torch.cuda.current_stream().cuda_stream if torch.cuda.is_initialized() else None,
    )


def free_gpu_memory() -> None:
    """Give back the task's memory on the GPU, and restart its count of memory."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
