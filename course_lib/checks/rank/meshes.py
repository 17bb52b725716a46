"""In the rank: a mesh whose groups the case has made, since graded code cannot make any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from course_lib.checks.wire import Instructions
from course_lib.mesh.mesh import Mesh, Place
from course_lib.runtime.backend import device

_Mesh, _Place = Mesh, Place


@dataclass(frozen=True)
class MeshInstructions(Instructions):
    """A mesh, as a rank of it has to know it.

    sizes         of the mesh, outermost axis first
    coordinate    this rank's
    axes          a list of [names, ranks, index of the case's group]: every group of axes
    """

    sizes: dict[str, int]
    coordinate: dict[str, int]
    axes: list[Any]


def mesh_of(instructions: MeshInstructions, groups: list) -> Mesh:
    ranks = {tuple(names): ranks for names, ranks, _ in instructions.axes}
    made = {tuple(names): groups[index] for names, _, index in instructions.axes}
    return _Mesh(instructions.sizes, device(), _Place(instructions.coordinate, ranks, made))
