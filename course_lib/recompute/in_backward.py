"""Each parameter makes its step as soon as its gradient is ready, and the gradient is freed.

Backward reaches the parameters one after the other. In a loop of `backward(); step(); zero_grad()`, all P
gradients exist at the end of backward, although a parameter's step needs only its own gradient. Here a hook
makes the step as soon as a parameter's gradient is complete, so only one parameter's gradient exists at a
time.

Two techniques are lost, because they need all gradients before the first step: clipping by a global norm, and
accumulation over microbatches. Under FSDP the hook sees the shard after its reduce-scatter, one unit at a
time.

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
    """From now on, every backward makes the steps, so call neither `step` nor `zero_grad`.

    make: makes an optimizer from a list of one parameter, such as `lambda params: SGD(params, lr=0.1)`. Each
    parameter gets its own optimizer. To stop, remove the returned handles. If an optimizer treats each
    parameter separately (SGD, Adam), the values equal those of one optimizer over all parameters to the bit.
    """
    return [hooked(param, make([param])) for param in params]


def hooked(param: nn.Parameter, optimizer: Optimizer) -> RemovableHandle:
    def step(_: Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()  # to None, so the memory is free

    return param.register_post_accumulate_grad_hook(step)
