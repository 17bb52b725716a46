"""Recipe (see `harness`) that calls `stochastic_round(x, generator)`. It decides nothing.

A run's result goes back in float32 as the tensor of its name; "NAME.again" and "NAME.other" are those of the
further calls, "NAME.x" is the input afterwards, and "NAME.drawn" what the default generator draws next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from course_lib.checks.rank import frozen
from course_lib.checks.rank.backward import type_of
from course_lib.checks.rank.harness import describe
from course_lib.checks.wire import Instructions, Place

_float32 = torch.float32
DRAWN = 3  # numbers


@dataclass
class RoundingReply:
    """The reply about a run.

    misfit: the result as text, if it is not a floating-point tensor of x's shape; dtype: the result's.
    """

    error: Place | None = None
    misfit: str = ""
    dtype: str = ""


@dataclass(frozen=True)
class RoundingRun:
    """One run.

    name        of the run; its input is the tensor of this name
    seed        of the generator that is passed; None: none is passed
    own         seed of PyTorch's default generator before the call
    other       one more seed: a second call with the first seed and a third with this one are sent, too
    """

    name: str
    seed: int | None
    own: int
    other: int | None


@dataclass(frozen=True)
class RoundingInstructions(Instructions):
    runs: list[RoundingRun]

    def parts(self) -> list[str]:
        return [run.name for run in self.runs]


class Misfit(Exception):
    """A result of another form; its text is the form."""


def called(function: Any, x: torch.Tensor, seed: int | None, own: int) -> tuple[torch.Tensor, str]:
    """The result in float32, which holds all numbers of bfloat16, and its own dtype."""
    frozen.manual_seed(own)
    result = function(x) if seed is None else function(x, frozen.Generator().manual_seed(seed))
    if (
        not isinstance(result, frozen.Tensor)
        or result.shape != x.shape
        or not frozen.is_floating_point(result)
    ):
        raise Misfit(type_of(result))
    return frozen.clone(frozen.detach(result)).to(_float32), str(result.dtype)[6:]


def run(
    function: Any, x: torch.Tensor, described: RoundingRun, reply: RoundingReply, outputs: dict[str, Any]
) -> None:
    name, seed, own, other = described.name, described.seed, described.own, described.other
    argument = frozen.clone(x)
    outputs[name], reply.dtype = called(function, argument, seed, own)
    outputs[f"{name}.drawn"], outputs[f"{name}.x"] = frozen.rand(DRAWN), argument
    if other is not None:
        # another state of the default generator, if a generator is passed: it must not matter
        again = own if seed is None else own + 1
        outputs[f"{name}.again"], _ = called(function, frozen.clone(x), seed, again)
        seeds = (None, other) if seed is None else (other, own)
        outputs[f"{name}.other"], _ = called(function, frozen.clone(x), *seeds)


def rounds(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: RoundingInstructions
) -> tuple[dict[str, RoundingReply], dict[str, Any]]:
    """Every run of the instructions, one after the other."""
    values: dict[str, RoundingReply] = {}
    outputs: dict[str, Any] = {}
    for described in instructions.runs:
        name, reply = described.name, RoundingReply()
        x = tensors[name]
        more = ("", ".again", ".other") if described.other is not None else ("",)
        outputs |= {f"{name}{key}": frozen.zeros_like(x) for key in (*more, ".x")}
        outputs[f"{name}.drawn"] = frozen.zeros(DRAWN)
        try:
            run(objects[0], x, described, reply, outputs)
        except Misfit as misfit:
            reply.misfit = str(misfit)
        except Exception as error:
            if isinstance(error, NotImplementedError) and not values and not str(error):
                raise
            reply.error = describe(error)
        values[name] = reply
    return values, outputs
