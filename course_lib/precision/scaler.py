"""Loss scaling: gradients that fp16 would round to 0 are multiplied before it stores them.

fp16 has nothing below 2^-24. A mean over millions of tokens divides each gradient by millions, so most of
them become 0. Therefore the loss is multiplied by a scale, which also multiplies every gradient, by the chain
rule. Before the step, the gradients are divided by the scale again, in float32. If the scale is too large, a
gradient overflows and is infinite or NaN, and the step must not be taken. So the scale is searched while
training runs. It halves after such a step and doubles after `interval` good steps.

With N ranks there is one more rule: *all ranks skip, or none does*. If gradients are sharded, a rank sees
only its own part, so it does not see an infinity in the part of another rank. If it stepped while the other
rank skipped, the ranks would hold parts of two different models, and no error would tell you. So the ranks
agree, by sending one number each.

Cost: an all-reduce of 4 bytes per step, whatever the number of parameters.

Source: Micikevicius et al., Mixed Precision Training, 2018, sections 3.2 and 5. The defaults are those of
`torch.amp.GradScaler`. Its ranks do not agree, but the ranks of
`torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler` do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

LARGEST = torch.finfo(torch.float32).max  # a larger scale would be infinite in a float32 loss
NOTHING, FINITE, OVERFLOW = 0, 1, 2  # a rank's finding: it has no gradient, finite ones, a bad one


class LossScaler:
    """Scales a loss, and steps on all ranks of `group` or on none.

        loss = scaler.scale_loss(loss_of(model, batch))
        loss.backward()
        scaler.unscale_(optimizer)          # here, if you look at gradients or clip them
        scaler.step(optimizer)              # False: skipped
        scaler.update()

    A pipeline's step calls backward itself and takes the loss from `stage.loss`, so scale it there.

    scale: the first scale; growth: its factor after `interval` steps in a row without a skip; backoff: its
    factor after a skipped step. group: ranks that hold parts of one model; None: all ranks, or no other rank
    if torch.distributed is not in use. `scale` and `good` (steps since the last change) are plain numbers,
    equal on all ranks of the group, and `state_dict` contains both. The scale stays below float32's largest
    number.

    One scaler can serve several optimizers. Each is unscaled and stepped once before `update`, which lowers
    the scale if any of them was skipped. If an optimizer has a method `average_gradients`, such as
    `course_lib.zero.Zero1Optimizer`, the scaler first calls it for the gradients of the shards.
    """

    def __init__(
        self,
        scale: float = 2.0**16,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
        group: dist.ProcessGroup | None = None,
    ):
        if not (LARGEST >= scale > 0 and growth >= 1 and 0 < backoff <= 1 and interval >= 1):
            raise ValueError(
                f"scale {scale}, growth {growth}, backoff {backoff} and interval {interval}: expected are "
                "scale > 0 and at most 3.4e38, growth >= 1, 0 < backoff <= 1 and interval >= 1"
            )
        self.scale, self.growth, self.backoff, self.interval = scale, growth, backoff, interval
        self.group = group
        self.good = 0
        self.overflow: dict[Optimizer, bool] = {}  # by optimizer, since the last update
        self.stepped: set[Optimizer] = set()

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The loss times the scale; backward from it gives gradients times the scale."""
        return loss * self.scale

    @torch.no_grad()
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide all gradients by the scale, in place, and find out whether any rank has an infinity or NaN.

        Every rank of the group calls it, even a rank without gradients. RuntimeError if it is called a second
        time before `update`, and on all ranks if none of them has a gradient.
        """
        if optimizer in self.overflow:
            raise RuntimeError(
                "the gradients were unscaled already: once a step, then call update()"
            )
        average_gradients = getattr(optimizer, "average_gradients", None)
        if average_gradients is not None:  # a sharded optimizer, whose shards have none before
            average_gradients()
        params = [param for group in optimizer.param_groups for param in group["params"]]
        finding = torch.full((1,), float(NOTHING), device=device_of(params, self.group))
        for grad in (param.grad for param in params if param.grad is not None):
            grad.mul_(1 / self.scale)
            finding = finding.maximum(FINITE + (~grad.isfinite()).any())
        if dist.is_initialized():
            dist.all_reduce(finding, op=dist.ReduceOp.MAX, group=self.group)
        if finding == NOTHING:
            raise RuntimeError(
                "no rank has a gradient in the optimizer's parameters: call backward() first, and then the "
                "wrapper's finish_gradient_synchronization(), if it has one"
            )
        self.overflow[optimizer] = bool(finding == OVERFLOW)

    def step(self, optimizer: Optimizer) -> bool:
        """Step the optimizer on all ranks of the group or on none; returns whether the step was taken.

        RuntimeError if it is called a second time before `update`; for other errors see `unscale_`.
        """
        if optimizer in self.stepped:
            raise RuntimeError("step was called already for this optimizer: call update() after it")
        if optimizer not in self.overflow:
            self.unscale_(optimizer)
        self.stepped.add(optimizer)
        if not self.overflow[optimizer]:
            optimizer.step()
        return not self.overflow[optimizer]

    def update(self) -> None:
        """Lower the scale if the step was skipped, and raise it after `interval` good steps.

        RuntimeError if nothing was unscaled since the last update.
        """
        if not self.overflow:
            raise RuntimeError("update() follows a step: call unscale_ or step first")
        if any(self.overflow.values()):
            self.scale, self.good = self.scale * self.backoff, 0
        else:
            self.good += 1
            if self.good == self.interval:
                grown = self.scale * self.growth
                self.scale, self.good = grown if grown <= LARGEST else self.scale, 0
        self.overflow.clear()
        self.stepped.clear()

    def state_dict(self) -> dict[str, float]:
        """The two numbers a checkpoint has to hold."""
        return {"scale": self.scale, "good": self.good}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.scale, self.good = float(state["scale"]), int(state["good"])


def device_of(params: Sequence[Tensor], group: dist.ProcessGroup | None) -> torch.device:
    """The first parameter's device; on a rank without parameters, the device of the group's messages."""
    if params:
        return params[0].device
    on_gpu = dist.is_initialized() and "nccl" in dist.get_backend(group)
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
