"""Recipe (see `harness`): a search for the axes that a layout needs to fail, with its calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.checks.rank.harness import describe
from course_lib.checks.wire import Instructions, Place

_describe = describe
MOST = 400  # calls of `fails`: more are a search without an end
LONGEST = 40  # characters of a name that go back
LARGEST = 1 << 40

Sizes = list[tuple[str, int]]  # in their order


@dataclass
class SearchReply:
    """The reply about a search.

    calls: the sizes of each call of `fails`; no_sizes: the type of an argument that had others. result: of a
    dict of sizes; kind: the type of another one. changed: whether `sizes` were; endless: MOST calls were not
    enough.
    """

    calls: list[Sizes] = field(default_factory=list)
    no_sizes: str = ""
    result: Sizes | None = None
    kind: str = ""
    error: Place | None = None
    changed: bool = False
    endless: bool = False


@dataclass(frozen=True)
class SearchScript:
    """One search. failing: each set of axes larger than 1 with which a layout fails."""

    name: str
    sizes: Sizes
    failing: list[list[str]]


@dataclass(frozen=True)
class SearchInstructions(Instructions):
    searches: list[SearchScript]

    def parts(self) -> list[str]:
        return [search.name for search in self.searches]


class TooManyCalls(BaseException):
    """Not an Exception, so that no search goes on after it by mistake."""


def sizes_of(value: Any) -> Sizes | None:
    """A dict of sizes as pairs; None for anything else."""
    if not isinstance(value, dict):
        return None
    pairs = list(value.items())[:MOST]
    if not all(isinstance(name, str) and type(size) is int and abs(size) < LARGEST for name, size in pairs):
        return None
    return [(name[:LONGEST], size) for name, size in pairs]


def searched(search: Any, script: SearchScript) -> SearchReply:
    reply, sizes = SearchReply(), dict(script.sizes)
    failing = {frozenset(axes) for axes in script.failing}

    def fails(layout: Any) -> bool:
        if len(reply.calls) == MOST:
            reply.endless = True
            raise TooManyCalls
        asked = sizes_of(layout)
        if asked is None:
            reply.no_sizes = type(layout).__name__
            raise TypeError(f"fails takes a dict of sizes, not {type(layout).__name__}")
        reply.calls.append(asked)
        return frozenset(name for name, size in asked if size > 1) in failing

    try:
        returned = search(sizes, fails)
        reply.result = sizes_of(returned)
        reply.kind = "" if reply.result is not None else type(returned).__name__
    except NotImplementedError:
        raise
    except Exception as error:
        reply.error = _describe(error)
    except TooManyCalls:
        pass
    reply.changed = list(sizes.items()) != [(name, size) for name, size in script.sizes]
    return reply


def searches(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: SearchInstructions
) -> tuple[dict[str, SearchReply], dict[str, Any]]:
    """Every search, one after the other."""
    return {script.name: searched(objects[0], script) for script in instructions.searches}, {}
