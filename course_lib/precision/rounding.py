"""Stochastic rounding: a 16-bit weight that moves by less than its last bit, on average.

Between 1 and 2, bfloat16 has 128 numbers, which are 2^-7 apart. Rounding to nearest turns 1 - 0.001 back into
1, so a thousand steps of 0.001 have no effect at all. Stochastic rounding goes to one of the two neighbours,
and the nearer a neighbour is, the more likely it is to be chosen:

    x = down + fraction * (up - down)    becomes up with probability `fraction`, else down

So the expected value is x, and the errors of many steps cancel instead of adding up. A weight then does not
need a float32 master copy, and takes 2 bytes instead of 6.

A bfloat16 is the upper half of a float32. So the fraction is the lower half, an integer from 0 to 65,535, and
rounding is an addition. We add a random 16-bit number and cut off the lower half. If the sum carried into the
upper half, the number went up. Because the bits are sign and magnitude, "up" means away from zero.

If replicas round with different generators, they drift apart, and no error tells you. Give them equal
generators, or let one rank own each weight and send it, as ZeRO does.

Sources: Gupta et al., Deep Learning with Limited Numerical Precision, 2015, section 3. Zamirai et al.,
Revisiting BFloat16 Training, 2020 (weights that are rounded to nearest lose small updates).
"""

from __future__ import annotations

import torch
from torch import Tensor

LOW = 16  # bits a float32 has and a bfloat16 does not


def stochastic_round(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """`x` in bfloat16, each element one of its two neighbours, with x as its expected value.

    x: float32, any shape; it is not modified. generator: on x's device, where None means PyTorch's default.
    Values that bfloat16 can store, infinities and NaN stay as they are. Beyond the largest number, the upper
    neighbour is infinity. Raises TypeError unless x is float32.
    """
    if x.dtype != torch.float32:
        raise TypeError(f"x is {x.dtype}: it must be torch.float32, whose lower half is cut off")
    bits = x.view(torch.int32)
    noise = torch.randint(
        1 << LOW, x.shape, generator=generator, dtype=torch.int32, device=x.device
    )
    rounded = ((bits + noise) >> LOW << LOW).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x).to(torch.bfloat16)
