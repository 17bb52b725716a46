"""Stochastic rounding: a weight in 16 bits that moves by less than its last bit, on average.

Between 1 and 2 bfloat16 has 128 numbers, 2^-7 apart. Rounding to nearest gives 1 - 0.001 back as 1, and a
thousand steps of 0.001 as no step at all. Stochastic rounding goes to one of the two neighbours, to the
farther one with the probability of the way that is left:

    x = down + fraction * (up - down)    becomes up with probability `fraction`, else down

So the expected value is x, and the errors of many steps cancel instead of adding up. A weight then needs no
float32 master copy: 2 bytes instead of 6.

A bfloat16 is the upper half of a float32. So the fraction is the lower half, an integer from 0 to 65,535,
and rounding is an addition: a random number of 16 bits is added, and the lower half cut off. If the sum
carries into the upper half, the number went up. The bits are sign and magnitude: "up" is away from zero.

Replicas that round with generators of their own drift apart, without a message. Give them equal generators,
or let one rank own each weight and send it, as ZeRO does.

Sources: Gupta et al., Deep Learning with Limited Numerical Precision, 2015, section 3. Zamirai et al.,
Revisiting BFloat16 Training, 2020 (weights that are rounded to nearest lose small updates).
"""

from __future__ import annotations

import torch
from torch import Tensor

LOW = 16  # bits of a float32 that a bfloat16 does not have


def stochastic_round(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """`x` in bfloat16, each element one of its two neighbours, with x as its expected value.

    x: float32, any shape; it is left alone. generator: on x's device; None: PyTorch's default. Values that
    bfloat16 has, infinities and NaN stay. Beyond the largest number the upper neighbour is infinity.
    TypeError unless x is float32.
    """
    if x.dtype != torch.float32:
        raise TypeError(f"x is {x.dtype}: it must be torch.float32, whose lower half is cut off")
    bits = x.view(torch.int32)
    noise = torch.randint(
        1 << LOW, x.shape, generator=generator, dtype=torch.int32, device=x.device
    )
    rounded = ((bits + noise) >> LOW << LOW).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x).to(torch.bfloat16)
