"""A run that survives: killed at any step and called again, it has the losses of a run that never stopped.

    the newest checkpoint, else the start  ->  step  ->  step  ->  save  ->  step  ->  ...

To the last bit, on the same layout, since everything that a step reads comes back: parameters and the
optimizer's state from the checkpoint, and the rows from the number of the step.
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
    """Train until `steps` steps are finished; the losses of all of them, also of earlier calls.

    make: builds the run from its start, and returns a step and a function without arguments that gives this
        rank's tensors and their boxes: `step, lambda: held_state(step)` of a `make_step`. It is called anew
        after a death.
    batches: inputs and targets of a step, by its number from 0 on, and by nothing else.
    every: a save after that many finished steps; after the last one there is a save, too.
    disk: as `save_run` takes it: a `Folder` or a path, seen by all ranks, of this run alone.

    All ranks of the world call it, or one process without ranks. If it is killed at any moment, the next call
    goes on from the newest checkpoint that is whole, and at most `every` steps are done again. The losses are
    bitwise those of an undisturbed run on the same layout and machine.

    Raises ValueError for `every` below 1, and if the checkpoint lacks what this layout wants: then it is of
    another run.
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
