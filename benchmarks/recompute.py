"""Checkpoints, a loss in chunks and steps in backward: bytes, FLOPs, times and messages.

Bytes are those of tensors (`course_lib.scorecard.costs`), FLOPs those of products under the MATH attention.
Times are medians of steps in turns, on one thread. Messages are from the ledger.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.checkpoint import checkpoint as of_pytorch

from benchmarks.table import Row
from course_lib import facts, launch
from course_lib.checks.rank.peak import Peak
from course_lib.models import GPT, GPTConfig
from course_lib.planning import SavedBytes
from course_lib.recompute import (
    checkpoint,
    chunked_loss,
    lazy_checkpoint,
    run_segments,
    step_in_backward,
)
from course_lib.scorecard import costs
from course_lib.tensor_parallel import parallelize_gpt

CONFIG = GPTConfig(layers=8, heads=4, width=128, context=256)
BATCH, SEQ = 4, 256
TOKENS, VOCAB, WIDTH = 1024, 16384, 128  # of the loss
STEPS = 9
Step = Callable[[], Any]


def medians(steps: dict[str, Step]) -> dict[str, float]:
    """Seconds of each step, in turns."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(STEPS):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


# ---- checkpoints


class Blocks:
    """Forward and backward through the blocks of a GPT, by a way to checkpoint them."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = GPT(CONFIG)
        self.x, self.positions = torch.randn(BATCH, SEQ, CONFIG.width), torch.arange(SEQ)

    def forward(self, every: int = 0, kind: Any = checkpoint) -> Tensor:
        x = self.x.clone().requires_grad_()
        if every:
            return run_segments(self.model.blocks, x, self.positions, every=every, checkpoint=kind)
        for block in self.model.blocks:
            x = block(x, self.positions)
        return x

    def step(self, every: int = 0, kind: Any = checkpoint) -> None:
        self.model.zero_grad()
        self.forward(every, kind).sum().backward()

    def bytes(self, every: int = 0, kind: Any = checkpoint) -> tuple[int, int]:
        """Kept after forward, and at most in a step beside the parameters."""
        self.model.zero_grad()
        resident = sum(param.nbytes for param in self.model.parameters())
        with costs(*self.model.parameters()) as spent:
            with SavedBytes(self.model) as saved:
                y = self.forward(every, kind)
            y.sum().backward()
        return saved.total, spent.peak_bytes - resident

    def flops(self, every: int = 0, kind: Any = checkpoint) -> int:
        self.model.zero_grad()
        with sdpa_kernel(SDPBackend.MATH), Peak([]) as counted:
            self.forward(every, kind).sum().backward()
        return counted.flops


def products_kept(ctx: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
    keep = operation in products
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoints() -> Iterator[Row]:
    blocks, mega = Blocks(), 1e6
    plain = blocks.bytes()
    each = {every: blocks.bytes(every) for every in (1, 2, 3, 4, 8)}
    where = f"{CONFIG.layers} blocks of width {CONFIG.width}, {BATCH * SEQ:,} tokens"
    kept, peak = each[1]
    yield Row(
        f"bytes kept after forward, `checkpoint` each block, {where}", "no checkpoint", kept / plain[0],
        1 / 12, detail=f"{kept / mega:.1f} MB, {plain[0] / mega:.1f} MB",
    )  # fmt: skip
    yield Row(
        "peak of a step, the same", "no checkpoint", peak / plain[1], 1 / 3,
        detail=f"{peak / mega:.1f} MB, {plain[1] / mega:.1f} MB",
    )  # fmt: skip
    by_rule = each[3][1]
    yield Row(
        "peak of a step, best distance (1)", "the square root of the blocks (3)", peak / by_rule, 0.75,
        detail=", ".join(f"{every}: {most / mega:.1f}" for every, (_, most) in each.items()) + " MB",
    )  # fmt: skip
    flops = {
        "no checkpoint": blocks.flops(),
        "`checkpoint`": blocks.flops(1),
        "`lazy_checkpoint`": blocks.flops(1, lazy_checkpoint),
    }
    for name in ("`checkpoint`", "`lazy_checkpoint`"):
        yield Row(
            f"FLOPs of products, {name} each block", "no checkpoint",
            flops[name] / flops["no checkpoint"], 4 / 3 + 1e-9,
        )  # fmt: skip
    contexts = partial(create_selective_checkpoint_contexts, products_kept)
    selective = partial(of_pytorch, use_reentrant=False, context_fn=contexts)
    most = blocks.bytes(1, selective)[1]
    work = blocks.flops(1, selective) / flops["no checkpoint"]
    yield Row(
        "peak of a step, PyTorch's selective checkpoint, products kept", "no checkpoint",
        most / plain[1], 1.0, detail=f"{most / mega:.1f} MB, FLOPs {work:.3f} times",
    )  # fmt: skip
    took = medians(
        {
            "plain": blocks.step,
            "ours": partial(blocks.step, 1),
            "lazy": partial(blocks.step, 1, lazy_checkpoint),
            "reentrant": partial(blocks.step, 1, partial(of_pytorch, use_reentrant=True)),
            "theirs": partial(blocks.step, 1, partial(of_pytorch, use_reentrant=False)),
        }
    )
    for ours, theirs, name, against, reach in (
        ("ours", "plain", "`checkpoint` each block", "no checkpoint", 1.45),
        (
            "ours",
            "reentrant",
            "`checkpoint` each block",
            "`torch.utils.checkpoint`, reentrant",
            1.1,
        ),
        ("lazy", "theirs", "`lazy_checkpoint` each block", "`torch.utils.checkpoint`", 1.1),
    ):
        yield Row(
            f"time of a step, {name}", against, took[ours] / took[theirs], reach,
            detail=f"{took[ours] * 1e3:.0f} ms, {took[theirs] * 1e3:.0f} ms",
        )  # fmt: skip


# ---- the loss


def plain_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(hidden @ weight.t(), targets)


def losses() -> Iterator[Row]:
    torch.manual_seed(0)
    targets = torch.randint(VOCAB, (TOKENS,))
    leaves = torch.randn(TOKENS, WIDTH), torch.randn(VOCAB, WIDTH) / 10
    runs = {"plain": plain_loss} | {c: partial(chunked_loss, chunks=c) for c in (8, 64)}

    def step(run: Any) -> list[Tensor]:
        hidden, weight = (leaf.clone().requires_grad_() for leaf in leaves)
        loss = run(hidden, weight, targets)
        loss.backward()
        return [loss.detach(), hidden.grad, weight.grad]  # type: ignore[list-item]

    peaks, wanted = {}, step(plain_loss)
    for name, run in runs.items():
        with costs(targets) as spent:
            results = step(run)
        peaks[name] = spent.peak_bytes
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(results, wanted, strict=True))
    took = medians({str(name): partial(step, run) for name, run in runs.items()})
    for chunks, bytes_reach, time_reach in ((8, 1 / 4, 1.2), (64, 1 / 5, 2.5)):
        yield Row(
            f"peak of `chunked_loss`, {chunks} chunks, {TOKENS:,} tokens, vocabulary {VOCAB:,}",
            "all logits", peaks[chunks] / peaks["plain"], bytes_reach,
            detail=f"{peaks[chunks] / 1e6:.1f} MB, {peaks['plain'] / 1e6:.1f} MB",
        )  # fmt: skip
        yield Row(
            f"time of `chunked_loss`, {chunks} chunks, forward and backward", "all logits",
            took[str(chunks)] / took["plain"], time_reach,
            detail=f"{took[str(chunks)] * 1e3:.0f} ms, {took['plain'] * 1e3:.0f} ms",
        )  # fmt: skip


# ---- the optimizer


def in_backward() -> Iterator[Row]:
    peaks = []
    make = partial(torch.optim.SGD, lr=0.1, foreach=False)
    for early in (False, True):
        layers = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(8)))
        held = sum(param.nbytes for param in layers.parameters())
        optimizer = make(layers.parameters())
        if early:
            step_in_backward(layers.parameters(), make)
        with costs(*layers.parameters()) as spent:
            layers(torch.ones(1, 256)).sum().backward()
            if not early:
                optimizer.step()
        peaks.append(spent.peak_bytes / held)
    yield Row(
        "peak of a step of SGD in backward, 8 layers", "the step after backward", peaks[1] / peaks[0], 0.6,
        detail=f"{peaks[1]:.2f} P, {peaks[0]:.2f} P",
    )  # fmt: skip


# ---- messages


def tensor_parallel(kind: str) -> None:
    kinds = {
        "`checkpoint`": checkpoint,
        "`lazy_checkpoint`": lazy_checkpoint,
        "`torch.utils.checkpoint`": partial(of_pytorch, use_reentrant=False),
    }
    model = parallelize_gpt(GPT(GPTConfig(layers=2, heads=4, width=32, context=16)))
    x = torch.randn(1, 16, 32, requires_grad=True)
    dist.barrier()
    run_segments(
        model.blocks, x, torch.arange(16), every=1, checkpoint=kinds[kind]
    ).sum().backward()


def messages() -> Iterator[Row]:
    for kind, closed in (
        ("`checkpoint`", "full"),
        ("`lazy_checkpoint`", "early stop"),
        ("`torch.utils.checkpoint`", "early stop"),
    ):
        run = launch(tensor_parallel, kind, world_size=2, backend="gloo", timeout=120)
        names = [operation.op for operation in run.ledger.operations(0)]
        after = len(names) - names[::-1].index("barrier")
        counted, wanted = (
            names[after:].count("all_reduce") / 2,
            facts.tensor_parallel_all_reduces(closed),
        )
        yield Row(
            f"all-reduces of a tensor-parallel block with {kind}, 2 ranks", "closed form",
            counted / wanted, 1.0, detail=f"{counted:.0f}; without checkpoints 4",
        )  # fmt: skip


def rows() -> Iterator[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from checkpoints()
        yield from losses()
        yield from in_backward()
    finally:
        torch.set_num_threads(threads)
    yield from messages()
