"""The mesh: how are the axes combined?

    coordinates.py   coordinates, axis_ranks: which place a rank has, and which ranks share it
    mesh.py          Mesh: the ranks as a grid, with a process group for each axis
    parts.py         my_part: the rows and the places that a rank reads
    stages.py        mesh_stages: a model, cut over all axes; the one place that knows where the cuts meet
    step.py          hybrid_step, train_step: all axes, in the order in which they are applied. Begin here
    norm.py          clip_grad_norm: the norm of a gradient that no rank holds
    explorer.py      mesh_explorer: a widget that shows a rank's part, groups and wires

    mesh = Mesh({"pp": 2, "dp": 2, "cp": 1, "tp": 2})
    schedule = one_f_one_b(mesh.size("pp"), microbatches)
    stages = mesh_stages(GPT(config), mesh, schedule)
    loss = hybrid_step(stages, schedule, rows_of_this_replica, mesh)

The names are imported when they are first used: so the others can be used while an exercise hides a module.
`coordinates` has its module's name and is imported from there: `from course_lib.mesh.coordinates import ...`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .coordinates import axis_ranks
    from .mesh import Mesh, Place
    from .norm import clip_grad_norm
    from .parts import my_part
    from .stages import cut_names, mesh_stages, parameters, tied_names
    from .step import hybrid_step, train_step

__all__ = [
    "Mesh",
    "Place",
    "axis_ranks",
    "clip_grad_norm",
    "cut_names",
    "hybrid_step",
    "mesh_stages",
    "my_part",
    "parameters",
    "tied_names",
    "train_step",
]

_MODULES = {
    "Mesh": "mesh",
    "Place": "mesh",
    "axis_ranks": "coordinates",
    "clip_grad_norm": "norm",
    "cut_names": "stages",
    "hybrid_step": "step",
    "mesh_stages": "stages",
    "my_part": "parts",
    "parameters": "stages",
    "tied_names": "stages",
    "train_step": "step",
}


def __getattr__(name: str) -> Any:
    """A public name, from its module. It is not cached: the module may be hidden later."""
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
