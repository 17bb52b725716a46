"""The mesh: how are the axes combined?

    coordinates.py   coordinates, axis_ranks: which place a rank has, and which ranks share it
    mesh.py          Mesh: the ranks as a grid, with a process group for each axis

The names are imported when they are first used: so the others can be used while an exercise hides a module.
`coordinates` has its module's name and is imported from there: `from course_lib.mesh.coordinates import ...`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .coordinates import axis_ranks
    from .mesh import Mesh, Place

__all__ = ["Mesh", "Place", "axis_ranks"]

_MODULES = {
    "Mesh": "mesh",
    "Place": "mesh",
    "axis_ranks": "coordinates",
}


def __getattr__(name: str) -> Any:
    """A public name, from its module. It is not cached: the module may be hidden later."""
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
