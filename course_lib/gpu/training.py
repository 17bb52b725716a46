"""Notebooks 01, 03, 04, 05 and 10: steps of a GPT of nanoGPT's size, on one GPU and on several."""

from __future__ import annotations

import contextlib
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.gpu.clock import forget_peak, half, peak_bytes, reserved_bytes, seconds
from course_lib.gpu.experiment import Experiment, Row
from course_lib.models import GPT, PRESETS, GPTConfig, next_token_loss
from course_lib.runtime.backend import device


def on_device(config: GPTConfig) -> GPT:
    """A GPT whose weights are drawn where they are used, since drawing them on the host takes seconds."""
    with device():
        return GPT(config)


def steps(ways: list[str], preset: str, rows: int, repeats: int) -> list[Row]:
    """Time and memory of a step with AdamW in 16-bit arithmetic, with `rows` sequences on each GPU."""
    config, n, measured = PRESETS[preset], dist.get_world_size(), []
    tokens = torch.randint(config.vocab_size, (rows, config.context + 1), device=device())
    for way in ways:
        torch.manual_seed(0)
        model: nn.Module = on_device(config)
        cast = torch.autocast(device().type, half())
        if way == "DDP":
            model = DistributedDataParallel(model)
        elif way == "FSDP":
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

            policy = MixedPrecisionPolicy(param_dtype=half(), reduce_dtype=torch.float32)
            for unit in (*model.blocks, model):
                fully_shard(unit, mp_policy=policy)
            cast = contextlib.nullcontext()
        optimizer = torch.optim.AdamW(model.parameters())

        def step(
            model: nn.Module = model,
            optimizer: torch.optim.Optimizer = optimizer,
            cast: contextlib.AbstractContextManager = cast,
        ) -> None:
            with cast:
                # in float32, as under autocast, because FSDP's logits are in 16 bits
                loss = next_token_loss(model(tokens[:, :-1]).float(), tokens[:, 1:])
            loss.backward()  # fp16 would need a scaler to train, but takes the same time
            optimizer.step()
            optimizer.zero_grad()

        step()  # it makes the moments
        forget_peak()
        taken = seconds(step, repeats)
        of = {"way": way, "preset": preset, "batch": rows, "seq": config.context, "ranks": n}
        per_second = rows * config.context * n / taken
        measured += [
            Row(f"{way}: a step", taken, "s", {"kind": "step", **of}),
            Row(f"{way}: of all GPUs", per_second, "tokens/s", {"kind": "tokens", **of}),
            Row(f"{way}: tensors at the peak", peak_bytes(), "B", {"kind": "peak", **of}),
            Row(f"{way}: reserved for them", reserved_bytes(), "B", {"kind": "reserved", **of}),
        ]
    return measured


def phases(preset: str, rows: int, repeats: int) -> list[Row]:
    """Forward, backward and update of a step on one GPU."""
    config = PRESETS[preset]
    model = on_device(config)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(config.vocab_size, (rows, config.context + 1), device=device())

    def forward() -> torch.Tensor:
        with torch.autocast(device().type, half()):
            return next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])

    with_backward = seconds(lambda: forward().backward(), repeats, before=model.zero_grad)
    alone = seconds(forward, repeats)
    update = seconds(optimizer.step, repeats)
    return [
        Row("forward", alone, "s", {"kind": "forward"}),
        Row("backward", with_backward - alone, "s", {"kind": "backward"}),
        Row("AdamW", update, "s", {"kind": "update", "preset": preset}),
    ]


def overlap(preset: str, rows: int, megabytes: list[int], repeats: int) -> list[Row]:
    """Gradients averaged after backward, or in buckets while backward runs."""
    config = PRESETS[preset]
    tokens = torch.randint(config.vocab_size, (rows, config.context + 1), device=device())

    def backward(model: nn.Module) -> None:
        with torch.autocast(device().type, half()):
            loss = next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()

    model = on_device(config)
    whole = torch.zeros(sum(p.numel() for p in model.parameters()), device=device())

    def afterwards() -> None:
        backward(model)
        for param in model.parameters():
            dist.all_reduce(param.grad)

    nbytes = {"bytes": whole.nbytes, "ranks": dist.get_world_size()}
    measured = [
        Row("no message", seconds(partial(backward, model), repeats, before=model.zero_grad), "s",
            {"kind": "alone"}),
        Row("all gradients, in one message", seconds(lambda: dist.all_reduce(whole), repeats), "s",
            {"kind": "messages", **nbytes}),
        Row("each after backward", seconds(afterwards, repeats, before=model.zero_grad), "s",
            {"kind": "after"}),
    ]  # fmt: skip
    model.zero_grad()
    for size in megabytes:
        forget_peak()  # the last replica is gone before the next one is made
        replica = DistributedDataParallel(on_device(config), bucket_cap_mb=size)
        taken = seconds(partial(backward, replica), repeats, before=replica.zero_grad)
        sizes = str(replica._get_ddp_logging_data().get("rebuilt_bucket_sizes", ""))
        of = {"kind": "DDP", "buckets": len(sizes.split(","))}
        measured.append(Row(f"DDP, buckets of {size} MB", taken, "s", of))
        del replica
    return measured


EXERCISE = {"preset": "124M", "rows": 8, "repeats": 5}
TINY = {"preset": "0.1M", "rows": 2, "repeats": 1}
ONE_STEP = Experiment(
    "one step", "A step of GPT-2 small", 1, steps,
    {"ways": ["one GPU"], **EXERCISE}, {"ways": ["one GPU"], **TINY},
)  # fmt: skip
STEPS = Experiment(
    "steps", "A step of GPT-2 small on all GPUs", 2, steps,
    {"ways": ["DDP", "FSDP"], **EXERCISE}, {"ways": ["DDP", "FSDP"], **TINY},
)  # fmt: skip
PHASES = Experiment("phases", "The parts of a step", 1, phases, EXERCISE, TINY)
OVERLAP = Experiment(
    "overlap", "Gradients averaged while backward runs", 2, overlap,
    {"megabytes": [1, 25, 1000], **EXERCISE}, {"megabytes": [1], **TINY},
)  # fmt: skip
