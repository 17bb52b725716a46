"""A run that survives: killed at any step and called again, it has the losses of a run that never stopped.

    the newest checkpoint, else the start  ->  step  ->  step  ->  save  ->  step  ->  ...

The losses agree to the last bit on the same layout, because everything a step reads comes back. Parameters
and the optimizer's state come from the checkpoint, and the rows from the number of the step.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from .checkpoints import Pieces, Where, load_run, save_run

Step = Callable[[Tensor, Tensor], float]


def train(
    make: Callable[[], tuple[Step, Callable[[], Pieces]]],
    batches: Callable[[int], tuple[Tensor, Tensor]],
    steps: int,
    disk: Where,
    every: int,
) -> list[float]:
    """Train until `steps` steps are finished; returns the losses of all of them, including earlier calls.

    make: builds the run from its start. It returns a step, and a function without arguments that returns this
        rank's tensors and their boxes: `step, lambda: held_state(step)` for a `make_step`. It is called again
        after a death.
    batches: inputs and targets of a step. They must depend only on its number, which counts from 0.
    every: save after that many finished steps, and also after the last one.
    disk: a `Folder` or a path, as for `save_run`. All ranks see it, and only this run uses it.

    All ranks of the world call it, or one process without ranks. If it is killed at any moment, the next call
    continues from the newest whole checkpoint and repeats at most `every` steps. The losses are bitwise equal
    to those of an undisturbed run on the same layout and machine.

    Raises ValueError for `every` below 1, and if the checkpoint lacks something this layout wants, because
    then it belongs to another run.
    """
    if every < 1:
        raise ValueError(f"every={every}: a save comes after 1 finished step or more")
    step, held = make()
    losses = load_run(disk, held())
    while len(losses) < steps:
        losses.append(step(*batches(len(losses))))
        if len(losses) % every == 0 or len(losses) == steps:
            save_run(disk, losses, held())
    return losses[:steps]
