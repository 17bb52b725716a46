"""In the rank: an import of the exercise's own solution is an error that says why."""

from __future__ import annotations

import contextlib
import importlib.abc
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

OURS = tuple(name for name in sys.modules if name.startswith("course_lib."))
# of the others the newest whose import is over: at its end a module moves behind all that it imported
LAST = next(
    name
    for name, module in reversed(sys.modules.items())
    if name not in OURS and not getattr(getattr(module, "__spec__", None), "_initializing", False)
)


def our_modules() -> list[str]:
    """Names of the modules of this library that are imported now.

    Modules that had been imported before this one are known, and not gone through: a look at the names of a
    thousand modules would copy the pages that they stand on into every rank.
    """
    later = itertools.takewhile(lambda name: name != LAST, reversed(sys.modules))
    names = [*OURS, *(name for name in later if name.startswith("course_lib."))]
    return [name for name in dict.fromkeys(names) if name in sys.modules]


class _OwnWork(importlib.abc.MetaPathFinder):
    def __init__(self, names: Sequence[str]):
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if any(name == n or name.startswith(f"{n}.") for n in self.names):
            raise ImportError(
                f"{name} holds the course's own solution of this exercise. The check judges your own: write "
                "your own."
            )


@contextlib.contextmanager
def own_work(names: Sequence[str]) -> Iterator[None]:
    """Within, an import of these modules is an ImportError that says why."""
    ours = our_modules() if names else []
    for name in [n for n in ours if any(n == m or n.startswith(f"{m}.") for m in names)]:
        del sys.modules[name]
    for name in names:
        package, _, leaf = name.rpartition(".")
        if hasattr(sys.modules.get(package), leaf):
            delattr(sys.modules[package], leaf)
    guard = _OwnWork(tuple(names))
    sys.meta_path.insert(0, guard)
    try:
        yield
    finally:  # ranks are kept under NCCL, for other exercises
        if guard in sys.meta_path:
            sys.meta_path.remove(guard)
