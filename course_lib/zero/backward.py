"""Moments of a backward: its beginning, its end, and when the gradients of some tensors are ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

NONE = -1  # autograd numbers backwards from 0


class Backward:
    """The backward under way, if there is one. Its hooks call `joined`, and its end calls `over`.

    after_failure: advice in case the last backward failed before its end.
    """

    def __init__(self, after_failure: str = ""):
        self.number, self._advice = NONE, after_failure

    def joined(self, at_end: Callable[[], None]) -> bool:
        """Whether the hook that calls this is the first one of a backward, whose end will call `at_end()`.

        Raises RuntimeError for a backward inside another one.
        """
        number = torch._C._current_graph_task_id()
        if number == self.number:
            return False
        if self.number != NONE:
            raise RuntimeError(
                "a backward began before the last one had ended. Did a checkpoint begin it inside another "
                f"backward? Use torch.utils.checkpoint with use_reentrant=False{self._advice}"
            )
        self.number = number
        torch.autograd.Variable._execution_engine.queue_callback(at_end)  # type: ignore[attr-defined]
        return True

    def over(self) -> bool:
        """Forget the backward; return whether there was one."""
        there, self.number = self.number != NONE, NONE
        return there


def in_backward() -> bool:
    """Whether a backward runs at this moment, as when a checkpoint computes a forward again."""
    return torch._C._current_graph_task_id() != NONE


def refuse_second_derivatives() -> None:
    """Call this in a hook of a backward. RuntimeError if the backward records a graph of its own."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "a backward with create_graph=True: the gradients' own graph would read weights that are freed "
            "after their use. For second derivatives keep whole weights on every rank, as "
            "DistributedDataParallel does"
        )


def when_gradients(mode: Literal["all", "any"], of: object, call: Callable[[], None]) -> None:
    """Run `call` in backward as soon as the gradients of all tensors in `of`, or of any, are ready.

    With "all", it never runs if one of the tensors is a leaf, because autograd cannot say whether anything
    asks for a leaf's gradient.
    """
    tensors = tensors_in(of) if torch.is_grad_enabled() else []
    if mode == "all" and any(tensor.is_leaf for tensor in tensors):
        return
    if tensors:
        register_multi_grad_hook(tensors, lambda _: call(), mode=mode)


def tensors_in(value: object, visited: set[int] | None = None) -> list[torch.Tensor]:
    """The tensors that require a gradient in a module's input or output, however nested."""
    visited = set() if visited is None else visited
    if isinstance(value, torch.Tensor):
        return [value] if value.requires_grad else []
    if id(value) in visited or isinstance(
        value, str | bytes | int | float | nn.Module | type(None)
    ):
        return []
    visited.add(id(value))
    if isinstance(value, Mapping):
        members: Iterable[object] = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        members = value
    else:
        members = getattr(value, "__dict__", {}).values()
    return [tensor for member in members for tensor in tensors_in(member, visited)]
