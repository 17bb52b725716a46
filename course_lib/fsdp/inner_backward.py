"""A backward inside a backward: a reentrant checkpoint computes a forward again, then runs its backward.

The module's forward recorded no graph for the parts of the checkpoint, so it has left no use of them.
Therefore their gradients are complete when this inner backward is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from .parts import Part, after_backward, before_backward


class InnerBackwards:
    """The inner backwards under way, each with the parts it has reached.

    ended: gets the parts of an inner backward when it is over.
    """

    def __init__(self, ended: Callable[[Iterable[Part]], None]):
        self._ended = ended
        self._parts: dict[
            int, dict[Part, None]
        ] = {}  # by the number that autograd gives a backward

    def expect(self, part: Part, outputs: list[torch.Tensor]) -> None:
        """Note that `part` was computed again. Only a reentrant checkpoint sends gradients to `outputs`."""
        if outputs:
            before_backward(outputs, lambda: self._come_to(part))

    def parts(self) -> set[Part]:
        """The parts whose gradients can still grow."""
        return {part for members in self._parts.values() for part in members}

    def forget(self) -> None:
        self._parts.clear()

    def _come_to(self, part: Part) -> None:
        number = torch._C._current_graph_task_id()
        if number not in self._parts:
            self._parts[number] = {}
            after_backward(lambda: self._end(number))
        self._parts[number][part] = None
        part.wait()

    def _end(self, number: int) -> None:
        self._ended(self._parts.pop(number))
