"""Attention in tiles against PyTorch's flash kernel, and a ring of two ranks against one rank.

    tiled_attention    against the CPU's flash kernel in scaled_dot_product_attention, one thread each
    ring_attention     of two ranks against tiled_attention on one of them while the other waits: the same
                       work, a core each. Under a causal mask dealt out as zigzag, and in succession, which
                       should take 2 - 1/P times as long

Forward and backward, in turns within one launch, the ledger off. Before anything is timed, outputs and
gradients are compared in float64. Peak memory is counted from the operations, bytes by the ledger.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from benchmarks.table import Row
from course_lib import context_parallel, facts, launch
from course_lib.context_parallel import (
    LAYOUTS,
    ContextParallelGPT,
    ring_attention,
    tiled_attention,
    ulysses_attention,
    zigzag,
)
from course_lib.data import batch, library_text
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.scorecard import costs

HEADS, HEAD_DIM = 2, 64
SEQ = 4096
RING_SEQ = 8192  # with fewer, the threads that move the messages take a visible share of two cores
REPEATS = 5
SIDE_BY_SIDE = "each the whole"  # no rank helps another: the cost of two busy cores
LENGTHS = (1024, 2048, 4096, 8192)
TRAINED = GPTConfig(context=64, layers=2, heads=4, width=64, positions="rotary")
STEPS = 50

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def draw(seq: int, dtype: torch.dtype = torch.float32, heads: int = HEADS) -> list[Tensor]:
    """q, k, v and the gradient of the output, the same on every rank."""
    generator = torch.Generator().manual_seed(1)
    shape = (4, 1, seq, heads, HEAD_DIM)
    return list(torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype))


def one_pass(attend: Attend, tensors: list[Tensor]) -> list[Tensor]:
    """The output and the gradients of q, k and v."""
    *inputs, grad = tensors
    q, k, v = (x.detach().clone().requires_grad_() for x in inputs)
    out = attend(q, k, v)
    (out * grad).sum().backward()
    return [out.detach(), *(x.grad for x in (q, k, v) if x.grad is not None)]


def seconds(attend: Attend, tensors: list[Tensor]) -> float:
    began = time.perf_counter()
    one_pass(attend, tensors)
    return time.perf_counter() - began


def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def must_agree(computed: list[Tensor], exact: list[Tensor]) -> None:
    """RuntimeError if output or gradients differ, relative to the largest of each."""
    for ours, other in zip(computed, exact, strict=True):
        if not float((ours - other).abs().max() / other.abs().max()) < 1e-9:
            raise RuntimeError("results differ in float64: no time is worth comparing")


@contextmanager
def ledger_off() -> Iterator[None]:
    kept = os.environ.get("COURSE_LEDGER")
    os.environ["COURSE_LEDGER"] = "off"
    try:
        yield
    finally:
        os.environ.pop("COURSE_LEDGER")
        if kept is not None:
            os.environ["COURSE_LEDGER"] = kept


# ---- times


def race_of_kernels() -> dict[bool, tuple[float, float]]:
    """Median seconds of tiles and of PyTorch's kernel, by causal."""
    times = {}
    for causal in (False, True):
        ours, theirs = partial(tiled_attention, causal=causal), partial(sdpa, causal=causal)
        exact = draw(300, torch.float64)
        must_agree(one_pass(ours, exact), one_pass(theirs, exact))
        tensors = draw(SEQ)
        pairs = [(seconds(ours, tensors), seconds(theirs, tensors)) for _ in range(REPEATS)]
        times[causal] = tuple(map(statistics.median, zip(*pairs, strict=True)))
    return times


def race_of_ranks() -> dict[str, float]:
    """This rank's seconds of one rank alone (on rank 0), of both side by side, and of rings.

    Of each the least is taken, as the machine's other work only adds to them.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    plans = {
        f"{name}, {layout}": (causal, LAYOUTS[layout])
        for name, causal, layout in (
            ("full", False, "contiguous"), ("causal", True, "zigzag"), ("causal", True, "contiguous"),
        )
    }  # fmt: skip

    def ring(
        causal: bool, layout: context_parallel.Layout, tensors: list[Tensor]
    ) -> tuple[Attend, list[Tensor]]:
        attend = partial(ring_attention, causal=causal, layout=layout)
        return attend, [context_parallel.deal(x, layout) for x in tensors]

    for causal, make in plans.values():
        exact, layout = draw(100, torch.float64), make(100, n)
        whole = one_pass(partial(tiled_attention, causal=causal), exact)
        must_agree(
            one_pass(*ring(causal, layout, exact)),
            [context_parallel.deal(x, layout) for x in whole],
        )
    tensors, taken = draw(RING_SEQ), {name: [] for name in ("full", "causal", SIDE_BY_SIDE, *plans)}
    for _ in range(REPEATS + 1):
        for name, causal in (("full", False), ("causal", True)):
            dist.barrier()
            if rank == 0:
                taken[name].append(seconds(partial(tiled_attention, causal=causal), tensors))
        dist.barrier()
        taken[SIDE_BY_SIDE].append(seconds(partial(tiled_attention, causal=True), tensors))
        for name, (causal, make) in plans.items():
            attend, mine = ring(causal, make(RING_SEQ, n), tensors)
            dist.barrier()
            taken[name].append(seconds(attend, mine))
    # the first pass makes connections
    return {name: min(times[1:], default=0.0) for name, times in taken.items()}


def times() -> Iterator[Row]:
    with ledger_off():
        (kernels,) = launch(race_of_kernels, world_size=1, backend="gloo", timeout=300)
        ranks = launch(race_of_ranks, world_size=2, backend="gloo", timeout=300)
    for causal, (ours, theirs) in kernels.items():
        yield Row(
            f"`tiled_attention`, {SEQ} tokens{', causal' * causal}, forward and backward, one thread",
            "PyTorch's flash kernel", ours / theirs, 3.0,
            detail=f"{ours * 1e3:,.0f} ms, {theirs * 1e3:,.0f} ms",
        )  # fmt: skip
    slowest = {name: max(times[name] for times in ranks) for name in ranks[0]}
    for name, alone in (("full, contiguous", "full"), ("causal, zigzag", "causal")):
        yield Row(
            f"`ring_attention`, {RING_SEQ} tokens, {name}, 2 ranks, forward and backward",
            "`tiled_attention` on one", slowest[name] / slowest[alone], 0.6,
            detail=f"{slowest[name] * 1e3:,.0f} ms, {slowest[alone] * 1e3:,.0f} ms; two ranks that did "
            f"the whole side by side took {slowest[SIDE_BY_SIDE] / slowest['causal']:.2f} times one's time",
        )  # fmt: skip
    ratio = slowest["causal, contiguous"] / slowest["causal, zigzag"]
    predicted = facts.causal_slowdown("contiguous", 2)
    yield Row(
        f"slowdown of a causal ring whose tokens are dealt out in succession, {RING_SEQ} tokens, 2 ranks",
        f"predicted, {predicted:.2f} times zigzag's", max(ratio / predicted, predicted / ratio), 1.15,
        detail=f"{ratio:.2f} times",
    )  # fmt: skip


# ---- memory, bytes, errors, and the loss


def peaks() -> list[int]:
    """Bytes alive at the worst moment of forward and backward, beside the input."""
    nbytes = []
    for seq in LENGTHS:
        tensors = draw(seq)
        with costs() as spent:
            one_pass(partial(tiled_attention, causal=True), tensors)
        nbytes.append(spent.peak_bytes)
    return nbytes


def memory() -> Row:
    (peak_bytes,) = launch(peaks, world_size=1, backend="gloo", timeout=120)
    shortest, longest = peak_bytes[0], peak_bytes[-1]
    return Row(
        f"peak memory of `tiled_attention`, {LENGTHS[-1]} tokens against {LENGTHS[0]}",
        "linear", longest / shortest * LENGTHS[0] / LENGTHS[-1], 1.05,
        detail=", ".join(f"{peak / 1e6:.1f}" for peak in peak_bytes) + " MB; one matrix of scores "
        f"{4 * LENGTHS[-1] ** 2 / 1e6:.0f} MB",
    )  # fmt: skip


def between_barriers(attend: Attend, seq: int) -> None:
    tensors = draw(seq, heads=4)
    dist.barrier()
    one_pass(attend, tensors)
    dist.barrier()


def exact_bytes(name: str, attend: Attend, world_size: int) -> Row:
    seq, width = 96, 4 * HEAD_DIM
    run = launch(between_barriers, attend, seq // world_size, world_size=world_size, backend="gloo")
    if name == "ulysses_attention":
        wanted = 2 * facts.ulysses_bytes(world_size, seq, width, width, 4)
    else:
        wanted = sum(
            facts.ring_attention_bytes(world_size, seq, width, 4, direction)
            for direction in ("forward", "backward")
        )
    worst = max(abs(run.ledger.bytes_sent(rank) - wanted) for rank in range(world_size))
    return Row(
        f"bytes sent by `{name}`, forward and backward, {world_size} ranks, float32",
        "closed form", 1 + worst / wanted, 1.0, detail=f"{wanted:,.0f} bytes a rank",
    )  # fmt: skip


def squared_errors(computed: list[Tensor], exact: list[Tensor]) -> list[float]:
    """The squared errors of output and gradients, summed over all elements."""
    pairs = zip(computed, exact, strict=True)
    return [float((ours - other).square().sum()) for ours, other in pairs]


def ring_errors(dtype: torch.dtype) -> list[float]:
    """This rank's errors of a causal ring's output and gradients, against float64 on the same numbers."""
    tensors = draw(512, dtype)
    exact = one_pass(partial(sdpa, causal=True), [x.double() for x in tensors])
    layout = zigzag(512, dist.get_world_size())
    attend = partial(ring_attention, causal=True, layout=layout)
    computed = one_pass(attend, [context_parallel.deal(x, layout) for x in tensors])
    return squared_errors(computed, [context_parallel.deal(x, layout) for x in exact])


def full_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """With the whole matrix, causal."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(later, -torch.inf).softmax(-1) @ v).transpose(1, 2)


def errors() -> Iterator[Row]:
    def ring(dtype: torch.dtype, world_size: int) -> list[float]:
        run = launch(ring_errors, dtype, world_size=world_size, backend="gloo")
        return [sum(each) for each in zip(*run, strict=True)]

    tensors = draw(512)
    exact = one_pass(full_attention, [x.double() for x in tensors])
    full = squared_errors(one_pass(full_attention, tensors), exact)
    for what, against, errors, other, reach in (
        ("float32, 4 ranks", "full attention in float32", ring(torch.float32, 4), full, 2.0),
        ("bf16, 8 ranks", "one rank", ring(torch.bfloat16, 8), ring(torch.bfloat16, 1), 1.1),
    ):
        ratios = [(ours / two) ** 0.5 for ours, two in zip(errors, other, strict=True)]
        yield Row(
            f"root mean square error of `ring_attention` against float64, {what}", against,
            max(ratios), reach,
            detail="output and gradients " + ", ".join(f"{ratio:.2f}" for ratio in ratios),
        )  # fmt: skip


def train(spread: bool) -> list[float]:
    """The losses of a small GPT in float32, by SGD, which hides no wrong scale."""
    torch.manual_seed(0)
    model = GPT(TRAINED)
    whole = ContextParallelGPT(model, partial(ring_attention, causal=True)) if spread else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    text, losses = library_text(), []
    for step in range(STEPS):
        tokens, targets = batch(text, step, batch_size=4, length=TRAINED.context)
        optimizer.zero_grad()
        loss = (
            whole.loss(whole(tokens), targets) if whole else next_token_loss(model(tokens), targets)
        )
        loss.backward()
        if whole:
            whole.sum_gradients()
        optimizer.step()
        losses.append(loss.item())
    return losses


def curve(world_size: int) -> Row:
    (alone,) = launch(train, False, world_size=1, backend="gloo")
    worst = 0.0
    for losses in launch(train, True, world_size=world_size, backend="gloo", timeout=120):
        worst = max(worst, *(abs(a - b) for a, b in zip(losses, alone, strict=True)))
    return Row(
        f"loss of the context-parallel GPT over {STEPS} steps, {world_size} ranks, float32, units of 1e-4",
        "one rank's", worst / 1e-4, 1.0, detail=f"{worst:.1g}; from {alone[0]:.2f} to {alone[-1]:.2f}",
    )  # fmt: skip


def rows() -> Iterator[Row]:
    yield from times()
    yield memory()
    for world_size in (2, 4):
        yield exact_bytes("ring_attention", ring_attention, world_size)
        yield exact_bytes("ulysses_attention", ulysses_attention, world_size)
    yield from errors()
    yield curve(4)
