"""Codes of 8 bits for an optimizer's moments: 256 numbers between -1 and 1, dense where moments are many.

A block of a moment is divided by its largest magnitude and each element replaced by the nearest of 256
numbers. Equal distances (a linear map) would be 1/255 apart, and all elements below 1/510 of the largest
become 0. Adam's second moment reaches over ten decades in one tensor, so most of it would. Dettmers' dynamic
map has numbers in each of seven decades, twice as many in a decade as in the one below:

    signed     1, 2, 4, ... 64 numbers a decade and sign, -0.993 to 1, the smallest 5.5e-7
    unsigned   2, 4, 8, ... 128 numbers a decade, 0 to 1, the smallest 3.25e-7

In the top decade neighbours are 1.4 % of the largest apart (0.7 % without a sign). The signed map lacks -1,
so that a block's largest magnitude comes back 0.7 % smaller if it is negative.

Source: Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2022 (dynamic trees, with a
sign and without); the numbers are those of `create_dynamic_map` in bitsandbytes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

DECADES = 7


def dynamic_map(signed: bool) -> Tensor:
    """256 numbers in order, float32. Each decade is cut into equal parts, of which the middles are taken."""
    numbers = [0.0, 1.0]
    for i in range(DECADES):
        parts = 2**i if signed else 2 ** (i + 1)
        edges = torch.linspace(0.1, 1, parts + 1)
        middles = (10.0 ** (i + 1 - DECADES) * (edges[1:] + edges[:-1]) / 2).tolist()
        numbers += middles + ([-middle for middle in middles] if signed else [])
    return torch.tensor(sorted(numbers))


def linear_map(signed: bool) -> Tensor:
    """256 numbers in order at equal distances, float32; with a sign 255, and 1 twice, so that 0 is one."""
    if not signed:
        return torch.linspace(0, 1, 256)
    return torch.cat([torch.arange(-127, 128) / 127, torch.ones(1)])


DYNAMIC_SIGNED = dynamic_map(signed=True)
DYNAMIC_UNSIGNED = dynamic_map(signed=False)


class ByteStates(Optimizer):
    """An optimizer whose states come back from `load_state_dict` in the dtypes in which they were saved.

    PyTorch's own casts every state to its parameter's dtype: codes in uint8 become float32, 4 bytes each.
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
