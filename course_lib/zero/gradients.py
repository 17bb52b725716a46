"""A bucket's gradients: a row of all before the reduce-scatter, and this rank's shard of the mean after it.

    row      of rank 0   [ g g g | g g g | - - 0 ]     2 parameters have arrived, the third has not
    row      of rank 1   [ g g g | g g g | g g 0 ]
    shard    of rank 2                   [ g g 0 ]     the mean; `present` says that the third has one

The optimizer must skip a parameter that no rank used, as it does in one process, and must not decay it with
a gradient of zero. The parameter's owner learns this without another message, because an absent gradient is
sent as -0.0. The sum -0.0 + -0.0 is -0.0, but any other gradient, even 0.0, changes it (IEEE 754, section
6.3).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from .shards import ShardLayout


class Gradients(ShardLayout):
    """Gradients of `params` in one row, which takes memory only when the first gradient arrives.

    arrived: which parameters have a gradient in the row.
    shards: the optimizer's parameters, which get the mean from `give`.
    """

    params: Sequence[nn.Parameter]
    shards: Sequence[nn.Parameter]
    flat: torch.Tensor
    _gradient: torch.Tensor | None = None

    # ---- the row, before the reduce-scatter

    def put(self, i: int) -> torch.Tensor:
        """Copy the i-th parameter's `.grad` into the row, and return its view there."""
        return self._write(i, 0.0)

    def add(self, i: int) -> None:
        """Add the i-th parameter's `.grad` to the row, and forget it."""
        self._write(i, self._view(i) if self.arrived[i] else 0.0)
        self.params[i].grad = None

    def add_left(self) -> None:
        """Add every `.grad` that is left."""
        for i, param in enumerate(self.params):
            if param.grad is not None:
                self.add(i)

    def flat_gradient(self) -> torch.Tensor:
        """The row of all gradients, (n * shard_numel,), of which every `.grad` becomes a view."""
        for i, param in enumerate(self.params):
            self.arrived[i] = False
            if param.grad is not None:
                param.grad = self.put(i)
        return self._fill_absent()

    def take_gradient(self) -> tuple[torch.Tensor, list[bool]]:
        """Return the row of added gradients, and which of them had arrived; the bucket forgets both."""
        taken = self._fill_absent(), self.arrived
        self.forget_gradient()
        return taken

    def forget_gradient(self) -> None:
        """Forget all gradients, and free the memory for them."""
        self.arrived = [False] * len(self.params)
        self._gradient, self._views_of_gradient = None, []

    def _write(self, i: int, before: torch.Tensor | float) -> torch.Tensor:
        view, grad = self._view(i), self.params[i].grad
        if grad is not None and grad.requires_grad:
            raise RuntimeError(
                "a backward with create_graph=True: gradients are moved into a row, which has no graph of "
                "theirs. For second derivatives take the inner ones by torch.autograd.grad"
            )
        if grad is None:
            raise RuntimeError("a parameter's gradient was removed by another hook of its own")
        if grad.layout != torch.strided:
            raise ValueError(
                f"a gradient is {grad.layout}; shards are dense: use sparse=False in the embedding"
            )
        if grad.data_ptr() != view.data_ptr():
            torch.add(grad, before, out=view)  # + 0.0 turns -0.0, which means "absent", into 0.0
        self.arrived[i] = True
        return view

    def _view(self, i: int) -> torch.Tensor:
        if self._gradient is None:
            self._gradient = torch.empty_like(self.flat)
            self._gradient[self.numel :].zero_()
            self._views_of_gradient = self.views(self._gradient)
        return self._views_of_gradient[i]

    def _fill_absent(self) -> torch.Tensor:
        for i, here in enumerate(self.arrived):
            if not here:
                self._view(i).fill_(-0.0)
        if self._gradient is None:
            raise RuntimeError("a bucket without parameters has no gradient")
        return self._gradient

    def zero_grad(self, set_to_none: bool) -> None:
        """Forget every `.grad`, or fill it with zeros; the row stays."""
        for param in self.params:
            if set_to_none:
                param.grad = None
            elif param.grad is not None:
                with torch.no_grad():  # a view of the row, which detach_() refuses
                    param.grad.zero_()

    # ---- the mean of this rank's shard, after the reduce-scatter

    def present(self, mean: torch.Tensor, arrived: Sequence[bool]) -> list[bool]:
        """For each parameter, whether this shard of the mean holds a gradient of some rank.

        arrived: for each parameter, whether this rank had a gradient.
        """
        return [
            bool(piece.numel()) and (here or not _all_negative_zero(piece))
            for piece, here in zip(self.pieces(mean), arrived, strict=True)
        ]

    @torch.no_grad()
    def give(self, mean: torch.Tensor, present: Sequence[bool], add: bool = False) -> None:
        """Make the mean the gradient of the optimizer's shards, or with `add`, add it to their gradient."""
        for shard, piece, here in zip(self.shards, self.pieces(mean), present, strict=True):
            if here and add and shard.grad is not None:
                shard.grad += piece.to(shard.device)
            elif here:
                shard.grad = piece.to(shard.device, shard.dtype)


def _all_negative_zero(piece: torch.Tensor) -> bool:
    return bool(((piece == 0) & torch.signbit(piece)).all())
