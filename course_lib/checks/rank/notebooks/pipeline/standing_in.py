"""Recipe (see `harness`): functions of plain numbers that call each other, each evaluated by itself.

A formula that uses another of the same exercise is wrong wherever that one is. So it is evaluated twice: as
it is, and with numbers of the judge's in the place of what the other returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from course_lib.checks.rank.harness import Answer, Answers, evaluate


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
def standing_in(function: Any, name: str, other: Any) -> Iterator[None]:
    """Within, `function`, and what was written beside it, finds `other` under this name."""
    scope = getattr(function, "__globals__", {})
    if name not in scope:
        yield
        return
    own, scope[name] = scope[name], other
    try:
        yield
    finally:
        scope[name] = own


def evaluate_apart(
    objects: list, tensors: dict, groups: list, instructions: dict
) -> tuple[Answers, dict[str, Any]]:
    """`evaluate` in several rounds, with the answers of all of them one after the other.

    instructions: rounds, each with the calls of one object, see `evaluate`, and perhaps with instead, what
    takes another function's place in it: {"name"} of that function, and the arguments of `TableFunction`.
    """
    answers: list[Answer] = []
    for described in instructions["rounds"]:
        instead = dict(described.get("instead", {}))
        function, name = objects[described["calls"][0][0]], instead.pop("name", "")
        with standing_in(function, name, TableFunction(**instead) if name else None):
            answers += evaluate(objects, tensors, groups, described)[0].answers
    return Answers(answers), {}
