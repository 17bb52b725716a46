"""Replies that no recipe made: whatever a rank's code can send in the form that is agreed."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import random
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any

import torch

import course_lib.checks.notebooks
from course_lib.checks.judge import replies
from course_lib.checks.judge.case import (
    Case,
    Exercise,
    Finding,
    Observed,
    RankSide,
    Spec,
    exercises,
)
from course_lib.checks.wire import Instructions, fields_of, plain_message, reply_type
from course_lib.ledger import rows
from course_lib.ledger.ledger import Ledger
from course_lib.ledger.operation import Operation
from course_lib.runtime import wire
from course_lib.runtime.run import Outcome

NOTEBOOKS = [info.name for info in pkgutil.iter_modules(course_lib.checks.notebooks.__path__)]
EXERCISES: dict[str, Exercise] = {
    f"{notebook}/{name}": exercise
    for notebook in NOTEBOOKS
    for name, exercise in exercises(
        importlib.import_module(f"course_lib.checks.notebooks.{notebook}")
    ).items()
}
INTEGERS = (0, 1, 2, 3, 7, 1 << 20, 1 << 62, (1 << 64) - 1)
FLOATS = (
    0.0,
    1.0,
    0.5,
    3.0,
    -1.0,
    5e-324,
    1e-300,
    1.7e308,
    float("nan"),
    float("inf"),
    -float("inf"),
)
TEXTS = (
    "",
    "x",
    "0",
    "line 3: return x",
    "Cell In[5], line 3: x = 1",
    "float32[2, 3]",
    "None",
    "9" * 3000,
)
FORMS = (
    "number",
    "text",
    "list",
    "dict",
    "tensor",
    "described dict",
    "range",
    "float",
    "other",
    "None",
)

Make = Callable[[Any], Any]


# ---- plain data of a type


def default(kind: Any) -> Any:
    """The least that a reply of this type can say: its defaults, zeros and empty texts."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated or origin in (types.UnionType, typing.Union):
        return default(args[0])
    if origin is typing.Literal:
        return args[0]
    if dataclasses.is_dataclass(kind):
        needed = [field for field in dataclasses.fields(kind) if is_needed(field)]
        return {field.name: default(fields_of(kind)[field.name]) for field in needed}
    if origin is tuple:
        return [default(arg) for arg in args]
    empty: dict[Any, Any] = {list: [], dict: {}, bool: False, int: 0, float: 0.0, str: ""}
    return empty.get(origin or kind)


def is_needed(field: dataclasses.Field) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def odd(kind: Any, draw: random.Random) -> Any:
    """Anything of this type, small or absurd."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return odd(args[0], draw)
    if origin in (types.UnionType, typing.Union):
        return odd(draw.choice(args), draw)
    if origin is typing.Literal:
        return draw.choice(args)
    if dataclasses.is_dataclass(kind):
        given = [f for f in dataclasses.fields(kind) if is_needed(f) or draw.random() < 0.7]
        return {field.name: odd(fields_of(kind)[field.name], draw) for field in given}
    if origin is tuple:
        return [odd(arg, draw) for arg in args]
    if origin is list or kind is list:
        return [odd(args[0], draw) for _ in range(draw.choice([0, 1, 2, 3, 5]))]
    if origin is dict:
        return {draw.choice(TEXTS[:5]): odd(args[1], draw) for _ in range(draw.randrange(3))}
    choices: dict[Any, Any] = {bool: (False, True), int: INTEGERS, float: FLOATS, str: TEXTS}
    return (
        draw.choice(choices[kind])
        if kind in choices
        else None
        if kind is type(None)
        else value(draw)
    )


def value(draw: random.Random, depth: int = 3) -> Any:
    """Data as `harness.plain` makes it of a value, or a rank's code in its place."""
    form = draw.choice(FORMS if depth else FORMS[:2])
    several = [value(draw, depth - 1) for _ in range(draw.choice([0, 1, 2, 4]))] if depth else []
    made: dict[str, Any] = {
        "number": draw.choice([*INTEGERS, *FLOATS, True, -1, -(1 << 62)]),
        "text": draw.choice(TEXTS),
        "list": several,
        "dict": {draw.choice(TEXTS): one for one in several},
        "tensor": {"tensor": several, "shape": [len(several)]},
        "described dict": {"dict": [[draw.choice(TEXTS), one] for one in several]},
        "range": {"range": [0, draw.choice(INTEGERS), 1]},
        "float": {"float": draw.choice(["inf", "nan", "-inf", "x"])},
        "other": {"other": draw.choice(["ellipsis", "very large int", "Odd"])},
        "None": None,
    }
    return made[form]


# ---- the replies of a case


def reply(case: Case, side: RankSide, make: Make) -> Any:
    """A reply as complete as the instructions ask, of parts that `make` makes of their types."""
    kind, told = reply_type(case.recipe), side.instructions or Instructions()
    if typing.get_origin(kind) is dict:
        return {part: make(typing.get_args(kind)[1]) for part in told.parts()}
    made = make(kind)
    if dataclasses.is_dataclass(kind) and "answers" in fields_of(kind):
        (of_one,) = typing.get_args(fields_of(kind)["answers"])
        made["answers"] = [make(of_one) for _ in range(told.answers())]
    return made


def observed(
    exercise: Exercise,
    case: Case,
    make: Make,
    tensor: Callable[[Spec], torch.Tensor],
    operations: Callable[[Case, int], list[Operation]] = lambda case, rank: [],
    held: Callable[[], int] = lambda: 0,
) -> Observed | Finding:
    """The case as the judge reads it from such replies. held: bytes at each of its moments."""
    answers = []
    for side in case.sides:
        meta, raw = wire.pack_tensors({name: tensor(spec) for name, spec in side.outputs.items()})
        header = {"values": plain_message(reply(case, side, make)), "tensors": meta, "others": {}}
        answers.append((header, [bytearray(part) for part in raw]))
    of_ranks = [operations(case, rank) for rank in range(case.world_size)]
    read = [[{name: [held()] for name in case.moments} for _ in case.sides] for _ in range(2)]
    ledger = Ledger(case.world_size, of_ranks)
    return replies.read(
        exercise, case, Outcome(answers, None, ledger, 0.0, "gloo", [], read[0], read[1])
    )


def zeros(spec: Spec) -> torch.Tensor:
    return torch.zeros(spec.shape, dtype=spec.dtype)


def odd_tensor(spec: Spec, draw: random.Random) -> torch.Tensor:
    """One number in all places, odd ones in some, or whatever was drawn."""
    if not spec.dtype.is_floating_point:
        low, high = (0, 2) if spec.dtype in (torch.bool, torch.uint8) else (-100, 100)
        numbers = torch.randint(low, high, spec.shape)
        large = spec.dtype == torch.int64 and draw.random() < 0.3
        return (numbers * (1 << 56) if large else numbers).to(spec.dtype)
    tensor = torch.randn(spec.shape, dtype=torch.float64)
    if draw.random() < 0.7:
        tensor.fill_(draw.choice(FLOATS))
    if tensor.numel() and draw.random() < 0.5:
        tensor.flatten()[draw.randrange(tensor.numel())] = draw.choice(FLOATS)
    return tensor.to(spec.dtype)


def odd_operations(case: Case, rank: int, draw: random.Random) -> list[Operation]:
    """A record as `read_ledger` lets it through: numbers in their bounds, in no sensible order."""
    everyone = tuple(range(case.world_size))
    groups = [everyone, *(tuple(group) for group in case.groups if rank in group)]
    return [
        Operation(
            rank, index, draw.choice(rows.OPS), draw.choice([None, *everyone]), draw.choice(groups),
            draw.choice([0, 1, 7]), draw.choice(["float32", "int8", "uint8", "float64"]),
            draw.choice([(), (0,), (4,), (2, 3)]), draw.choice([0, 4, 96, 1 << 40]),
            draw.choice([0.0, 4.0, 96.0, 1e15]), 0.1 * index, 0.01, draw.choice([None, 0.1 * index + 0.05]),
            draw.random() < 0.5, draw.choice(["", "Cell In[5], line 3"]), "", draw.random() < 0.2,
        )
        for index in range(draw.choice([0, 1, 4, 9]))
    ]  # fmt: skip
