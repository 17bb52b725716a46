"""A bucket: parameters in one row, of which this rank owns a shard.

    params    a a a a a   b b   c c c c
    flat    [ a a a | a a b | b c c | c c 0 ]    on 4 ranks, with one zero of padding
    own             [ a a b ]                    of rank 1, a view of flat
    shards          [ a a ] [ b ] [ ]            each parameter's part of own, or of its copy

The optimizer knows only the shards. It works on a copy of `own`, the *master*, if the parameters have 16
bits (the copy has 32), or if shards are kept in other memory than the parameters (`home`, see `offload.py`).

Source: as for `shards.py`; the master copy belongs to mixed precision, as in ZeRO, section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from .gradients import Gradients
from .shards import Home
from .transport import Transport

HALF = (torch.float16, torch.bfloat16)


class Bucket(Gradients):
    """Parameters of one dtype and device in one row, with the values of the group's first rank.

    params: they become views of `flat`, (n * shard_numel,).
    own: this rank's part of flat, (shard_numel,).  master: own, or its copy.
    shards: master cut into nn.Parameters, each of them one parameter's part, flat, often empty.
    """

    def __init__(self, params: Sequence[nn.Parameter], transport: Transport, home: Home):
        super().__init__(params, transport.rank, transport.n)
        self.params, self.transport, self.home = params, transport, home
        self.flat = params[0].detach().new_zeros(transport.n * self.shard_numel)
        self.row_views = self.views(self.flat)
        for param, view in zip(params, self.row_views, strict=True):
            view.copy_(param.detach())
        self.show(self.row_views)
        transport.broadcast(self.flat)
        self.own = self.flat[self.begin : self.begin + self.shard_numel]
        self.master = self._make_master()
        self.shards = [
            nn.Parameter(piece, requires_grad=param.requires_grad)
            for param, piece in zip(params, self.pieces(self.master), strict=True)
        ]
        self.forget_gradient()

    def show(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let the parameters be these tensors, which have their shapes."""
        for param, tensor in zip(self.params, tensors, strict=True):
            param.data = tensor

    def _make_master(self) -> torch.Tensor:
        dtype = torch.float32 if self.own.dtype in HALF else self.own.dtype
        if dtype == self.own.dtype and not self.home.is_apart(self.own.device):
            return self.own
        return self.home.empty(self.shard_numel, dtype, self.own.device).copy_(self.own)

    def to_master(self) -> None:
        """Copy changes of the parameters since the last step into the optimizer's copy, if it has one."""
        if self.master is not self.own and not torch.equal(
            self.own, self.master.to(self.own.device, self.own.dtype)
        ):
            self.master.copy_(self.own)

    def from_master(self) -> None:
        """Copy the optimizer's result into this rank's part of the row."""
        if self.master is not self.own:
            self.own.copy_(self.master)


def alike(params: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Lists of parameters of one dtype and device, either all frozen or all trained."""
    kinds: dict[object, list[nn.Parameter]] = {}
    for param in params:
        kinds.setdefault((param.dtype, param.device, param.requires_grad), []).append(param)
    return list(kinds.values())
