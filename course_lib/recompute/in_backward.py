"""Each parameter makes its step as soon as its gradient is there, and the gradient goes.

Backward reaches the parameters one after the other. In a loop of `backward(); step(); zero_grad()` all P
gradients exist at the end of backward, though each step needs its own alone. A hook that runs when a
parameter's gradient is complete makes the step at once: the gradients of one parameter exist at a time.

Two things need all gradients before the first step and are lost: clipping by a global norm, and accumulation
over microbatches. Under FSDP the hook sees the shard after its reduce-scatter, a unit at a time.

Sources: PyTorch's tutorial "How to save memory by fusing the optimizer step into the backward pass"; Lv et
al., Full Parameter Fine-tuning for Large Language Models with Limited Resources (LOMO), 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


def step_in_backward(
    params: Iterable[nn.Parameter], make: Callable[[list[nn.Parameter]], Optimizer]
) -> list[RemovableHandle]:
    """From here on every backward makes the steps: call neither `step` nor `zero_grad`.

    make: from a list of one parameter to its optimizer, such as `lambda params: SGD(params, lr=0.1)`; each
    parameter has one of its own. Remove the returned handles to end it. The values are those of one optimizer
    over all parameters, to the bit, if it treats each of them by itself (SGD, Adam).
    """
    return [hooked(param, make([param])) for param in params]


def hooked(param: nn.Parameter, optimizer: Optimizer) -> RemovableHandle:
    def step(_: Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()  # to None: the memory is free

    return param.register_post_accumulate_grad_hook(step)
