"""Recipe (see `harness`) that takes steps with an optimizer class, and reports parameters and bytes.

The reply has "NAME.i.k", the parameter after step k, for each, and values["NAME"] is an `Adam8bitReply`. With
`saved` the parameters after the last step are those of the new optimizer.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

from course_lib.checks.rank import frozen
from course_lib.checks.rank.counting import alive, more, pieces
from course_lib.checks.rank.harness import describe
from course_lib.checks.rank.memory import Patience
from course_lib.checks.wire import Count, Instructions, Place

_copy, _copy_ = copy.deepcopy, torch.Tensor.copy_


@dataclass
class Adam8bitReply:
    """error: the exception that was raised; loading: whether it was while states were loaded or later;
    held: bytes beside parameters and gradients."""

    error: Place | None = None
    loading: bool = False
    held: Count = 0


@dataclass(frozen=True)
class AdamRun:
    """One run.

    name        the prefix of all names in the reply
    params      how many; parameter i begins as the tensor "NAME.i"
    steps       how many; its gradient in step k is the tensor "NAME.i.k", None if there is not one
    keywords    of the class
    measured    whether the bytes of the tensors that the optimizer holds are counted, after the last step
    saved       after which step the states go into a new optimizer, which repeats the rest; None: after none
    """

    name: str
    params: int
    steps: int
    keywords: dict[str, Any]
    measured: bool
    saved: int | None = None


@dataclass(frozen=True)
class AdamInstructions(Instructions):
    runs: list[AdamRun]

    def parts(self) -> list[str]:
        return [run.name for run in self.runs]


def steps(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: AdamInstructions
) -> tuple[dict[str, Adam8bitReply], dict[str, Any]]:
    """Every run of the instructions, one after the other."""
    replies: dict[str, Adam8bitReply] = {}
    outputs: dict[str, Any] = {}
    patience = Patience(instructions.enough)
    for described in instructions.runs:
        name, reply = described.name, Adam8bitReply()
        for i in range(described.params):
            for k in range(described.steps):
                outputs[f"{name}.{i}.{k}"] = frozen.zeros_like(tensors[f"{name}.{i}"])
        try:
            run(objects[0], tensors, described, reply, outputs, patience)
        except Exception as error:
            if isinstance(error, NotImplementedError) and not replies and not str(error):
                raise
            reply.error = describe(error)
        replies[name] = reply
    return replies, outputs


def run(
    made: Any,
    tensors: dict[str, torch.Tensor],
    described: AdamRun,
    reply: Adam8bitReply,
    outputs: dict[str, Any],
    patience: Patience,
) -> None:
    name, keywords = described.name, described.keywords
    params = [frozen.Parameter(frozen.clone(tensors[f"{name}.{i}"])) for i in range(described.params)]
    before = alive()
    optimizer = made(params, **keywords)
    for k in range(described.steps):
        for i, param in enumerate(params):
            gradient = tensors.get(f"{name}.{i}.{k}")
            param.grad = None if gradient is None else frozen.clone(gradient)
        optimizer.step()
        for i, param in enumerate(params):
            _copy_(outputs[f"{name}.{i}.{k}"], frozen.detach(param))
        if described.saved == k + 1:
            reply.loading = True
            state = _copy(optimizer.state_dict())
            params = [frozen.Parameter(frozen.clone(frozen.detach(param))) for param in params]
            optimizer = made(params, **keywords)
            optimizer.load_state_dict(state)
            del state
    if described.measured:
        for param in params:
            param.grad = None
        known = before | pieces(params)
        reply.held = patience.measured(f"{name}.held", lambda: more(alive(), known))
