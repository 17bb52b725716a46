"""Forward and backward of a tensor-parallel MLP and block against DTensor's `parallelize_module`, in one run.

    ParallelMLP                          up column-wise, down row-wise
    a block of the GPT, its attention    the same plan for it; attention's input is made a DTensor once, so
    and MLP exchanged                    that both add up its gradient in one all-reduce instead of three

Each pair starts from the same weights and gets the same input, in turns, the ledger off on both sides. Before
anything is timed, outputs and all gradients are compared, in float64. Bytes sent and bytes kept for
backward are compared with the closed forms in runs of their own, and the loss of a GPT over 50 steps with
one rank's.
"""

from __future__ import annotations

import os
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from benchmarks.table import Row
from course_lib import facts, launch, tensor_parallel
from course_lib.data import batch, library_text
from course_lib.models import GPT, MLP, Block, GPTConfig, next_token_loss

CONFIG = GPTConfig(width=512, heads=8, layers=1, context=64)
BATCH = 2
ROUNDS, REPEATS = 3, 15  # launches, and passes of each within one
WORLDS = (2, 4)
REACH = 0.9
SEQUENCES: tuple[tensor_parallel.Sequences, ...] = (None, "keep", "regather")
TRAINED = GPTConfig(context=64, layers=2, heads=4, width=64)
STEPS = 50
MLP_PLAN: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def ours(what: str, module: Any) -> nn.Module:
    if what == "MLP":
        return tensor_parallel.parallelize_mlp(module)
    module.attention = tensor_parallel.parallelize_attention(module.attention)
    module.mlp = tensor_parallel.parallelize_mlp(module.mlp)
    return module


def theirs(what: str, module: nn.Module) -> nn.Module:
    plan = MLP_PLAN
    if what == "block":
        whole = (Replicate(), None)
        plan = {f"mlp.{name}": style for name, style in MLP_PLAN.items()}
        plan["attention"] = PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole)
        for name in ("query", "key", "value"):
            plan[f"attention.{name}"] = ColwiseParallel()
        plan["attention.out"] = RowwiseParallel()
    return parallelize_module(module, init_device_mesh("cpu", (dist.get_world_size(),)), plan)


def made(what: str, kind: Callable[[str, nn.Module], nn.Module], dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    module = MLP(CONFIG) if what == "MLP" else Block(CONFIG)
    return kind(what, module.to(dtype))


def one_pass(what: str, module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output and the gradient of a copy of `x`."""
    x = x.clone().requires_grad_()
    y = module(x) if what == "MLP" else module(x, torch.arange(x.shape[1]))
    y.square().mean().backward()
    assert x.grad is not None
    return y.detach(), x.grad


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """The whole gradients of all parameters; our modules lose their values."""
    tensors: dict[str, Tensor] = {}
    for name, param in module.named_parameters():
        assert param.grad is not None
        if isinstance(param.grad, DTensor):
            tensors[name] = param.grad.full_tensor()
        else:
            param.data = param.grad
    return {**tensor_parallel.full_state_dict(module), **tensors}


def inputs(dtype: torch.dtype) -> Tensor:
    """The same on every rank."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, CONFIG.context, CONFIG.width, dtype=dtype, generator=generator)


def largest_error(what: str) -> float:
    """The largest error of output and gradients, relative to the largest of each, in float64."""
    losses = []
    for kind in (ours, theirs):
        module = made(what, kind, torch.float64)
        y, for_x = one_pass(what, module, inputs(torch.float64))
        flat = [gradient.flatten() for _, gradient in sorted(gradients(module).items())]
        losses.append(
            (y, for_x, torch.cat(flat))
        )  # in one: that of a key's bias is nothing but rounding
    pairs = zip(*losses, strict=True)
    return max(float((mine - other).abs().max() / other.abs().max()) for mine, other in pairs)


def race(what: str) -> tuple[float, list[float], list[float]]:
    """The largest error; seconds of the passes of ours and of theirs, in an order that all ranks share."""
    warnings.simplefilter("ignore")
    error = largest_error(what)
    x = inputs(torch.float32)
    modules = [made(what, kind, torch.float32) for kind in (ours, theirs)]
    taken: list[list[float]] = [[], []]
    order = [0, 1]
    shuffle = random.Random(0).shuffle
    for repeat in range(REPEATS + 2):
        shuffle(order)
        for contender in order:
            dist.barrier()
            began = time.perf_counter()
            one_pass(what, modules[contender], x)
            if repeat >= 2:  # the first ones make objects that later ones find
                taken[contender].append(time.perf_counter() - began)
    return error, taken[0], taken[1]


def medians(what: str, world_size: int) -> tuple[float, float]:
    """Seconds of a pass of ours and of theirs; it takes as long as on its slowest rank."""
    taken: tuple[list[float], list[float]] = ([], [])
    kept = os.environ.get("COURSE_LEDGER")
    os.environ["COURSE_LEDGER"] = "off"
    try:
        for number in range(ROUNDS):
            runs = launch(
                race, what, world_size=world_size, backend="gloo", timeout=300, seed=number
            )
            if not runs[0][0] < 1e-9:
                raise RuntimeError(
                    f"output or gradients differ from DTensor's by {runs[0][0]:.1g} in float64: no time is "
                    "worth comparing"
                )
            for side in (0, 1):
                taken[side].extend(map(max, zip(*(times[side] for _, *times in runs), strict=True)))
    finally:
        if kept is None:
            os.environ.pop("COURSE_LEDGER")
        else:
            os.environ["COURSE_LEDGER"] = kept
    return statistics.median(taken[0]), statistics.median(taken[1])


# ---- bytes, memory, and the loss


def pass_between_barriers(sequence: tensor_parallel.Sequences) -> int:
    """One pass of a block, marked in the ledger; returns the bytes that it kept for backward."""
    block = tensor_parallel.parallelize_gpt(GPT(CONFIG), sequence=sequence).blocks[0]
    positions = torch.arange(CONFIG.context)
    mine = CONFIG.context // (dist.get_world_size() if sequence else 1)
    x = torch.randn(BATCH, mine, CONFIG.width, requires_grad=True)
    dist.barrier()
    with tensor_parallel.saved_for_backward(block.parameters()) as saved:
        y = block(x, positions)
    y.square().mean().backward()
    dist.barrier()
    return saved.total


def exact(sequence: tensor_parallel.Sequences, world_size: int) -> Iterator[Row]:
    """Bytes that a block sends and keeps, in the worst rank, against the closed forms."""
    kept_bytes = launch(pass_between_barriers, sequence, world_size=world_size, backend="gloo")
    tokens = BATCH * CONFIG.context
    sent = sum(
        facts.tensor_parallel_layer_bytes(CONFIG, world_size, tokens, 4, direction, sequence)
        for direction in ("forward", "backward")
    )
    worst = 0.0
    for rank in range(world_size):
        operations = kept_bytes.ledger.operations(rank)
        begin, end = [i for i, operation in enumerate(operations) if operation.op == "barrier"][-2:]
        off = abs(sum(operation.bytes_sent for operation in operations[begin:end]) - sent) / sent
        worst = max(worst, off)
    where = f"block, sequence={sequence!r}, {world_size} ranks, float32"
    yield Row(
        f"bytes sent in forward and backward: {where}", "closed form", 1 + worst, 1.0,
        detail=f"{sent:,.0f} bytes a rank",
    )  # fmt: skip
    kept = facts.saved_layer_bytes(CONFIG, BATCH, CONFIG.context, world_size, sequence)
    off = max(abs(nbytes - kept) / kept for nbytes in kept_bytes)
    yield Row(
        f"bytes kept for backward: {where}", "closed form", 1 + off, 1.02,
        detail=f"{kept_bytes[0]:,}, {kept:,.0f} bytes a rank",
    )  # fmt: skip


def train(parallel: bool, sequence: tensor_parallel.Sequences = None) -> list[float]:
    """The losses of a small GPT in float32, by SGD, which hides no wrong scale."""
    torch.manual_seed(0)
    model: Any = GPT(TRAINED)
    if parallel:
        model = tensor_parallel.parallelize_gpt(model, sequence=sequence)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    text, losses = library_text(), []
    for step in range(STEPS):
        tokens, targets = batch(text, step, batch_size=4, length=TRAINED.context)
        optimizer.zero_grad()
        if parallel:
            size = TRAINED.vocab_size
            loss = tensor_parallel.vocab_parallel_cross_entropy(
                model(tokens), targets, vocab_size=size
            )
        else:
            loss = next_token_loss(model(tokens), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def curve(world_size: int) -> Row:
    """The largest difference from one rank's loss, over all steps, ranks and forms."""
    alone = train(False)
    worst = 0.0
    for sequence in SEQUENCES:
        for losses in launch(
            train, True, sequence, world_size=world_size, backend="gloo", timeout=120
        ):
            worst = max(worst, *(abs(a - b) for a, b in zip(losses, alone, strict=True)))
    return Row(
        f"loss of the parallel GPT over {STEPS} steps, {world_size} ranks, float32, units of 1e-4",
        "one rank's", worst / 1e-4, 1.0, detail=f"{worst:.1g}; from {alone[0]:.2f} to {alone[-1]:.2f}",
    )  # fmt: skip


def rows() -> Iterator[Row]:
    for world_size in WORLDS:
        for what in ("MLP", "block"):
            mine, other = medians(what, world_size)
            yield Row(
                f"{what}, width {CONFIG.width}, forward and backward, {world_size} ranks, gloo",
                "`parallelize_module`",
                mine / other,
                REACH,
                detail=f"{mine * 1e3:.1f} ms, {other * 1e3:.1f} ms",
            )
    for sequence in SEQUENCES:
        yield from exact(sequence, WORLDS[-1])
    yield curve(WORLDS[-1])
