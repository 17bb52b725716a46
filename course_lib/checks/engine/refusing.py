"""In the rank: classes of PyTorch's that would do an exercise's work cannot be made while it is checked.

They are named "package.module:Class". A courtesy, as the guard against imports of the reference is: it
stops whoever takes the class for an answer, and says so; who copies its source has at least read it.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any, NoReturn


def modules(classes: Iterable[str]) -> list[str]:
    """The modules of the classes, each once, so that ranks find them imported."""
    return list(dict.fromkeys(name.partition(":")[0] for name in classes))


@contextlib.contextmanager
def refused(classes: Mapping[str, str]) -> Iterator[None]:
    """Within, whoever makes one of the classes, or calls a method of it, gets a RuntimeError.

    classes: what the error says, by name. A class that this release of PyTorch has not is passed by.
    """
    with contextlib.ExitStack() as stack:
        for name, says in classes.items():
            module, _, kind = name.partition(":")
            found = getattr(importlib.import_module(module), kind, None)
            if found is not None:
                stack.enter_context(without_methods(found, says))
        yield


@contextlib.contextmanager
def without_methods(kind: Any, says: str) -> Iterator[None]:
    """Within, `__init__` and every method that the class defines in Python raises RuntimeError(says).

    They are replaced on the class: whoever holds it already gets no other. Ranks that are kept for other
    exercises have the class as it was.
    """

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(says)

    own = {name: one for name, one in vars(kind).items() if isinstance(one, FunctionType)}
    own["__init__"] = kind.__init__
    for name in own:
        setattr(kind, name, refuse)
    try:
        yield
    finally:
        for name, one in own.items():
            setattr(kind, name, one)
