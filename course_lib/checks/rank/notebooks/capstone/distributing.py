"""Recipe (see `harness`): a GPT is spread by a student's function, and trained for some steps."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from course_lib.checks.rank import frozen
from course_lib.checks.rank.watching import begun_and_waited
from course_lib.checks.wire import Count, Instructions
from course_lib.models import GPT, GPTConfig
from course_lib.runtime.backend import device

_begun, _Module, _simplefilter = begun_and_waited, nn.Module, warnings.simplefilter
_GPT, _GPTConfig, _SGD, _cross_entropy = GPT, GPTConfig, torch.optim.SGD, nn.functional.cross_entropy
_fork_rng = torch.random.fork_rng


@dataclass(frozen=True)
class SpreadInstructions(Instructions):
    """config: sizes of the GPT; seed: this rank's; how: the word; rate: of SGD; count: steps.

    The tensors of step 0 are "x.0" and "t.0", the rank's own rows.
    """

    config: dict[str, Any]
    seed: int
    how: str
    rate: float
    count: int


@dataclass
class SpreadReply:
    """begun: operations begun before the first step, and after each. losses: of the rank's own rows.

    held: elements of the parameters that this rank holds. kind: the type of the object returned; misfit:
    whether it is something else than a module.
    """

    begun: list[Count] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    held: Count = 0
    kind: str = ""
    misfit: bool = False


def trained(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: SpreadInstructions
) -> tuple[SpreadReply, dict[str, Any]]:
    """`distribute(model, how)`; then steps of SGD on the parameters of the module that it returns."""
    _simplefilter("ignore")  # PyTorch's, of its own use of gloo
    spread = objects[0](drawn(instructions), instructions.how)
    reply = SpreadReply(kind=type(spread).__name__)
    if not isinstance(spread, _Module):
        reply.misfit = True
        return reply, {}
    optimizer = _SGD(spread.parameters(), lr=instructions.rate)
    reply.begun.append(_begun()[0])
    for k in range(instructions.count):
        logits = spread(tensors[f"x.{k}"])
        loss = _cross_entropy(logits.flatten(0, 1), tensors[f"t.{k}"].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        reply.losses.append(number(loss))
        reply.begun.append(_begun()[0])
    reply.held = sum(here(param).numel() for param in spread.parameters())
    return reply, {}


def drawn(instructions: SpreadInstructions) -> GPT:
    """The rank's model in float64; the random state is left as it was."""
    with _fork_rng(devices=[]):
        frozen.manual_seed(instructions.seed)
        return _GPT(_GPTConfig(**instructions.config)).double().to(device())


def number(loss: torch.Tensor) -> float | None:
    """None if it is not finite, which JSON cannot say."""
    value = float(frozen.detach(loss))
    return value if abs(value) < float("inf") else None


def here(param: torch.Tensor) -> torch.Tensor:
    """The part of a parameter that lies on this rank."""
    return param.to_local() if hasattr(param, "to_local") else param  # type: ignore[no-any-return]
