"""In the rank: modules that a student's objects name are imported before anything of the objects is made.

Memory counts from before the objects are read. Libraries are not what is judged, so they are there by then.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pickle
from collections.abc import Sequence
from typing import Any

from course_lib.runtime.wire import Buffer

_import = importlib.import_module


class _Nothing:
    """Stands for all that a pickle makes, and does nothing."""

    def __new__(cls, *args: Any, **kwargs: Any) -> _Nothing:
        return object.__new__(cls)

    def nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    __init__ = __call__ = __setstate__ = __setitem__ = append = extend = add = nothing


class _Names(pickle.Unpickler):
    """Reads a pickle for the modules that it names."""

    def find_class(self, module: str, name: str) -> Any:
        with contextlib.suppress(Exception):  # the reading that counts tells of it
            _import(module)
        return import_or_not if name == "subimport" else _Nothing


def import_or_not(name: str) -> _Nothing:
    with contextlib.suppress(Exception):
        _import(name)
    return _Nothing()


def import_what_is_named(buffers: Sequence[Buffer]) -> None:
    """Import the modules that `wire.loads` would import, and run nothing else of these bytes."""
    with contextlib.suppress(Exception):
        _Names(io.BytesIO(buffers[0]), buffers=buffers[1:]).load()
