"""In the rank: when forward and backward came through a stage, and what was kept for backward meanwhile.

Both are seen from within the stage: not from an account by the code that runs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from course_lib.checks.rank import frozen
from course_lib.checks.rank.notebooks.pipeline.fingerprints import fingerprint
from course_lib.checks.wire import Count

_view_as = torch.Tensor.view_as
_Hooks, _Ref = saved_tensors_hooks, StorageWeakRef


class Kept:
    """Memory that forward kept for backward: how much of it is still there, by whatever reference.

    A piece counts until the last reference to it is gone, autograd's or one in a list.
    """

    def __init__(self, apart_from: Iterable[Tensor]):
        self.apart = {frozen.untyped_storage(tensor).data_ptr() for tensor in apart_from}
        self.pieces: dict[int, tuple[StorageWeakRef, int]] = {}

    def __enter__(self) -> Kept:
        self.hooks = _Hooks(self.pack, self.unpack)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.hooks.__exit__(*error)

    def pack(self, tensor: Tensor) -> Tensor:
        storage = frozen.untyped_storage(tensor)
        if storage.data_ptr() not in self.apart:
            ref = _Ref(storage)  # while it is here, no other piece gets its number
            self.pieces[ref.cdata] = ref, storage.nbytes()
        return frozen.detach(tensor)  # an output that holds its own graph would never be freed

    @staticmethod
    def unpack(tensor: Tensor) -> Tensor:
        return tensor

    def nbytes(self) -> int:
        """Bytes that are still there."""
        self.pieces = {key: piece for key, piece in self.pieces.items() if not piece[0].expired()}
        return sum(nbytes for _, nbytes in self.pieces.values())


# Of a pass through the stage: its kind, "F" or "B", the number of the forward, and the bytes that are kept.
Event = tuple[Literal["F", "B"], Count, Count]


class Watched(nn.Module):
    """A stage's module that notes its forwards and backwards.

    events: in order; a backward begins when the gradient of that forward's output has come. inputs: the
    `fingerprint` of each forward's input. apart_from: tensors that are kept anyway, beside the module's
    parameters. tells: whether there are fingerprints, which take several times the memory of the input; else
    each is [].
    """

    def __init__(self, inner: nn.Module, apart_from: Iterable[Tensor] = (), tells: bool = True):
        super().__init__()
        self.inner, self.tells = inner, tells
        self.kept = Kept([*inner.parameters(), *apart_from])
        self.events: list[Event] = []
        self.inputs: list[list[float]] = []

    def forward(self, x: Tensor) -> Tensor:
        number = len(self.inputs)
        self.inputs.append(fingerprint(x) if self.tells else [])
        with self.kept:
            y = self.inner(x)
        self.note("F", number)
        return _Passed.apply(y, number, self)  # type: ignore[return-value]

    def note(self, kind: Literal["F", "B"], number: int) -> None:
        self.events.append((kind, number, self.kept.nbytes()))


class _Passed(torch.autograd.Function):
    """Identity; in backward it tells that the gradient of this forward's output has arrived."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, number: int, watched: Watched) -> Tensor:
        ctx.number, ctx.watched = number, watched
        return _view_as(y, y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        ctx.watched.note("B", ctx.number)
        return grads[0], None, None
