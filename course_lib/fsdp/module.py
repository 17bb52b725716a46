"""ZeRO-3 made fast: it sends the same bytes in another order, so that they travel while a rank computes.

    forward    ask for block i+1, compute block i, free it
    backward   ask for block i-1, compute the gradients of block i, free it, send its gradients

Each rank sends 3 (N-1)/N P elements, less one gather of the root and one of the last block, which stay whole
because backward begins with them. While one block computes, the next block arrives and the gradients of the
block before it leave. The memory is 16P/N bytes, as in ZeRO-3, and 1 + prefetch blocks instead of one.

The order is what matters. On one wire, a gather queues behind a reduction that began before it. So the gather
of i-1 begins before block i computes its gradients, and the gradients leave as soon as all of them are ready.

Source: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023, section
3.3.2 (backward and forward prefetching).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from torch import nn

from .arguments import Group
from .inner_backward import InnerBackwards
from .parts import (
    Part,
    Use,
    after_backward,
    before_backward,
    in_backward,
    refuse_second_derivatives,
    tensors_in,
)
from .sharded import Sharded


class PrefetchedModule(Sharded):
    """`module` with its parameters sharded over `group`, each block gathered before it is needed.

    module: has `blocks`, an nn.ModuleList in the order of forward. Each block is a unit of its own. All other
        parameters, and parameters shared by several blocks, form the root, which is whole throughout.
    forward_prefetch, backward_prefetch: how many blocks are requested ahead of the block that computes.
    reshard_after_forward: whether blocks are freed after forward. If not, they are gathered once per step.

    Parameters, gradients, saving, and the errors raised: see `Sharded`. All ranks run the same blocks in the
    same order. A forward that records no graph leaves nothing whole. If a forward or backward raises an error
    on all ranks, it is forgotten when the next forward begins. But gradients that reached their shards before
    the error stay there, so call `zero_grad()`. A reentrant checkpoint can call blocks, or the whole module.
    RuntimeError for a backward with create_graph=True.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        forward_prefetch: int = 1,
        backward_prefetch: int = 1,
        reshard_after_forward: bool = True,
        group: Group = None,
    ):
        super().__init__(module, group, forward_prefetch, backward_prefetch)
        self.forward_prefetch, self.backward_prefetch = forward_prefetch, backward_prefetch
        self.reshard_after_forward = reshard_after_forward
        self.order = [self.root, *(self.parts[block] for block in module.blocks)]  # type: ignore[union-attr]
        self._number, self._computing, self._settle = count(), False, nothing
        self._uses: list[Use] = []  # this backward has reached them, but not their end
        self._unsent: dict[Part, None] = {}  # it has reached them, and their gradients are here
        self._inner = InnerBackwards(self._end_inner)
        for block, part in self.parts.items():
            block.register_forward_pre_hook(lambda *_, part=part: self._enter(part))
            block.register_forward_hook(lambda _, args, out, part=part: self._leave(part, out))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not in_backward():  # a checkpoint computes the forward again there
            self._start_anew()
        try:
            self._enter(self.root)
            output = self.module(*args, **kwargs)
        except BaseException:
            # In backward, a checkpoint by hooks raises as soon as it has what it needs.
            if not in_backward():
                self._give_back()
            raise
        self._leave(self.root, output)
        self._computing = False
        return output

    def _start_anew(self) -> None:
        """Free everything earlier forwards kept, and forget a forward or backward that failed."""
        for part in self.order:
            part.drop()
        if self._computing or self._unsent or self._inner.parts():
            for part in self.order:
                part.forget()
            self._uses, self._unsent, self._settle = [], {}, nothing
            self._inner.forget()
        self._computing, self._place, self._before = True, -1, None

    def _give_back(self) -> None:
        """After a forward that failed, free what is here. Gathers in flight end later, or never."""
        for unit in (unit for part in self.order for unit in part.units):
            if unit.work is None:
                unit.free()

    def _enter(self, part: Part) -> None:
        """Just before the forward of `part`: request this part and the parts ahead, and wait for it."""
        if not in_backward():
            self._place = following(self.order, part, self._place)
            for other in self.order[self._place : self._place + 1 + self.forward_prefetch]:
                other.start()
        part.wait()

    def _leave(self, part: Part, output: object) -> None:
        """After the forward of `part`, free this part, unless its backward comes next."""
        tensors = tensors_in(output)
        if in_backward():  # of a checkpoint, so the backward of `part` goes on now
            self._inner.expect(part, tensors)
            return
        if tensors:
            self._before = use = Use(part, next(self._number), self._before)
            part.due += 1
            before_backward(tensors, lambda: self._come_to(use))
        last = self._place == len(self.order) - 1
        if part is self.root:
            for other in self.order[1:]:
                other.stop()  # requested, but not used
        if not tensors or (self.reshard_after_forward and not last and part is not self.root):
            part.free()

    def _come_to(self, use: Use) -> None:
        """Just before a part's backward: end the backwards above it, and request the parts below."""
        refuse_second_derivatives()
        if not self._unsent:
            after_backward(self._end)
        self._pass(use.number)
        use.part.due -= 1
        self._unsent[use.part] = None
        if use.part is not self.root:
            self._uses.append(use)
        for ahead in use.and_before(self.backward_prefetch):
            ahead.part.start()
        use.part.wait()

    def _pass(self, number: int) -> None:
        """Free all uses above this number, whose gradients are ready, and send these gradients."""
        for use in sorted(self._uses, key=lambda use: -use.number):
            if use.number > number:
                self._uses.remove(use)
                use.part.free()
                if use.part.due <= 0:
                    self._send(use.part)

    def _send(self, part: Part) -> None:
        """Begin the reduction after the last one has ended, so at most two rows of gradients exist."""
        if part in self._unsent:
            del self._unsent[part]
            self._settle()
            self._settle = part.reduce()

    def _end_inner(self, parts: Iterable[Part]) -> None:
        """After the backward of a reentrant checkpoint, free its parts and send their gradients."""
        growing = {use.part for use in self._uses} | self._inner.parts()
        for part in parts:
            if part not in growing and not (part is self.root and part in self._unsent):
                part.free()
                if part.due <= 0:
                    self._unsent[part] = None
                    self._send(part)
        if not self._unsent:  # no end of an outer backward is awaited
            self._settle()
            self._settle = nothing

    def _end(self) -> None:
        """After backward, send the rest, in the same order on all ranks, and free everything."""
        self._pass(-1)
        for part in list(self._unsent):
            self._send(part)
        self._settle()
        self._settle = nothing
        for part in self.order:
            part.drop()
            part.due = 0


def following(order: list[Part], part: Part, place: int) -> int:
    """The next place of `part` in the order after `place`, or its first place if there is none."""
    return order.index(part, place + 1) if part in order[place + 1 :] else order.index(part)


def nothing() -> None:
    """A stand-in for a reduction, while none is in flight."""
