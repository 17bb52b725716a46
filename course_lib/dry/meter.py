"""The memory and the work of a step: bytes alive, bytes kept for backward, FLOPs of products.

The meter counts storages, each once for all of its views, and reads only sizes. So it counts tensors without
values in the same way as real ones, and a rank over gloo can run under the same meter.

    alive   a storage counts from the operation that made it until it is freed
    kept    a storage counts as long as autograd keeps a tensor of it for backward. Storages from
            before the step (weights, inputs) do not count
    FLOPs   matrix products and attention, forward and backward, as in `facts.transformer_flops`
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib.scorecard import product_flops


class Meter(TorchDispatchMode):
    """Within this context, sees every operation of this thread, and every tensor kept by autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = self.kept = self.peak_kept = self.flops = 0
        self.known: dict[int, int] = {}  # storages that are alive, and their bytes
        self.keeps: Counter[int] = Counter()  # storages that autograd keeps: how often
        self.resident: set[int] = set()
        self.storages: Any = torch.UntypedStorage
        self.resize = self.storages.resize_
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.keep, lambda saved: saved.tensor)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's hook. With True, it would import the compiler at the first operation, which takes 2 s."""
        return False

    def __enter__(self) -> Meter:
        super().__enter__()
        self.hooks.__enter__()
        resize = self.resize

        def resize_and_note(storage: torch.UntypedStorage, nbytes: int) -> torch.UntypedStorage:
            resize(storage, nbytes)
            self.resized(storage)
            return storage

        # ZeRO-3 frees a row in this way, without an operation.
        self.storages.resize_ = resize_and_note
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.storages.resize_ = self.resize
        self.hooks.__exit__(kind, error, trace)
        super().__exit__(kind, error, trace)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.flops += product_flops(func, args, kwargs, result)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.note(leaf)
        return result

    def begin(self) -> None:
        """A step begins. All storages that exist now stay, and peaks and FLOPs are counted from now on."""
        gc.collect()
        self.resident = set(self.known)
        self.peak, self.kept, self.peak_kept, self.flops = self.alive, 0, 0, 0

    def note(self, tensor: Tensor) -> int:
        """Count the tensor's storage as long as it is alive. Returns its key."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.known:
            self.known[key] = storage.nbytes()
            self.alive += self.known[key]
            self.peak = max(self.peak, self.alive)
            weakref.finalize(storage, self.freed, key).atexit = False
        return key

    def resized(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.known:
            self.alive += storage.nbytes() - self.known[key]
            self.known[key] = storage.nbytes()
            self.peak = max(self.peak, self.alive)

    def freed(self, key: int) -> None:
        self.alive -= self.known.pop(key)
        self.resident.discard(key)

    def keep(self, tensor: Tensor) -> SavedTensor:
        """Autograd keeps a tensor for backward, and later gets it back from the object returned here."""
        key, saved = self.note(tensor), SavedTensor(tensor)
        if key not in self.resident:
            self.keeps[key] += 1
            if self.keeps[key] == 1:
                self.kept += self.known[key]
                self.peak_kept = max(self.peak_kept, self.kept)
            weakref.finalize(saved, self.let_go, key, self.known[key]).atexit = False
        return saved

    def let_go(self, key: int, nbytes: int) -> None:
        self.keeps[key] -= 1
        if not self.keeps[key]:
            del self.keeps[key]
            self.kept -= nbytes


class SavedTensor:
    """A tensor kept by autograd. It is detached, since an output would keep its own graph alive."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor.detach()


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' storages, each once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def objects_of(kind: type) -> list[Any]:
    """All live objects of a class. It finds parameters and optimizers wherever a program holds them."""
    gc.collect()
    # This tests `type` before `isinstance`, which would ask every lazy module and proxy for its class.
    base = Tensor if kind is nn.Parameter else kind
    return [
        thing
        for thing in gc.get_objects()
        if issubclass(type(thing), base) and isinstance(thing, kind)
    ]
