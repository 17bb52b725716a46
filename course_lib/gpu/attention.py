"""Notebook 08: attention by each kernel of the GPU, and a block of the ring next to its message."""

from __future__ import annotations

import re

import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from course_lib.gpu.clock import allocated_bytes, forget_peak, half, peak_bytes, seconds
from course_lib.gpu.experiment import Experiment, Row
from course_lib.runtime.backend import device

KERNELS = {
    "the matrix": SDPBackend.MATH,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
}


def kernels(lengths: list[int], heads: int, features: int, repeats: int) -> list[Row]:
    """Seconds of causal attention, forward and backward, and the peak above q, k and v.

    A T4 has no flash kernel.
    """
    measured = []
    for name, kernel in KERNELS.items():
        for seq in lengths:
            q, k, v = (
                torch.randn(
                    1, heads, seq, features, device=device(), dtype=half(), requires_grad=True
                )
                for _ in range(3)
            )

            def step(
                q: torch.Tensor = q,
                k: torch.Tensor = k,
                v: torch.Tensor = v,
                kernel: SDPBackend = kernel,
            ) -> None:
                with sdpa_kernel(kernel):
                    scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

            def forget(tensors: tuple = (q, k, v)) -> None:
                for tensor in tensors:
                    tensor.grad = None

            taken, peak = None, None
            try:
                step()
                forget()
                forget_peak()
                before = allocated_bytes()  # q, k and v, and what libraries keep for themselves
                taken = seconds(step, repeats, before=forget)
                peak = before and (peak_bytes() or 0) - before
            except torch.OutOfMemoryError:
                pass  # the matrix does not fit, so None
            except RuntimeError as error:
                if not re.search("No available kernel|No viable backend", str(error)):
                    raise
            of = {"kernel": name, "seq": seq}
            measured.append(Row(f"{name}, {seq:,} tokens", taken, "s", {"kind": "step", **of}))
            measured.append(Row(f"{name}, {seq:,} tokens: peak", peak, "B", {"kind": "peak", **of}))
    return measured


def ring(lengths: list[int], heads: int, features: int, repeats: int) -> list[Row]:
    """A block of attention, `tokens` queries to as many keys, and the message with the next keys."""
    rank, n, measured = dist.get_rank(), dist.get_world_size(), []
    for tokens in lengths:
        q, k, v = torch.randn(3, 1, heads, tokens, features, device=device(), dtype=half())
        arriving = torch.empty_like(torch.stack((k, v)))
        keys = torch.stack((k, v))

        def pass_on(keys: torch.Tensor = keys, arriving: torch.Tensor = arriving) -> None:
            works = dist.batch_isend_irecv([
                dist.P2POp(dist.isend, keys, (rank + 1) % n),
                dist.P2POp(dist.irecv, arriving, (rank - 1) % n),
            ])  # fmt: skip
            for work in works:
                work.wait()

        block = seconds(lambda q=q, k=k, v=v: scaled_dot_product_attention(q, k, v), repeats)
        of = {"tokens": tokens, "width": heads * features}
        measured.append(Row(f"{tokens:,} tokens: a block", block, "s", {"kind": "block", **of}))
        message = seconds(pass_on, repeats)
        of |= {"bytes": keys.nbytes}
        measured.append(
            Row(f"{tokens:,} tokens: its message", message, "s", {"kind": "message", **of})
        )
    return measured


ATTENTION = Experiment(
    "attention", "Attention by its kernel", 1, kernels,
    {"lengths": [4096, 8192, 16384], "heads": 16, "features": 64, "repeats": 5},
    {"lengths": [32, 64], "heads": 2, "features": 16, "repeats": 1},
)  # fmt: skip
RING = Experiment(
    "ring", "A block of the ring and its message", 2, ring,
    {"lengths": [256, 1024, 4096, 16384], "heads": 16, "features": 64, "repeats": 10},
    {"lengths": [16, 32], "heads": 2, "features": 16, "repeats": 1},
)  # fmt: skip
