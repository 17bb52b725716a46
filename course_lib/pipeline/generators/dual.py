"""From both ends at the same time, so that there is always a forward to overlap with a backward.

Source: DeepSeek-V3 Technical Report (arXiv 2412.19437), section 3.2.1, figure 5 and table 2, and the
authors' implementation, github.com/deepseek-ai/DualPipe. DualPipeV is DualPipe cut in half.
"""

from __future__ import annotations

from ..actions import Action, Pair
from .row import Row, counted


def dualpipe(stages: int, microbatches: int) -> list[list[Action | Pair]]:
    """DualPipe: two copies of the model in opposite directions; half of the microbatches enter at each end.

    Rank i holds stage i of one copy and stage p-1-i of the other, numbered p + (p-1-i); the first m/2
    microbatches go through stages 0 to p-1, the others through p to 2p-1. Pass `copies=2` to `validate` and
    `simulate`. Each rank idles (p/2-1)(F&B + B - 3W), where F&B is the time of a pair computed as one block,
    and B the time of a whole backward. It holds up to p+1 activations, and the weights twice. The formula
    needs F = I >= W. If a pair takes less than F + B, only the ranks of the middle idle for so long, while
    the others idle less. The schedule needs an even p, and an even m of at least 2p.
    """
    if stages % 2:
        raise ValueError(
            f"stages={stages}: DualPipe needs an even number, as its two ends meet in the middle"
        )
    counted(stages, microbatches, least=2 * stages, unit=2)
    half = microbatches // 2
    rows = []
    for rank in range(stages):
        down, up = rank, 2 * stages - 1 - rank
        row = Row({down: range(half), up: range(half, microbatches)})
        near, far = (down, up) if rank < stages // 2 else (up, down)
        _dual(row, near, far, stages // 2, min(rank, stages - 1 - rank), half)
        rows.append(row.actions)
    return rows


def dualpipe_v(stages: int, microbatches: int) -> list[list[Action | Pair]]:
    """DualPipeV: one half of DualPipe, with one end of the model folded back to the other.

    Rank i holds stages i and 2p-1-i of one copy, as in ZB-V, and does what rank i of DualPipe on 2p ranks
    does. Each rank idles (p-1)(F&B + B - 3W), in times of one stage, and holds up to 2p+1 activations of one
    stage. The schedule needs m >= 2p, and the formula has the same conditions as for DualPipe.
    """
    counted(stages, microbatches, least=2 * stages)
    rows = []
    for rank in range(stages):
        down, up = rank, 2 * stages - 1 - rank
        row = Row({stage: range(microbatches) for stage in (down, up)})
        _dual(row, down, up, stages, rank, microbatches)
        rows.append(row.actions)
    return rows


def _dual(row: Row, near: int, far: int, half: int, place: int, microbatches: int) -> None:
    """The eight phases.

    `near` is the stage whose end of the pipeline is `place` ranks away. `far` is the stage of the other
    direction, which comes over the middle, where rank `half` - 1 is.
    """
    below = half - 1 - place
    for _ in range(2 * below):  # fill from the near end
        row.do("F", near)
    for _ in range(place + 1):  # both directions go forward
        row.do("F", near, far)
    for _ in range(below):  # the first microbatches of the far direction come back
        row.do("I", far)
        row.weight()
        row.do("F", far)
    for k in range(microbatches - 2 * half + place + 1):  # the steady state, always a pair
        if k == 0 and below == 0:
            row.do("F", near)  # in the middle two apart, as the backward must not wait
            row.do("B", far)
        else:
            row.pair(near, far)
        row.pair(far, near)
    for _ in range(below):  # the near end has no forwards left
        row.do("B", far)
        row.pair(far, near)
    for k in range(2 * (place + 1)):  # nor has the far end: from halfway on, W is kept for the end
        kind = "I" if k > place else "B"
        row.do(kind, near if k % 2 else far)
    for _ in range(below):
        row.weight()
        row.do("I", near)
    row.weights()
