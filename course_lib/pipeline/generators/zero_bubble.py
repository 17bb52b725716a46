"""Only half of a backward is urgent.

The stage before waits for the gradient of the input (I), but no stage waits for the gradient of the weights
(W). So a rank does I immediately, and W when it would otherwise idle. F, I and W also name their times for
one microbatch on one rank.

Source: Qi, Wan, Huang, Lin: Zero Bubble Pipeline Parallelism, ICLR 2024 (arXiv 2401.10241), where I is called
B, sections 2.1 and 2.2, figure 3, table 2; for ZB-V section 6, figure 8.
"""

from __future__ import annotations

from ..actions import Action, Pair
from .row import Row, counted


def zero_bubble_h1(stages: int, microbatches: int) -> list[list[Action | Pair]]:
    """ZB-H1: 1F1B, with W so late that stage i always has i W in store for the end.

    Each rank idles (p-1)(F+I-W), a third of 1F1B's bubble if F = I = W. It takes no more memory than with
    1F1B, because on stage i min(m, p-i) microbatches await I, and up to i more await W. The formula needs
    W <= F and W <= I.

    Raises ValueError if m < p, for which the paper gives no such schedule. Rank i cannot have i W in store,
    and if F = I = W no order of the actions idles so little, since rank 0 has only m F to do until its first
    I, which comes after p F and p-1 I.
    """
    counted(stages, microbatches, least=stages)
    return [_handmade(stages, microbatches, rank, ahead=1) for rank in range(stages)]


def zero_bubble_h2(stages: int, microbatches: int) -> list[list[Action | Pair]]:
    """ZB-H2: twice the warm-up, and no bubble between a rank's first action and its last.

    Each rank idles (p-1)(F+I-2W) of its own span, which is nothing if F = I = W. It begins later and ends
    later than the rank before, so the next step must start without a barrier. On stage i, min(m, 2(p-i)-1)
    microbatches await I, and up to 2i more await W, which takes about twice 1F1B's memory. The formula needs
    m >= 2p-1, W <= F and W <= I.
    """
    counted(stages, microbatches, least=2 * stages - 1)
    return [_handmade(stages, microbatches, rank, ahead=2) for rank in range(stages)]


def _handmade(stages: int, microbatches: int, rank: int, ahead: int) -> list[Action | Pair]:
    """`ahead` forwards of warm-up for each stage below, and `ahead` W in store for each above."""
    row = Row({rank: range(microbatches)})
    for _ in range(ahead * (stages - 1 - rank)):
        row.do("F", rank)
    for k in range(microbatches):
        row.do("F", rank)
        row.do("I", rank)
        if k >= ahead * rank:
            row.weight()
    row.weights()
    return row.actions


def zero_bubble_v(stages: int, microbatches: int) -> list[list[Action | Pair]]:
    """ZB-V: two chunks per rank, on a V, so rank i holds stages i and 2p-1-i, each half of its layers.

    The last stage is on rank 0, like the first, so the first I comes early. If F = I = W, no rank idles
    between its first action and its last, with p microbatches' worth of activations on every rank (2p of half
    its layers). So the bubble is as small as in ZB-H2, and the memory is the same as in 1F1B. Both need
    m >= 2p-1, since fewer microbatches, as well as other durations, leave gaps.

    A gap is filled with the oldest W in store. Any other would do as well, since no stage waits for a W and
    all W of a rank have the same size. PyTorch's ScheduleZBVZeroBubble takes another W, and its schedule is
    just as long.
    """
    counted(stages, microbatches)
    return [_v(stages, microbatches, rank) for rank in range(stages)]


def _v(stages: int, microbatches: int, rank: int) -> list[Action | Pair]:
    down, up = rank, 2 * stages - 1 - rank
    rounds = max(microbatches, 2 * stages - 1)
    row = Row({down: range(microbatches), up: range(microbatches)})
    for _ in range(2 * (stages - rank) - 1):
        row.do("F", down)
    for _ in range(rank):
        row.do("F", up, down)
    for _ in range(stages - rank):
        _full(row, up)
    for _ in range(rounds - stages):
        _full(row, down)
        _full(row, up)
    for _ in range(rank):  # no forwards are left, so I first, and W later, instead of bubbles
        row.do("I", down, up)
    for _ in range(stages - rank):
        row.do("I", down)
        row.weight()
    row.weights()
    return row.actions


def _full(row: Row, stage: int) -> None:
    """1F-1I-1W on a stage, the steady state."""
    row.do("F", stage)
    row.do("I", stage)
    row.weight()
