"""In the rank: classes and functions of PyTorch's that would do an exercise's work fail while it is checked.

They are named "package.module:Class" or "package.module:function". This is a courtesy, as is the guard
against imports of the reference: it stops a student who takes the class for an answer, and says so; a student
who copies its source has at least read it.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, NoReturn


def modules(classes: Iterable[str]) -> list[str]:
    """The modules of the classes, each once, so that ranks find them imported."""
    return list(dict.fromkeys(name.partition(":")[0] for name in classes))


@contextlib.contextmanager
def refused(classes: Mapping[str, str]) -> Iterator[None]:
    """Within, making one of the classes, calling a method of it, or the function, raises RuntimeError.

    classes: {name: the error's text}. A name that this release of PyTorch does not have is passed by.
    """
    with contextlib.ExitStack() as stack:
        for name, says in classes.items():
            module, _, kind = name.partition(":")
            owner = importlib.import_module(module)
            target = getattr(owner, kind, None)
            if isinstance(target, type):
                stack.enter_context(without_methods(target, says))
            elif target is not None:
                stack.enter_context(without_function(owner, kind, says))
        yield


@contextlib.contextmanager
def without_function(owner: ModuleType, name: str, says: str) -> Iterator[None]:
    """Within, the function of that name in the module raises RuntimeError(says)."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(says)

    function = getattr(owner, name)
    setattr(owner, name, refuse)
    try:
        yield
    finally:
        setattr(owner, name, function)


@contextlib.contextmanager
def without_methods(kind: Any, says: str) -> Iterator[None]:
    """Within, `__init__` and every method that the class defines in Python raises RuntimeError(says).

    They are replaced on the class, so that a reference from before reaches them, too. Ranks that are kept for
    other exercises have the class as it was.
    """

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(says)

    own = {name: method for name, method in vars(kind).items() if isinstance(method, FunctionType)}
    own["__init__"] = kind.__init__
    for name in own:
        setattr(kind, name, refuse)
    try:
        yield
    finally:
        for name, method in own.items():
            setattr(kind, name, method)
