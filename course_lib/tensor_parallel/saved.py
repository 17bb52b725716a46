"""How many bytes a forward pass keeps for backward: measured, to stand beside the formula."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


@dataclass
class SavedBytes:
    """`total`: bytes of all that was saved, each piece of memory once; `sizes`: of each piece."""

    sizes: list[int] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.sizes)


@contextmanager
def saved_for_backward(apart_from: Iterable[Tensor] = ()) -> Iterator[SavedBytes]:
    """Count what operations inside keep for backward; nothing of it is changed.

    apart_from: what is not counted though it is kept, such as the parameters, which are there anyway.
    Two tensors in the same memory (a view, an input that two layers keep) count once. What a function keeps
    on its context by itself is not seen.
    """
    counted = SavedBytes()
    known = {one.untyped_storage().data_ptr() for one in apart_from}
    alive = []  # else freed memory would be given to another tensor, and counted as the same

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            known.add(storage.data_ptr())
            alive.append(tensor.detach())
            counted.sizes.append(storage.nbytes())
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        yield counted
