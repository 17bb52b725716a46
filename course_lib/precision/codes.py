"""8-bit codes for an optimizer's moments: 256 numbers between -1 and 1, dense where moments are many.

Each element of a block is divided by the block's largest magnitude and replaced by the nearest of 256
numbers. If these were equally spaced (a linear map), they would be 1/255 apart, and all elements below 1/510
of the largest would become 0. That would be most of Adam's second moment, which reaches over ten decades in
one tensor. Dettmers' dynamic map therefore has numbers in each of seven decades, and twice as many in each
decade as in the decade below:

    signed     1, 2, 4, ... 64 numbers per decade and sign, -0.993 to 1, the smallest 5.5e-7
    unsigned   2, 4, 8, ... 128 numbers per decade, 0 to 1, the smallest 3.25e-7

In the top decade, neighbours are 1.4 % of the largest number apart (0.7 % without a sign). The signed map
lacks -1, so if a block's largest magnitude is negative, it comes back 0.7 % smaller.

Source: Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2022 (dynamic trees, with a sign and
without). The numbers are the same as in `create_dynamic_map` of bitsandbytes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

DECADES = 7


def dynamic_map(signed: bool) -> Tensor:
    """256 numbers in order, float32. They are the middles of equal parts into which each decade is cut."""
    numbers = [0.0, 1.0]
    for i in range(DECADES):
        parts = 2**i if signed else 2 ** (i + 1)
        edges = torch.linspace(0.1, 1, parts + 1)
        middles = (10.0 ** (i + 1 - DECADES) * (edges[1:] + edges[:-1]) / 2).tolist()
        numbers += middles + ([-middle for middle in middles] if signed else [])
    return torch.tensor(sorted(numbers))


def linear_map(signed: bool) -> Tensor:
    """256 equally spaced numbers in order, float32; with a sign 255 and a second 1, so that 0 is one."""
    if not signed:
        return torch.linspace(0, 1, 256)
    return torch.cat([torch.arange(-127, 128) / 127, torch.ones(1)])


DYNAMIC_SIGNED = dynamic_map(signed=True)
DYNAMIC_UNSIGNED = dynamic_map(signed=False)


class ByteStates(Optimizer):
    """An optimizer whose states come back from `load_state_dict` in the dtypes in which they were saved.

    PyTorch's own method casts every state to its parameter's dtype, so uint8 codes would become float32,
    which takes 4 bytes each.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        names = [name for group in state_dict["param_groups"] for name in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for name, param in zip(names, params, strict=True):
            saved = state_dict["state"].get(name, {})
            for key, value in saved.items():
                if isinstance(value, Tensor):
                    self.state[param][key] = value.to(param.device, copy=True)
