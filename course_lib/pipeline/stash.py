"""PipeDream updates after every backward, and keeps for each microbatch the weights its forward saw.

Between a microbatch's forward and its backward, other microbatches end, and each of them changes the weights.
A backward through the new weights would give the gradient of no function, because activations would be from
one version and weights from another. So a stage stashes the version seen by a forward until the backward has
used it. The backward then computes the gradient of this version, and the optimizer applies it to the newest
version. The gradient is still stale, by p - 1 - i updates on stage i of p. The price is p - i versions
(`weight_versions`).

Source: Narayanan et al., PipeDream, SOSP 2019, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

from .actions import Action, Schedule
from .checked import check
from .memory import weight_versions
from .plan import plan
from .run import Microbatch, RankState, targets_of
from .shared import Group
from .stage import Stage


def run_pipedream(
    stage: Stage,
    actions: Schedule,
    microbatches: Sequence[Microbatch],
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    group: Group = None,
    stash: bool = True,
) -> dict[int, Tensor]:
    """Train on a stream of microbatches, each a batch of its own, without a flush between them.

    stage: the stage of this rank, whose parameters are updated. optimizer: makes an optimizer for them, such
        as `lambda params: torch.optim.SGD(params, lr=0.1)`.
    stash: False overwrites the weights while microbatches are under way, a mistake to look at. actions,
    microbatches, group, the result and the messages are the same as for `run_schedule`, but each part of the
    loss is the mean over its own microbatch.

    Holds up to p - i copies of the weights of stage i of p; one more is made in each update.
    Raises ValueError for a schedule with halved backwards, and for a stage that shares parameters, because
    they would be updated at different times. Raises RuntimeError under `torch.no_grad()`.
    """
    if not torch.is_grad_enabled():
        raise RuntimeError(
            "run_pipedream trains in every backward: call it outside torch.no_grad()"
        )
    rank = dist.get_rank(group)
    check([stage], actions, microbatches, rank, dist.get_world_size(group))
    weight_versions(actions)
    if stage.shared:
        raise ValueError(
            f"stage {stage.index} shares {', '.join(stage.shared)} with other ranks, which would update at "
            "other times: give a model whose head is not tied"
        )
    module = stage.module
    stage.module = Versioned(module, optimizer(module.parameters()), stash)
    try:
        run = _Stream([stage], actions[rank], microbatches, group)
        run.follow(plan(actions, rank, stage.copies))
    finally:
        stage.module = module
    return run.losses


class Versioned(nn.Module):
    """A module whose forward sees the newest weights, and whose backward sees the weights of its forward.

    stash: False makes the mistake, which is to overwrite weights while microbatches are under way.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, stash: bool = True):
        super().__init__()
        self.module, self.optimizer, self.stash = module, optimizer, stash
        self.newest = self._version()
        # the version that each microbatch under way saw, and the microbatch that comes now
        self.used: dict[int, dict[str, Tensor]] = {}
        self.microbatch = 0

    def forward(self, x: Tensor) -> Tensor:
        self.used[self.microbatch] = self.newest
        return functional_call(self.module, self.newest, (x,))

    @torch.no_grad()
    def update(self, microbatch: int) -> None:
        """Step with the gradient of the version seen by this microbatch."""
        version = self.used.pop(microbatch)
        for name, param in self.module.named_parameters():
            param.grad, version[name].grad = version[name].grad, None
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.stash:
            self.newest = self._version()
        else:
            for name, param in self.module.named_parameters():
                self.newest[name].data.copy_(param)

    def _version(self) -> dict[str, Tensor]:
        return {
            name: param.detach().clone().requires_grad_()
            for name, param in self.module.named_parameters()
        }


class _Stream(RankState):
    """A `RankState` in which each microbatch is a batch of its own, with an update at its end."""

    def compute(self, action: Action) -> None:
        stage = self.stages[action.stage]
        module = stage.module
        assert isinstance(module, Versioned)
        if action.kind == "F":
            self.count = targets_of(stage, [self.microbatches[action.microbatch]])
            module.microbatch = action.microbatch
        super().compute(action)
        if action.kind == "B":
            module.update(action.microbatch)
