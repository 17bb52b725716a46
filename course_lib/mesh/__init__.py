"""The mesh: how are the axes combined?

    coordinates.py   coordinates, axis_ranks: where a rank is on each axis, and the ranks of its groups
    mesh.py          Mesh: the ranks as a grid, with a process group for each axis
    parts.py         my_part: the rows and the positions that a rank reads
    stages.py        mesh_stages: a model, cut over all axes; the one place that knows where the cuts meet
    step.py          hybrid_step, train_step: all axes, in the order in which they are applied. Begin here
    boxes.py         held_boxes: the part of each tensor that a rank holds, as a checkpoint has to know it
    norm.py          clip_grad_norm: the norm of a gradient that no rank holds
    trial.py         one_step: a step of a small GPT, for notebooks that measure it

    mesh = Mesh({"pp": 2, "dp": 2, "cp": 1, "tp": 2})
    schedule = one_f_one_b(mesh.size("pp"), microbatches)
    stages = mesh_stages(GPT(config), mesh, schedule)
    loss = hybrid_step(stages, schedule, rows_of_this_replica, mesh)

The names are imported when they are first used, so the other names can be used while an exercise hides a
module. `coordinates` has its module's name, so import it with `from course_lib.mesh.coordinates import ...`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exports import exports

if TYPE_CHECKING:
    from .boxes import held_boxes
    from .coordinates import axis_ranks
    from .mesh import Mesh, Place
    from .norm import clip_grad_norm
    from .parts import my_part
    from .stages import cut_names, expert_names, mesh_stages, parameters, tied_names
    from .step import hybrid_step, train_step

__getattr__, __dir__, __all__ = exports(__name__)
