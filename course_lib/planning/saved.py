"""What does forward keep for backward, and which module kept it?

An operation whose gradient needs a tensor hands it to autograd, which keeps it until backward has used it.
`torch.autograd.graph.saved_tensors_hooks` shows each of these tensors to a function as it is kept. Three
things make counting them harder than adding up their bytes:

* two operations may keep the same memory, perhaps by different views of it: it is there once;
* a view of a large tensor keeps all of the large tensor's memory;
* parameters are kept as well, often transposed, but they are there anyway.

So memory is counted by storages, and not by tensors. A storage that is gone gives its place to another, which
then has the same address: a weak reference tells the two apart, and holds no memory itself.

Source: PyTorch's documentation, Hooks for autograd saved tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.hooks import RemovableHandle


class SavedBytes:
    """Context manager: the bytes that autograd keeps for backward of the operations inside.

    module: its parameters and buffers do not count. total: bytes so far, each storage once. by_module: bytes
    by the name of the innermost submodule that ran when a storage was first kept, "" for the module itself.
    Both stay readable when the block is over. No tensor is copied, changed or held. It costs one Python call
    for each tensor that is kept. As autograd calls only the innermost hooks, another such object or
    `save_on_cpu` inside the block hides what it sees.
    """

    def __init__(self, module: nn.Module):
        self.module = module
        self.total = 0
        self.by_module: dict[str, int] = {}
        self._known: dict[int, StorageWeakRef] = {}
        self._running: list[str] = []
        self._handles: list[RemovableHandle] = []
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._kept, lambda tensor: tensor)

    def __enter__(self) -> SavedBytes:
        self._know([*self.module.parameters(), *self.module.buffers()])
        for name, submodule in self.module.named_modules():
            self._handles += [
                submodule.register_forward_pre_hook(
                    lambda _, __, name=name: self._running.append(name)
                ),
                submodule.register_forward_hook(self._left, always_call=True),
            ]
        self._hooks.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._hooks.__exit__(kind, error, traceback)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._running.clear()

    def _left(self, *_: object) -> None:
        self._running.pop()

    def _kept(self, tensor: Tensor) -> Tensor:
        new = self._know([tensor])
        if new:
            name = self._running[-1] if self._running else ""
            self.total += new
            self.by_module[name] = self.by_module.get(name, 0) + new
        # An operation that keeps its own result would keep itself by the tensor: a graph that is dropped
        # before backward would stay. The detached tensor has the same storage, and does not know the graph.
        return tensor.detach()

    def _know(self, tensors: Iterable[Tensor]) -> int:
        """The bytes of these tensors' storages that were not known; they are known from now on."""
        new = 0
        for tensor in tensors:
            storage = tensor.untyped_storage()
            reference = StorageWeakRef(storage)
            known = self._known.get(reference.cdata)
            if known is None or known.expired():
                self._known[reference.cdata] = reference
                new += storage.nbytes()
        return new
