"""Formats, a scaler, eight bits and their scales, Adam in eight bits: values, bytes, errors and losses.

The errors are those of a product of 256 x 1,024 x 256 in its rows without the outlier. The loss is the mean
of the last 10 of 150 steps of a small GPT that reads the library's sources, on one thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.table import Row
from course_lib import launch
from course_lib.data import batch, library_text
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.precision import (
    FORMATS,
    Adam8bit,
    LossScaler,
    dequantize,
    dequantize_mx,
    quantize,
    quantize_mx,
    round_to,
)

DRAWN, STEPS, LR = 500_000, 150, 1e-3
Rounding = Callable[[Tensor], Tensor]


def formats() -> Iterator[Row]:
    generator = torch.Generator().manual_seed(0)
    for name in ("fp16", "bf16", "e5m2"):
        form = FORMATS[name]
        assert form.dtype is not None
        exponents = torch.rand(DRAWN, generator=generator) * (form.highest - form.lowest + 16)
        x = torch.exp2(exponents + form.lowest - 12)
        ours = round_to(x.double(), form.exponent_bits, form.mantissa_bits)
        equal = int((ours == x.to(form.dtype).double()).sum())
        yield Row(
            f"`round_to`, {name}, values of {DRAWN:,} magnitudes", "PyTorch's cast", equal / DRAWN, 1.0,
            detail=f"{equal:,} are equal",
        )  # fmt: skip


def skipped() -> float:
    """In a rank: one step, in which the last rank alone has an infinity; the parameter afterwards."""
    param = nn.Parameter(torch.ones(1000))
    bad = dist.get_rank() == dist.get_world_size() - 1
    param.grad = torch.full((1000,), float("inf") if bad else 1.0)
    optimizer, scaler = torch.optim.SGD([param], lr=1.0), LossScaler()
    scaler.step(optimizer)
    scaler.update()
    return float(param[0].detach())


def scaler() -> Iterator[Row]:
    run = launch(skipped, world_size=4, backend="gloo")
    assert list(run) == [1.0] * 4, "all ranks skip"
    sent = sum(operation.bytes_sent for operation in run.ledger.operations(0))
    yield Row(
        "`LossScaler`, bytes sent in a step, 4 ranks", "closed form of one all-reduce of 4 bytes",
        sent / (2 * 3 / 4 * 4), 1.0, detail=f"{sent:.0f} bytes a rank; all four skip",
    )  # fmt: skip


def both(
    block: tuple[int, int], of_weight: tuple[int, int], dtype: torch.dtype
) -> tuple[Rounding, Rounding]:
    def rounding(block: tuple[int, int]) -> Rounding:
        return lambda x: dequantize(*quantize(x, block, dtype), block)

    return rounding(block), rounding(of_weight)


def mx(x: Tensor) -> Tensor:
    return dequantize_mx(*quantize_mx(x))


ROUNDED: dict[str, tuple[Rounding, Rounding]] = {
    "e4m3, one scale": both((-1, -1), (-1, -1), torch.float8_e4m3fn),
    "e4m3, rows": both((1, -1), (-1, 1), torch.float8_e4m3fn),
    "e4m3, 1 x 128 and 128 x 128": both((1, 128), (128, 128), torch.float8_e4m3fn),
    "MX e4m3, 32": (mx, lambda w: mx(w.t()).t()),
    "int8, one scale": both((-1, -1), (-1, -1), torch.int8),
}
# The largest relative errors that are expected, by outlier: a tenth above those first measured.
EXPECTED = {
    1.0: (0.041, 0.041, 0.041, 0.046, 0.017),
    100.0: (0.042, 0.042, 0.041, 0.046, 0.31),
    100_000.0: (0.14, 0.042, 0.041, 0.047, 1.1),
}


def errors() -> Iterator[Row]:
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(256, 1024, generator=generator), torch.randn(1024, 256, generator=generator)
    rest = torch.arange(256) != 3
    for outlier, most in EXPECTED.items():
        x[3, 200] = outlier
        wanted = (x.double() @ w.double())[rest]
        for (name, (left, right)), reach in zip(ROUNDED.items(), most, strict=True):
            off = (left(x) @ right(w)).double()[rest] - wanted
            share = float(off.norm() / wanted.norm())
            yield Row(
                f"relative error of a product, {name}, an outlier of {outlier:,.0f}", "float64", share, reach,
                "points",
            )  # fmt: skip


def trained(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
) -> tuple[float, float, float]:
    """(loss, seconds of an optimizer's step, bytes of states a parameter)."""
    torch.manual_seed(0)
    model, text = GPT(GPTConfig(layers=2, heads=2, width=64, context=32)), library_text()
    params = list(model.parameters())
    optimizer, losses, taken = make(params), [], []
    for step in range(STEPS):
        inputs, targets = batch(text, step, batch_size=8, length=32)
        loss = next_token_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        began = time.perf_counter()
        optimizer.step()
        taken.append(time.perf_counter() - began)
        losses.append(loss.item())
    large = [state for param, state in optimizer.state.items() if param.numel() >= 4096]
    held = sum(x.nbytes for state in large for x in state.values() if torch.is_tensor(x))
    elements = sum(param.numel() for param in params if param.numel() >= 4096)
    return statistics.mean(losses[-10:]), statistics.median(taken), held / elements


def adam() -> Iterator[Row]:
    of_float, seconds, nbytes = trained(
        lambda params: torch.optim.AdamW(params, lr=LR, weight_decay=0.0)
    )
    loss, of_ours, held = trained(lambda params: Adam8bit(params, lr=LR))
    yield Row(
        "loss of a GPT after 150 steps, `Adam8bit`", "`torch.optim.AdamW`", loss / of_float, 1.02,
        detail=f"{loss:.3f}, {of_float:.3f}",
    )  # fmt: skip
    yield Row(
        "bytes of states a parameter, `Adam8bit`, parameters of 4,096 elements and more",
        "`torch.optim.AdamW`", held / nbytes, 2.04 / 8, detail=f"{held:.2f}, {nbytes:.2f}",
    )  # fmt: skip
    yield Row(
        "time of a step, `Adam8bit` in plain PyTorch", "`torch.optim.AdamW`", of_ours / seconds, 25.0,
        detail=f"{1000 * of_ours:.1f} ms, {1000 * seconds:.1f} ms",
    )  # fmt: skip


def rows() -> Iterator[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from formats()
        yield from errors()
        yield from adam()
    finally:
        torch.set_num_threads(threads)
    yield from scaler()
