"""Cells that need functions a student might not have written yet.

A notebook runs from top to bottom with any of its exercises left out, so a cell asks before it uses one:

    if ready(first_that_fits):  # or prints "`first_that_fits` calls `parameters`, which is not written yet."
        strategy_map(first_that_fits)

    print(f"yours {said(ridge, 312e12, 2e12):,.0f}")  # "yours ?" until `ridge` is written

    run = try_it(job, world_size=4)  # the ranks' results, or None after a sentence on what went wrong

In one cell the same sentence is printed once, however often the function is asked for.

A function is not written while it, or a function of the notebook that it calls, contains a
`raise NotImplementedError` without a text, which is what a stub consists of.
"""

from __future__ import annotations

import dis
import inspect
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

from IPython.core.getipython import get_ipython

from course_lib.runtime.errors import NotWritten, RankError, explained
from course_lib.runtime.launch import Run, launch

STUB = "NotImplementedError"
FORM = re.compile(r"^((?:.?[<>=^])?)[-+ ]?#?0?(\d*)")  # alignment and width of a format
CALLED_EMPTY = (
    "PUSH_NULL",
    "PRECALL",
    "CALL",
)  # between the name and `raise`, in NotImplementedError()
WHOLE, PART = "whole", "part"
SET_UP = ("RESUME", "COPY_FREE_VARS", "MAKE_CELL", "NOP")


def ready(*functions: Any) -> bool:
    """Whether functions or classes, and those of the notebook that they call, are written.

    Prints a sentence for each one that is not, so that a cell waiting for it is not silent. It calls none.
    """
    sentences = dict.fromkeys(text for function in functions for text in _missing(function))
    for sentence in sentences:
        say_once(sentence)
    return not sentences


def try_it(job: Callable, *args: Any, world_size: int = 4, **options: Any) -> Run | None:
    """`launch(job, *args, ...)`, for a cell that goes on without it: None after a sentence if it failed."""
    try:
        return launch(job, *args, world_size=world_size, **options)
    except NotWritten as missing:
        say_once(str(missing))
    except RankError as error:
        print(explained(error))
    return None


def said(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """The result of a call; NOT_YET, which prints as "?" and is false, if the call ended in a stub."""
    try:
        return function(*args, **kwargs)
    except NotImplementedError:
        return NOT_YET


def tried(cell: Callable[[], Any], *functions: Any) -> Any:
    """The result of `cell()` if the functions it needs are `ready`; a line if it raises.

    A function that is written but wrong, for example because it returns None, ends in an error far from its
    cause.
    """
    if not ready(*functions):
        return None
    try:
        return cell()
    except Exception as error:
        names = " and of ".join(f"`{_name(function)}`" for function in functions)
        print(
            f"This cell ended in {type(error).__name__}: {error}. What does the check of {names} say?"
        )
        return None


def text_of(number: Any, form: str = ",.0f") -> str:
    """A predicted number as text: "?" for NOT_YET, and a remark on anything else that is not a number."""
    if isinstance(number, int | float) or number is NOT_YET:
        return format(number, form)
    return f"{number} (not a number)"


class NotYet:
    """The number of a function that is not written yet. It and all computed from it print as "?"."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "?"

    def __format__(self, form: str) -> str:
        align, width = FORM.match(form).groups() if form else ("", "")  # type: ignore[union-attr]
        return format("?", f"{align or '>'}{width}")

    def _computed(self, *_: Any) -> NotYet:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _computed
    __truediv__ = __rtruediv__ = __neg__ = __round__ = _computed


NOT_YET = NotYet()
_printed: dict[int, set[str]] = {}  # the sentences of the cell that runs now, by its number


def say_once(sentence: str) -> None:
    """Print the sentence, unless this cell has printed it before."""
    shell = get_ipython()
    cell = shell.execution_count if shell else -1
    if shell and sentence in _printed.get(cell, ()):
        return
    said = _printed.get(cell, set()) | {sentence}
    _printed.clear()
    _printed[cell] = said
    print(sentence)


def _missing(function: Any) -> Iterator[str]:
    """A sentence for the function itself, or for each function that it calls and that is not written."""
    name = _name(function)
    if state := _state(function):
        yield f"`{name}` {state}."
        return
    for other in _called(function, {id(function)}):
        if state := _state(other):
            yield f"`{name}` calls `{_name(other)}`, which {state}."


def _name(function: Any) -> str:
    return getattr(function, "__name__", repr(function))


def _state(function: Any) -> str:
    """Words for a function or class that is not written, or not to its end; else "".

    A class of which some methods are written, or were given, lacks the others.
    """
    stubs = {plain.__name__: [*map(_stub, _inside(plain))] for plain in _functions(function)}
    unwritten = [name for name, lengths in stubs.items() if WHOLE in lengths]
    if unwritten and (len(unwritten) == len(stubs) or not isinstance(function, type)):
        return "is not written yet"
    if unwritten:
        return f"still lacks {' and '.join(f'`{name}`' for name in unwritten)}"
    return f"still raises {STUB}" if any(PART in lengths for lengths in stubs.values()) else ""


def _stub(code: types.CodeType) -> str:
    """WHOLE if the code only does `raise NotImplementedError`, PART if it contains it, or ""."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in SET_UP]
    for place, step in enumerate(steps):
        if step.opname == "LOAD_GLOBAL" and step.argval == STUB:
            end = place + 1
            while steps[end].opname in CALLED_EMPTY and not steps[end].arg:
                end += 1
            if steps[end].opname == "RAISE_VARARGS":
                return WHOLE if (place, end) == (0, len(steps) - 1) else PART
    return ""


def _codes(function: Any) -> Iterator[types.CodeType]:
    """The code of a function or of a class's methods, and of those inside them."""
    for plain in _functions(function):
        yield from _inside(plain)


def _inside(function: types.FunctionType) -> Iterator[types.CodeType]:
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [part for part in code.co_consts if isinstance(part, types.CodeType)]


def _called(function: Any, known: set[int]) -> Iterator[Any]:
    """The functions and classes of the same notebook that it names, and those that these name in turn."""
    for code in _codes(function):
        for name in code.co_names:
            other = _globals(function).get(name)
            kind = types.FunctionType | type
            if (
                callable(other)
                and isinstance(inspect.unwrap(other), kind)
                and id(other) not in known
            ):
                known.add(id(other))
                if other.__module__ == function.__module__:
                    yield other
                    yield from _called(other, known)


def _globals(function: Any) -> dict[str, Any]:
    """The names a function, or the methods of a class, can use."""
    return next((plain.__globals__ for plain in _functions(function)), {})


def _functions(function: Any) -> Iterator[types.FunctionType]:
    """The function without decorators; for a class, its methods and properties."""
    members = vars(function).values() if isinstance(function, type) else [function]
    for member in members:
        member = member.fget if isinstance(member, property) else member
        plain = inspect.unwrap(getattr(member, "func", member))  # type: ignore[arg-type]
        if isinstance(plain := getattr(plain, "__func__", plain), types.FunctionType):
            yield plain
