"""Notebooks 01, 06 and 09: products and copies on one GPU, by size, by format and by how narrow they are."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.gpu.clock import half, seconds
from course_lib.gpu.experiment import Experiment, Row
from course_lib.runtime.backend import device


def roofline(widths: list[int], nbytes: int, repeats: int) -> list[Row]:
    """Products of two square matrices in 16 bits, and a copy inside the GPU's memory."""
    rows = []
    for n in widths:
        a, b = torch.randn(2, n, n, device=device(), dtype=half())
        taken = seconds(lambda a=a, b=b: a @ b, repeats)
        rows.append(Row(f"{n:,} x {n:,} by {n:,} x {n:,}", taken, "s", {"n": n}))
    source = torch.zeros(nbytes, dtype=torch.uint8, device=device())
    target = torch.empty_like(source)
    taken = seconds(lambda: target.copy_(source), repeats)
    rows.append(Row(f"{nbytes / 1e9:g} GB copied", taken, "s", {"bytes": 2 * nbytes}))
    return rows


def formats(n: int, repeats: int) -> list[Row]:
    """FLOP/s of a product in every format this device multiplies."""
    cuda = device().type == "cuda"
    rows = []
    for name in ("float32", "tf32", "fp16", "bf16", "fp8"):
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(name, torch.float32)
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        a, b = torch.randn(2, n, n, device=device(), dtype=dtype)
        lacks = cuda and torch.cuda.get_device_capability() < {
            "tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)
        }.get(name, (0, 0))  # fmt: skip
        taken = None
        if name == "fp8" and cuda and not lacks:
            scale = torch.ones((), device=device())
            eighth = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
            taken = seconds(
                lambda eighth=eighth, scale=scale: torch._scaled_mm(
                    *eighth, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16
                ),
                repeats,
            )
        elif name != "fp8" and not lacks:
            taken = seconds(lambda a=a, b=b: a @ b, repeats)
        rows.append(Row(name, taken and 2 * n**3 / taken, "FLOP/s", {"format": name}))
    torch.set_float32_matmul_precision("highest")
    return rows


def narrow_layers(width: int, tokens: int, cuts: list[int], repeats: int) -> list[Row]:
    """The part of an MLP that one of t GPUs computes, forward and backward, without any message."""
    rows = []
    for t in cuts:
        up = torch.randn(width, 4 * width // t, device=device(), dtype=half(), requires_grad=True)
        down = torch.randn(4 * width // t, width, device=device(), dtype=half(), requires_grad=True)
        x = torch.randn(tokens, width, device=device(), dtype=half(), requires_grad=True)

        def step(x: torch.Tensor = x, up: torch.Tensor = up, down: torch.Tensor = down) -> None:
            hidden = torch.nn.functional.gelu(x @ up, approximate="tanh")
            (hidden @ down).sum().backward()

        def forget(factors: tuple = (x, up, down)) -> None:
            for factor in factors:
                factor.grad = None  # else each run would add to the gradient of the last run

        taken = seconds(step, repeats, before=forget)
        rows.append(Row(f"1/{t} of {4 * width:,} columns", taken, "s", {"t": t}))
    return rows


def layer_and_messages(width: int, tokens: int, repeats: int) -> list[Row]:
    """An MLP cut over all GPUs, forward and backward: products, all-reduces, and both together."""
    from course_lib.tensor_parallel import ParallelMLP

    n = dist.get_world_size()
    mlp = ParallelMLP(width, 4 * width, bias=False).to(device(), half())
    x = torch.randn(1, tokens, width, device=device(), dtype=half(), requires_grad=True)
    message = torch.zeros_like(x)

    def forget() -> None:
        mlp.zero_grad()
        x.grad = None

    both = seconds(lambda: mlp(x).sum().backward(), repeats, before=forget)
    messages = seconds(lambda: [dist.all_reduce(message) for _ in range(2)], repeats)
    products = narrow_layers(width, tokens, [n], repeats)[0].value or 0.0
    return [
        Row("the products of one GPU", products, "s", {"name": "products", "n": n}),
        Row("two all-reduces", messages, "s", {"name": "messages", "n": n, "bytes": x.nbytes}),
        Row("forward and backward", both, "s", {"name": "both"}),
    ]


ROOFLINE = Experiment(
    "roofline", "Products and a copy", 1, roofline,
    {"widths": [8, 512, 2048, 8192], "nbytes": 10**9, "repeats": 10},
    {"widths": [8, 64], "nbytes": 10**5, "repeats": 2},
)  # fmt: skip
FORMATS = Experiment(
    "formats", "A product by its format", 1, formats, {"n": 8192, "repeats": 10}, {"n": 64, "repeats": 2}
)  # fmt: skip
NARROW_LAYERS = Experiment(
    "narrow layers", "One GPU's part of an MLP", 1, narrow_layers,
    {"width": 4096, "tokens": 4096, "cuts": [1, 2, 4, 8, 16], "repeats": 10},
    {"width": 32, "tokens": 16, "cuts": [1, 2], "repeats": 2},
)  # fmt: skip
LAYER_AND_MESSAGES = Experiment(
    "layer and messages", "An MLP over all GPUs", 2, layer_and_messages,
    {"width": 4096, "tokens": 4096, "repeats": 10}, {"width": 32, "tokens": 16, "repeats": 2},
)  # fmt: skip
