"""Runs in the rank: drives the student's object and hands back the results. Decides nothing.

It holds one case's and one rank's inputs, never an expected value, a seed or a later case. It takes its
functions of torch before the student's bytes are unpickled. The reply consists of JSON and raw tensors.

A recipe is a function `recipe(objects, tensors, groups, instructions) -> tuple[Values, dict[str, Any]]`:

* objects: the student's objects, in the order of the exercise;
* tensors: this rank's inputs by name; groups: the process groups that the case asks for;
* instructions: this rank's plain data, of the dataclass that the signature names; a rank that takes no part
  has none, and the recipe is not called there;
* values: the plain data of the reply, of a type that the signature names and the judge reads it as (see
  `course_lib.checks.wire`); tensors: the reply's raw bytes (an object in there that is not a tensor is
  described by its type).

A case names its recipe "package.module:function", so that a topic with a recipe of its own (say, training a
model) adds it without touching this file.

The process that forks the ranks imports the recipe's module, so the import must have no side effects.
It may have two functions that are called before the student's objects are read: `before_reading()`, and
`warm_up(instructions)`; memory that is measured counts from there. Modules that the objects import count,
too: their code could unload them again, and hold as much instead.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import operator
import os
import random
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CoroutineType, GeneratorType
from typing import Any, get_origin

import torch
import torch.distributed as dist

from course_lib.checks.rank import frozen
from course_lib.checks.rank.own_work import own_work
from course_lib.checks.rank.refusing import refused
from course_lib.checks.wire import (
    Instructions,
    Place,
    Task,
    decode,
    instructions_type,
    plain_message,
    reply_type,
)
from course_lib.runtime import wire
from course_lib.runtime.backend import device
from course_lib.runtime.rank import close_the_store
from course_lib.runtime.sandbox import calls, kernel

_plain_message = plain_message
_loads, _pack, _unpack = wire.loads, wire.pack_tensors, wire.unpack_tensors
_import = importlib.import_module
# not the recorded one: the ledger must hold the student's operations alone
_new_group = getattr(dist.new_group, "__wrapped__", dist.new_group)
_extract_frames, _walk_frames = traceback.extract_tb, traceback.walk_tb
PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIBRARIES = (
    PACKAGE,
    os.path.dirname(os.path.dirname(torch.__file__)),
    os.path.dirname(os.__file__),
    "<frozen",
)
LONGEST = 1_000  # entries of a list or characters of a text that go back

Recipe = Callable[[list, dict[str, torch.Tensor], list, Any], tuple[Any, dict[str, Any]]]


@dataclass
class Called:
    """The outcome of a call. result: as plain data, where asked for; same_memory: as an argument's."""

    result: Any = None
    same_memory: bool = False


@dataclass
class Answer:
    """The value of a function, or of a constant. random: whether the call changed a random generator."""

    value: Any = None
    error: Place | None = None
    random: bool = False


@dataclass
class Answers:
    answers: list[Answer]


def run_recipe(header: dict, buffers: list[memoryview], rank: int) -> tuple[dict, list]:
    """The entry point in the rank."""
    task = Task(**header)
    path, _, name = task.recipe.partition(":")
    module = _import(path)
    recipe: Recipe = getattr(module, name)
    before_reading: Callable[[], None] = getattr(module, "before_reading", nothing)
    warm_up: Callable[[Any], None] | None = getattr(module, "warm_up", None)
    instructions = None
    if task.instructions is not None:
        instructions = decode(instructions_type(task.recipe), task.instructions)
    count = task.payload
    received = _unpack(task.tensors, buffers[count:])
    alone = not dist.is_initialized()
    where = torch.device("cpu") if alone else device()
    tensors = {name: tensor.to(where) for name, tensor in received.items()}
    groups = [_new_group(members) for members in task.groups]
    if not alone:
        close_the_store(dist.get_world_size())
    if task.filtered:
        only_what_checks_need()
    with own_work(task.references), refused(task.refused), told_why():
        before_reading()
        if warm_up is not None and instructions is not None:
            warm_up(instructions)
        objects = list(_loads(buffers[:count]))
        if instructions is None:
            values, outputs = no_reply(task.recipe), {}
        else:
            values, outputs = recipe(objects, tensors, groups, instructions)
    kept = {k: frozen.detach(v) for k, v in outputs.items() if isinstance(v, frozen.Tensor)}
    others = {k: type(v).__name__ for k, v in outputs.items() if k not in kept}
    meta, raw = _pack(kept)
    return {"values": _plain_message(values), "tensors": meta, "others": others}, raw


def no_reply(recipe: str) -> Any:
    """The reply of a rank that takes no part: its type, with nothing in it."""
    kind = reply_type(recipe)
    return (get_origin(kind) or kind)()


def nothing() -> None:
    """For recipes that have nothing to do before objects are read."""


def only_what_checks_need() -> None:
    """No process, socket or pipe of one's own from here on: the same with a student as with a grader.

    A machine without such filters goes without; a grader's sandbox that names them has been probed.
    """
    with contextlib.suppress(KeyError, OSError):
        kernel.no_new_privileges()
        calls.forbid()


@contextlib.contextmanager
def told_why() -> Iterator[None]:
    """Within, a group that cannot be made is an error that says why."""
    try:
        yield
    except dist.DistStoreError as error:
        error.add_note("In a check no process group can be made: use the one that is given.")
        raise


# ---- recipe: call a function with tensors


@dataclass(frozen=True)
class CallInstructions(Instructions):
    """One call of an object.

    args, kwargs: descriptions of the arguments: {"tensor": name}, perhaps with {"view": [shape, stride,
    offset]}, {"value": plain data}, {"group": index}, {"list": descriptions}, or {"parameter": name, "grad":
    the name of its gradient or None}, whose gradient goes back as "name.grad". outputs: names of arguments,
    and "result" for what is returned; plain: hand "result" back as plain data; object: which of the objects.
    """

    args: list[Any]
    outputs: list[str]
    kwargs: dict[str, Any] = field(default_factory=dict)
    object: int = 0
    plain: bool = False


def call(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: CallInstructions
) -> tuple[Called, dict[str, Any]]:
    """Call one object; hand back arguments (changed in place or not) and what it returned."""
    named: dict[str, Any] = {}
    parameters: dict[str, torch.nn.Parameter] = {}

    def argument(described: dict) -> Any:
        if "group" in described:
            return groups[described["group"]]
        if "list" in described:
            return [argument(part) for part in described["list"]]
        if "parameter" in described:
            name, grad = described["parameter"], described["grad"]
            named[name] = parameters[name] = frozen.Parameter(tensors[name])
            parameters[name].grad = None if grad is None else tensors[grad]
            return parameters[name]
        if "tensor" not in described:
            return described["value"]
        name = described["tensor"]
        base = tensors[name]
        named[f"{name}.memory"] = base
        named[name] = frozen.as_strided(base, *described["view"]) if "view" in described else base
        return named[name]

    args = [argument(described) for described in instructions.args]
    kwargs = {name: argument(described) for name, described in instructions.kwargs.items()}
    named["result"] = objects[instructions.object](*args, **kwargs)
    refuse_unrun(named["result"])
    named |= {f"{name}.grad": parameter.grad for name, parameter in parameters.items()}
    outputs = {name: named[name] for name in instructions.outputs if name in named}
    if instructions.plain:
        return Called(result=plain(outputs.pop("result"))), outputs
    result = outputs.get("result")
    arguments = [value for name, value in named.items() if name != "result"]
    if isinstance(result, frozen.Tensor) and any(result is value for value in arguments):
        outputs["result"] = frozen.clone(result)
    return Called(same_memory=any(in_the_same_memory(result, value) for value in arguments)), outputs


def in_the_same_memory(result: Any, argument: Any) -> bool:
    if not (isinstance(result, frozen.Tensor) and isinstance(argument, frozen.Tensor)):
        return False
    try:
        addresses = [frozen.untyped_storage(tensor).data_ptr() for tensor in (result, argument)]
    except (NotImplementedError, RuntimeError):  # a sparse tensor has no storage
        return result is argument
    return result is argument or (addresses[0] != 0 and addresses[0] == addresses[1])


def refuse_unrun(value: Any) -> None:
    """TypeError for the value of an `async def` or of a generator: such a call has run no line."""
    for kind, words in ((CoroutineType, "an `async def`"), (GeneratorType, "a generator")):
        if type(value) is kind:
            raise TypeError(
                f"your function is {words}: calling it runs none of its lines. Make it a plain function"
            )


# ---- recipe: evaluate pure functions, and constants


@dataclass(frozen=True)
class EvaluateInstructions(Instructions):
    """calls: [index of the object, list of arguments, perhaps keyword arguments] each; instead of the
    arguments None: the object itself is the answer.
    """

    calls: list[Any]

    def answers(self) -> int:
        return len(self.calls)


def evaluate(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: EvaluateInstructions
) -> tuple[Answers, dict[str, Any]]:
    """Call functions on plain arguments; an exception is an answer too.

    An answer says, too, whether the call changed the state of a random generator that the process shares.
    """
    answers: list[Answer] = []
    for index, args, *named in instructions.calls:
        target, before = objects[index], random_state()
        try:
            value = target if args is None else target(*args, **(named[0] if named else {}))
            answers.append(Answer(value=plain(value)))
        except Exception as error:
            answers.append(Answer(error=describe(error)))
        answers[-1].random = random_state() != before
    return Answers(answers), {}


def random_state() -> tuple[object, bytes]:
    """That of Python's and of PyTorch's default generator."""
    return random.getstate(), torch.default_generator.get_state().numpy().tobytes()


def describe(error: Exception) -> Place:
    """(type, text, "line n: source") of an exception; no place where none of it is the student's code.

    The place of a stub that the student's code has called is "line n of function: source".
    """
    try:
        text = shortened(str(error))
    except Exception as second:  # a student's __str__ may raise
        text = f"(its text could not be made: {type(second).__name__})"
    frames = _extract_frames(error.__traceback__)
    frames = [f for f in frames if not f.filename.startswith(LIBRARIES)]
    of = f" of {stub}" if not text and (stub := called_stub(error)) else ""
    place = f"line {frames[-1].lineno}{of}: {frames[-1].line}" if frames and frames[-1].line else ""
    return type(error).__name__, text, place


def shortened(text: str, most: int = 300) -> str:
    """A text that is not longer than this; a longer one ends after a word, with dots."""
    return text if len(text) <= most else f"{text[: most - 3].rsplit(' ', 1)[0]} ..."


def called_stub(error: BaseException) -> str:
    """The stub that raised NotImplementedError, if other code of the student's called it; else ""."""
    codes = [frame.f_code for frame, _ in _walk_frames(error.__traceback__)]
    names = [own_name(code) for code in codes if not code.co_filename.startswith(LIBRARIES)]
    called = isinstance(error, NotImplementedError) and len(set(names)) > 1
    return names[-1] if called else ""


def own_name(code: types.CodeType) -> str:
    """The name of the function that has this code; for a method, the name of its class."""
    return code.co_qualname.rpartition("<locals>.")[2].partition(".")[0]


def plain(value: Any, depth: int = 3) -> Any:
    """Numbers, texts, lists and dicts as JSON; a tensor without dimensions as its number.

    Other tensors become {"tensor": their elements, "shape": shape}, a dict {"dict": [[key, value], ...]},
    a range {"range": [start, stop, step]}, anything else {"other": the name of its type}.
    """
    if isinstance(value, frozen.Tensor):
        elements = [plain(element) for element in frozen.detach(value).flatten()[:LONGEST].tolist()]
        return elements[0] if value.dim() == 0 else {"tensor": elements, "shape": list(value.shape)}
    if isinstance(value, torch.device | torch.dtype):
        return str(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 63 else {"other": "very large int"}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, str):
        return str(value)[:LONGEST]
    if isinstance(value, range):
        return {"range": [plain(end) for end in (value.start, value.stop, value.step)]}
    if isinstance(value, list | tuple | set | frozenset) and depth:
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return [plain(item, depth - 1) for item in items[:LONGEST]]
    if isinstance(value, dict) and depth:
        pairs = list(value.items())[:LONGEST]
        return {"dict": [[plain(k, depth - 1), plain(v, depth - 1)] for k, v in pairs]}
    return number_like(value)


def number_like(value: Any) -> Any:
    """A numpy scalar or a Fraction as a number, an int if it can be an index; anything else by its type."""
    try:
        return plain(int(operator.index(value)), 0)
    except Exception:  # no index, or a student's __index__
        pass
    try:
        return plain(float(value), 0)
    except Exception:  # a student's __float__ may raise whatever it likes
        return {"other": type(value).__name__}
