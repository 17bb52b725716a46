"""The trainer trains one model in any layout. Begin with step.py.

    step.py         make_step: takes a layout as data, and returns a function that makes a training step
    layouts.py      FIFTEEN, NINE: the layouts that are compared, as data
    costs.py        layout_costs: bytes a rank sends in a step, by axis, and the parameters it holds
    parity.py       smallest_failing: which axes a wrong layout needs in order to fail
    checkpoints.py  save_run, load_run: a run's tensors and losses on a disk
    broken.py       step_a, step_b, step_c: wrong steps, for which smallest_failing finds the axes to look at
    resuming.py     train: killed at any step and called again, it has the losses of an undisturbed run
    state.py        held_state, load_model: a rank's part of a run by name; a whole model made of the parts
    ready_made.py   distribute: the same with PyTorch's own classes, for replicas and for shards
    suspects.py     suspect_a, suspect_b, suspect_c: alike on eight ranks, but not on 1,024
    writing.py      generate: the bytes a trained GPT writes

    mesh = Mesh({"pp": 2, "dp": 2, "tp": 2})
    step = make_step(config, Layout(mesh.sizes), mesh, batch_size=8, lr=0.1)
    loss = step(inputs, targets)

The package composes the other packages. Its only algorithm of its own is the order. The names are imported
when they are first used, so the other names still work while an exercise hides a module. No module has the
name of its function, because it would replace that function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exports import exports

if TYPE_CHECKING:
    from .broken import step_a, step_b, step_c
    from .checkpoints import load_run, save_run
    from .costs import layout_costs
    from .layouts import FIFTEEN, NINE, ROWS
    from .parity import smallest_failing
    from .ready_made import distribute
    from .resuming import train
    from .state import held_state, load_model
    from .step import SGD, Step, make_step
    from .suspects import suspect_a, suspect_b, suspect_c
    from .writing import generate

__getattr__, __dir__, __all__ = exports(__name__)
