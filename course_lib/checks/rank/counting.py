"""In the rank: bytes of the tensors that are there, and of those that forward keeps for backward.

Both are counted by the memory that tensors lie in, each piece once: a view of a large tensor keeps all of it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from course_lib.checks.rank import frozen

# Of the base class: a subclass may answer with a layout, parts and storages of its own.
_layout = vars(torch._C.TensorBase)["layout"].__get__
_indices, _values = frozen.Tensor._indices, frozen.Tensor._values
_rows = {  # the indices that a compressed tensor has beside its values
    torch.sparse_csr: (frozen.Tensor.crow_indices, frozen.Tensor.col_indices),
    torch.sparse_bsr: (frozen.Tensor.crow_indices, frozen.Tensor.col_indices),
    torch.sparse_csc: (frozen.Tensor.ccol_indices, frozen.Tensor.row_indices),
    torch.sparse_bsc: (frozen.Tensor.ccol_indices, frozen.Tensor.row_indices),
}
_compressed_values, _as_base = frozen.Tensor.values, torch._C.DisableTorchFunctionSubclass
_collect, _objects, _hooks = gc.collect, gc.get_objects, saved_tensors_hooks
_Ref = StorageWeakRef

Piece = tuple[int, StorageWeakRef]  # its bytes; the reference tells whether it is still there
Pieces = dict[int, Piece]  # by where they begin


def pieces(tensors: Iterable[torch.Tensor]) -> Pieces:
    """The memory that these tensors lie in."""
    with _as_base():
        storages = [frozen.untyped_storage(part) for tensor in tensors for part in dense_parts(tensor)]
    return {storage.data_ptr(): (storage.nbytes(), _Ref(storage)) for storage in storages}


def dense_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors that have this one's memory: itself, or the indices and values of a sparse one."""
    with _as_base():
        layout = _layout(tensor)
        if layout == torch.sparse_coo:
            return _indices(tensor), _values(tensor)
        if layout in _rows:
            return *(part(tensor) for part in _rows[layout]), _compressed_values(tensor)
    return (tensor,)


def alive() -> Pieces:
    """The memory of all tensors that Python code can still reach, wherever they are kept."""
    _collect()
    return pieces(candidate for candidate in _objects() if issubclass(type(candidate), frozen.Tensor))


def more(now: Pieces, before: Pieces) -> int:
    """Bytes of `now` that `before` does not have; a piece that took the place of one that is gone is new."""
    there = {begin for begin, (_, ref) in before.items() if not ref.expired()}
    return sum(nbytes for begin, (nbytes, _) in now.items() if begin not in there)


class Saved:
    """Within, counts the bytes that operations keep for backward, without the memory of `apart_from`."""

    def __init__(self, apart_from: Iterable[torch.Tensor] = ()):
        self.known = pieces(apart_from)
        self.apart = frozenset(self.known)
        self.nbytes = 0
        self.kept: list[torch.Tensor] = []  # memory that is freed would be given out again
        self.hooks = _hooks(self.pack, self.unpack)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor without its graph: one that an operation made and keeps would hold itself for ever."""
        detached = frozen.detach(tensor)
        for begin, piece in pieces([tensor]).items():
            if begin not in self.known:
                self.known[begin] = piece
                self.nbytes += piece[0]
                self.kept.append(detached)
        return detached

    def beside(self, before: Pieces, y: Any) -> int:
        """Bytes that came since `before` and are still there, not handed to PyTorch for keeping.

        On a Function's ctx, on the layer or anywhere else. `y`, the output, is the caller's.
        """
        passed_on = pieces([y]) if isinstance(y, frozen.Tensor) else {}
        return more(alive(), before | passed_on | self.known)

    def still_kept(self) -> int:
        """Bytes of `nbytes` that are there still, without a graph that was thrown away. It ends the count."""
        self.kept.clear()
        handed = (piece for begin, piece in self.known.items() if begin not in self.apart)
        return sum(nbytes for nbytes, ref in handed if not ref.expired())

    @staticmethod
    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def __enter__(self) -> Saved:
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.hooks.__exit__(*error)
