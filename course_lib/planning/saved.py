"""What does forward keep for backward, and which module kept it?

If an operation needs a tensor for its gradient, it hands the tensor to autograd, which keeps it until
backward has used it. `torch.autograd.graph.saved_tensors_hooks` shows each of these tensors to a function as
it is kept. Counting them is harder than adding up their bytes, for three reasons:

* two operations can keep the same memory, perhaps by different views of it, but it exists only once;
* a view of a large tensor keeps all of the large tensor's memory;
* parameters are also kept, often transposed, but they exist anyway.

So we count memory by storages instead of tensors. When a storage is freed, another one can get its address. A
weak reference tells the two apart, and holds no memory itself.

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
    """Context manager: the bytes autograd keeps for backward of the operations inside.

    module: its parameters and buffers do not count. total: bytes so far, each storage once. by_module: bytes
    by the name of the innermost submodule that ran when a storage was first kept, "" for the module itself.
    Both are still readable after the block. No tensor is copied, changed or held. It costs one Python call
    for each tensor that is kept. Because autograd calls only the innermost hooks, another such object or
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
        # If an operation keeps its own result, the tensor would keep itself alive, and a graph dropped before
        # backward would stay. The detached tensor has the same storage, but does not know the graph.
        return tensor.detach()

    def _know(self, tensors: Iterable[Tensor]) -> int:
        """The bytes of these tensors' storages that were not yet known. From now on they are known."""
        new = 0
        for tensor in tensors:
            storage = tensor.untyped_storage()
            reference = StorageWeakRef(storage)
            known = self._known.get(reference.cdata)
            if known is None or known.expired():
                self._known[reference.cdata] = reference
                new += storage.nbytes()
        return new
