"""Messages to a rank, and its replies: the one place that looks at the form of either.

The judge sends a `Task`. A recipe (see `rank.harness`) declares both in its signature,

    def layers(..., instructions: LayersInstructions) -> tuple[dict[str, LayerReply], dict[str, Any]]

where LayersInstructions and LayerReply are dataclasses of plain fields. `plain_message` makes JSON of them
where they are sent; where they are read `decode` makes the type again, or raises `NotAsAgreed`. So the recipe
and the judge's lines read fields and need not ask about their types.
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
class Instructions:
    """The task of a rank: a recipe's own dataclass of plain fields adds the rest.

    enough: the bytes of memory that are enough, by the names of the recipe's measurements (see
    `rank.memory`), so that it measures again before it reports more. The judge adds them.
    """

    enough: dict[str, float] = dataclasses.field(default_factory=dict, kw_only=True)

    def parts(self) -> list[str]:
        """The names of the runs or calls: a reply by names must have exactly these."""
        return []

    def answers(self) -> int:
        """The number of calls with an answer: a reply of answers must have as many."""
        return 0


@dataclasses.dataclass(frozen=True)
class Task:
    """One rank's part of one case, beside the student's objects and its input tensors.

    recipe: "package.module:function"; payload: how many of the buffers are the pickled objects; tensors: how
    to read the others; groups: ranks of the process groups; references, refused: modules not to be imported
    and classes not to be used, see `rank.own_work` and `rank.refusing`; filtered: whether system calls are
    filtered; instructions: the recipe's own part, None for a rank that takes no part.
    """

    recipe: str
    payload: int
    tensors: Any
    groups: Sequence[Sequence[int]]
    references: Sequence[str]
    refused: Any
    filtered: bool
    instructions: Any


def plain_message(message: Any) -> Any:
    """A reply or instructions as JSON has them: dataclasses become dicts of their fields."""
    if dataclasses.is_dataclass(message) and not isinstance(message, type):
        fields = dataclasses.fields(message)
        return {field.name: plain_message(getattr(message, field.name)) for field in fields}
    if isinstance(message, dict):
        return {name: plain_message(value) for name, value in message.items()}
    if isinstance(message, list | tuple):
        return [plain_message(item) for item in message]
    return message


def reply_type(recipe: str) -> Any:
    """The type of the reply of the recipe "package.module:function", beside tensors: see its signature."""
    return typing.get_args(signature(recipe)["return"])[0]


def instructions_type(recipe: str) -> type[Instructions]:
    """The type of the recipe's instructions: see its signature."""
    return signature(recipe)["instructions"]


@functools.cache
def signature(recipe: str) -> dict[str, Any]:
    module, _, name = recipe.partition(":")
    function: Callable = getattr(importlib.import_module(module), name)
    return typing.get_type_hints(function, include_extras=True)


def decode(kind: Any, data: Any) -> Any:
    """`data`, which is plain, as the type `kind`. NotAsAgreed for anything else.

    kind: a dataclass, list[...], dict[str, ...], tuple[...], a union, bool, int, float, str, None, or Any; an
    Annotated type has predicates that must hold. A field with a default may be left out.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return data
    if origin is Annotated:
        decoded = decode(args[0], data)
        return agreed(decoded, all(holds(decoded) for holds in kind.__metadata__))
    if origin is typing.Literal:
        return agreed(data, any(type(data) is type(choice) and data == choice for choice in args))
    if origin in (types.UnionType, typing.Union):
        return first_of(args, data)
    if dataclasses.is_dataclass(kind):
        return decode_fields(kind, data)
    if kind is list or origin is list:
        return [decode(args[0], item) for item in agreed(data, isinstance(data, list))]
    if origin is dict:
        agreed(data, isinstance(data, dict))
        return {name: decode(args[1], item) for name, item in data.items()}
    if origin is tuple:
        agreed(data, isinstance(data, list) and len(data) == len(args))
        return tuple(decode(arg, value) for arg, value in zip(args, data, strict=True))
    if kind is float:
        return float(agreed(data, type(data) in (int, float)))
    return agreed(data, type(data) is kind)


def agreed(data: T, holds: bool) -> T:
    if not holds:
        raise NotAsAgreed
    return data


def first_of(kinds: Sequence[Any], data: Any) -> Any:
    for kind in kinds:
        try:
            return decode(kind, data)
        except NotAsAgreed:
            continue
    raise NotAsAgreed


@functools.cache
def fields_of(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, by name."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def decode_fields(kind: Any, data: Any) -> Any:
    hints = fields_of(kind)
    agreed(data, isinstance(data, dict) and set(data) <= set(hints))
    try:
        return kind(**{name: decode(hints[name], value) for name, value in data.items()})
    except TypeError:  # a field without a default was left out
        raise NotAsAgreed from None
