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
        scaler.unscale_(optimizer)          # here, if gradients are looked at or clipped
        scaler.step(optimizer)              # False: skipped
        scaler.update()

    A pipeline's step calls backward by itself, and finds the loss in `stage.loss`: scale it there.

    scale: at first; growth: its factor after `interval` steps in a row without a skip; backoff: its factor
    after a skipped step. group: ranks that hold parts of one model; None: all ranks, or none if
    torch.distributed is not in use. `scale` and `good` (steps since the last change) are plain numbers, equal
    on all ranks of the group, and `state_dict` has both. The scale stays below float32's
    largest number.

    One scaler may serve several optimizers: each is unscaled and stepped once before `update`, which lowers
    the scale if any of them was skipped. An optimizer with a method `average_gradients`, such as
    `course_lib.zero.Zero1Optimizer`, is asked for the gradients of its shards first.
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
        self.overflow: dict[Optimizer, bool] = {}  # of those unscaled since the last update
        self.stepped: set[Optimizer] = set()

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The loss times the scale; backward from it gives gradients times the scale."""
        return loss * self.scale

    @torch.no_grad()
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide all gradients by the scale, in place, and find out whether any rank has an infinity or NaN.

        Every rank of the group calls it, also one without gradients. RuntimeError for a second time before
        `update`, and on all ranks if none of them has a gradient.
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
        """The optimizer's step, on all ranks of the group or on none; whether it was taken.

        RuntimeError for a second time before `update`; otherwise see `unscale_`.
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
        """After the step: a smaller scale if it was skipped, a larger one after `interval` good steps.

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
        """The two numbers that a checkpoint has to hold."""
        return {"scale": self.scale, "good": self.good}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.scale, self.good = float(state["scale"]), int(state["good"])


def device_of(params: Sequence[Tensor], group: dist.ProcessGroup | None) -> torch.device:
    """The first parameter's; on a rank without parameters the one on which the group's messages lie."""
    if params:
        return params[0].device
    on_gpu = dist.is_initialized() and "nccl" in dist.get_backend(group)
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
