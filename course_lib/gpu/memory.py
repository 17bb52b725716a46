"""Notebooks 04 and 09: bytes a GPU keeps, and bytes it fetches from the host or computes again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib.gpu.clock import forget_peak, half, peak_bytes, seconds
from course_lib.gpu.experiment import Experiment, Row
from course_lib.gpu.training import on_device
from course_lib.models import GPTConfig
from course_lib.runtime.backend import device


def host_copies(nbytes: int, repeats: int) -> list[Row]:
    """Copies to the host's memory and back: pageable, the default, and pinned, which cannot move."""
    rows, on_gpu = [], torch.zeros(nbytes, dtype=torch.uint8, device=device())
    for kind in ("pageable", "pinned"):
        on_host = torch.zeros(nbytes, dtype=torch.uint8)
        if kind == "pinned" and device().type == "cuda":
            on_host = on_host.pin_memory()
        for way, target, source in (
            ("to the host", on_host, on_gpu),
            ("to the GPU", on_gpu, on_host),
        ):
            taken = seconds(
                lambda target=target, source=source: target.copy_(source, non_blocking=True),
                repeats,
            )
            rows.append(Row(f"{way}, {kind}", nbytes / taken, "B/s", {"kind": kind, "way": way}))
    return rows


def states(width: int, layers: int) -> list[Row]:
    """All tensors a rank keeps after a step of AdamW in float32, by stage of ZeRO."""
    from course_lib.zero import Zero1Optimizer, Zero2Optimizer, Zero3Module

    n, rows = dist.get_world_size(), []
    for stage in range(4):
        forget_peak()
        before = torch.cuda.memory_allocated() if device().type == "cuda" else 0
        model: nn.Module = nn.Sequential(
            *(nn.Linear(width, width, bias=False) for _ in range(layers))
        ).to(device())
        count = layers * width * width
        if stage == 3:
            model = Zero3Module(model, units=list(model))
        sharded = {1: Zero1Optimizer, 2: Zero2Optimizer}.get(stage)
        optimizer = (
            sharded(model.parameters(), torch.optim.AdamW)
            if sharded
            else torch.optim.AdamW(model.parameters())
        )
        x = torch.ones(1, width, device=device())
        model(x).sum().backward()
        optimizer.step()
        # The gradients count, because they are kept until the next step.
        kept = torch.cuda.memory_allocated() - before if device().type == "cuda" else None
        rows.append(Row(f"stage {stage}", kept, "B", {"params": count, "ranks": n, "stage": stage}))
        del model, optimizer, sharded, x
    return rows


def kept_or_not(
    width: int, layers: int, rows: int, seq: int, repeats: int, yours: Callable | None = None
) -> list[Row]:
    """Seconds and peak for blocks of a GPT, with activations kept, computed again or kept by the host."""
    config = GPTConfig(layers=layers, heads=max(1, width // 64), width=width, context=seq)
    blocks = on_device(config).to(half()).blocks
    x = torch.randn(rows, seq, width, device=device(), dtype=half(), requires_grad=True)
    places = torch.arange(seq, device=device())
    weights = {param.untyped_storage().data_ptr() for param in blocks.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cuda" or tensor.untyped_storage().data_ptr() in weights:
            return tensor
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return pinned.copy_(tensor, non_blocking=True)

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device(), non_blocking=True)

    to_host = partial(torch.autograd.graph.saved_tensors_hooks, pack, unpack)
    plain = contextlib.nullcontext
    ways: dict[str, tuple[Callable, Callable[[], Any]]] = {
        "kept": (lambda block, y: block(y, places), plain),
        "computed again": (
            lambda block, y: checkpoint(block, y, places, use_reentrant=False),
            plain,
        ),
        "on the host, pinned": (lambda block, y: block(y, places), to_host),
    }
    if yours:
        ways["your checkpoint"] = (lambda block, y: yours(block, y, places), plain)
    measured = []
    for name, (run, context) in ways.items():

        def step(run: Callable = run, context: Callable[[], Any] = context) -> None:
            y = x
            with context():
                for block in blocks:
                    y = run(block, y)
            y.sum().backward()

        def forget() -> None:
            blocks.zero_grad()
            x.grad = None

        step()
        forget()
        forget_peak()
        taken = seconds(step, repeats, before=forget)
        of = {"way": name, "width": width, "layers": layers, "tokens": rows * seq}
        measured += [
            Row(f"{name}: a step", taken, "s", {"kind": "step", **of}),
            Row(f"{name}: peak", peak_bytes(), "B", {"kind": "peak", **of}),
        ]
    return measured


def masks(width: int, yours: Callable | None = None) -> list[Row]:
    """How far gradients behind dropout are apart, with a checkpoint and without."""

    def layers(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5).sin()

    def gradient(run: Callable) -> torch.Tensor:
        torch.manual_seed(0)  # of the CPU and of the GPU
        x = torch.ones(width, width, device=device(), requires_grad=True)
        run(layers, x).sum().backward()
        assert x.grad is not None
        return x.grad

    ways = {"PyTorch's": partial(checkpoint, use_reentrant=False), "yours": yours}
    exact, rows = gradient(lambda function, x: function(x)), []
    for name, run in ways.items():
        if run:
            off = (gradient(run) - exact).abs().max() / exact.abs().max()
            rows.append(Row(f"{name}: gradients are off by", off.item(), "x", {"way": name}))
    return rows


HOST_COPIES = Experiment(
    "host copies", "Between GPU and host", 1, host_copies,
    {"nbytes": 1 << 30, "repeats": 5}, {"nbytes": 1 << 12, "repeats": 2},
)  # fmt: skip
STATES = Experiment(
    "states", "The memory of a rank after a step", 2, states,
    {"width": 4096, "layers": 16}, {"width": 16, "layers": 2},
)  # fmt: skip
KEPT_OR_NOT = Experiment(
    "kept or not", "Activations of a step", 1, kept_or_not,
    {"width": 2048, "layers": 8, "rows": 4, "seq": 1024, "repeats": 5},
    {"width": 32, "layers": 2, "rows": 1, "seq": 8, "repeats": 1},
)  # fmt: skip
MASKS = Experiment("masks", "Dropout behind a checkpoint", 1, masks, {"width": 1024}, {"width": 16})
