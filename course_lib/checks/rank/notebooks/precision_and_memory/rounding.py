"""Recipe (see `harness`) that calls `stochastic_round(x, generator)`. It decides nothing.

instructions: runs, a list of

    name        of the run; its input is the tensor of this name
    seed        of the generator that is passed; None: none is passed
    own         seed of PyTorch's default generator before the call
    other       one more seed: a second call with the first seed and a third with this one are compared

A run's result goes back as the tensor of its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from course_lib.checks.rank.backward import type_of
from course_lib.checks.rank.harness import describe
from course_lib.checks.wire import Place

_Tensor, _clone, _equal, _zeros_like = torch.Tensor, torch.clone, torch.equal, torch.zeros_like
_Generator, _manual_seed, _state = torch.Generator, torch.manual_seed, torch.get_rng_state
_detach, _bfloat16, _isnan = torch.Tensor.detach, torch.bfloat16, torch.isnan


@dataclass
class Told:
    """The reply about a run.

    misfit: the result as text, if it is not a tensor in bfloat16 of x's shape; again: whether a second call
    with an equal generator gave the same; other: whether a third with another generator did; drawn: whether
    the default generator's state changed; changed: whether x did.
    """

    error: Place | None = None
    misfit: str = ""
    again: bool = True
    other: bool = False
    drawn: bool = False
    changed: bool = False


def called(function: Any, x: torch.Tensor, seed: int | None, own: int) -> Any:
    _manual_seed(own)
    if seed is None:
        return function(x)
    return function(x, _Generator().manual_seed(seed))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return _equal(a.nan_to_num(), b.nan_to_num()) and _equal(_isnan(a), _isnan(b))


def run(function: Any, x: torch.Tensor, described: dict, reply: Told) -> torch.Tensor:
    """The first call's result; zeros if it does not have the agreed form."""
    seed, own, other = (described[key] for key in ("seed", "own", "other"))
    before, nothing = _clone(x), _zeros_like(x, dtype=_bfloat16)
    _manual_seed(own)
    state = _state()
    result = called(function, x, seed, own)
    reply.drawn = not _equal(_state(), state)
    if not isinstance(result, _Tensor) or (result.dtype, result.shape) != (_bfloat16, x.shape):
        reply.misfit = type_of(result)
        return nothing
    result = _clone(_detach(result))
    reply.changed = not same(x, before)
    if other is not None:
        # another state of the default generator, if a generator is passed: it must not matter
        again = called(function, x, seed, own if seed is None else own + 1)
        reply.again = same(again, result)
        third = called(function, x, None if seed is None else other, other if seed is None else own)
        reply.other = same(third, result)
    return result


def rounds(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: dict
) -> tuple[dict[str, Told], dict[str, Any]]:
    """Every run of the instructions, one after the other."""
    values: dict[str, Told] = {}
    outputs: dict[str, Any] = {}
    for described in instructions["runs"]:
        name, reply = described["name"], Told()
        x = tensors[name]
        try:
            outputs[name] = run(objects[0], x, described, reply)
        except Exception as error:
            if isinstance(error, NotImplementedError) and not values and not str(error):
                raise
            reply.error = describe(error)
            outputs[name] = _zeros_like(x, dtype=_bfloat16)
        values[name] = reply
    return values, outputs
