"""A GPT of which each rank has all parameters, but only some tokens of every sequence.

Only attention looks at other tokens. All other layers (embeddings, norms, MLP, head) work on the rank's own
tokens. But they need two things a rank does not know by itself: the positions of its tokens, for rotary or
learned positions, and the number of targets on all ranks, for the mean of the loss. Since every rank's tokens
contribute to the gradient of every parameter, gradients are summed over the ranks, as for data parallelism.

The targets of the whole sequence are shifted before they are dealt out, because the target of a rank's last
token is the first token of a part that another rank might hold.

The model must have the form of `course_lib.models.GPT`, which is called with (tokens, positions) and has
blocks whose attention.attend can be exchanged.

Source: Llama Team, The Llama 3 Herd of Models, 2024, section 3.3.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from .arguments import check_causal
from .balanced import zigzag
from .layouts import Group, Layout, MakeLayout, deal, place, positions

Attention = Callable[..., Tensor]


class ContextParallelGPT(nn.Module):
    """`model` on this rank's tokens, with an attention that spans the ranks of `group`.

    model: all ranks get the values of the group's first rank, and must pass the same configuration.
    attention: a causal function (q, k, v, layout=...), such as `partial(ring_attention, causal=True)`; bind
        the group as well, unless it is the default group.
    layout: a function that makes a sequence's layout from its length and the number of ranks.

    Each rank's dropout draws from its own generator, for its own tokens, so seed the ranks differently.

    Raises ValueError for an attention without a causal mask.
    """

    def __init__(
        self,
        model: Any,
        attention: Attention,
        layout: MakeLayout = zigzag,
        group: Group = None,
    ):
        super().__init__()
        check_causal(attention)
        self.model, self.attention, self.make_layout, self.group = model, attention, layout, group
        self.layout: Layout = []
        for block in model.blocks:
            block.attention.attend = self._attend
        _same_values(model, group)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, tokens here, vocab_size) of this rank's part of the whole `tokens` (batch, seq)."""
        rank, n = place(self.group)
        self.layout = self.make_layout(tokens.shape[1], n)
        where = positions(self.layout[rank], tokens.device)
        return self.model(deal(tokens, self.layout, self.group), where)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over all ranks' targets, (batch, seq), in nats; -100 does not count.

        The value is the same on every rank, and its gradient flows only to the rank's own logits. It takes
        one all-reduce of two numbers.
        """
        mine = deal(targets, self.layout, self.group)
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        own = F.cross_entropy(precise.flatten(0, 1), mine.flatten(), reduction="sum")
        return mean_over_ranks(own, (mine != -100).sum(), self.group)

    def sum_gradients(self) -> None:
        """After backward, sum the gradient of each parameter over the ranks, on all of them.

        In one all-reduce, each rank sends 2 (n-1)/n of the gradients' bytes. Without it, the ranks' copies of
        the parameters would drift apart.
        """
        params = [param for param in self.model.parameters() if param.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
        if place(self.group)[1] == 1 or not grads:
            return
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat, group=self.group)
        pieces = flat.split([grad.numel() for grad in grads])
        for param, piece in zip(params, pieces, strict=True):
            param.grad = piece.view_as(param)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attention(q, k, v, layout=self.layout)


def mean_over_ranks(own: Tensor, count: Tensor, group: Group = None) -> Tensor:
    """(sum of `own` over the ranks) / (sum of `count`); its gradient flows to this rank's `own`.

    The mean of the ranks' means would be another number if their counts differ.
    """
    totals = torch.stack((own.detach().double(), count.double()))
    if place(group)[1] > 1:
        dist.all_reduce(totals, group=group)
    total, counted = totals.to(own.dtype)
    share = own / counted
    return share + (total / counted - share).detach()


@torch.no_grad()
def _same_values(model: nn.Module, group: Group) -> None:
    """Give all ranks the values of the group's first rank."""
    if place(group)[1] == 1:
        return
    first = dist.get_process_group_ranks(group or dist.group.WORLD)[0]
    for tensor in [*model.parameters(), *model.buffers()]:
        values = tensor.detach().contiguous()
        dist.broadcast(values, first, group=group)
        tensor.copy_(values)
