"""ZeRO-3 made fast: the same bytes in another order, so that they travel while a rank computes.

    forward    ask for block i+1, compute block i, free it
    backward   ask for block i-1, compute the gradients of block i, free it, send its gradients

Each rank sends 3 (N-1)/N P elements, less one gather of the root and of the last block: backward begins with
them, so that they stay whole. A block that is asked for, and the gradients that leave, travel during the
computation of one block. The memory is that of ZeRO-3, 16P/N bytes, and 1 + prefetch blocks instead of one.

The order is the point. On one wire a gather queues behind the reduction that was begun before it. So the
gather of i-1 is begun before block i computes its gradients, and these leave when they are all there.

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

    module: has `blocks`, an nn.ModuleList in the order of forward; each block is a unit of its own, and all
        other parameters, with those that several blocks share, form the root, which is whole throughout.
    forward_prefetch, backward_prefetch: how many blocks are asked for ahead of the one that computes.
    reshard_after_forward: whether blocks are freed after forward; else they are gathered once a step.

    Parameters, gradients, saving, and the errors raised: see `Sharded`. All ranks run the same blocks, in the
    same order; a forward that records no graph leaves nothing whole. A forward or backward that raised an
    error on all ranks is forgotten when the next forward begins, but gradients that reached their shards
    before the error stay there: call `zero_grad()`. A reentrant checkpoint may call blocks, or the whole
    module. RuntimeError for a backward with create_graph=True.
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
        self._uses: list[Use] = []  # to which this backward came, and whose end it has not seen
        self._unsent: dict[Part, None] = {}  # to which it came, and whose gradients are here
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
            # In backward a checkpoint by hooks raises as soon as it has what it needs.
            if not in_backward():
                self._give_back()
            raise
        self._leave(self.root, output)
        self._computing = False
        return output

    def _start_anew(self) -> None:
        """Free what earlier forwards kept, and forget what failed."""
        for part in self.order:
            part.drop()
        if self._computing or self._unsent or self._inner.parts():
            for part in self.order:
                part.forget()
            self._uses, self._unsent, self._settle = [], {}, nothing
            self._inner.forget()
        self._computing, self._place, self._before = True, -1, None

    def _give_back(self) -> None:
        """After a forward that failed: free what is here. Gathers in flight end later, or never."""
        for unit in (unit for part in self.order for unit in part.units):
            if unit.work is None:
                unit.free()

    def _enter(self, part: Part) -> None:
        """The forward of `part` comes next: ask for it and for those ahead, and wait for it."""
        if not in_backward():
            self._place = following(self.order, part, self._place)
            for other in self.order[self._place : self._place + 1 + self.forward_prefetch]:
                other.start()
        part.wait()

    def _leave(self, part: Part, output: object) -> None:
        """The forward of `part` is over: free it, unless its backward comes next."""
        tensors = tensors_in(output)
        if in_backward():  # of a checkpoint: the backward of `part` goes on now
            self._inner.expect(part, tensors)
            return
        if tensors:
            self._before = use = Use(part, next(self._number), self._before)
            part.due += 1
            before_backward(tensors, lambda: self._come_to(use))
        last = self._place == len(self.order) - 1
        if part is self.root:
            for other in self.order[1:]:
                other.stop()  # asked for, and not used
        if not tensors or (self.reshard_after_forward and not last and part is not self.root):
            part.free()

    def _come_to(self, use: Use) -> None:
        """The backward of a part comes next: those above are over, and those below are asked for."""
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
        """All gradients of the uses above this number are there: free these, and send their gradients."""
        for use in sorted(self._uses, key=lambda use: -use.number):
            if use.number > number:
                self._uses.remove(use)
                use.part.free()
                if use.part.due <= 0:
                    self._send(use.part)

    def _send(self, part: Part) -> None:
        """Begin the reduction, after the last one has ended: two rows of gradients at most."""
        if part in self._unsent:
            del self._unsent[part]
            self._settle()
            self._settle = part.reduce()

    def _end_inner(self, parts: Iterable[Part]) -> None:
        """A reentrant checkpoint's backward is over: free its parts, and send their gradients."""
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
        """After backward: send what is left, in one order on all ranks, and free everything."""
        self._pass(-1)
        for part in list(self._unsent):
            self._send(part)
        self._settle()
        self._settle = nothing
        for part in self.order:
            part.drop()
            part.due = 0


def following(order: list[Part], part: Part, place: int) -> int:
    """The next place of `part` in the order after `place`, or its first."""
    return order.index(part, place + 1) if part in order[place + 1 :] else order.index(part)


def nothing() -> None:
    """In place of a reduction: none is in flight."""
