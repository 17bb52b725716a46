"""Adam with 8-bit moments: 2 bytes per parameter and two scales per block instead of 8 bytes.

Between two steps, each moment is stored as one byte per element, which is the index of the nearest of 256
numbers, and one float32 per block of 256 elements, which is the block's largest magnitude. A step widens a
tensor's moments to float32, updates them, updates the parameter *from the float32 moments*, and rounds them
again:

    m, v  = numbers[codes] * scale           of the block
    m, v  = Adam's update with the gradient
    w    -= lr * m / (sqrt(v) + eps)         m and v bias-corrected, and not rounded yet
    codes = nearest(m / scale), scale = max |m| of the block

Two choices keep this stable. Because of the blocks, an outlier coarsens only 256 elements instead of the
whole tensor. And the numbers of the map are not equally spaced (codes.py). If they were, an element of v
could round to 0 while its m did not. Then m would be divided only by eps, in a step of up to 10^16 learning
rates.

The map has a limit, however. The smallest number of v's map is 3.25e-7, so after the step a v is 0 if it is
below 1.6e-7 of the largest in its block. This happens to gradients 2,500 times smaller than the block's
largest gradient. The map of m reaches equally far down, but m holds gradients instead of their squares, so m
does not vanish there. If the gradients of one block differ by 10^4, measured steps are thousands of learning
rates long.

Parameters of fewer than 4,096 elements (norms, biases) keep float32, because they cost little and matter
much.

Memory: 2 + 8/256 = 2.03 bytes per parameter, and one tensor's moments in float32 during its step. If
parameters are sharded, each shard begins with a new block. So the rounding, and with it the trajectory,
depends on the number of ranks.

Source: Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2022 (blocks of 2,048; bitsandbytes
uses blocks of 256, and 4,096 as `min_8bit_size`). Decoupled weight decay: Loshchilov and Hutter, 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from .codes import DYNAMIC_SIGNED, DYNAMIC_UNSIGNED, ByteStates

SMALL = 4096  # elements: parameters with fewer keep their moments in float32


class Adam8bit(ByteStates):
    """AdamW whose moments take one byte per element between the steps.

    params: as for any optimizer, float32 or bfloat16, on any device. block: elements that share a scale; the
    last block of a parameter can be shorter. codes: 256 numbers in order for m, from -1 to 1, and for v, from
    0 to 1. Parameters without a gradient are skipped, as in every optimizer.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        block: int = 256,
        codes: tuple[Tensor, Tensor] = (DYNAMIC_SIGNED, DYNAMIC_UNSIGNED),
    ):
        if block < 1:
            raise ValueError(
                f"block={block}: the number of elements that share a scale is 1 or more"
            )
        super().__init__(
            params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, block=block)
        )
        self.codes = codes

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step of all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self.step_of(param, group)
        return loss

    def step_of(self, param: Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[param], cast(Tensor, param.grad).float()
        (beta1, beta2), lr = group["betas"], group["lr"]
        state["step"] = step = state.get("step", 0) + 1
        m, v = (self.read(state, name, param, group["block"]) for name in ("m", "v"))
        m.lerp_(gradient, 1 - beta1)
        v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = (v / (1 - beta2**step)).sqrt_().add_(group["eps"])
        param.mul_(1 - lr * group["weight_decay"])
        param.sub_(lr / (1 - beta1**step) * m / scale)
        for name, moment in (("m", m), ("v", v)):
            self.write(state, name, moment, group["block"])

    def read(self, state: dict[str, Any], name: str, param: Tensor, block: int) -> Tensor:
        """The moment in float32, in the parameter's shape; zeros before the first step."""
        if name not in state:
            return torch.zeros_like(param, dtype=torch.float32)
        if param.numel() < SMALL:
            return state[name]
        numbers = self.codes[name == "v"].to(param.device)
        return decode(state[name], state[f"{name}_scales"], numbers, block).view_as(param)

    def write(self, state: dict[str, Any], name: str, moment: Tensor, block: int) -> None:
        if moment.numel() < SMALL:
            state[name] = moment
            return
        numbers = self.codes[name == "v"].to(moment.device)
        state[name], state[f"{name}_scales"] = encode(moment, numbers, block)


def encode(x: Tensor, numbers: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """`x` as indices of the nearest of `numbers`, in blocks: (codes, scales).

    x: float32, any shape. numbers: (256,), in order. codes: (elements,) in uint8; scales: (blocks,), each the
    largest magnitude of its block, so 0 for a block of zeros. A block with an infinite element or a NaN has
    the scale NaN and comes back as NaN, just as a float32 moment would stay NaN.
    """
    flat = x.flatten()
    blocks = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    scales = blocks.abs().amax(1)
    scales = scales.masked_fill(scales.isinf(), torch.nan)
    shares = blocks / scales.masked_fill(scales == 0, 1.0)[:, None]
    middles = (numbers[1:] + numbers[:-1]) / 2
    return torch.bucketize(shares, middles).to(torch.uint8).flatten()[: len(flat)].clone(), scales


def decode(codes: Tensor, scales: Tensor, numbers: Tensor, block: int) -> Tensor:
    """The numbers for which codes and scales stand: (elements,) in float32."""
    return numbers[codes.long()] * scales.repeat_interleave(block)[: len(codes)]
