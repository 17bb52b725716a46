"""PyTorch's functions and classes as they were before the student's code was read.

Recipes call these, so that code which puts a function of its own into `torch` changes no reply.
"""

from __future__ import annotations

import torch
from torch import nn

Generator = torch.Generator
Parameter = nn.Parameter
Tensor = torch.Tensor
arange = torch.arange
as_strided = torch.Tensor.as_strided
backward = torch.autograd.backward
clone = torch.Tensor.clone
detach = torch.Tensor.detach
is_floating_point = torch.Tensor.is_floating_point
manual_seed = torch.manual_seed
mse_loss = nn.functional.mse_loss
no_grad = torch.no_grad
rand = torch.rand
randn = torch.randn
stack = torch.stack
untyped_storage = torch.Tensor.untyped_storage
zeros = torch.zeros
zeros_like = torch.zeros_like
