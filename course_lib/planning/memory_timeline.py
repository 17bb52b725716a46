"""The bytes alive at each operation of a training step, by what holds them.

This is the picture that PyTorch's memory visualiser draws on a GPU
(`torch.cuda.memory._record_memory_history`). Here it is made from the operations PyTorch dispatches, so it
runs on every machine, and its areas can be compared with closed forms, byte by byte: weights 4P, gradients
4P, Adam's state 8P in float32, and activations as `activation_bytes` says.

A storage belongs to the first of KINDS that holds it: a parameter (or buffer), the `.grad` of a parameter,
the optimizer's state, a tensor kept for backward, or anything else (inputs, results that live for a moment,
gradients of activations). Memory that a backend allocates inside itself is not seen, nor is memory that an
allocator keeps in reserve.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

KINDS: tuple[str, ...] = ("weights", "gradients", "optimizer", "activations", "other")


@dataclass(frozen=True)
class Moment:
    """The bytes alive after one operation, by KINDS. phase: the latest `mark` before it."""

    operation: str
    phase: str
    bytes: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.bytes.values())


@dataclass
class Piece:
    """A storage that is alive. kept: how many operations currently keep it for backward."""

    nbytes: int
    kept: int = 0


class _Kept:
    """A tensor kept by autograd. This object lives as long as autograd keeps it."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor):
        self.tensor = tensor


class MemoryTimeline:
    """Context manager: looks at all memory of a model's training after every operation.

    resident: tensors that already exist, such as the batch. Within, `mark("backward")` names the phase that
    begins. `moments` has the timeline. `peak` is the moment with most bytes, which are as many as
    `scorecard.costs` counts for the same step and the same resident tensors. Every operation costs a walk
    over the living storages, which takes some hundred times as long as the operation itself for small models.

        with MemoryTimeline(model, optimizer, resident=[tokens]) as timeline:
            loss = next_token_loss(model(tokens), tokens)
            timeline.mark("backward"); loss.backward()
            timeline.mark("step"); optimizer.step()
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        resident: Iterable[Tensor] = (),
    ):
        self.model, self.optimizer = model, optimizer
        self.resident = list(resident)
        self.moments: list[Moment] = []
        self.phase = "forward"
        self._pieces: dict[int, Piece] = {}
        self._within = ExitStack()

    def mark(self, phase: str) -> None:
        """From now on, moments belong to this phase."""
        self.phase = phase

    @property
    def peak(self) -> Moment:
        return max(self.moments, key=lambda moment: moment.total)

    def phases(self) -> Iterator[tuple[str, int]]:
        """(phase, index of its first moment), in order."""
        last = None
        for index, moment in enumerate(self.moments):
            if moment.phase != last:
                last = moment.phase
                yield last, index

    def __enter__(self) -> MemoryTimeline:
        for tensor in self.resident:
            self.note(tensor)
        for _, tensor in _by_kind(self.model, self.optimizer):
            self.note(tensor)
        self.look("begin")
        hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda kept: kept.tensor)
        self._within.enter_context(hooks)
        self._within.enter_context(_Operations(self))
        return self

    def __exit__(self, *error: Any) -> None:
        self._within.close()

    def note(self, tensor: Tensor) -> Piece:
        """Track this tensor's storage from now on, until it is gone."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._pieces:
            self._pieces[key] = Piece(storage.nbytes())
            weakref.finalize(storage, self._pieces.pop, key, None).atexit = False
        return self._pieces[key]

    def look(self, operation: str) -> None:
        """Add a moment."""
        kinds: dict[int, str] = {}
        for kind, tensor in _by_kind(self.model, self.optimizer):
            kinds.setdefault(tensor.untyped_storage()._cdata, kind)
        held = dict.fromkeys(KINDS, 0)
        for key, piece in self._pieces.items():
            held[kinds.get(key, "activations" if piece.kept else "other")] += piece.nbytes
        self.moments.append(Moment(operation, self.phase, held))

    def _keep(self, tensor: Tensor) -> _Kept:
        piece, kept = self.note(tensor), _Kept(tensor.detach())  # see SavedBytes
        piece.kept += 1
        weakref.finalize(kept, self._let_go, piece).atexit = False
        return kept

    @staticmethod
    def _let_go(piece: Piece) -> None:
        piece.kept -= 1


def held_bytes(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, int]:
    """Bytes of weights (with buffers), gradients and optimizer's state that exist now, each storage once.

    After a step of AdamW in float32 they are 4P, 4P and 8P, and 4 bytes for each parameter's count of steps.
    """
    held, known = dict.fromkeys(KINDS[:3], 0), set[int]()
    for kind, tensor in _by_kind(model, optimizer):
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            known.add(storage._cdata)
            held[kind] += storage.nbytes()
    return held


def _by_kind(
    model: nn.Module, optimizer: torch.optim.Optimizer | None
) -> Iterator[tuple[str, Tensor]]:
    """(kind, tensor) of all that model and optimizer hold, in the order of KINDS."""
    trained = [p for group in optimizer.param_groups for p in group["params"]] if optimizer else []
    params = [*model.parameters(), *trained]
    for tensor in (*params, *model.buffers()):
        yield "weights", tensor
    for param in params:
        if param.grad is not None:
            yield "gradients", param.grad
    for state in optimizer.state.values() if optimizer else ():
        for value in state.values():
            if isinstance(value, Tensor):
                yield "optimizer", value


class _Operations(TorchDispatchMode):
    """Tells the timeline of each operation when its result is ready."""

    def __init__(self, timeline: MemoryTimeline):
        super().__init__()
        self.timeline = timeline

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's hook. With True, it would import the compiler at the first operation."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self.timeline.note(value)
        self.timeline.look(func._overloadpacket.__name__)
        return result
