"""Messages to a rank, and its replies: the one place that looks at the form of either.

The judge sends a `Task`. A recipe (see `rank.harness`) declares its reply in its signature,

    def layers(...) -> tuple[dict[str, Told], dict[str, Any]]

where Told is a dataclass of plain fields. `plain` makes JSON of it in the rank; in the judge `decode` reads
that as the type again, or raises `NotAsAgreed`. So the judge's lines read fields and need not ask about their
types.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import types
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

Count = Annotated[int, lambda number: number >= 0]
Place = tuple[str, str, str]  # of an exception: its type, its text, "line n: source"
T = TypeVar("T")


class NotAsAgreed(ValueError):
    """A reply does not have the form that its recipe declares. A rank's code can send whatever JSON holds."""


@dataclasses.dataclass(frozen=True)
class Task:
    """One rank's part of one case, beside the student's objects and its input tensors.

    recipe: "package.module:function"; payload: how many of the buffers are the pickled objects; tensors: how
    to read the others; groups: ranks of the process groups; references, refused: modules not to be imported
    and classes not to be used, see `rank.reach` and `rank.refusing`; filtered: whether system calls are
    filtered; instructions: the recipe's own part.
    """

    recipe: str
    payload: int
    tensors: Any
    groups: Sequence[Sequence[int]]
    references: Sequence[str]
    refused: Any
    filtered: bool
    instructions: dict


def plain(reply: Any) -> Any:
    """A reply as JSON has it: dataclasses become dicts of their fields."""
    if dataclasses.is_dataclass(reply) and not isinstance(reply, type):
        return {one.name: plain(getattr(reply, one.name)) for one in dataclasses.fields(reply)}
    if isinstance(reply, dict):
        return {name: plain(one) for name, one in reply.items()}
    if isinstance(reply, list | tuple):
        return [plain(one) for one in reply]
    return reply


@functools.cache
def reply_type(recipe: str) -> Any:
    """The type of the reply of the recipe "package.module:function", beside tensors: see its signature."""
    module, _, name = recipe.partition(":")
    function: Callable = getattr(importlib.import_module(module), name)
    returned = typing.get_type_hints(function, include_extras=True)["return"]
    return typing.get_args(returned)[0]


def decode(kind: Any, told: Any) -> Any:
    """`told`, plain data, as the type `kind`. NotAsAgreed for anything else.

    kind: a dataclass, list[...], dict[str, ...], tuple[...], a union, bool, int, float, str, None, or Any; an
    Annotated type has predicates that must hold. A field with a default may be left out.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return told
    if origin is Annotated:
        found = decode(args[0], told)
        return agreed(found, all(holds(found) for holds in kind.__metadata__))
    if origin is typing.Literal:
        return agreed(told, any(type(told) is type(one) and told == one for one in args))
    if origin in (types.UnionType, typing.Union):
        return first_of(args, told)
    if dataclasses.is_dataclass(kind):
        return decode_fields(kind, told)
    if kind is list or origin is list:
        return [decode(args[0], one) for one in agreed(told, isinstance(told, list))]
    if origin is dict:
        agreed(told, isinstance(told, dict))
        return {name: decode(args[1], one) for name, one in told.items()}
    if origin is tuple:
        agreed(told, isinstance(told, list) and len(told) == len(args))
        return tuple(decode(one, value) for one, value in zip(args, told, strict=True))
    if kind is float:
        return float(agreed(told, type(told) in (int, float)))
    return agreed(told, type(told) is kind)


def agreed(told: T, holds: bool) -> T:
    if not holds:
        raise NotAsAgreed
    return told


def first_of(kinds: Sequence[Any], told: Any) -> Any:
    for kind in kinds:
        try:
            return decode(kind, told)
        except NotAsAgreed:
            continue
    raise NotAsAgreed


@functools.cache
def fields_of(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, by name."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {one.name: hints[one.name] for one in dataclasses.fields(kind)}


def decode_fields(kind: Any, told: Any) -> Any:
    hints = fields_of(kind)
    agreed(told, isinstance(told, dict) and set(told) <= set(hints))
    try:
        return kind(**{name: decode(hints[name], one) for name, one in told.items()})
    except TypeError:  # a field without a default was left out
        raise NotAsAgreed from None
