"""Why something cannot be sent to the ranks, by the name the student gave it."""

from __future__ import annotations

import dis
import functools
import inspect
import io
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

from course_lib.runtime import wire

DEEPEST = 6  # things within things that are looked into
ADVICE: tuple[tuple[type, str], ...] = (
    (ModuleType, "Import it inside the function."),
    (io.IOBase, "Open the file inside the function, on the rank that uses it."),
    (GeneratorType, "Make it inside the function, on the rank that uses it, or pass a list."),
)
COMPILED = (
    "torch.compile made it, so its result belongs to this process. Send the plain function instead."
)
OTHERWISE = "Make it inside the function, on the rank that uses it."


def explain(fn: Callable, args: tuple, kwargs: dict, error: Exception) -> str:
    """A sentence that names the innermost variable with a name that cannot be pickled."""
    name = getattr(fn, "__name__", type(fn).__name__)
    candidates = [(f"argument {i}", value) for i, value in enumerate(args)]
    candidates += [(f"argument {key!r}", value) for key, value in kwargs.items()]
    candidates += parts("", fn)
    for label, value in candidates:
        if (blamed := culprit(label, value)) is not None:
            label, value, reason = blamed
            if type(value).__name__ == "DynamoTLS":
                return f"{name} cannot be sent to the ranks: {COMPILED}"
            advice = next((says for kind, says in ADVICE if isinstance(value, kind)), OTHERWISE)
            return (
                f"{name} cannot be sent to the ranks, because {label} is a {type(value).__name__}, which "
                f"cannot be copied to another process ({reason}). {advice}"
            )
    return f"{name} cannot be sent to the ranks: {error}. {OTHERWISE}"


def not_sent_back(fn: Any, rank: int, kind: str, error: Exception) -> str:
    """A sentence for a result, of the type `kind`, that cannot be pickled, or read by another process."""
    name = getattr(fn, "__name__", "the function")
    return (
        f"rank {rank} could not send back what {name} returned, a {kind}: {error}. "
        "Return tensors, numbers, strings, and lists or dicts of these."
    )


def check_call(fn: Callable, args: tuple, kwargs: dict) -> None:
    """TypeError for a function that would run nothing, or that takes other arguments."""
    name = getattr(fn, "__name__", type(fn).__name__)
    for runs_nothing, kind in (
        (inspect.iscoroutinefunction, "an `async def`"),
        (inspect.isgeneratorfunction, "a generator, with a `yield`"),
    ):
        if runs_nothing(fn):
            raise TypeError(
                f"{name} is {kind}, so calling it runs none of its lines. Make it a plain function."
            )
    try:
        signature = inspect.signature(fn, follow_wrapped=False)  # a decorator may bring arguments
    except (TypeError, ValueError):  # of C code: it says so itself
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(
            f"launch cannot call {name}({', '.join(signature.parameters)}) with the arguments it got: "
            f"{error}. A rank gets its own number from dist.get_rank() and the number of ranks from "
            "dist.get_world_size()."
        ) from None


def culprit(label: str, value: Any, depth: int = DEEPEST) -> tuple[str, Any, str] | None:
    """(label, value, reason) of the innermost part of a value that cannot be pickled; None if it can."""
    if (reason := unpicklable(value)) is None:
        return None
    for inner, part in parts(label, value) if depth else ():
        if (blamed := culprit(inner, part, depth - 1)) is not None:
            return blamed
    return label, value, reason


def parts(label: str, value: Any) -> list[tuple[str, Any]]:
    """The parts of a value, each with a label; `label` is the value's own, "" for the object to send."""
    if isinstance(value, FunctionType):
        return list(captured(value, value.__name__ if label else "it"))
    if isinstance(value, MethodType):
        return [
            *parts(label, value.__func__),
            (f"the object of the method {value.__name__}", value.__self__),
        ]
    if isinstance(value, functools.partial):
        kept = [*enumerate(value.args), *value.keywords.items()]
        return [
            *parts(label, value.func),
            *((f"the partial's argument {k!r}", argument) for k, argument in kept),
        ]
    if isinstance(value, type):
        own = {
            key: getattr(attribute, "__func__", attribute) for key, attribute in vars(value).items()
        }
        functions = [attribute for attribute in own.values() if isinstance(attribute, FunctionType)]
        inside = [
            pair
            for function in functions
            for pair in captured(function, f"{value.__name__}.{function.__name__}")
        ]
        plain = {key: attribute for key, attribute in own.items() if not key.startswith("__")}
        return [
            *inside,
            *(
                (f"the attribute {key!r} of {value.__name__}", attribute)
                for key, attribute in plain.items()
            ),
        ]
    if isinstance(value, list | tuple | dict):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return [(f"[{key!r}] of {label}", element) for key, element in pairs]
    own = getattr(value, "__dict__", None)
    who = label or f"the {type(value).__name__}"
    return (
        [(f"the attribute {k!r} of {who}", attribute) for k, attribute in own.items()]
        if isinstance(own, dict)
        else []
    )


def captured(fn: FunctionType, who: str) -> Iterator[tuple[str, Any]]:
    """Globals, closure variables and defaults that a function uses, with a label for each."""
    for key in global_names(fn.__code__):
        if key in fn.__globals__:
            yield f"the global variable {key!r} that {who} uses", fn.__globals__[key]
    for key, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            yield f"the captured variable {key!r}", cell.cell_contents
        except ValueError:  # nothing has been assigned to it yet
            continue
    for value in [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]:
        yield f"a default argument of {fn.__name__}", value


def global_names(code: CodeType) -> dict[str, None]:
    """The globals that a function's code reads, also in functions within it, in order."""
    names = {
        instruction.argval: None
        for instruction in dis.get_instructions(code)
        if instruction.opname == "LOAD_GLOBAL"
    }
    for const in code.co_consts:
        if isinstance(const, CodeType):
            names |= global_names(const)
    return names


def unpicklable(value: Any) -> str | None:
    """The reason why a value cannot be pickled, or None if it can."""
    try:
        wire.dumps(value)
    except Exception as error:
        return str(error) or type(error).__name__
    return None
