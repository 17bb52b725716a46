"""How many bytes of model states does a recipe keep for each parameter, in a step that really runs?

A recipe decides in which dtype the model holds its weights, whether forward casts them, whether the optimizer
has a master copy, and which moments it keeps. After the step, the tensors that still exist are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


def recipe_states(
    model: nn.Module,
    tokens: Tensor,
    *,
    autocast: bool = False,
    master: bool = False,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    **options: Any,
) -> tuple[float, ...]:
    """Bytes per parameter after one step: (weights, gradients, master copy, moments).

    model: in the dtype of its weights; the step changes it. tokens: (batch, seq). autocast: forward
    runs under autocast to bf16. master: the optimizer has float32 copies of the weights. options: of the
    optimizer. (Any loss leaves the same bytes, so the step takes the mean square of the output.)
    """
    params = list(model.parameters())
    copies = [param.detach().float() for param in params] if master else []
    chosen = optimizer(copies or params, lr=1e-3, **options)
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=autocast):
        loss = model(tokens).float().square().mean()
    loss.backward()
    for copy, param in zip(copies, params, strict=False):
        assert param.grad is not None
        copy.grad = param.grad.float()
    chosen.step()
    for copy in copies:
        copy.grad = None  # the float32 copies of the gradients were only for the step
    gradients = [param.grad for param in params if param.grad is not None]
    moments = [
        value
        for state in chosen.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.dim()
    ]
    count = sum(param.numel() for param in params)
    return tuple(nbytes(group) / count for group in (params, gradients, copies, moments))


def nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
