"""Recipe (see `harness`) that calls a function of q, k and v on ranks that hold a part of the sequence each.

The reply for the run "a" has those of these tensors that it expects:
"a.y", "a.grad.q", "a.after.q" and so on; and values["a"] is a `SpreadReply`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.checks.rank import functions
from course_lib.checks.rank.functions import Call, FunctionCall, FunctionInstructions
from course_lib.checks.rank.harness import describe
from course_lib.checks.rank.layers import LayerInstructions
from course_lib.checks.rank.memory import Patience
from course_lib.checks.rank.notebooks.context_parallel.work import Done, Work
from course_lib.checks.rank.operators import without_operators
from course_lib.checks.rank.watching import begun_and_waited
from course_lib.checks.wire import Count, Instructions, Place


@dataclass
class SpreadReply(functions.CallReply):
    """The reply about a run: that about a call, and more.

    begun: operations begun before the call (twice), after forward and after backward; work: of each
    direction; refused: the ValueError that is an answer.
    """

    begun: list[Count] = field(default_factory=list)
    work: dict[str, Done] = field(default_factory=dict)
    refused: Place | None = None


@dataclass(frozen=True)
class SpreadCall(LayerInstructions):
    """One call: of `LayerInstructions` name, object, inputs, kwargs, group, backward, refuses and expects.

    layout     for each rank a list of [start, stop, step], passed as layout= ranges; None: not passed
    measured   whether bytes are counted, in the rank and from outside, as in `rank.functions`
    worth      FLOPs of products during which a receive must have been under way to count
    """

    layout: list[list[list[int]]] | None = None
    measured: bool = False
    worth: float = 0


@dataclass(frozen=True)
class SpreadInstructions(Instructions):
    """refused: see `without_operators`."""

    runs: list[SpreadCall]
    refused: list[list[str]] = field(default_factory=list)

    def parts(self) -> list[str]:
        return [run.name for run in self.runs]


def warm_up(instructions: SpreadInstructions) -> None:
    """As that of `rank.functions`."""
    functions.warm_up(FunctionInstructions([as_call(run, {}) for run in instructions.runs]))


def as_call(run: SpreadCall, kwargs: dict[str, Any]) -> FunctionCall:
    gradients = {} if run.backward is None else {"y": run.backward}
    return FunctionCall(run.name, run.inputs, ["y"], run.expects, run.object, kwargs, gradients, run.measured)


def spread(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: SpreadInstructions
) -> tuple[dict[str, SpreadReply], dict[str, Any]]:
    """Every run of the instructions, one after the other."""
    values, outputs, patience = {}, {}, Patience(instructions.enough)
    with without_operators(instructions.refused):
        for run in instructions.runs:
            part = Part(run, objects, tensors, groups, patience)
            part.go()
            values[run.name] = part.values
            outputs |= {f"{run.name}.{name}": tensor for name, tensor in part.tensors().items()}
    return values, outputs


class Part(Call):
    """One call, with this rank's part of the sequence."""

    def __init__(self, run: SpreadCall, objects: list, tensors: dict, groups: list, patience: Patience):
        kwargs = dict(run.kwargs)
        if run.layout is not None:
            kwargs["layout"] = [[range(*span) for span in spans] for spans in run.layout]
        if run.group is not None:
            kwargs["group"] = {"group": run.group}
        super().__init__(as_call(run, kwargs), objects, tensors, groups, patience)
        self.refuses = run.refuses
        known = [*self.inputs.values(), *self.gradients.values()]
        self.work = Work(known, run.worth, patience, f"{self.name}.forward")
        self.values: SpreadReply = SpreadReply()

    def go(self) -> None:
        """Forward and backward; where a ValueError is an answer, tell it."""
        outside = self.from_outside() if self.instructions.measured else {}
        self.moment()
        self.moment()
        try:
            y = self.called()
        except ValueError as error:
            if not self.refuses:
                raise
            self.values.refused = describe(error)
            return
        self.moment()
        self.results["y"] = y.detach().clone() if isinstance(y, torch.Tensor) else y
        self.work.start_again(f"{self.name}.backward")
        self.backward({"y": y}, self.work)
        self.values.work["backward"] = self.work.done()
        self.moment()
        self.results |= outside

    def called(self) -> Any:
        y = self.forward(self.work)
        self.values.work["forward"] = self.work.done()
        return y

    def moment(self) -> None:
        self.values.begun.append(begun_and_waited()[0])
