"""In the rank: PyTorch's ready-made parts for the purpose are refused, with a sentence that says why."""

from __future__ import annotations

import contextlib
import importlib.abc
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NoReturn

DIFFERENTIATED = "torch.distributed.nn"
SHARDED = "torch.distributed.tensor"
WIRE = "course_lib.runtime.wire"
WHY = {
    DIFFERENTIATED: (
        "torch.distributed.nn.functional takes every rank's result for a result of its own, and communicates "
        "again in backward. If the results are copies of one, gradients come out N times too large. Write a "
        "torch.autograd.Function with a backward of your own."
    ),
    SHARDED: (
        "DTensor and parallelize_module would do all of it. Build it yourself: keep this rank's part of the "
        "weight, and communicate with torch.distributed."
    ),
}


class _Refused(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        for module, why in WHY.items():
            if (name == module or name.startswith(f"{module}.")) and not in_passing():
                raise ImportError(why)


def in_passing() -> bool:
    """Whether it is not the student's code that imports: PyTorch does, for itself, cloudpickle, or `wire`.

    cloudpickle imports all that the kernel had and whose name occurs: a class that says `dist` and
    `torch.nn` brings torch.distributed.nn with it, and one that says `torch.tensor` torch.distributed.tensor,
    which `wire` makes a module that is loaded at its first use.
    """
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("importlib."):
        frame = frame.f_back
    importer = "" if frame is None else frame.f_globals.get("__name__", "")
    return importer.partition(".")[0] in ("torch", "cloudpickle") or importer == WIRE


_GUARD = _Refused()


def refuse_imports() -> None:
    """From here on, until `own_parts` is over, none of it can be imported.

    Begun before the student's objects are read, which import the modules that they name: DTensor takes a rank
    seconds.
    """
    if _GUARD not in sys.meta_path:
        sys.meta_path.insert(0, _GUARD)


@contextlib.contextmanager
def own_parts() -> Iterator[None]:
    """Within, torch.distributed.nn and DTensor can neither be imported nor, where they are, be used."""
    changed: list[tuple[type, str, Any]] = []

    def refuse(owner: type, name: str, why: str) -> None:
        def refused(*args: Any, **kwargs: Any) -> NoReturn:
            raise RuntimeError(why)

        changed.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, staticmethod(refused))

    refuse_imports()
    try:
        for owner in autograd_functions(sys.modules.get(f"{DIFFERENTIATED}.functional")):
            refuse(owner, "forward", WHY[DIFFERENTIATED])
        sharded: Any = sys.modules.get(SHARDED)
        if type(sharded) is ModuleType:
            refuse(sharded.DTensor, "__new__", WHY[SHARDED])
        with not_to_be_loaded(sharded, WHY[SHARDED]):
            yield
    finally:  # ranks are kept under NCCL, for other exercises
        if _GUARD in sys.meta_path:
            sys.meta_path.remove(_GUARD)
        for owner, name, was in changed:
            setattr(owner, name, was)


class _NotLoaded(importlib.abc.Loader):
    def __init__(self, why: str):
        self.why = why

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError(self.why)


@contextlib.contextmanager
def not_to_be_loaded(module: ModuleType | None, why: str) -> Iterator[None]:
    """Within, a module that is loaded at its first use, and was not used yet, is not loaded: that raises."""
    if module is None or type(module) is ModuleType:
        yield
        return
    spec = object.__getattribute__(module, "__spec__")  # any other way of asking is a use
    loader, spec.loader = spec.loader, _NotLoaded(why)
    try:
        yield
    finally:
        spec.loader = loader


def autograd_functions(module: ModuleType | None) -> list[type]:
    """The torch.autograd.Functions that a module defines; none of None."""
    if module is None:
        return []
    own = (value for value in vars(module).values() if isinstance(value, type))
    return [kind for kind in own if kind.__module__ == module.__name__ and "forward" in vars(kind)]
