"""A stopwatch for the passes of a pipeline, with any executor.

It watches the stage instead of the executor. A forward begins and ends with the module's forward, except that
on the last stage it ends with the loss. Its output passes through a function that changes nothing. The
backward of this function runs before the rest of the microbatch's backward, so the backward begins there, and
it ends when autograd has nothing left to do. The weights' halves are seen if `halves.LaterWeights` does them,
as in `run.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .actions import Action, Pair, flat
from .clocks import clock_of
from .halves import LaterWeights
from .stage import Stage


class Pass(NamedTuple):
    """One pass of a rank, with its times on the rank's own clock."""

    action: Action
    start: float
    end: float


class Stopwatch:
    """Marks the passes of a rank's stages while it is entered; `passes` then says when they were.

    row: the rank's actions, in order. A stage's k-th forward belongs to the row's k-th microbatch in this
        stage. A forward within a backward recomputes, so it is part of the backward.
    """

    def __init__(self, stages: Sequence[Stage], row: Sequence[Action | Pair]):
        self._stages, self._row = stages, list(flat(row))
        self._forwards = {stage.index: self._all("F", stage.index) for stage in stages}
        self._later = self._all("W")
        self._began: dict[Action, Any] = {}
        self._ended: dict[Action, Any] = {}
        self._last: Action | None = None
        self._in_backward = False
        self._undo = ExitStack()

    def __enter__(self) -> Stopwatch:
        self._clock = clock_of(next(self._stages[0].module.parameters()).device)
        for stage in self._stages:
            hooks = (
                stage.module.register_forward_pre_hook(partial(self._before, stage.index)),
                stage.module.register_forward_hook(self._after),
            )
            for hook in hooks:
                self._undo.callback(hook.remove)
            self._undo.callback(setattr, stage, "loss", stage.loss)
            stage.loss = partial(self._loss, stage.loss)
        self._undo.callback(setattr, LaterWeights, "around", LaterWeights.around)
        LaterWeights.around = _WeightsHalf(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    def passes(self) -> list[Pass]:
        """All passes, by their start; on a GPU it waits until they are done."""
        at = self._clock.seconds
        passes = [
            Pass(action, at(self._began[action]), at(self._ended[action])) for action in self._ended
        ]
        return sorted(passes, key=lambda each: each.start)

    def _all(self, kind: str, stage: int | None = None) -> list[Action]:
        """The row's actions of a kind, of one stage or of all; the last comes first, for `pop`."""
        actions = [
            action for action in self._row if action.kind == kind and stage in (None, action.stage)
        ]
        return actions[::-1]

    def _begin(self, action: Action) -> None:
        self._began[action], self._last = self._clock.mark(), action

    def _end(self, action: Action) -> None:
        self._ended[action] = self._clock.mark()

    def _before(self, stage: int, module: nn.Module, args: tuple) -> None:
        if self._in_backward:
            return
        if not self._forwards[stage]:
            raise ValueError(
                f"the module of stage {stage} is run more often in a step than the schedule says, which has "
                f"{len(self._all('F', stage))} forwards of it: run each microbatch once, one step at a time"
            )
        self._begin(self._forwards[stage].pop())

    def _after(self, module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        if self._in_backward:
            return output
        assert self._last is not None
        return self._end_of_forward(self._last, output)

    def _loss(self, loss: Callable[..., Tensor], output: Tensor, targets: Tensor) -> Tensor:
        """The loss belongs to the forward if it follows immediately, and in any case to the backward."""
        value = loss(output, targets)
        forward = getattr(output.grad_fn, "forward_action", None)
        if forward is None:
            return value
        if forward == self._last:
            return self._end_of_forward(forward, value)
        return _Edge.apply(value, self, forward)

    def _end_of_forward(self, action: Action, output: Tensor) -> Tensor:
        if output.requires_grad:
            output = _Edge.apply(output, self, action)
        self._end(action)
        return output

    def backward(self, forward: Action) -> None:
        """Called by autograd when the gradient of a forward's output is ready, so its backward begins."""
        halved = forward._replace(kind="I") in self._row
        action = forward._replace(kind="I" if halved else "B")
        if action in self._began:
            return  # it began at the loss
        self._begin(action)
        self._in_backward = True

        def done() -> None:
            self._in_backward = False
            self._end(action)

        torch.autograd.Variable._execution_engine.queue_callback(done)

    def begin_weights(self) -> None:
        self._begin(self._later.pop())

    def end_weights(self) -> None:
        assert self._last is not None
        self._end(self._last)


class _WeightsHalf:
    """The context in which each `LaterWeights.finish` runs, in the order of the row."""

    def __init__(self, watch: Stopwatch):
        self.watch = watch

    def __enter__(self) -> None:
        self.watch.begin_weights()

    def __exit__(self, *error: object) -> None:
        self.watch.end_weights()


class _Edge(torch.autograd.Function):
    """The identity, whose backward is the first step in the backward of a microbatch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, watch: Stopwatch, forward: Action) -> Tensor:
        ctx.watch, ctx.forward_action = watch, forward
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.watch.backward(ctx.forward_action)
        return gradients[0], None, None
