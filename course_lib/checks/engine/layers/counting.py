"""In the rank: bytes of the tensors that are there, and of those that forward keeps for backward.

Both are counted by the memory that tensors lie in, each piece once: a view of a large tensor keeps all of it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

_Tensor, _untyped, _detach = torch.Tensor, torch.Tensor.untyped_storage, torch.Tensor.detach
_collect, _objects, _hooks = gc.collect, gc.get_objects, saved_tensors_hooks

_clock, _sleep = time.monotonic, time.sleep
LETTING_GO = 0.5  # seconds

Pieces = dict[int, int]  # where a piece of memory begins: its bytes


def pieces(tensors: Iterable[torch.Tensor]) -> Pieces:
    """The memory that these tensors lie in."""
    storages = (_untyped(one) for one in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def alive() -> Pieces:
    """The memory of all tensors that Python code can still reach, wherever they are kept."""
    _collect()
    return pieces(one for one in _objects() if issubclass(type(one), _Tensor))


def more(now: Pieces, before: Pieces) -> int:
    """Bytes of `now` that `before` does not have."""
    return sum(nbytes for begin, nbytes in now.items() if begin not in before)


class Saved:
    """Within, counts what operations keep for backward, without the memory of `apart_from`."""

    def __init__(self, apart_from: Iterable[torch.Tensor] = ()):
        self.known = pieces(apart_from)
        self.nbytes = 0
        self.kept: list[torch.Tensor] = []  # memory that is freed would be given out again
        self.hooks = _hooks(self.pack, self.unpack)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        for begin, nbytes in pieces([tensor]).items():
            if begin not in self.known:
                self.known[begin] = nbytes
                self.nbytes += nbytes
                self.kept.append(_detach(tensor))
        return tensor

    def beside(self, before: Pieces, y: Any) -> int:
        """Bytes that came since `before` and are still there, not handed to PyTorch for keeping.

        On a Function's ctx, on the layer or anywhere else. `y`, the output, is the caller's. gloo's thread
        lets go of a message's tensor a moment after the wait for it is over: that is not keeping it.
        """
        passed_on = pieces([y]) if isinstance(y, _Tensor) else {}
        apart = before | passed_on | self.known
        deadline = _clock() + LETTING_GO
        while (kept := more(alive(), apart)) and _clock() < deadline:
            _sleep(0.01)
        return kept

    @staticmethod
    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def __enter__(self) -> Saved:
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.hooks.__exit__(*error)
