"""Recipe (see `harness`): functions of plain numbers that call each other, each evaluated by itself.

A formula that uses another of the same exercise is wrong wherever that one is. So it is evaluated twice: as
it is, and with numbers of the judge's in the place of what the other returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.checks.rank.harness import Answer, Answers, EvaluateInstructions, evaluate
from course_lib.checks.wire import Instructions


@dataclass(frozen=True)
class Instead:
    """A function's stand-in: the name of that function, and the arguments of `TableFunction`."""

    name: str
    names: list[str]
    defaults: list[Any]
    returns: list[list[Any]]


@dataclass(frozen=True)
class Round:
    """The calls of one object, see `evaluate`; instead: a stand-in for another function, meanwhile."""

    calls: list[Any]
    instead: Instead | None = None


@dataclass(frozen=True)
class ApartInstructions(Instructions):
    rounds: list[Round]

    def answers(self) -> int:
        return sum(len(each.calls) for each in self.rounds)


class TableFunction:
    """A function that returns given numbers, and raises KeyError for other arguments.

    names: of its parameters; defaults: of the last ones. returns: [arguments, number], of all parameters.
    """

    def __init__(self, names: Sequence[str], defaults: Sequence, returns: Sequence):
        self.names, self.returns = names, {tuple(args): value for args, value in returns}
        self.defaults = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))

    def __call__(self, *args: Any, **named: Any) -> float:
        arguments = {**self.defaults, **dict(zip(self.names, args, strict=False)), **named}
        return self.returns[tuple(arguments[name] for name in self.names)]


@contextlib.contextmanager
def standing_in(function: Any, instead: Instead) -> Iterator[None]:
    """Within, `function`, and what was written beside it, finds the stand-in under its name."""
    scope, name = getattr(function, "__globals__", {}), instead.name
    if name not in scope:
        yield
        return
    own = scope[name]
    scope[name] = TableFunction(instead.names, instead.defaults, instead.returns)
    try:
        yield
    finally:
        scope[name] = own


def evaluate_apart(
    objects: list, tensors: dict, groups: list, instructions: ApartInstructions
) -> tuple[Answers, dict[str, Any]]:
    """`evaluate` in several rounds, with the answers of all of them one after the other."""
    answers: list[Answer] = []
    for each in instructions.rounds:
        function, calls = objects[each.calls[0][0]], EvaluateInstructions(each.calls)
        with standing_in(function, each.instead) if each.instead else contextlib.nullcontext():
            answers += evaluate(objects, tensors, groups, calls)[0].answers
    return Answers(answers), {}
