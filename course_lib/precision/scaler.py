"""Loss scaling: gradients that fp16 would round to 0, multiplied before it stores them.

fp16 ends below at 2^-24. A mean over millions of tokens divides each gradient by as much, and most become 0.
The loss is multiplied by a scale, and so is every gradient, by the chain rule; before the step they are
divided by it again, in float32. Too large a scale overflows: a gradient is infinite or NaN, and the step must
not be taken. So the scale is searched while training runs: it halves after such a step and doubles after
`interval` good ones.

With N ranks there is one more rule: *all ranks skip, or none does*. With sharded gradients a rank sees its
own part, and does not see an infinity in another's. If it stepped alone, the ranks would hold parts of two
models, without a message. So the ranks agree, with one number each.

Cost: an all-reduce of 4 bytes a step, whatever the number of parameters.

Source: Micikevicius et al., Mixed Precision Training, 2018, sections 3.2 and 5. The defaults are those of
`torch.amp.GradScaler`, whose plain form does not agree over ranks;
`torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler` does.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer


class LossScaler:
    """Scales a loss, and steps on all ranks of `group` or on none.

        loss = scaler.scale_loss(loss_of(model, batch))
        loss.backward()
        scaler.unscale_(optimizer)          # here, if gradients are looked at or clipped
        scaler.step(optimizer)              # False: skipped
        scaler.update()

    scale: at first; growth: its factor after `interval` steps in a row without a skip; backoff: its factor
    after a skipped step. group: ranks that hold parts of one model; None: all ranks, or none if
    torch.distributed is not in use. `scale` and `good` (steps since the last change) are plain numbers, equal
    on all ranks of the group.
    """

    def __init__(
        self,
        scale: float = 2.0**16,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
        group: dist.ProcessGroup | None = None,
    ):
        if not (scale > 0 and growth >= 1 and 0 < backoff <= 1 and interval >= 1):
            raise ValueError(
                f"scale {scale}, growth {growth}, backoff {backoff} and interval {interval}: expected are "
                "scale > 0, growth >= 1, 0 < backoff <= 1 and interval >= 1"
            )
        self.scale, self.growth, self.backoff, self.interval = scale, growth, backoff, interval
        self.group = group
        self.good = 0
        self.overflow: bool | None = (
            None  # of this step: an infinity or NaN; None: not unscaled yet
        )

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The loss times the scale; backward from it gives gradients times the scale."""
        return loss * self.scale

    @torch.no_grad()
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide all gradients by the scale, in place, and find out whether any rank has an infinity or NaN.

        Once a step: RuntimeError for a second time before `update`. Every rank of the group calls it.
        """
        if self.overflow is not None:
            raise RuntimeError(
                "the gradients were unscaled already: once a step, then call update()"
            )
        params = (param for group in optimizer.param_groups for param in group["params"])
        bad = torch.zeros(1, device=optimizer.param_groups[0]["params"][0].device)
        for grad in (param.grad for param in params if param.grad is not None):
            grad.mul_(1 / self.scale)
            bad.logical_or_((~grad.isfinite()).any())
        if dist.is_initialized():
            dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=self.group)
        self.overflow = bool(bad)

    def step(self, optimizer: Optimizer) -> bool:
        """The optimizer's step, on all ranks of the group or on none; whether it was taken."""
        if self.overflow is None:
            self.unscale_(optimizer)
        if not self.overflow:
            optimizer.step()
        return not self.overflow

    def update(self) -> None:
        """After the step: a smaller scale if it was skipped, a larger one after `interval` good steps.

        RuntimeError if nothing was unscaled since the last update.
        """
        if self.overflow is None:
            raise RuntimeError("update() follows a step: call unscale_ or step first")
        if self.overflow:
            self.scale, self.good = self.scale * self.backoff, 0
        else:
            self.good += 1
            if self.good == self.interval:
                self.scale, self.good = self.scale * self.growth, 0
        self.overflow = None
