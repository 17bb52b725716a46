"""Measure how many bytes a forward keeps for backward, to compare them with the formula."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


@dataclass
class SavedBytes:
    """`total`: bytes of all saved tensors, each piece of memory once; `sizes`: the bytes of each piece."""

    sizes: list[int] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.sizes)


@contextmanager
def saved_for_backward(apart_from: Iterable[Tensor] = ()) -> Iterator[SavedBytes]:
    """Count the tensors that operations inside keep for backward, without changing them.

    apart_from: tensors that are kept but do not count, such as the parameters, which take up memory anyway.
    Two tensors in the same memory (a view, an input kept by two layers) count once. A tensor kept by a
    function as an attribute of its context is not counted.
    """
    counted = SavedBytes()
    known = {tensor.untyped_storage().data_ptr() for tensor in apart_from}
    alive = []  # else freed memory could go to another tensor, which would count as the same

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            known.add(storage.data_ptr())
            alive.append(tensor.detach())
            counted.sizes.append(storage.nbytes())
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        yield counted
