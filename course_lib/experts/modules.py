"""A layer with experts: the router, the experts, and the loss that keeps them busy.

MoE(width, hidden, experts, k)                 all experts here
MoE(width, hidden, experts, k, group)          E / n of them on each rank of the group
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .all_to_all import Group
from .balance import AddLoss, load_balancing_loss
from .mixture import moe
from .parallel import expert_parallel_moe
from .routing import route


class MoE(nn.Module):
    """A mixture of experts in the place of an MLP, from x (..., width) to the same shape.

    hidden: numbers inside an expert. experts, k: how many there are, and how many per token. group: the ranks
    among which the experts are divided; None: each rank has all of them, and nothing is sent.

    Parameters: `router` (E, h), `w1` and `w3` (E / n, f, h), `w2` (E / n, h, f). All experts are drawn on
    every rank from torch's default generator, so after the same `torch.manual_seed` the ranks hold parts of
    one mixture. Buffers: `bias` (E,), for the choice, and `counts` (E,), the assignments of the forwards that
    had a gradient, until `update_bias` is called with them and they are set to zero. A forward that is
    recomputed counts again, but this changes no sign.

    balance: the coefficient of the load-balancing loss, which takes part only in backward. If `train_step`
    sums over the microbatches of a step, pass the step's `balance` divided by their number. tokens_group: the
    ranks over whose tokens the loss is taken; None: the ranks of `group`, or all ranks if there is no group.
    With a scaler, see `AddLoss`.

    Raises ValueError if the ranks do not divide the experts.
    """

    # Of these each rank of the group has its own; the others are the same on all of its ranks.
    apart = ("w1", "w3", "w2")

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        k: int,
        group: Group = None,
        *,
        balance: float = 0.0,
        tokens_group: Group = None,
        std: float = 0.02,
    ):
        super().__init__()
        n, rank = (1, 0) if group is None else (dist.get_world_size(group), dist.get_rank(group))
        if experts % n:
            raise ValueError(f"{n} ranks do not divide {experts} experts")
        self.k, self.group, self.balance = k, group, balance
        self.tokens_group = tokens_group or group

        def part(*shape: int) -> nn.Parameter:
            whole = torch.empty(experts, *shape).normal_(std=std)
            return nn.Parameter(whole.chunk(n)[rank].clone())

        self.router = nn.Parameter(torch.empty(experts, width).normal_(std=std))
        self.w1, self.w3, self.w2 = part(hidden, width), part(hidden, width), part(width, hidden)
        if n > 1:  # wrappers with one group for all parameters refuse these
            for own in (self.w1, self.w3, self.w2):
                own.shared_out = True  # pyright: ignore[reportAttributeAccessIssue]
        self.bias: Tensor
        self.counts: Tensor
        self.register_buffer("bias", torch.zeros(experts))
        self.register_buffer("counts", torch.zeros(experts, dtype=torch.float64))

    def logits(self, x: Tensor) -> Tensor:
        """In float32 at least, even under autocast, since in 16 bits other experts would be chosen."""
        exact = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return x.to(exact) @ self.router.to(exact).T

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        logits = self.logits(flat)
        experts, weights = route(logits, self.bias, k=self.k)
        mine = (self.w1, self.w3, self.w2)
        if self.group is None:
            y = moe(flat, experts, weights, *mine)
        else:
            y = expert_parallel_moe(flat, experts, weights, *mine, self.group)
        if torch.is_grad_enabled():
            self.counts += experts.flatten().bincount(minlength=len(self.counts))
            if self.balance:
                loss = load_balancing_loss(logits, experts, self.tokens_group)
                y = AddLoss.apply(y, loss, self.balance)
        return y.view_as(x)
